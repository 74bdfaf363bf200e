package outbox_test

import (
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/walpost/walpost/internal/testenv"
	"github.com/walpost/walpost/outbox"
	"github.com/walpost/walpost/outbox/outboxtest"
)

// Written sees what its transaction has written, also in savepoints, and nothing else.
func TestWrittenIsOfThisTransaction(t *testing.T) {
	pg := testenv.Postgres(t, "")
	for _, typ := range []string{"jsonb", "text", "bytea"} {
		o, err := outbox.New(outbox.Options{PayloadType: typ, Headers: []string{"tenant"}})
		if err != nil {
			t.Fatal(err)
		}
		dsn := pg.Database(t)
		up, _ := o.DDL()
		pg.Exec(t, dsn, up)
		begin := func() pgx.Tx {
			conn, err := pgx.Connect(t.Context(), dsn)
			if err != nil {
				t.Fatal(err)
			}
			tx, err := conn.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = conn.Close(t.Context()) })
			return tx
		}
		write := func(tx pgx.Tx, events ...outbox.Event) {
			t.Helper()
			if err := o.Write(t.Context(), tx, events...); err != nil {
				t.Fatal(err)
			}
		}
		event := func(id string) outbox.Event {
			return outbox.Event{AggregateType: "order", AggregateID: id, Type: "t", Payload: []byte(`{"a": "ä"}`)}
		}
		before, open, tx := begin(), begin(), begin()
		write(before, event("before"))
		if err := before.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		write(open, event("of another transaction"))
		if got := outboxtest.WrittenTo(t, o, tx); len(got) != 0 {
			t.Errorf("before Write: %v", got)
		}
		with := event("1")
		with.ID, with.Headers = outbox.NewID(), map[string]string{"tenant": "acme"}
		write(tx, with)
		inner, err := tx.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		null := event("2")
		null.Payload = outbox.Null
		write(inner, null)
		if err := inner.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		if inner, err = tx.Begin(t.Context()); err != nil {
			t.Fatal(err)
		}
		write(inner, event("rolled back"))
		if err := inner.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
		got := outboxtest.WrittenTo(t, o, tx)
		if len(got) != 2 {
			t.Fatalf("%s: %v", typ, got)
		}
		if fmt.Sprintf("%q", got[0]) != fmt.Sprintf("%q", with) {
			t.Errorf("%s: %q, want %q", typ, got[0], with)
		}
		if got[1].AggregateID != "2" || got[1].Payload != outbox.Null || got[1].Headers != nil {
			t.Errorf("%s: %q", typ, got[1])
		}
		if all := outboxtest.Written(t, tx); len(all) != 2 && typ != "bytea" {
			t.Errorf("%s: without the headers %v", typ, all)
		}
		if err := open.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}
