// Package secret reads passwords and tokens from files. All of walpost reads them here, so that a file that is refused at the start is refused
// later, too.
package secret

import (
	"fmt"
	"io"
	"os"
	"strings"
)

// maxSize is more than any password or token has.
const maxSize = 1 << 20

// Read returns the content of a file without the end of its last line. A file without content is an error.
func Read(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }() // opened for reading only
	text, err := io.ReadAll(io.LimitReader(f, maxSize+1))
	if err != nil {
		return "", err
	}
	if len(text) > maxSize {
		return "", fmt.Errorf("must be at most %d bytes (%s is larger)", maxSize, path)
	}
	secret := strings.TrimRight(string(text), "\r\n")
	if secret == "" {
		return "", fmt.Errorf("must not be empty (%s)", path)
	}
	return secret, nil
}
