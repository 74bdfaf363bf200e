// Package outboxtest helps to test code that writes events.
//
// For code that gets its transaction from the caller, use Written: the test begins the transaction,
// and rolls it back. For code that commits its own transaction, use Since.
package outboxtest

import (
	"fmt"
	"slices"
	"testing"

	"github.com/walpost/walpost/internal/lib/anytx"
	"github.com/walpost/walpost/internal/lib/outboxtable"
	"github.com/walpost/walpost/outbox"
)

// Written returns the events that the transaction tx has written to public.outbox, in order. It
// runs within the transaction, which the test can roll back afterwards. A Payload is []byte as
// stored in the table, or outbox.Null.
func Written(t testing.TB, tx any) []outbox.Event {
	t.Helper()
	return WrittenTo(t, standard(t), tx)
}

// WrittenTo is Written for the table of an Outbox.
func WrittenTo(t testing.TB, o *outbox.Outbox, tx any) []outbox.Event {
	t.Helper()
	from, err := anytx.Of(t.Context(), tx)
	if err != nil {
		t.Fatal(err)
	}
	// The time of a row is the time at which its transaction began.
	events, _, err := read(t.Context(), o, from, outboxtable.DefaultTimeColumn+" = now()")
	if err != nil {
		t.Fatal(err)
	}
	return events
}

// Since begins to watch public.outbox. Each call of the function that it returns returns the events
// committed since then, in order. With aggregateIDs, it returns only the events with one of them,
// so tests that share a database, in parallel or in several processes, should use their own ids. db
// is a pool or a connection, of pgx or database/sql, and needs SELECT on the table.
//
// The order is that of seq. Events that were written before the call of Since but committed after
// it can be included.
func Since(t testing.TB, db any) (committed func(aggregateIDs ...string) []outbox.Event) {
	t.Helper()
	return SinceIn(t, standard(t), db)
}

// SinceIn is Since for the table of an Outbox.
func SinceIn(t testing.TB, o *outbox.Outbox, db any) (committed func(aggregateIDs ...string) []outbox.Event) {
	t.Helper()
	from, err := anytx.Any(db)
	if err != nil {
		t.Fatal(err)
	}
	_, before, err := read(t.Context(), o, from, "false")
	if err != nil {
		t.Fatal(err)
	}
	return func(aggregateIDs ...string) []outbox.Event {
		t.Helper()
		events, _, err := read(t.Context(), o, from, fmt.Sprintf("%s > %d", outboxtable.DefaultOrderColumn, before))
		if err != nil {
			t.Fatal(err)
		}
		return slices.DeleteFunc(events, func(e outbox.Event) bool {
			return len(aggregateIDs) > 0 && !slices.Contains(aggregateIDs, e.AggregateID)
		})
	}
}

func standard(t testing.TB) *outbox.Outbox {
	t.Helper()
	o, err := outbox.New(outbox.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return o
}
