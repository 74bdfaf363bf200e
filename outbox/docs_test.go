package outbox

import (
	"testing"

	"github.com/walpost/walpost/internal/doctest"
)

func TestTheCodeOfTheDocumentCompiles(t *testing.T) {
	doctest.Compiled(t, "../docs/outbox.md", 3, "example_test.go", "outboxtest/outboxtest_test.go", "s3store/example_test.go", "../examples/libraries/libraries.go")
}
