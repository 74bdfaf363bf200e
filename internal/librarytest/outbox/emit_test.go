package outbox_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/walpost/walpost/internal/testenv"
	"github.com/walpost/walpost/outbox"
)

// An emitted event is a transactional message in the WAL, with the columns that Write would fill.
func TestEmitWritesTheColumnsIntoTheWAL(t *testing.T) {
	pg := testenv.Postgres(t, "")
	dsn := pg.Database(t) // it has no table
	pg.Exec(t, dsn, "SELECT pg_create_logical_replication_slot('emit_' || current_database(), 'test_decoding')")
	const id = "0190a000-0000-7000-8000-000000000001"
	event := func(payload any) outbox.Event {
		return outbox.Event{ID: id, AggregateType: "order", AggregateID: "ä\"1", Type: "t", Payload: payload, Headers: map[string]string{"tenant": "a<b"}}
	}
	begin := `{"id":"` + id + `","aggregate_type":"order","aggregate_id":"ä\"1","event_type":"t","payload":`
	const end = `,"tenant":"a\u003cb","traceparent":null}`
	var want []string
	for _, library := range []string{"pgx", "pgx simple protocol", "database/sql with lib/pq"} {
		for _, c := range []struct {
			typ     string
			payload any
			text    string
		}{
			{"jsonb", []byte(`{"a" :1.0}`), `{"a" :1.0}`}, {"json", outbox.Null, "null"}, {"text", []byte(`{"a" :1}`), `"{\"a\" :1}"`}, {"bytea", []byte{0, 0xff}, `"AP8="`},
		} {
			o := open(t, outbox.Options{PayloadType: c.typ, Headers: []string{"tenant", "traceparent"}})
			h := handles[library](t, dsn)
			if err := o.Emit(t.Context(), h.tx, "outbox", event(c.payload)); err != nil {
				t.Fatal(err)
			}
			if err := h.commit(); err != nil {
				t.Fatal(err)
			}
			want = append(want, begin+c.text+end)
		}
	}
	h := handles["pgx"](t, dsn)
	if err := outbox.Emit(t.Context(), h.tx, "outbox", placed("rolled back")); err != nil {
		t.Fatal(err)
	}
	if err := h.rollback(); err != nil {
		t.Fatal(err)
	}
	h = handles["pgx"](t, dsn)
	var bad *outbox.EventError
	if err := outbox.Emit(t.Context(), h.tx, "outbox", outbox.Event{}); !errors.As(err, &bad) {
		t.Errorf("an empty event: %v", err)
	}
	for _, prefix := range []string{"", "a\nb", strings.Repeat("x", 201), "\xff"} {
		if err := outbox.Emit(t.Context(), h.tx, prefix, placed("1")); err == nil || !strings.Contains(err.Error(), "the prefix must have") {
			t.Errorf("prefix %q: %v", prefix, err)
		}
	}
	withHeaders := placed("3")
	withHeaders.Headers = map[string]string{"tenant": "a<b"}
	if err := outbox.Emit(t.Context(), h.tx, "outbox", placed("2"), withHeaders); err != nil {
		t.Error(err)
	}
	if err := h.commit(); err != nil {
		t.Fatal(err)
	}
	got := strings.Split(pg.Value(t, dsn, `SELECT string_agg(data, E'\n' ORDER BY n) FROM pg_logical_slot_get_changes('emit_' || current_database(), NULL, NULL) WITH ORDINALITY AS c(lsn, xid, data, n) WHERE data LIKE 'message%'`), "\n")
	if len(got) != len(want)+2 {
		t.Fatalf("%d messages, want %d:\n%s", len(got), len(want)+2, strings.Join(got, "\n"))
	}
	for i, m := range got {
		head, content, _ := strings.Cut(m, " content:")
		if !strings.HasPrefix(head, "message: transactional: 1 prefix: outbox, sz: ") || i < len(want) && content != want[i] {
			t.Errorf("message %s, want %s", m, want[min(i, len(want)-1)])
		}
	}
	if first, second := got[len(want)], got[len(want)+1]; !strings.Contains(first, `"aggregate_id":"2"`) || !strings.Contains(second, `"aggregate_id":"3"`) {
		t.Errorf("the order is %s, %s", first, second)
	} else if !strings.HasSuffix(first, `,"headers":null}`) || !strings.HasSuffix(second, `,"headers":{"tenant":"a\u003cb"}}`) {
		t.Errorf("the headers in %s, %s", first, second)
	}
}
