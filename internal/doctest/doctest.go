// Package doctest compares the code of a page with code that the compiler reads. Only tests use it.
package doctest

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

var (
	block  = regexp.MustCompile("(?ms)^```go\n(.*?)^```$")
	indent = regexp.MustCompile(`(?m)^[ \t]+`)
)

// Compiled fails t unless page has at least least blocks of Go, and each of them stands in one of the
// files. Only the indentation may differ.
func Compiled(t testing.TB, page string, least int, files ...string) {
	t.Helper()
	read := func(name string) string {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	flat := func(code string) string { return indent.ReplaceAllString(code, "") }
	var code strings.Builder
	for _, file := range files {
		code.WriteString(flat(read(file)))
	}
	blocks := block.FindAllStringSubmatch(read(page), -1)
	for _, b := range blocks {
		if !strings.Contains(code.String(), flat(b[1])) {
			t.Errorf("%s: no example has this code:\n%s", page, b[1])
		}
	}
	if len(blocks) < least {
		t.Errorf("%s has %d blocks of Go, want at least %d", page, len(blocks), least)
	}
}
