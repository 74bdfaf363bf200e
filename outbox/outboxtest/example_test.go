package outboxtest_test

import (
	"database/sql"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/walpost/walpost/outbox"
	"github.com/walpost/walpost/outbox/outboxtest"
)

// The tested code writes in the transaction of the test, which is rolled back.
func ExampleWritten() {
	var t *testing.T // of the test
	var tx pgx.Tx    // in which the tested code has written

	outboxtest.Expect(t, outboxtest.Written(t, tx), outbox.Event{AggregateID: "4711", Type: "OrderPlaced"})
}

// The tested code commits by itself. Tests in parallel pass the ids that they use.
func ExampleSince() {
	var t *testing.T // of the test
	var db *sql.DB
	order := struct{ Total int }{1250}
	placeOrder := func(db *sql.DB, id string, order any) {}

	committed := outboxtest.Since(t, db) // a pool or a connection
	placeOrder(db, "4711", order)
	outboxtest.Expect(t, committed("4711"), outbox.Event{Type: "OrderPlaced", Payload: order})
}

func ExampleWrittenTo() {
	var t *testing.T
	var tx *sql.Tx
	var orders *outbox.Outbox // of the tested service

	outboxtest.Expect(t, outboxtest.WrittenTo(t, orders, tx), outbox.Event{AggregateID: "4711", Type: "OrderPlaced"})
}

func ExampleSinceIn() {
	var t *testing.T // of the test
	var db *sql.DB
	orders, err := outbox.New(outbox.Options{Table: "shop.outbox"}) // of the tested service
	if err != nil {
		t.Fatal(err)
	}

	committed := outboxtest.SinceIn(t, orders, db)
	// …
	outboxtest.Expect(t, committed()) // nothing was written
}
