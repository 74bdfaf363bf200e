package flight

import (
	"testing"

	"github.com/walpost/walpost/cdc"
)

// A letter is whole once it is acknowledged and read back, in either order, and only once.
func TestALetterIsWaitedForUntilItIsAcknowledgedAndReadBack(t *testing.T) {
	var l Letters
	if known, _ := l.Acked(cdc.Ticket{Commit: 7}); known {
		t.Error("a record that is no letter is known")
	}
	first, second := cdc.Ticket{Commit: 7, Row: 1, Size: 10}, cdc.Ticket{Commit: 7, Row: 2, Size: 20}
	l.Expect("a", 7, 1)
	l.Expect("b", 7, 2)
	if known, whole := l.Acked(first); !known || whole {
		t.Errorf("a is known: %t, and whole before it was read back: %t", known, whole)
	}
	if _, whole := l.Back("b"); whole {
		t.Error("b is whole before it was acknowledged")
	}
	if ticket, whole := l.Back("a"); !whole || ticket != first {
		t.Errorf("a is whole: %t, with %+v", whole, ticket)
	}
	if _, whole := l.Back("a"); whole {
		t.Error("a is whole twice")
	}
	if known, whole := l.Acked(second); !known || !whole || l.Len() != 0 {
		t.Errorf("b is known: %t, whole: %t; then %d letters are waited for", known, whole, l.Len())
	}
}
