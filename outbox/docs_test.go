package outbox

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// The code of docs/outbox.md is code of the examples, which the compiler reads. Only the
// indentation may differ.
func TestTheCodeOfTheDocumentIsCompiled(t *testing.T) {
	flat := func(s string) string { return regexp.MustCompile(`(?m)^[ \t]+`).ReplaceAllString(s, "") }
	document, err := os.ReadFile("../docs/outbox.md")
	if err != nil {
		t.Fatal(err)
	}
	var code string
	for _, file := range []string{"example_test.go", "outboxtest/outboxtest_test.go"} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		code += flat(string(text))
	}
	blocks := regexp.MustCompile("(?ms)^```go\n(.*?)^```$").FindAllStringSubmatch(string(document), -1)
	for _, block := range blocks {
		if !strings.Contains(code, flat(block[1])) {
			t.Errorf("no example has this code:\n%s", block[1])
		}
	}
	if len(blocks) < 3 {
		t.Errorf("%d blocks of code", len(blocks))
	}
}
