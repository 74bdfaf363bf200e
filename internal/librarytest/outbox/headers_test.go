package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime"
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

// Headers need their column, which an error gives. Who has no such column says so.
func TestATableWithoutTheColumnHeaders(t *testing.T) {
	traced := func(context.Context) map[string]string { return map[string]string{"traceparent": "00-0a"} }
	o, err := outbox.New(outbox.Options{FromContext: traced})
	if err != nil {
		t.Fatal(err)
	}
	none, err := outbox.New(outbox.Options{FromContext: traced, Headers: []string{}})
	if err != nil {
		t.Fatal(err)
	}
	up, _ := none.DDL()
	if placed := none.Placement(); placed != "event_type:header:eventType" || strings.Contains(up, "headers ") {
		t.Errorf("placement %s, DDL %s", placed, up)
	}
	pg := testenv.Postgres(t, "")
	dsn := pg.Database(t)
	pg.Exec(t, dsn, up)
	tx := begin(t, dsn, "cache_statement")
	if err := none.Write(t.Context(), tx, event("1", nil)); err != nil {
		t.Fatal(err)
	}
	if written := outboxtest.WrittenTo(t, none, tx); len(written) != 1 || written[0].Headers != nil {
		t.Errorf("written %v", written)
	}
	var refused *outbox.EventError
	if err := none.Write(t.Context(), tx, event("2", map[string]string{"a": "b"})); !errors.As(err, &refused) || !strings.Contains(err.Error(), `no column for the header "a"`) {
		t.Errorf("an event with headers: %v", err)
	}
	const fix = `ALTER TABLE "public"."outbox" ADD COLUMN headers jsonb`
	err = o.Write(t.Context(), tx, event("2", nil))
	if err == nil || !strings.Contains(err.Error(), "SQLSTATE 42703): run "+fix+", or set Options.Headers") {
		t.Errorf("a headers column is needed: %v", err)
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
	if _, err := tx.Exec(t.Context(), "ALTER TABLE outbox ALTER headers TYPE text; UPDATE outbox SET headers = 'tenant 7'"); err != nil {
		t.Fatal(err)
	}
	said := make(chan string, 1)
	go func() {
		defer close(said)
		outboxtest.Written(fatalTest{t, said}, tx)
	}()
	if got := <-said; got != `read public.outbox: the column headers has no JSON object ("tenant 7")` {
		t.Errorf("a text: %q", got)
	}
}

// A fatalTest says why it ends.
type fatalTest struct {
	testing.TB
	said chan<- string
}

func (f fatalTest) Fatal(args ...any) {
	f.said <- fmt.Sprint(args...)
	runtime.Goexit()
}

// Write refuses headers that would be in no record, and more than the relay takes.
func TestHeadersThatNoRecordHas(t *testing.T) {
	o, err := outbox.New(outbox.Options{FromContext: func(context.Context) map[string]string {
		return map[string]string{"eventType": "of the context"}
	}})
	if err != nil {
		t.Fatal(err)
	}
	many := map[string]string{}
	for i := range 1000 {
		many[fmt.Sprint(i)] = "x"
	}
	more := maps.Clone(many)
	more["more"] = "x"
	for _, c := range []struct {
		headers map[string]string
		want    string
	}{
		{nil, ""},
		{many, ""},
		{more, "event 0 (\"OrderPlaced\" \"order\" \"1\"): Headers: has 1001 headers, more than 1000"},
		{map[string]string{"id": "x"}, `the header "id" is walpost's own`},
		{map[string]string{"walpost.origin": "x"}, `the header "walpost.origin" is walpost's own`},
		{map[string]string{"eventType": "x"}, `the header "eventType" is walpost's own`},
	} {
		err := o.Write(t.Context(), new(recorder), event("1", c.headers))
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%.50q: %v", fmt.Sprint(c.headers), err)
		}
	}
	for _, name := range []string{"eventType", "walpost.origin"} {
		if _, err := outbox.New(outbox.Options{Headers: []string{name}}); err == nil || !strings.Contains(err.Error(), "is walpost's own") {
			t.Errorf("a column %s: %v", name, err)
		}
	}
}
