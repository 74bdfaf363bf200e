package outbox_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/walpost/walpost/internal/lib/anytx"
	"github.com/walpost/walpost/internal/testenv"
	"github.com/walpost/walpost/outbox"
)

// rowsOf are the rows of the default table, in their order.
func rowsOf(t testing.TB, pg *testenv.PG, dsn string) string {
	t.Helper()
	return pg.Value(t, dsn, `SELECT string_agg(concat_ws(' ', aggregate_type, aggregate_id, event_type, coalesce(payload::text, 'NULL')), '; ' ORDER BY seq) FROM outbox`)
}

type order struct {
	Total string `json:"total"`
}

func placed(id string) outbox.Event {
	return outbox.Event{AggregateType: "order", AggregateID: id, Type: "OrderPlaced", Payload: order{"12.50"}}
}

const hostile = `a'b"c\d{e},f?g$1 ` + "\u00e4\U0001F600\n\t"

// Several events are one statement, in the order of the call, with every library and protocol.
func TestWriteWithEveryLibrary(t *testing.T) {
	for name, begin := range handles {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := open(t, outbox.Options{Headers: []string{"traceparent", "Tenant-Id"}})
			pg, dsn := database(t, o)
			h := begin(t, dsn)
			err := o.Write(t.Context(), h.tx,
				outbox.Event{ID: "0190A000-0000-7000-8000-000000000001", AggregateType: "order", AggregateID: hostile, Type: hostile, Payload: map[string]string{"v": hostile}, Headers: map[string]string{"Tenant-Id": hostile}},
				outbox.Event{AggregateType: "order", AggregateID: "NULL", Type: "null", Payload: outbox.Null},
				outbox.Event{AggregateType: "order", AggregateID: "{}", Type: `""`, Payload: []byte(`[1, "x"]`), Headers: map[string]string{"traceparent": ""}})
			if err != nil {
				t.Fatal(err)
			}
			if got := pg.Value(t, dsn, "SELECT count(*) FROM outbox"); got != "0" {
				t.Errorf("before the commit, others see %s rows", got)
			}
			if err := h.commit(); err != nil {
				t.Fatal(err)
			}
			for column, want := range map[string][3]string{
				"aggregate_id": {hostile, "NULL", "{}"}, "event_type": {hostile, "null", `""`},
				"payload->>'v'": {hostile, "(NULL)", "(NULL)"}, "payload->>1": {"(NULL)", "(NULL)", "x"},
				`"Tenant-Id"`: {hostile, "(NULL)", "(NULL)"}, "traceparent": {"(NULL)", "(NULL)", ""},
			} {
				for i := range want {
					if got := pg.Value(t, dsn, fmt.Sprintf("SELECT coalesce(%s, '(NULL)') FROM outbox ORDER BY seq OFFSET %d LIMIT 1", column, i)); got != want[i] {
						t.Errorf("%s of event %d is %q, want %q", column, i, got, want[i])
					}
				}
			}
			if got := pg.Value(t, dsn, "SELECT id::text FROM outbox ORDER BY seq LIMIT 1"); got != "0190a000-0000-7000-8000-000000000001" {
				t.Errorf("id %s", got)
			}
		})
	}
}

func TestEveryTypeOfPayload(t *testing.T) {
	for typ, want := range map[string]string{"jsonb": `{"a": 1}`, "json": `{"a":1}`, "text": `{"a":1}`, "bytea": `\x7b2261223a317d`} {
		t.Run(typ, func(t *testing.T) {
			t.Parallel()
			o := open(t, outbox.Options{PayloadType: typ})
			pg, dsn := database(t, o)
			for _, begin := range []func(testing.TB, string) handle{handles["pgx"], handles["pgx simple protocol"], handles["database/sql with lib/pq"]} {
				h := begin(t, dsn)
				if err := o.Write(t.Context(), h.tx, outbox.Event{AggregateType: "a", AggregateID: "1", Type: "t", Payload: json.RawMessage(`{"a":1}`)}); err != nil {
					t.Fatal(err)
				}
				if err := h.commit(); err != nil {
					t.Fatal(err)
				}
			}
			if got := pg.Value(t, dsn, "SELECT string_agg(payload::text, ' ') FROM outbox"); got != want+" "+want+" "+want {
				t.Errorf("payloads %s", got)
			}
		})
	}
}

// A payload can be any bytes if the column is a bytea, and the options say how they are made.
func TestOwnMarshaller(t *testing.T) {
	o := open(t, outbox.Options{PayloadType: "bytea", Marshal: func(v any) ([]byte, error) { return []byte{0, 0xff, byte(v.(int))}, nil }})
	pg, dsn := database(t, o)
	h := handles["pgx"](t, dsn)
	if err := o.Write(t.Context(), h.tx, outbox.Event{AggregateType: "a", AggregateID: "1", Type: "t", Payload: 7}, outbox.Event{AggregateType: "a", AggregateID: "1", Type: "t", Payload: []byte{}}); err != nil {
		t.Fatal(err)
	}
	if err := h.commit(); err != nil {
		t.Fatal(err)
	}
	if got := pg.Value(t, dsn, "SELECT string_agg(payload::text, ' ' ORDER BY seq) FROM outbox"); got != `\x00ff07 \x` {
		t.Errorf("payloads %s", got)
	}
}

func TestHeadersFromTheContext(t *testing.T) {
	type key struct{}
	o := open(t, outbox.Options{Headers: []string{"traceparent", "tenant"}, FromContext: func(ctx context.Context) map[string]string {
		return map[string]string{"traceparent": ctx.Value(key{}).(string), "baggage": "has no column", "tenant": "of the context"}
	}})
	pg, dsn := database(t, o)
	h := handles["pgx"](t, dsn)
	ctx := context.WithValue(t.Context(), key{}, "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
	own := placed("2")
	own.Headers = map[string]string{"tenant": "own"}
	if err := o.Write(ctx, h.tx, placed("1"), own); err != nil {
		t.Fatal(err)
	}
	if err := h.commit(); err != nil {
		t.Fatal(err)
	}
	if got := pg.Value(t, dsn, "SELECT string_agg(substr(traceparent, 1, 6) || ' ' || tenant, '; ' ORDER BY seq) FROM outbox"); got != "00-0af of the context; 00-0af own" {
		t.Error(got)
	}
}

// What becomes of the events is what becomes of the transaction, or of the savepoint.
func TestEventsShareTheFateOfTheirTransaction(t *testing.T) {
	for name, begin := range handles {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pg, dsn := database(t, standard)
			h := begin(t, dsn)
			again := placed("again") // written once more after the rollback, as a retry does
			again.ID = outbox.NewID()
			write := func(h handle, e outbox.Event) {
				t.Helper()
				if err := outbox.Write(t.Context(), h.tx, e); err != nil {
					t.Fatal(err)
				}
			}
			write(h, again)
			if err := h.rollback(); err != nil {
				t.Fatal(err)
			}
			h = begin(t, dsn)
			write(h, placed("1"))
			h.must(t, "SAVEPOINT s")
			write(h, placed("2"))
			h.must(t, "ROLLBACK TO s")
			write(h, placed("3"))
			h.must(t, "RELEASE s")
			write(h, again)
			if err := h.commit(); err != nil {
				t.Fatal(err)
			}
			const payload = ` OrderPlaced {"total": "12.50"}`
			if got, want := rowsOf(t, pg, dsn), "order 1"+payload+"; order 3"+payload+"; order again"+payload; got != want {
				t.Errorf("rows %s, want %s", got, want)
			}
		})
	}
}

// refused are events that Write refuses, and the field that it names.
var refused = map[string]struct {
	change func(*outbox.Event)
	field  string
}{
	"no aggregate type":          {func(e *outbox.Event) { e.AggregateType = "" }, "AggregateType"},
	"an invalid topic":           {func(e *outbox.Event) { e.AggregateType = "order placed" }, "AggregateType"},
	"a topic that is too long":   {func(e *outbox.Event) { e.AggregateType = strings.Repeat("x", 249-len("outbox.event.")+1) }, "AggregateType"},
	"no aggregate id":            {func(e *outbox.Event) { e.AggregateID = "" }, "AggregateID"},
	"an aggregate id with NUL":   {func(e *outbox.Event) { e.AggregateID = "a\x00b" }, "AggregateID"},
	"an aggregate id not UTF-8":  {func(e *outbox.Event) { e.AggregateID = "a\xff" }, "AggregateID"},
	"no type":                    {func(e *outbox.Event) { e.Type = "" }, "Type"},
	"an id that is no UUID":      {func(e *outbox.Event) { e.ID = "4711" }, "ID"},
	"no payload":                 {func(e *outbox.Event) { e.Payload = nil }, "Payload"},
	"a payload that fails":       {func(e *outbox.Event) { e.Payload = func() {} }, "Payload"},
	"a payload not JSON":         {func(e *outbox.Event) { e.Payload = []byte("hello") }, "Payload"},
	"an empty payload":           {func(e *outbox.Event) { e.Payload = []byte{} }, "Payload"},
	"a payload with NUL":         {func(e *outbox.Event) { e.Payload = "a\x00b" }, "Payload"},
	"a payload not UTF-8":        {func(e *outbox.Event) { e.Payload = []byte("\"a\xff\"") }, "Payload"},
	"a payload with half a pair": {func(e *outbox.Event) { e.Payload = []byte(`"\ud800"`) }, "Payload"},
	"a header of walpost's own":  {func(e *outbox.Event) { e.Headers = map[string]string{"id": "x"} }, "Headers"},
	"another":                    {func(e *outbox.Event) { e.Headers = map[string]string{"walpost.origin": "x"} }, "Headers"},
	"a header not UTF-8":         {func(e *outbox.Event) { e.Headers = map[string]string{"a": "\xff"} }, `Headers["a"]`},
	"a header with NUL":          {func(e *outbox.Event) { e.Headers = map[string]string{"a": "b\x00"} }, `Headers["a"]`},
	"a header's name with NUL":   {func(e *outbox.Event) { e.Headers = map[string]string{"a\x00": "b"} }, `Headers["a\x00"]`},
	"a message without Marshal":  {func(e *outbox.Event) { e.Payload = &protoMessage{} }, "Payload"},
	"the struct of a message":    {func(e *outbox.Event) { e.Payload = protoMessage{} }, "Payload"},
}

// A protoMessage has the method by which messages of Protocol Buffers are known.
type protoMessage struct{ Total int }

func (*protoMessage) ProtoReflect() {}

type protoWithJSON struct{ protoMessage }

func (*protoWithJSON) MarshalJSON() ([]byte, error) { return []byte(`{"total":1}`), nil }

// A message whose JSON is its own, or that Options.Marshal knows, is a payload.
func TestAMessageWithAMarshallerIsAPayload(t *testing.T) {
	for want, c := range map[string]struct {
		opts    outbox.Options
		payload any
	}{
		`{"total":1}`: {outbox.Options{}, &protoWithJSON{}},
		`{"t": 2}`:    {outbox.Options{Marshal: func(any) ([]byte, error) { return []byte(`{"t": 2}`), nil }}, &protoMessage{}},
		`{"Total":3}`: {outbox.Options{}, struct{ Total int }{3}},
	} {
		if b, err := payload(t, open(t, c.opts), c.payload); string(b) != want || err != nil {
			t.Errorf("%T: %s, %v, want %s", c.payload, b, err, want)
		}
	}
	_, err := payload(t, standard, &protoMessage{})
	if err == nil || !strings.Contains(err.Error(), "set Options.Marshal to a function that calls proto.Marshal, with the PayloadType bytea, or protojson.Marshal") {
		t.Errorf("without a marshaller: %v", err)
	}
}

// With columns of their own, headers without a column are refused.
func TestAHeaderWithoutAColumnIsRefused(t *testing.T) {
	e := placed("1")
	e.Headers = map[string]string{"tenant": "x"}
	err := open(t, outbox.Options{Headers: []string{"traceparent"}}).Write(t.Context(), &recorder{}, e)
	if bad := (*outbox.EventError)(nil); !errors.As(err, &bad) || bad.Field != "Headers" {
		t.Error(err)
	}
}

// A refused event leaves the transaction as it was, without a statement, and none of the events of
// the call is written.
func TestARefusedEventChangesNothing(t *testing.T) {
	pg, dsn := database(t, standard)
	for _, library := range []string{"pgx", "database/sql with pgx"} {
		h := handles[library](t, dsn)
		for name, c := range refused {
			e := placed("bad")
			c.change(&e)
			err := outbox.Write(t.Context(), h.tx, placed("good"), e)
			var bad *outbox.EventError
			if !errors.As(err, &bad) || bad.Index != 1 || bad.Field != c.field {
				t.Errorf("%s: %v", name, err)
			}
		}
		twice := placed("1")
		twice.ID = outbox.NewID()
		upper := twice
		upper.ID = strings.ToUpper(upper.ID)
		var bad *outbox.EventError
		if err := outbox.Write(t.Context(), h.tx, twice, placed("2"), upper); !errors.As(err, &bad) || bad.Index != 2 || bad.Field != "ID" {
			t.Errorf("the same id twice: %v", err)
		}
		if err := outbox.Write(t.Context(), h.tx); err != nil {
			t.Errorf("no event: %v", err)
		}
		h.must(t, "DO $$ BEGIN IF pg_current_xact_id_if_assigned() IS NOT NULL THEN RAISE 'the transaction has written'; END IF; END $$")
		if err := outbox.Write(t.Context(), h.tx, placed("1")); err != nil {
			t.Error(err)
		}
		if err := h.commit(); err != nil {
			t.Error(err)
		}
	}
	const row = `order 1 OrderPlaced {"total": "12.50"}`
	if got := rowsOf(t, pg, dsn); got != row+"; "+row {
		t.Errorf("rows %s", got)
	}
}

// What only the server can find aborts the transaction: a rollback to a savepoint makes it usable.
func TestAFailedStatementAbortsTheTransaction(t *testing.T) {
	pg, dsn := database(t, standard)
	e := placed("1")
	e.ID = outbox.NewID()
	h := handles["pgx"](t, dsn)
	if err := outbox.Write(t.Context(), h.tx, e); err != nil {
		t.Fatal(err)
	}
	if err := h.commit(); err != nil {
		t.Fatal(err)
	}
	h = handles["pgx"](t, dsn)
	h.must(t, "SAVEPOINT s")
	state := func(err error) string {
		if bad := (*pgconn.PgError)(nil); errors.As(err, &bad) {
			return bad.Code
		}
		return fmt.Sprint(err)
	}
	if err := outbox.Write(t.Context(), h.tx, placed("2"), e); state(err) != "23505" || !strings.Contains(err.Error(), "outbox: write 2 events to public.outbox: ") {
		t.Errorf("a duplicate id: %v", err)
	}
	if err := outbox.Write(t.Context(), h.tx, placed("2")); state(err) != "25P02" {
		t.Errorf("in an aborted transaction: %v", err)
	}
	h.must(t, "ROLLBACK TO s")
	if err := outbox.Write(t.Context(), h.tx, placed("3")); err != nil {
		t.Error(err)
	}
	if err := h.commit(); err != nil {
		t.Error(err)
	}
	if got := pg.Value(t, dsn, "SELECT string_agg(aggregate_id, ' ' ORDER BY seq) FROM outbox"); got != "1 3" {
		t.Errorf("rows %s", got)
	}
}

// An event outside a transaction is committed whatever happens to the data.
func TestOnlyATransactionIsAccepted(t *testing.T) {
	pg, dsn := database(t, standard)
	pool, err := pgxpool.New(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	pooled, err := pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer pooled.Release()
	config, _ := pgx.ParseConfig(dsn)
	db := stdlib.OpenDB(*config)
	defer db.Close()
	pq, err := sql.Open("postgres", dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer pq.Close()
	connection := func(db *sql.DB) *sql.Conn {
		c, err := db.Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	conn, connPQ := connection(db), connection(pq)
	for name, h := range map[string]any{
		"pgxpool.Pool": pool, "pgxpool.Conn": pooled, "pgx.Conn": pooled.Conn(), "sql.DB": db, "embedded sql.DB": struct{ *sql.DB }{db},
		"sql.Conn": conn, "sql.Conn of lib/pq": connPQ, "hidden sql.DB": hidesSQL{db}, "hidden sql.DB of lib/pq": hidesSQL{pq}, "hidden pgxpool.Pool": hidesPGX{pool},
	} {
		if err := outbox.Write(t.Context(), h, placed("1")); !errors.Is(err, anytx.ErrNoTransaction) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for id, c := range map[string]*sql.Conn{"in a sql.Conn": conn, "in a sql.Conn of lib/pq": connPQ} {
		for _, do := range []func() error{
			func() error { _, err := c.ExecContext(t.Context(), "BEGIN"); return err },
			func() error { return outbox.Write(t.Context(), c, placed(id)) },
			func() error { _, err := c.ExecContext(t.Context(), "COMMIT"); return err },
		} {
			if err := do(); err != nil {
				t.Errorf("%s: %v", id, err)
			}
		}
	}
	for _, h := range []any{nil, 1, "tx", struct{ Tx *sql.Tx }{}, (*sql.Rows)(nil)} {
		if err := outbox.Write(t.Context(), h, placed("1")); err == nil || !strings.Contains(err.Error(), "cannot run SQL") {
			t.Errorf("%T: %v", h, err)
		}
	}
	if _, err := pooled.Exec(t.Context(), "BEGIN"); err != nil {
		t.Fatal(err)
	}
	if err := outbox.Write(t.Context(), pooled.Conn(), placed("in a transaction")); err != nil {
		t.Error(err)
	}
	if _, err := pooled.Exec(t.Context(), "COMMIT"); err != nil {
		t.Fatal(err)
	}
	if got := pg.Value(t, dsn, "SELECT string_agg(aggregate_id, ', ' ORDER BY aggregate_id) FROM outbox"); got != "in a sql.Conn, in a sql.Conn of lib/pq, in a transaction" {
		t.Errorf("rows %s", got)
	}
}

func TestManyEventsKeepTheirOrder(t *testing.T) {
	for _, partitioned := range []bool{false, true} {
		o := open(t, outbox.Options{Partitioned: partitioned})
		pg, dsn := database(t, o)
		h := handles["pgx"](t, dsn)
		events := make([]outbox.Event, 2000)
		for i := range events {
			events[i] = placed(fmt.Sprint(i))
		}
		if err := o.Write(t.Context(), h.tx, events...); err != nil {
			t.Fatal(err)
		}
		if err := h.commit(); err != nil {
			t.Fatal(err)
		}
		if got := pg.Value(t, dsn, `SELECT count(*) FROM (SELECT aggregate_id::int AS n, row_number() OVER (ORDER BY seq) - 1 AS i, row_number() OVER (ORDER BY id) - 1 AS j FROM outbox) o WHERE n = i AND n = j`); got != "2000" {
			t.Errorf("%s of 2000 events are in order", got)
		}
	}
}

func TestWrongOptions(t *testing.T) {
	for want, opts := range map[string]outbox.Options{
		"Options.Table: ":                        {Table: "a.b.c"},
		"Options.PayloadType: ":                  {PayloadType: "xml"},
		"a name is empty":                        {Headers: []string{""}},
		`Options.Headers: must be a name`:        {Headers: []string{"payload"}},
		`without commas`:                         {Headers: []string{"a:b"}},
		`that no other column has`:               {Headers: []string{"a", "a"}},
		`(got "seq")`:                            {Headers: []string{"seq"}},
		"Options.Headers: a name is longer than": {Headers: []string{strings.Repeat("x", 64)}},
	} {
		if _, err := outbox.New(opts); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %s", opts, err, want)
		}
	}
}
