package e2e

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/walpost/walpost/internal/statelog"
	"github.com/walpost/walpost/internal/testenv"
)

// numbered makes an outbox whose event ids are numbers that begin with 1.
func numbered(table string) string {
	return "CREATE TABLE " + table + " (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, aggregate_type text, aggregate_id text, payload text, note text)"
}

// unnamed makes an outbox in which an event id may be missing.
const unnamed = "CREATE TABLE outbox (id uuid, aggregate_type text, aggregate_id text, payload text, n bigint GENERATED ALWAYS AS IDENTITY)"

// inserts are n transactions of one row each. In the payload of row i, %d stands for from+i.
func inserts(table string, n, from int, payload string) (sql []string) {
	for i := range n {
		sql = append(sql, insertOf(table, 1, strings.ReplaceAll(payload, "%d", strconv.Itoa(from+i))))
	}
	return sql
}

// insertOf is one statement that writes n equal rows.
func insertOf(table string, n int, payload string) string {
	return fmt.Sprintf("INSERT INTO %s (aggregate_type, aggregate_id, payload) SELECT 'order', 'k', '%s' FROM generate_series(1, %d)", table, payload, n)
}

// named writes a row whose id is always the same.
func named(table, payload string) string {
	return fmt.Sprintf("INSERT INTO %s (id, aggregate_type, aggregate_id, payload) VALUES ('00000000-0000-0000-0000-000000000001', 'order', 'k', '%s')", table, payload)
}

// A twin is a case in which an event in Kafka looks like a row that is missing there.
type twin struct {
	name   string
	source string            // keys of walpost.yaml
	topic  map[string]string // settings of the topic
	schema []string
	before []string          // statements whose rows are delivered
	rows   int               // of before
	after  []string          // statements that change these rows when the relay has ended
	gap    []string          // statements whose rows are missing
	want   map[string]int    // records, by their values
	twice  map[string]int    // how many records more are allowed, with commit times "on" and "off"
	says   map[string]string // what recover says, with commit times "on" and "off"
}

var twins = []twin{
	{
		name: "two tables with the same numbers", source: "tables: [public.outbox, public.other], order_column: id",
		schema: []string{numbered("outbox"), numbered("other")},
		rows:   10,
		before: inserts("outbox", 10, 0, "x"), gap: inserts("other", 10, 0, "x"), want: map[string]int{"x": 20},
	},
	{
		name: "two tables with the same numbers and other payloads", source: "tables: [public.outbox, public.other], order_column: id",
		schema: []string{numbered("outbox"), numbered("other")},
		rows:   10,
		before: inserts("other", 10, 0, "other"), gap: inserts("outbox", 10, 0, "outbox"), want: map[string]int{"other": 10, "outbox": 10},
		says: map[string]string{"on": "10 of the missing rows", "off": "10 of the missing rows"},
	},
	{
		name: "no ids", source: "table: public.outbox, order_column: n", schema: []string{unnamed},
		rows:   10,
		before: append(inserts("outbox", 5, 0, "n%d"), inserts("outbox", 5, 0, "x")...),
		gap:    append(inserts("outbox", 5, 0, "x"), inserts("outbox", 5, 5, "n%d")...),
		want:   map[string]int{"n0": 1, "n1": 1, "n2": 1, "n3": 1, "n4": 1, "n5": 1, "n6": 1, "n7": 1, "n8": 1, "n9": 1, "x": 10},
		twice:  map[string]int{"off": 4}, // commits within one millisecond
	},
	{
		name: "no ids, and rows that are gone", source: "table: public.outbox, order_column: n", schema: []string{unnamed},
		rows:   5,
		before: []string{insertOf("outbox", 5, "x")}, after: []string{"DELETE FROM outbox"},
		gap: inserts("outbox", 3, 0, "x"), want: map[string]int{"x": 8},
	},
	{
		name: "numbers in a topic that keeps the brokers' times", source: "table: public.outbox, order_column: id",
		topic: map[string]string{"message.timestamp.type": "LogAppendTime"}, schema: []string{numbered("outbox")},
		rows:   2,
		before: inserts("outbox", 2, 0, "n%d"), gap: inserts("outbox", 1, 2, "n%d"), want: map[string]int{"n0": 1, "n1": 1, "n2": 1},
	},
	{
		name: "equal rows of one transaction", source: "table: public.outbox, order_column: n", schema: []string{unnamed},
		rows:   5,
		before: []string{insertOf("outbox", 5, "x")}, gap: []string{insertOf("outbox", 3, "x")}, want: map[string]int{"x": 8},
		twice: map[string]int{"off": 4}, // they may be one row that was delivered five times
	},
	{
		name: "numbers, and rows that were changed", source: "table: public.outbox, order_column: id", schema: []string{numbered("outbox")},
		rows:   5,
		before: inserts("outbox", 5, 0, "n%d"), after: []string{"UPDATE outbox SET note = 'seen'"},
		gap: inserts("outbox", 1, 5, "n%d"), want: map[string]int{"n0": 1, "n1": 1, "n2": 1, "n3": 1, "n4": 1, "n5": 1},
		twice: map[string]int{"on": 5}, says: map[string]string{"on": "5 of the missing rows"},
	},
	{
		name: "one id in two tables", source: "tables: [public.outbox, public.other], order_column: n",
		schema: []string{unnamed, "ALTER TABLE outbox ADD PRIMARY KEY (id)", "CREATE TABLE other (LIKE outbox INCLUDING ALL)"},
		rows:   1,
		before: []string{named("other", "b")},
		gap:    []string{named("outbox", "a")},
		want:   map[string]int{"a": 1, "b": 1},
	},
	{
		name: "ids of the whole world, and rows that were changed", source: "table: public.outbox, order_column: n",
		schema: []string{unnamed, "ALTER TABLE outbox ALTER id SET DEFAULT gen_random_uuid(), ADD PRIMARY KEY (id)"},
		rows:   5,
		before: inserts("outbox", 5, 0, "n%d"), after: []string{"UPDATE outbox SET payload = 'changed'"},
		gap: inserts("outbox", 1, 5, "n%d"), want: map[string]int{"n0": 1, "n1": 1, "n2": 1, "n3": 1, "n4": 1, "n5": 1},
	},
}

// A row is missing although Kafka has an event of the same id, or of none.
func TestRecoverTellsEventsOfOneIDApart(t *testing.T) {
	t.Parallel()
	for _, o := range []struct{ version, commitTimes string }{{"17", "on"}, {"15", "off"}} {
		for _, c := range twins {
			t.Run(c.name+", commit times "+o.commitTimes, func(t *testing.T) {
				t.Parallel()
				pg := testenv.Postgres(t, o.version, testenv.Param("track_commit_timestamp", o.commitTimes))
				s := twinSetting(t, pg, c.source, c.topic, c.schema...)
				r := s.startReady()
				pg.Exec(t, s.dsn, c.before...)
				eventually(t, time.Minute, "delivered", func() bool { return len(s.records()) == c.rows })
				r.stopsClean()
				pg.Exec(t, s.dsn, append(c.after, c.gap...)...)
				pg.Exec(t, s.dsn, "SELECT pg_drop_replication_slot('"+s.slot()+"')")
				code, out := s.command("recover", "--yes")
				if code != 0 || !strings.Contains(out, c.says[o.commitTimes]) {
					t.Errorf("recover: code %d, it must say %q\n%s", code, c.says[o.commitTimes], out)
				}
				t.Logf("recover said:\n%s", said(out))
				got, more := map[string]int{}, 0
				for _, rec := range s.records() {
					got[string(rec.Value)]++
					more++
				}
				for _, payload := range slices.Sorted(maps.Keys(c.want)) {
					if got[payload] < c.want[payload] {
						t.Errorf("%d records of %s, %d are lost", got[payload], payload, c.want[payload]-got[payload])
					}
					more -= c.want[payload]
				}
				if more > c.twice[o.commitTimes] {
					t.Errorf("%d records more than wanted: %v", more, got)
				}
			})
		}
	}
}

// twinSetting is a setting with one topic and tables of its own.
func twinSetting(t *testing.T, pg *testenv.PG, source string, topic map[string]string, schema ...string) *setting {
	t.Helper()
	kafka := testenv.Kafka(t)
	s := &setting{t: t, dsn: pg.Database(t), brokers: kafka.Brokers(), name: unique("twin"), extra: "halt_linger: 0s"}
	s.topics = []string{s.name + ".order"}
	kafka.CreateTopic(t, s.topics[0], 1, topic)
	pg.Exec(t, s.dsn, schema...)
	s.yaml = fmt.Sprintf("name: %s\nsource: {dsn: %q, slot: %s, %s}\nrouter: {route.topic.replacement: \"%s.${routedByValue}\"}\nkafka: {brokers: [%s]}",
		s.name, s.dsn, s.slot(), source, s.name, strings.Join(s.brokers, ", "))
	return s
}

// records are all that the setting's first topic has now.
func (s *setting) records() (all []*kgo.Record) {
	s.t.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(s.brokers...), kgo.ConsumeTopics(s.topics[0]), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if err != nil {
		s.t.Fatal(err)
	}
	defer cl.Close()
	ends, err := kadm.NewClient(cl).ListEndOffsets(s.t.Context(), s.topics[0])
	if err != nil || ends.Error() != nil {
		s.t.Fatal(err, ends.Error())
	}
	left := int64(0)
	ends.Each(func(o kadm.ListedOffset) { left += o.Offset })
	for int64(len(all)) < left {
		fs := cl.PollFetches(s.t.Context())
		if err := fs.Err(); err != nil {
			s.t.Fatal(err)
		}
		fs.EachRecord(func(r *kgo.Record) { all = append(all, r) })
	}
	return all
}

// Two databases publish to one topic. With commit times their events are told apart even where they are equal.
func TestRecoverTellsDatabasesApart(t *testing.T) {
	t.Parallel()
	for _, o := range []struct{ version, commitTimes, payload string }{{"17", "on", "x"}, {"15", "off", "of the other"}} {
		t.Run("commit times "+o.commitTimes, func(t *testing.T) {
			t.Parallel()
			pg := testenv.Postgres(t, o.version, testenv.Param("track_commit_timestamp", o.commitTimes))
			s := twinSetting(t, pg, "table: public.outbox, order_column: id", nil, numbered("outbox"))
			other := twinSetting(t, pg, "table: public.outbox, order_column: id", nil, numbered("outbox"))
			other.yaml = strings.ReplaceAll(other.yaml, other.name+".${", s.name+".${")
			s.startReady().stopsClean()
			pg.Exec(t, s.dsn, inserts("outbox", 10, 0, "x")...)
			pg.Exec(t, s.dsn, "SELECT pg_drop_replication_slot('"+s.slot()+"')")
			r := other.startReady()
			pg.Exec(t, other.dsn, inserts("outbox", 10, 0, o.payload)...)
			eventually(t, time.Minute, "delivered", func() bool { return len(s.records()) == 10 })
			r.stopsClean()
			code, out := s.command("recover", "--yes")
			if n := len(s.records()); code != 0 || n != 20 {
				t.Errorf("recover: code %d, %d records\n%s", code, n, out)
			}
		})
	}
}

// What a recover has published itself before it was killed must not pass for the equal rows that it has not come to.
func TestAKilledRecoverDoesNotTakeItsOwnRecordsForTheRest(t *testing.T) {
	t.Parallel()
	for _, o := range []struct{ version, commitTimes string }{{"17", "on"}, {"15", "off"}} {
		t.Run("commit times "+o.commitTimes, func(t *testing.T) {
			t.Parallel()
			pg := testenv.Postgres(t, o.version, testenv.Param("track_commit_timestamp", o.commitTimes))
			s := twinSetting(t, pg, "table: public.outbox, order_column: n", nil, unnamed)
			path := t.TempDir() + "/checkpoint"
			s.extra += fmt.Sprintf("\ncheckpoint: {store: file, path: %q}", path)
			s.startReady().stopsClean()
			// One transaction, so that its rows are equal in everything: three, then one whose topic is missing, then three again.
			late := strings.Replace(insertOf("outbox", 1, "late"), "'order'", "'late'", 1)
			pg.Exec(t, s.dsn, "DO $$BEGIN "+insertOf("outbox", 3, "x")+"; "+late+"; "+insertOf("outbox", 3, "x")+"; END$$")
			pg.Exec(t, s.dsn, "SELECT pg_drop_replication_slot('"+s.slot()+"')")
			s.extra += "\ndelivery: {window: {events: 1}}"
			kill := s.begin("recover", "--yes")
			eventually(t, time.Minute, "three rows are written down", func() bool {
				text, _ := os.ReadFile(path) //nolint:errcheck // it is written now
				var file struct{ Records map[string][]byte }
				_ = json.Unmarshal(text, &file) // it is written now
				for _, rec := range file.Records {
					if strings.Contains(string(rec), `"rows":3`) {
						return true
					}
				}
				return false
			})
			kill()
			testenv.Kafka(t).CreateTopic(t, s.name+".late", 1, nil)
			code, out := s.command("recover", "--yes")
			if n := len(s.records()); code != 0 || n < 6 {
				t.Errorf("recover: code %d, %d records of 6\n%s", code, n, out)
			}
		})
	}
}

// The records of a table that had no missing row, and is finished, must not pass for the equal rows of the next table. The process that loses
// its connection there knows that the table is finished. Its record says that only once a row is published, so the test writes it there.
func TestTheRecordsOfAFinishedTableAreNotTakenForTheNextTable(t *testing.T) {
	t.Parallel()
	pg := testenv.Postgres(t, "15", testenv.Param("track_commit_timestamp", "off"))
	s := twinSetting(t, pg, "tables: [public.outbox, public.other], order_column: id", nil, numbered("outbox"), numbered("other"))
	path := t.TempDir() + "/checkpoint"
	s.extra += fmt.Sprintf("\ncheckpoint: {store: file, path: %q}", path)
	r := s.startReady()
	pg.Exec(t, s.dsn, inserts("outbox", 10, 0, "x")...)
	eventually(t, time.Minute, "delivered", func() bool { return len(s.records()) == 10 })
	r.stopsClean()
	pg.Exec(t, s.dsn, inserts("other", 10, 0, "x")...)
	pg.Exec(t, s.dsn, "SELECT pg_drop_replication_slot('"+s.slot()+"')")
	cmd := exec.Command(program, "recover", "--config", s.config())
	cmd.Stdin = strings.NewReader("y\nn\n") // make the slot, and publish nothing
	if out, err := cmd.CombinedOutput(); err == nil {
		t.Fatalf("recover was declined, and ended well\n%s", out)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Records map[string][]byte `json:"records"`
	}
	if err := json.Unmarshal(text, &file); err != nil {
		t.Fatal(err)
	}
	store, written := statelog.NewFileStore(path), 0
	for key, rec := range file.Records {
		if with := strings.Replace(string(rec), `"slot":true`, `"slot":true,"finished":["public.outbox"]`, 1); with != string(rec) {
			written++
			if err := store.Save(t.Context(), key, []byte(with)); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := store.Close(); err != nil || written != 1 {
		t.Fatal(err, written)
	}
	if code, out := s.command("recover", "--yes"); code != 0 || len(s.records()) != 20 {
		t.Errorf("recover: code %d, %d records of 20\n%s", code, len(s.records()), out)
	}
}

// begin starts walpost. kill ends it at once.
func (s *setting) begin(args ...string) (kill func()) {
	s.t.Helper()
	cmd := exec.Command(program, append(args, "--config", s.config())...)
	if err := cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	kill = sync.OnceFunc(func() {
		_ = cmd.Process.Kill() // it may have ended
		_ = cmd.Wait()         // it was killed
	})
	s.t.Cleanup(kill)
	return kill
}
