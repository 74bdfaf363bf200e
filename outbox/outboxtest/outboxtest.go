// Package outboxtest helps to test code that writes events.
package outboxtest

import (
	"testing"

	"github.com/walpost/walpost/outbox"
)

// Written returns the events that the transaction tx has written to public.outbox, in their order.
// It works within the transaction, which the test can roll back afterwards. A Payload is []byte as
// the table has it, or outbox.Null.
func Written(t testing.TB, tx any) []outbox.Event {
	t.Helper()
	o, err := outbox.New(outbox.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return WrittenTo(t, o, tx)
}

// WrittenTo is Written for the table of an Outbox.
func WrittenTo(t testing.TB, o *outbox.Outbox, tx any) []outbox.Event {
	t.Helper()
	events, err := o.Written(t.Context(), tx)
	if err != nil {
		t.Fatal(err)
	}
	return events
}
