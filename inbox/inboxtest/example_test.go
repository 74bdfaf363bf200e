package inboxtest_test

import (
	"context"
	"database/sql"
	"testing"

	"github.com/walpost/walpost/inbox"
	"github.com/walpost/walpost/inbox/inboxtest"
)

func ExampleTwice() {
	var t *testing.T // of the test
	var handler func(ctx context.Context, m inbox.Message) error
	var bookings func() []string // what the database has

	m := inboxtest.Message(t, inboxtest.Event{AggregateType: "order", AggregateID: "4711", Type: "OrderPlaced", Payload: map[string]any{"total": 1250}})
	inboxtest.Twice(t, handler, m, bookings)
}

func ExampleFails() {
	var t *testing.T // of the test
	var handler func(ctx context.Context, m inbox.Message) error
	var bookings func() []string

	bad := inboxtest.Message(t, inboxtest.Event{AggregateType: "order", AggregateID: "4711", Type: "OrderPlaced", Payload: []byte("not JSON")})
	err := inboxtest.Fails(t, handler, bad, bookings)
	if !inbox.IsPermanent(err) {
		t.Errorf("the message would be tried again: %v", err)
	}
}

// A function that writes in a transaction of the inbox. Twice also interrupts it before its commit.
func ExampleHandler() {
	var t *testing.T // of the test
	var pool *sql.DB
	var order any
	db := inbox.SQL(pool)
	book := func(ctx context.Context, tx *sql.Tx, m inbox.Message) error {
		_, err := tx.ExecContext(ctx, "INSERT INTO bookings SELECT $1::jsonb", m.Value)
		return err
	}
	bookings := func() (n int) {
		if err := pool.QueryRowContext(t.Context(), "SELECT count(*) FROM bookings").Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}

	m := inboxtest.Message(t, inboxtest.Event{AggregateType: "order", AggregateID: "4711", Type: "OrderPlaced", Payload: order})
	inboxtest.Twice(t, inboxtest.Handler(db, book), m, bookings)
}
