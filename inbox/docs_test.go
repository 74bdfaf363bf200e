package inbox

import (
	"testing"

	"github.com/walpost/walpost/internal/doctest"
)

func TestTheCodeOfTheDocumentCompiles(t *testing.T) {
	doctest.Compiled(t, "../docs/inbox.md", 4, "example_test.go")
}
