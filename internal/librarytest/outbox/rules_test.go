package outbox_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"pgregory.net/rapid"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/lib/outboxtable"
	"github.com/walpost/walpost/outbox"
	"github.com/walpost/walpost/router"
)

// relationOf is the table of an outbox as the router sees it.
func relationOf(opts outbox.Options) *cdc.Relation {
	table := outboxtable.Table{Payload: opts.PayloadType, Headers: opts.Headers}
	rel := &cdc.Relation{Schema: "public", Name: "outbox", ReplicaIdentity: 'd'}
	for i, c := range table.Columns() {
		rel.Columns = append(rel.Columns, cdc.Column{Name: c.Name, TypeOID: c.OID, TypeMod: -1, NotNull: strings.Contains(c.Definition, "NOT NULL"), Key: i == 0})
	}
	return rel
}

// texts draws texts that are near the rules: names of topics, and what neither Postgres nor Kafka
// accepts.
func texts(t *rapid.T, label string) string {
	return rapid.OneOf(
		rapid.StringMatching(`[a-zA-Z0-9._-]{0,8}`), rapid.String(), rapid.StringOfN(rapid.SampledFrom([]rune("a.-_")), 230, 260, -1),
		rapid.SampledFrom([]string{"", ".", "..", "a b", "a\nb", "a\x00", "\xff", "é", "outbox.event."}),
	).Draw(t, label)
}

// The router and Write get the same random events: the router refuses none that Write accepts, and
// makes of it the record that the event describes.
func TestTheRouterAcceptsWhatWriteAccepts(t *testing.T) {
	accepted, refused := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		topic := func(aggregateType string) string { return "outbox.event." + aggregateType }
		opts := outbox.Options{PayloadType: rapid.SampledFrom([]string{"jsonb", "json", "text", "bytea"}).Draw(t, "type")}
		columns := rapid.Bool().Draw(t, "a column for the header")
		if columns {
			opts.Headers = []string{"tenant"}
		}
		cfg := router.DefaultConfig()
		if opts.PayloadType == "bytea" {
			cfg.Value.Name = "bytes"
		}
		if rapid.Bool().Draw(t, "own topics") {
			cfg.TopicRegex, cfg.TopicReplacement = "(.*)", "$1"
			topic = func(aggregateType string) string { return aggregateType }
			opts.Topic = topic
		}
		o, err := outbox.New(opts)
		if err != nil {
			t.Fatal(err)
		}
		cfg.AdditionalPlacement = o.Placement()
		r, err := router.New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		e := outbox.Event{AggregateType: texts(t, "aggregate type"), AggregateID: texts(t, "aggregate id"), Type: texts(t, "event type")}
		payload := []byte(rapid.OneOf(rapid.SampledFrom([]string{
			`{"a": [1, null]}`, `"text"`, `""`, ` "\u00e4\n" `, `null`, `1.0`, `false`, strings.Repeat("[", 9999) + strings.Repeat("]", 9999), ` {} `,
		}), rapid.String(), rapid.Just("\xff")).Draw(t, "payload"))
		if e.Payload = outbox.Null; rapid.IntRange(0, 4).Draw(t, "null") > 0 {
			e.Payload = payload
		} else {
			payload = nil
		}
		header := texts(t, "tenant")
		if rapid.Bool().Draw(t, "has a header") {
			e.Headers = map[string]string{"tenant": header}
		}
		var written, sent recorder
		err = o.Write(t.Context(), &written, e)
		id := outbox.NewID()
		if err == nil {
			id = string(written.element(t, 0))
		}
		rel := relationOf(opts)
		ev := &cdc.Event{Kind: cdc.Insert, Row: cdc.Row{Relation: rel, Values: make([]cdc.Value, len(rel.Columns))}}
		set := func(column string, value []byte) { ev.Row.Values[rel.Index(column)].Bytes = value }
		set("id", []byte(id))
		set("aggregate_type", []byte(e.AggregateType))
		set("aggregate_id", []byte(e.AggregateID))
		set("event_type", []byte(e.Type))
		if set("payload", payload); opts.PayloadType == "bytea" && payload != nil {
			set("payload", fmt.Appendf(nil, `\x%x`, payload))
		}
		switch {
		case columns && e.Headers != nil:
			set("tenant", []byte(header))
		case !columns && e.Headers != nil && err == nil:
			set("headers", written.element(t, 5))
		}
		var rec cdc.Record
		routed, problem := r.Route(ev, &rec)
		if err != nil {
			refused++
			return
		}
		accepted++
		if !routed || problem != nil {
			t.Fatalf("Write accepts %+v, and the router does not: %v", e, problem)
		}
		if rec.Topic != topic(e.AggregateType) || string(rec.Key) != e.AggregateID || string(rec.Value) != string(payload) || (rec.Value == nil) != (payload == nil) {
			t.Fatalf("record %s %q %q of %+v", rec.Topic, rec.Key, rec.Value, e)
		}
		e.ID = id
		if err := o.Emit(t.Context(), &sent, "outbox", e); err != nil {
			t.Fatal(err)
		}
		message := &cdc.Event{Kind: cdc.Message, Row: cdc.Row{Relation: cdc.Messages("outbox"), Values: []cdc.Value{{Bytes: sent.element(t, 1)}}}}
		var emitted cdc.Record
		if routed, problem := r.Route(message, &emitted); !routed || problem != nil || fmt.Sprintf("%s %q %q %v %q", emitted.Topic, emitted.Key, emitted.Value, emitted.Value == nil, emitted.Headers) !=
			fmt.Sprintf("%s %q %q %v %q", rec.Topic, rec.Key, rec.Value, rec.Value == nil, rec.Headers) {
			t.Fatalf("emitted, %+v becomes %s %q %q %q: %v", e, emitted.Topic, emitted.Key, emitted.Value, emitted.Headers, problem)
		}
		want := []cdc.Header{{Key: "id", Value: []byte(id)}, {Key: "eventType", Value: []byte(e.Type)}}
		switch {
		case e.Headers != nil:
			want = append(want, cdc.Header{Key: "tenant", Value: []byte(header)})
		case columns: // a column without a value is a header without one
			want = append(want, cdc.Header{Key: "tenant"})
		}
		if got := fmt.Sprintf("%q", rec.Headers); got != fmt.Sprintf("%q", want) {
			t.Fatalf("headers %s of %+v", got, e)
		}
	})
	if accepted == 0 || refused == 0 {
		t.Errorf("%d events were accepted, and %d refused: this test finds nothing", accepted, refused)
	}
}

// Postgres itself says which payloads a jsonb can be.
func TestWriteRefusesTheJSONThatPostgresRefuses(t *testing.T) {
	_, dsn := database(t, standard)
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	piece := rapid.SampledFrom([]string{
		`"`, `\`, `\\`, `\"`, `\u0000`, `\u0001`, `\ud83d`, `\uDE00`, `\ud83d\ude00`, `\u00e9`, `\n`, `\u`, "é", "a", " ", ",", "[", "]", "{", "}", ":", "1", "-", "e5", ".", "true", "null", "\x00", "\xff", "\t",
	})
	escape := rapid.SampledFrom([]string{`\\`, `\n`, `\u0000`, `\ud83d`, `\uDE00`, `\u00e9`, "u0000", "a"})
	pieces := rapid.Custom(func(t *rapid.T) string {
		of := rapid.SampledFrom([]*rapid.Generator[string]{piece, escape}).Draw(t, "of")
		return strings.Join(rapid.SliceOfN(of, 0, 5).Draw(t, "pieces"), "")
	})
	accepted, refused := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		text := pieces.Draw(t, "text")
		if rapid.IntRange(0, 3).Draw(t, "as it is") > 0 {
			text = `"` + text + `"`
		}
		_, err := payload(t, standard, []byte(text))
		_, server := conn.Exec(t.Context(), "SELECT $1::jsonb", text)
		if bad := (*pgconn.PgError)(nil); server != nil && !errors.As(server, &bad) {
			t.Fatal(server)
		}
		if (err == nil) != (server == nil) {
			t.Fatalf("%q: Write says %v, the server %v", text, err, server)
		}
		if err == nil {
			accepted++
		} else {
			refused++
		}
	})
	if accepted == 0 || refused == 0 {
		t.Errorf("%d texts were accepted, and %d refused", accepted, refused)
	}
}

// A row has the values as they are, whatever an array of Postgres would read into them.
func TestARowHasTheValuesAsTheyAre(t *testing.T) {
	o := open(t, outbox.Options{PayloadType: "bytea", Headers: []string{"note"}})
	_, dsn := database(t, o)
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	value := rapid.OneOf(rapid.String(), rapid.SampledFrom([]string{"", "NULL", `\`, `"`, "{}", ",", " a ", `\x00`}))
	rapid.Check(t, func(t *rapid.T) {
		values := rapid.SliceOfN(rapid.Ptr(value, true), 1, 5).Draw(t, "values")
		var events []outbox.Event
		for _, v := range values {
			if v != nil && (!utf8.ValidString(*v) || strings.Contains(*v, "\x00")) {
				t.Skip()
			}
			e := outbox.Event{AggregateType: "a", AggregateID: "1", Type: "t", Payload: outbox.Null}
			if v != nil {
				e.Payload, e.Headers = []byte(*v), map[string]string{"note": *v}
			}
			events = append(events, e)
		}
		tx, err := conn.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = tx.Rollback(t.Context()) }()
		if err := o.Write(t.Context(), tx, events...); err != nil {
			t.Fatal(err)
		}
		var texts []*string
		var bytes [][]byte
		if err := tx.QueryRow(t.Context(), "SELECT array_agg(note ORDER BY seq), array_agg(payload ORDER BY seq) FROM outbox").Scan(&texts, &bytes); err != nil {
			t.Fatal(err)
		}
		for i, v := range values {
			if (texts[i] == nil) != (v == nil) || (bytes[i] == nil) != (v == nil) || v != nil && (*texts[i] != *v || string(bytes[i]) != *v) {
				t.Fatalf("sent %q, got %v and %q", events[i].Payload, texts[i], bytes[i])
			}
		}
	})
}

var uuid = regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)

// The ids of a process grow, also if many goroutines make them at the same time, and have the time.
func TestIDsGrow(t *testing.T) {
	before := time.Now().UnixMilli()
	var group sync.WaitGroup
	var mu sync.Mutex
	var all []string
	for range 8 {
		group.Go(func() {
			ids := make([]string, 5000)
			for i := range ids {
				ids[i] = outbox.NewID()
			}
			if !slices.IsSorted(ids) {
				t.Error("the ids of one goroutine do not grow")
			}
			mu.Lock()
			all = append(all, ids...)
			mu.Unlock()
		})
	}
	group.Wait()
	slices.Sort(all)
	if n := len(all); len(slices.Compact(all)) != n {
		t.Error("an id was given out twice")
	}
	for _, id := range all {
		if !uuid.MatchString(id) || id[14] != '7' || !strings.ContainsRune("89ab", rune(id[19])) {
			t.Fatalf("%s is no UUID of version 7", id)
		}
	}
	var millis int64
	if _, err := fmt.Sscanf(all[0][:8]+all[0][9:13], "%x", &millis); err != nil || millis < before || millis > time.Now().UnixMilli() {
		t.Errorf("%s has the time %d, not %d", all[0], millis, before)
	}
}

// A string is no JSON where the column has none, and no value is not the JSON null.
func TestAPayloadIsWhatItsTypeSays(t *testing.T) {
	empty := map[string]string{"jsonb": "{}", "json": "{}", "text": "{}", "bytea": `\x7b7d`}
	for typ, want := range map[string]string{"jsonb": `"a b"`, "json": `"a b"`, "text": "a b", "bytea": `\x612062`} {
		o := open(t, outbox.Options{PayloadType: typ})
		if b, err := payload(t, o, "a b"); string(b) != want || err != nil {
			t.Errorf("a string as %s: %s, %v, want %s", typ, b, err, want)
		}
		for _, none := range []any{nil, (*outbox.Event)(nil), map[string]int(nil), []string(nil), []byte(nil), json.RawMessage(nil)} {
			if b, err := payload(t, o, none); err == nil {
				t.Errorf("%T as %s: %q", none, typ, b)
			}
		}
		if b, err := payload(t, o, map[string]int{}); string(b) != empty[typ] || err != nil {
			t.Errorf("an empty map as %s: %s, %v", typ, b, err)
		}
		if b, err := payload(t, o, outbox.Null); b != nil || err != nil {
			t.Errorf("Null as %s: %s, %v", typ, b, err)
		}
	}
}
