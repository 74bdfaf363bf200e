package conf

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

// A Secret never prints itself: not by fmt, not in JSON, not in a log. string(s) is its value.
// Beside each Secret there is a field that may name a file with the value instead.
type Secret string

func (s Secret) String() string {
	if s == "" {
		return ""
	}
	return "(secret)"
}

// GoString is what %#v prints.
func (s Secret) GoString() string { return strconv.Quote(s.String()) }

// MarshalText is what encoders write.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// Or returns what the file has now, or the secret itself if there is no file.
func (s Secret) Or(file string) (string, error) {
	if file == "" {
		return string(s), nil
	}
	return readSecret(file)
}

// Check adds what is wrong with a secret and its file. The file's field is field_file.
func (s Secret) Check(ps *Problems, field, file string) {
	if s != "" && file != "" {
		ps.Add(field+"_file", Contradicts, field+": set only one of the two", nil)
		return
	}
	_, err := s.Or(file)
	ps.Try(field+"_file", err)
}

// maxSecret is more than any password or token has.
const maxSecret = 1 << 20

// readSecret returns the content of a file without the end of its last line, which editors add. A
// file without content is an error.
func readSecret(path string) (string, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	if len(text) > maxSecret {
		return "", fmt.Errorf("must be at most %d bytes (%s is larger)", maxSecret, path)
	}
	secret := strings.TrimRight(string(text), "\r\n")
	if secret == "" {
		return "", fmt.Errorf("must not be empty (%s)", path)
	}
	return secret, nil
}
