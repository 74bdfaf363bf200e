package e2e

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os/exec"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/avro"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sr"

	"github.com/walpost/walpost/internal/shop"
	"github.com/walpost/walpost/internal/testenv"
)

// An avroReader decodes each value with the schema of its id, as a consumer does.
type avroReader struct {
	t   *testing.T
	api *sr.Client

	mu      sync.Mutex
	schemas map[uint32]*avro.Schema
	events  map[string]decoded // the newest record of each event id
	origins map[string]int     // records by their header walpost.origin
	other   int                // records with another value than the former one of their event
}

// A decoded is a value, as encoding/json reads it, and the id of its schema.
type decoded struct {
	fields map[string]any
	schema uint32
	value  string // of the record
}

// reads decodes the records of the setting's topics.
func (s *setting) reads(url string) *avroReader {
	s.t.Helper()
	api, err := sr.NewClient(sr.URLs(url))
	if err != nil {
		s.t.Fatal(err)
	}
	a := &avroReader{t: s.t, api: api, schemas: map[uint32]*avro.Schema{}, events: map[string]decoded{}, origins: map[string]int{}}
	s.consume(s.topics, func(rec *kgo.Record) {
		a.mu.Lock()
		defer a.mu.Unlock()
		for _, h := range rec.Headers {
			if h.Key == "walpost.origin" {
				a.origins[string(h.Value)]++
			}
		}
		d, err := a.decode(rec.Value)
		if err != nil {
			s.t.Errorf("record %s/%d@%d: %v", rec.Topic, rec.Partition, rec.Offset, err)
		}
		id := shop.Entry(rec).ID
		if former, again := a.events[id]; again && former.value != string(rec.Value) {
			a.other++
		}
		a.events[id] = d
	})
	return a
}

func (a *avroReader) decode(value []byte) (d decoded, err error) {
	if len(value) < 5 || value[0] != 0 {
		return d, fmt.Errorf("no frame: %x", value)
	}
	d.value, d.schema = string(value), binary.BigEndian.Uint32(value[1:])
	schema := a.schemas[d.schema]
	if schema == nil {
		found, err := a.api.SchemaByID(a.t.Context(), int(d.schema))
		if err != nil {
			return d, err
		}
		if schema, err = avro.Parse(found.Schema, avro.WithLaxNames(nil)); err != nil {
			return d, err
		}
		a.schemas[d.schema] = schema
	}
	var v any
	if rest, err := schema.Decode(value[5:], &v); err != nil || len(rest) > 0 {
		return d, fmt.Errorf("schema %d: %d bytes are left, %w", d.schema, len(rest), err)
	}
	text, err := json.Marshal(v)
	if err == nil {
		err = json.Unmarshal(text, &d.fields)
	}
	return d, err
}

// of is how many records with this header walpost.origin have come.
func (a *avroReader) of(origin string) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.origins[origin]
}

// awaits waits until a record of each event whose id the query returns is decoded. The ledger may have it earlier, from a consumer of
// its own.
func (a *avroReader) awaits(conn *pgx.Conn, query string) {
	a.t.Helper()
	rows, err := conn.Query(a.t.Context(), query)
	if err != nil {
		a.t.Fatal(err)
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		a.t.Fatal(err)
	}
	eventually(a.t, time.Minute, "a record of each event is decoded", func() bool {
		a.mu.Lock()
		defer a.mu.Unlock()
		return !slices.ContainsFunc(ids, func(id string) bool { _, came := a.events[id]; return !came })
	})
}

// changed waits for records of both topics for which has is true.
func (a *avroReader) changed(what string, has func(fields map[string]any) bool) {
	a.t.Helper()
	eventually(a.t, time.Minute, what, func() bool {
		a.mu.Lock()
		defer a.mu.Unlock()
		ids := map[uint32]bool{}
		for _, d := range a.events {
			if has(d.fields) {
				ids[d.schema] = true
			}
		}
		return len(ids) >= len(shop.Types)
	})
}

// evolving has the table kept_rows keep every row as it was written.
const evolving = `
ALTER TABLE outbox ADD COLUMN n bigint GENERATED ALWAYS AS IDENTITY, ADD COLUMN qty int NOT NULL DEFAULT (random() * 1000)::int, ADD COLUMN remark text DEFAULT 'none';
CREATE TABLE kept_rows (id text, doc jsonb);
CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO kept_rows VALUES (NEW.id, to_jsonb(NEW)); RETURN NULL; END $$;
CREATE TRIGGER keep AFTER INSERT ON outbox FOR EACH ROW EXECUTE FUNCTION keep()`

// sameAsKept wants each row's record to have exactly the placed columns that the table had when the row was written, with their values.
func (a *avroReader) sameAsKept(dsn string) {
	a.t.Helper()
	conn, err := pgx.Connect(a.t.Context(), dsn)
	if err != nil {
		a.t.Fatal(err)
	}
	defer conn.Close(a.t.Context()) //nolint:errcheck // it was read
	a.awaits(conn, "SELECT id FROM kept_rows")
	rows, err := conn.Query(a.t.Context(), "SELECT id, doc::text FROM kept_rows")
	var id, text string
	wrong, schemas := 0, map[uint32]int{}
	if err == nil {
		a.mu.Lock()
		defer a.mu.Unlock()
		_, err = pgx.ForEachRow(rows, []any{&id, &text}, func() error {
			var row map[string]any
			if err := json.Unmarshal([]byte(text), &row); err != nil {
				return err
			}
			want := map[string]any{}
			for _, name := range []string{"payload", "qty", "remark", "extra", "weight"} {
				if v, has := row[name]; has {
					want[name] = v
				}
			}
			d := a.events[id]
			if schemas[d.schema]++; !reflect.DeepEqual(d.fields, want) {
				if wrong++; wrong < 5 {
					a.t.Errorf("event %s: %v, want %v", id, d.fields, want)
				}
			}
			return nil
		})
	}
	if err != nil {
		a.t.Fatal(err)
	}
	a.t.Logf("events by the id of their schema: %v", schemas)
}

// waits runs a command, and mends what it waits for once its output has the words.
func (s *setting) waits(words string, mend func(), args ...string) (code int, out string) {
	s.t.Helper()
	cmd, log := s.caging(exec.Command(program, append(args, "--config", s.config())...)), new(testenv.Output)
	file := log.File(s.t)
	cmd.Stdout, cmd.Stderr = file, file
	if err := cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	defer func() {
		_ = cmd.Process.Kill() // it may have ended
		_ = cmd.Wait()
	}()
	eventually(s.t, time.Minute, words, func() bool { return strings.Contains(log.String(), words) })
	mend()
	ended := time.AfterFunc(patience, func() { _ = cmd.Process.Kill() })
	defer ended.Stop()
	_ = cmd.Wait() // ProcessState has the code
	return cmd.ProcessState.ExitCode(), log.String()
}

// Columns that are in the envelope are added, dropped, retyped and renamed while rows are written, and so are fields of the expanded
// payload. Each record has the schema of its row. A schema that the rule of its subject forbids is waited for, across a kill too, until
// the rule is another one. Then recover and replay do the same.
func TestSchemasEvolveWhileRowsAreWritten(t *testing.T) {
	t.Parallel()
	url := "http://" + testenv.Registry(t) + "/apis/ccompat/v7"
	pg, kafka := testenv.Postgres(t, "17", testenv.Private(), testenv.Param("track_commit_timestamp", "on")), testenv.Kafka(t)
	s := newSetting(t, pg, pg.Database(t), kafka)
	pg.Exec(t, s.dsn, evolving)
	dead := s.prefix + "dead"
	s.source = ", order_column: n"
	s.router = `, table.expand.json.payload: true, table.field.additional.missing: ignore, table.fields.additional.placement: "qty:envelope,remark:envelope,extra:envelope,weight:envelope"`
	s.extra = fmt.Sprintf("records: {value.converter: avro, topic.prefix: shop}\nschema_registry: {urls: [%q]}\ndelivery: {on_poison: dead_letter, dead_letter_topic: %s}\nhalt_linger: 0s\n", url, dead)
	w, a := s.follow(), s.reads(url)
	rule := func(level sr.CompatibilityLevel) {
		t.Helper()
		if r := a.api.SetCompatibility(t.Context(), sr.SetCompatibility{Level: level}); r[0].Err != nil {
			t.Fatal(r[0].Err)
		}
	}
	rule(sr.CompatBackward)
	r := s.startReady()
	work := s.load(&shop.Shop{Writers: 3, Seed: 1, Tag: "a", MaxRows: 10, Pause: 20 * time.Millisecond})
	has := func(names ...string) func(map[string]any) bool {
		return func(fields map[string]any) bool {
			for _, name := range names {
				name, not := strings.CutPrefix(name, "no ")
				if _, has := fields[name]; has == not {
					return false
				}
			}
			return true
		}
	}
	a.changed("the first schemas", has("qty", "remark", "no extra"))
	var between strings.Builder // and in the middle of a transaction
	for i := range 6 {
		if i == 3 {
			between.WriteString("ALTER TABLE outbox ADD COLUMN extra text DEFAULT 'x';")
		}
		fmt.Fprintf(&between, `INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload) VALUES ('%s', 'tx%d', 'x', '{"n": %d, "note": ""}');`, shop.Types[i%2], i%2, i/2+1)
	}
	pg.Exec(t, s.dsn, "BEGIN;"+between.String()+"COMMIT")
	a.changed("a column is added", has("extra"))
	pg.Exec(t, s.dsn, "ALTER TABLE outbox DROP COLUMN remark")
	a.changed("a column is dropped", has("extra", "no remark"))
	pg.Exec(t, s.dsn, "ALTER TABLE outbox ALTER COLUMN qty TYPE bigint")
	pg.Exec(t, s.dsn, "ALTER TABLE outbox RENAME COLUMN extra TO weight")
	a.changed("a column is retyped, and one is renamed", has("weight", "no extra"))

	refuses := func(r *relay) {
		t.Helper()
		r.notReady(time.Minute, "has the rule BACKWARD, and the schema for version ")
		if !strings.Contains(r.notReady(time.Minute, "is incompatible with version "), s.prefix) {
			t.Error("the reason does not name the subject")
		}
	}
	arrives := func(r *relay) { // after the rule is another one
		t.Helper()
		at := w.count()
		rule(sr.CompatNone)
		w.total(t, time.Minute, at+100)
		eventually(t, time.Minute, "ready", r.ready)
	}
	pg.Exec(t, s.dsn, "ALTER TABLE outbox ALTER COLUMN qty TYPE text USING qty::text")
	refuses(r)
	time.Sleep(3 * time.Second) // for a checkpoint: an event that's repeated behind an ALTER TABLE may get another schema
	r.kill()
	r = s.start()
	refuses(r)
	if st := r.view(); st.State != "stalled" || st.Halt.Token != "" {
		t.Errorf("%+v", st)
	}
	arrives(r)
	a.changed("a column has another type", func(fields map[string]any) bool { _, is := fields["qty"].(string); return is })
	rule(sr.CompatBackward)
	for i, typ := range shop.Types {
		pg.Exec(t, s.dsn, fmt.Sprintf(`INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload) VALUES ('%s', 'tx%d', 'x', '{"n": 4, "note": true}')`, typ, i))
	}
	refuses(r)
	arrives(r)
	a.changed("a field of the payload has another type", func(fields map[string]any) bool { return fields["payload"].(map[string]any)["note"] == true })
	work.stop()
	s.noLoss(w, time.Minute)
	a.sameAsKept(s.dsn)
	if n := r.metric("walpost_dead_letters_total"); n > 0 {
		t.Errorf("%v dead letters", n)
	}
	r.stopsClean()

	// A gap whose rows have a schema that is refused.
	rule(sr.CompatBackward)
	pg.Exec(t, s.dsn, "SELECT pg_drop_replication_slot('walpost')", "ALTER TABLE outbox ALTER qty DROP DEFAULT, ALTER qty TYPE boolean USING true, ALTER qty SET DEFAULT true")
	later := s.load(&shop.Shop{Writers: 2, Rows: 300, Seed: 2, Tag: "b"})
	<-later.done
	if code, out := s.waits("BACKWARD, and the schema", func() { rule(sr.CompatNone) }, "recover", "--yes"); code != 0 || !strings.Contains(out, "recovered: ") {
		t.Errorf("recover: code %d\n%s", code, out)
	}
	r = s.startReady()
	s.noLoss(w, time.Minute)
	eventually(t, time.Minute, "300 rows are recovered", func() bool { return a.of("recover") >= 300 })
	if n := a.of("recover"); n > 400 {
		t.Errorf("%d records are recovered", n)
	}
	a.sameAsKept(s.dsn)

	rule(sr.CompatBackward)
	state := t.TempDir() + "/replay"
	pg.Exec(t, s.dsn, "ALTER TABLE outbox ALTER qty DROP DEFAULT, ALTER qty TYPE date USING '2026-01-01'")
	if code, out := s.command("replay", "--key", "tx0", "--state", state); code != 1 || !strings.Contains(out, "BACKWARD, and the schema") {
		t.Errorf("replay of rows with a refused schema: code %d\n%s", code, out)
	}
	rule(sr.CompatNone)
	if code, out := s.command("replay", "--key", "tx0", "--state", state); code != 0 {
		t.Errorf("replay: code %d\n%s", code, out)
	}
	eventually(t, time.Minute, "four rows are replayed", func() bool { return a.of("replay") >= 4 })
	if code, out := s.verify(); code != 1 || !strings.Contains(out, "DIFFERENCE changed: ") || strings.Count(out, "DIFFERENCE") != 1 {
		t.Errorf("verify: code %d\n%s", code, out)
	}
	r.stopsClean()

	// Schemas that somebody else registers.
	s.extra = strings.Replace(s.extra, "value.converter: avro", "value.converter: avro, value.converter.auto.register.schemas: false", 1)
	pg.Exec(t, s.dsn, "ALTER TABLE outbox RENAME weight TO remark",
		`INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload, qty) VALUES ('order', 'tx0', 'x', '{"n": 5}', '2026-01-02')`)
	const missing = "the schema is not registered in subject "
	if code, out := s.command("check"); code != 0 || !strings.Contains(out, missing) || !strings.Contains(out, "Register it, or set auto.register.schemas") {
		t.Errorf("check: code %d\n%s", code, out)
	}
	r = s.start()
	_, text, _ := strings.Cut(r.notReady(time.Minute, missing), `-value": `)
	if _, err := a.api.CreateSchema(t.Context(), s.topics[0]+"-value", sr.Schema{Schema: strings.TrimSpace(text)}); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	if rep := s.settle(w, time.Minute); rep.Lost+rep.Invented+rep.Disordered > 0 { // the replayed rows have other bytes
		t.Errorf("%s", &rep)
	}
	r.stopsClean()
}
