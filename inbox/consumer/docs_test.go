package consumer_test

import (
	"testing"

	"github.com/walpost/walpost/internal/doctest"
)

func TestTheCodeOfTheDocumentCompiles(t *testing.T) {
	doctest.Compiled(t, "../../docs/consumer.md", 2, "example_test.go")
}
