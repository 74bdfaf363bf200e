// Package outboxtest helps to test code that writes events.
//
// Code that gets its transaction from the caller is tested with Written: the test begins the
// transaction, and rolls it back. Code that commits by itself is tested with Since.
package outboxtest

import (
	"fmt"
	"slices"
	"testing"

	"github.com/walpost/walpost/internal/lib/anytx"
	"github.com/walpost/walpost/internal/lib/outboxtable"
	"github.com/walpost/walpost/outbox"
)

// Written returns the events that the transaction tx has written to public.outbox, in their order.
// It works within the transaction, which the test can roll back afterwards. A Payload is []byte as
// the table has it, or outbox.Null.
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

// Since begins to watch public.outbox. The function that it returns gives the events that were
// committed since then, in their order, each time that it is called. With aggregateIDs, it gives only
// the events with one of them: tests that share a database, in parallel or in several processes,
// use ids of their own. db is a pool or a connection, of pgx or database/sql, and needs SELECT on the
// table.
//
// The order is that of seq. An event whose transaction had written it before the call, and commits
// later, can be among them.
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
