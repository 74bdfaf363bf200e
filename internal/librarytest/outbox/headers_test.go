package outbox_test

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/walpost/walpost/internal/testenv"
	"github.com/walpost/walpost/outbox"
	"github.com/walpost/walpost/outbox/outboxtest"
)

// begin begins a transaction, by a protocol of pgx.
func begin(t *testing.T, dsn, mode string) pgx.Tx {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dsn+"&default_query_exec_mode="+mode)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	tx, err := conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return tx
}

func event(id string, headers map[string]string) outbox.Event {
	return outbox.Event{AggregateType: "order", AggregateID: id, Type: "OrderPlaced", Payload: []byte(`{"a": 1}`), Headers: headers}
}

// All headers of an event are one object, those of the context too.
func TestHeadersAreOneColumn(t *testing.T) {
	const hostile = "a'b\"c\\d{e},f<g>\u00e4\u2028\U0001F600\n\t"
	o, err := outbox.New(outbox.Options{FromContext: func(context.Context) map[string]string {
		return map[string]string{"traceparent": "00-0a", "tenant": "of the context", "id": "is the event's", "walpost.origin": "replay"}
	}})
	if err != nil {
		t.Fatal(err)
	}
	plain, err := outbox.New(outbox.Options{})
	if err != nil {
		t.Fatal(err)
	}
	up, _ := o.DDL()
	pg := testenv.Postgres(t, "")
	for _, mode := range []string{"cache_statement", "exec", "simple_protocol"} {
		dsn := pg.Database(t)
		pg.Exec(t, dsn, up)
		tx := begin(t, dsn, mode)
		if err := o.Write(t.Context(), tx, event("1", nil), event("2", map[string]string{"tenant": hostile, hostile: "", "": "x"})); err != nil {
			t.Fatal(err)
		}
		if err := plain.Write(t.Context(), tx, event("3", map[string]string{}), event("4", map[string]string{"a": "b"})); err != nil {
			t.Fatal(err)
		}
		written := outboxtest.Written(t, tx)
		for i, want := range []map[string]string{
			{"traceparent": "00-0a", "tenant": "of the context"},
			{"traceparent": "00-0a", "tenant": hostile, hostile: "", "": "x"},
			nil,
			{"a": "b"},
		} {
			if len(written) != 4 || !maps.Equal(written[i].Headers, want) {
				t.Errorf("%s: event %d of %d has the headers %q, want %q", mode, i, len(written), written[i].Headers, want)
			}
		}
		if err := tx.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := pg.Value(t, dsn, "SELECT string_agg(coalesce(headers::text, 'NULL'), ' ' ORDER BY seq) FROM outbox WHERE aggregate_id IN ('1', '3', '4')"); got != `{"tenant": "of the context", "traceparent": "00-0a"} NULL {"a": "b"}` {
			t.Errorf("%s: %s", mode, got)
		}
	}
}

// A table from before the column headers has events without headers, and an error says what it lacks.
func TestATableWithoutTheColumnHeaders(t *testing.T) {
	o, err := outbox.New(outbox.Options{})
	if err != nil {
		t.Fatal(err)
	}
	up, _ := o.DDL()
	pg := testenv.Postgres(t, "")
	dsn := pg.Database(t)
	pg.Exec(t, dsn, up, "ALTER TABLE outbox DROP COLUMN headers")
	tx := begin(t, dsn, "cache_statement")
	if err := o.Write(t.Context(), tx, event("1", nil)); err != nil {
		t.Fatal(err)
	}
	if written := outboxtest.Written(t, tx); len(written) != 1 || written[0].Headers != nil {
		t.Errorf("written %v", written)
	}
	const fix = `ALTER TABLE "public"."outbox" ADD COLUMN headers jsonb`
	err = o.Write(t.Context(), tx, event("2", map[string]string{"a": "b"}))
	if err == nil || !strings.Contains(err.Error(), "SQLSTATE 42703): run "+fix+", or name a column") {
		t.Errorf("an event with headers: %v", err)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	pg.Exec(t, dsn, fix, "INSERT INTO outbox (aggregate_type, aggregate_id, event_type, headers) VALUES ('a', '1', 't', 'null')")
	tx = begin(t, dsn, "cache_statement")
	if err := o.Write(t.Context(), tx, event("2", map[string]string{"a": "b"})); err != nil {
		t.Errorf("after the fix: %v", err)
	}
	if _, err := tx.Exec(t.Context(), `INSERT INTO outbox (aggregate_type, aggregate_id, event_type, headers) VALUES ('a', '1', 't', '{"n": 1, "o": {"a": "b"}, "none": null}')`); err != nil {
		t.Fatal(err)
	}
	if written := outboxtest.Written(t, tx); len(written) != 2 || fmt.Sprint(written[1].Headers) != `map[n:1 o:{"a": "b"}]` {
		t.Errorf("of SQL: %v", written)
	}
}
