package inbox

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// Each Go block of the page stands in the examples, which the compiler has read.
func TestTheCodeOfTheDocumentCompiles(t *testing.T) {
	page, err := os.ReadFile("../docs/inbox.md")
	if err != nil {
		t.Fatal(err)
	}
	examples, err := os.ReadFile("example_test.go")
	if err != nil {
		t.Fatal(err)
	}
	words := func(code string) string { return strings.Join(strings.Fields(code), " ") }
	blocks := regexp.MustCompile("(?s)```go\n(.*?)```").FindAllStringSubmatch(string(page), -1)
	for _, b := range blocks {
		if !strings.Contains(words(string(examples)), words(b[1])) {
			t.Errorf("example_test.go has no such code:\n%s", b[1])
		}
	}
	if len(blocks) < 4 {
		t.Errorf("the page has %d blocks of Go", len(blocks))
	}
}
