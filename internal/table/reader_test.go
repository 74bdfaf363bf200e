package table

import (
	"fmt"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/internal/testenv"
)

// everyType has what prints differently by a setting, what the catalog says more about, and what the stream leaves out.
var everyType = []string{
	"CREATE TYPE mood AS ENUM ('sad', 'it''s ok')", "CREATE DOMAIN code AS varchar(7)", "CREATE TYPE pair AS (a int, b text)",
	`CREATE TABLE outbox (id uuid PRIMARY KEY, aggregate_id text, payload bytea, gone int, "Mixed Case" text DEFAULT 'x', f4 real, f8 double precision,
 n numeric, n2 numeric(12,4), d date, t time, tz timetz, ts timestamp(3), tsz timestamptz, i interval, b boolean, j json, jb jsonb, x xml, m mood, c code,
 p pair, a int[], ta text[], r tsrange, net inet, mac macaddr, reg regclass, bits bit(5), ch char(5), twice int GENERATED ALWAYS AS (length(aggregate_id) * 2) STORED, last int)`,
	"ALTER TABLE outbox DROP COLUMN gone",
}

const everyRow = `INSERT INTO outbox (id, aggregate_id, payload, "Mixed Case", f4, f8, n, n2, d, t, tz, ts, tsz, i, b, j, jb, x, m, c, p, a, ta, r, net, mac, reg, bits, ch, last) VALUES
 ('00000000-0000-0000-0000-000000000001', 'a' || chr(10) || chr(9) || '\ü', '\x00ff41', '', 0.1, 1e300, 1234567890.123456789, 1.5, '2024-02-29', '12:00:01.5',
 '12:00+02', '2024-02-29 12:34:56.789', '2024-02-29 12:34:56.789+05', '1 mon 2 days 03:04:05.6', true, '{"a" :  1}', '{"a" :  1}', '<a>ü</a>', 'it''s ok', 'abc',
 '(1,"x y")', '{1,NULL}', '{"a b",""}', '[2024-01-01,2024-02-01)', '10.0.0.1/8', '08:00:2b:01:02:03', 'outbox', '10101', 'ab', NULL),
 ('00000000-0000-0000-0000-000000000002', 'b', NULL, NULL, 'NaN', '-Infinity', 'NaN', 0, 'infinity', '24:00', NULL, '-infinity', '0044-03-15 12:00+00 BC', NULL, false, 'null',
 'null', NULL, 'sad', '', NULL, '{}', '{}', 'empty', NULL, NULL, NULL, NULL, '', 7)`

// A row read from the table must be what the stream gave for it, to the byte and to the relation: the router must not be able
// to tell the two apart. The role's defaults differ from what the connections pin.
func TestATableGivesWhatTheStreamGave(t *testing.T) {
	for _, partitioned := range []bool{false, true} {
		testenv.OnEach(t, func(t *testing.T, pg *testenv.PG) {
			w := newWorld(t, pg, everyType...)
			if partitioned {
				w.exec("ALTER TABLE outbox RENAME TO old", "ALTER TABLE old DROP CONSTRAINT outbox_pkey",
					"CREATE TABLE outbox (LIKE old INCLUDING ALL) PARTITION BY LIST (last)", "CREATE TABLE outbox_7 PARTITION OF outbox FOR VALUES IN (7)",
					"CREATE TABLE outbox_rest PARTITION OF outbox DEFAULT")
			}
			w.exec("ALTER DATABASE "+w.value("SELECT current_database()")+" SET DateStyle = 'German'", "ALTER DATABASE "+w.value("SELECT current_database()")+" SET bytea_output = 'escape'")
			s := w.stream()
			w.exec(everyRow)
			type got struct {
				rel  *cdc.Relation
				vals []string
			}
			show := func(ev *cdc.Event) got {
				g := got{rel: ev.Row.Relation}
				for i, v := range ev.Row.Values {
					text := "NULL"
					if v.Bytes != nil {
						text = fmt.Sprintf("%q", v.Bytes)
					}
					g.vals = append(g.vals, ev.Row.Relation.Columns[i].Name+"="+text)
				}
				return g
			}
			var streamed []got
			for len(streamed) < 2 {
				ev, err := s.Next(t.Context(), time.Second)
				if err != nil {
					t.Fatal(err)
				}
				if ev.Kind == cdc.Insert {
					streamed = append(streamed, show(ev))
				}
			}
			r, err := w.source().Open(t.Context(), Options{})
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			rows, err := r.Tables()[0].Select(t.Context(), Selection{Order: Order{By: ByColumn, Column: "id"}})
			if err != nil {
				t.Fatal(err)
			}
			for i := 0; ; i++ {
				ev, err := rows.Next()
				if err != nil {
					t.Fatal(err)
				}
				if ev == nil {
					if i != 2 {
						t.Fatalf("%d rows", i)
					}
					break
				}
				g := show(ev)
				if a, b := strings.Join(g.vals, "\n"), strings.Join(streamed[i].vals, "\n"); a != b {
					t.Errorf("row %d of the table:\n%s\nof the stream:\n%s", i, a, b)
				}
				a, b := *g.rel, *streamed[i].rel
				for j := range min(len(a.Columns), len(b.Columns)) {
					if a.Columns[j].TypeOID >= 16384 { // a Type message has a shorter name, which no router may go by
						a.Columns[j].TypeName = b.Columns[j].TypeName
					}
					if !reflect.DeepEqual(a.Columns[j], b.Columns[j]) {
						t.Errorf("column of the table:\n%+v\nof the stream:\n%+v", a.Columns[j], b.Columns[j])
					}
				}
				if a, b := fmt.Sprint(a.ID, a.Schema, a.Name, a.ReplicaIdentity, len(a.Columns)), fmt.Sprint(b.ID, b.Schema, b.Name, b.ReplicaIdentity, len(b.Columns)); a != b {
					t.Errorf("relation of the table %s, of the stream %s", a, b)
				}
			}
		})
	}
}

// order reads the rows' ids in an order.
func (w *world) order(sel Selection) string {
	w.Helper()
	r, err := w.source().Open(w.Context(), Options{})
	if err != nil {
		w.Fatal(err)
	}
	defer r.Close()
	rows, err := r.Tables()[0].Select(w.Context(), sel)
	if err != nil {
		w.Fatal(err)
	}
	var ids []string
	for {
		ev, err := rows.Next()
		if err != nil {
			w.Fatal(err)
		}
		if ev == nil {
			return strings.Join(ids, " ")
		}
		id := string(ev.Row.Values[ev.Row.Relation.Index("id")].Bytes)
		if rows.CommitKnown != r.KeepsCommitTimes() {
			w.Errorf("row %s: commit time known: %t", id, rows.CommitKnown)
		}
		if rows.CommitKnown && time.Since(ev.Time) > time.Hour || time.Since(ev.Time) < -time.Minute {
			w.Errorf("row %s has the time %s", id, ev.Time)
		}
		ids = append(ids, id)
	}
}

// Three transactions: the one that began first, with the lowest id of its row, commits last.
func TestTableRowsComeInTheOrderAskedFor(t *testing.T) {
	for _, keep := range []string{"on", "off"} {
		t.Run("track_commit_timestamp "+keep, func(t *testing.T) {
			w := newWorld(t, testenv.Postgres(t, "15", testenv.Param("track_commit_timestamp", keep)),
				"CREATE TABLE outbox (id int PRIMARY KEY, aggregate_id text, payload text)")
			first, second := testenv.Conn(w.T, w.dsn), testenv.Conn(w.T, w.dsn)
			testenv.Run(w.T, first, "BEGIN", "INSERT INTO outbox VALUES (1, 'a', '')", "SAVEPOINT s", "INSERT INTO outbox VALUES (9, 'a', '')", "RELEASE s", "INSERT INTO outbox VALUES (2, 'a', '')")
			testenv.Run(w.T, second, "INSERT INTO outbox VALUES (3, 'a', '')", "INSERT INTO outbox VALUES (4, 'a', '')")
			testenv.Run(w.T, first, "COMMIT")
			testenv.Run(w.T, second, "INSERT INTO outbox SELECT generate_series(5, 6), 'a', ''")
			w.exec("CREATE TABLE child () INHERITS (outbox)", "INSERT INTO child VALUES (77, 'a', '')") // published, if at all, under its own name
			for what, want := range map[Order]string{
				{By: ByColumn, Column: "id"}: "1 2 3 4 5 6 9",
				{By: ByTransaction}:          "1 2 9 3 4 5 6", // 9 is of a subtransaction, with an id of its own
			} {
				if got := w.order(Selection{Order: what}); got != want {
					t.Errorf("%+v: %s, must be %s", what, got, want)
				}
			}
			if got := w.order(Selection{Order: Order{By: ByColumn, Column: "id"}, Newest: 2}); got != "9 6" {
				t.Errorf("newest by column: %s", got)
			}
			if got := w.order(Selection{Order: Order{By: ByTransaction}, Newest: 3}); got != "6 5 4" {
				t.Errorf("newest by transaction: %s", got)
			}
			if keep == "on" {
				for what, want := range map[Order]string{
					{By: ByCommit}:               "3 4 1 9 2 5 6",
					{By: ByCommit, Column: "id"}: "3 4 1 2 9 5 6",
				} {
					if got := w.order(Selection{Order: what}); got != want {
						t.Errorf("%+v: %s, must be %s", what, got, want)
					}
				}
			}
		})
	}
}

func TestATableThatCannotBeReadSaysWhatToDo(t *testing.T) {
	pg := testenv.Postgres(t, "15")
	w := newWorld(t, pg)
	read := func() error {
		r, err := w.source().Open(t.Context(), Options{})
		if err == nil {
			r.Close()
		}
		return err
	}
	wantFault(t, read(), true, "table public.outbox does not exist", "walpost check")
	w.exec(outboxTable, "CREATE ROLE "+w.name+"_r LOGIN")
	t.Cleanup(func() { pg.Exec(t, pg.DSN("postgres"), "DROP ROLE "+w.name+"_r") })
	w.db.DSN = strings.Replace(w.dsn, "postgres@", w.name+"_r@", 1)
	wantFault(t, read(), false, "lacks the privilege to read it", `GRANT SELECT ON "public"."outbox"`)
	w.exec("GRANT SELECT ON outbox TO "+w.name+"_r", "REVOKE USAGE ON SCHEMA public FROM public")
	wantFault(t, read(), false, "lacks the privilege to read it", `GRANT USAGE ON SCHEMA "public"`)
	w.exec("REVOKE SELECT ON outbox FROM " + w.name + "_r")
	w.db.DSN = w.dsn
	r, err := w.source().Open(t.Context(), Options{Snapshot: "00000003-0000001B-1"})
	if err == nil {
		r.Close()
	}
	if err == nil || !strings.Contains(err.Error(), "begin to read the table") {
		t.Errorf("a snapshot that nobody exported: %v", err)
	}
}

// A role may have few connections, and a relay holds some of them already.
func TestAReaderTakesOneConnection(t *testing.T) {
	w := newWorld(t, testenv.Postgres(t, ""), outboxTable)
	role := "one_" + w.name
	w.exec("CREATE ROLE "+role+" LOGIN CONNECTION LIMIT 1", "GRANT SELECT ON public.outbox TO "+role)
	t.Cleanup(func() { w.exec("DROP OWNED BY "+role, "DROP ROLE "+role) })
	w.db.DSN = strings.Replace(w.dsn, "postgres@", role+"@", 1)
	// The server counts a closed connection until its process has ended, so an attempt may come too early. Callers of Open retry.
	patience := time.Now().Add(30 * time.Second)
	for time.Now().Before(patience) {
		reader, err := w.source().Open(t.Context(), Options{})
		if err == nil {
			reader.Close()
			return
		}
		if !fault.Retryable(err) {
			t.Fatal(err)
		}
		for time.Now().Before(patience) && w.value("SELECT count(*) FROM pg_stat_activity WHERE usename = '"+role+"'") != "0" {
			time.Sleep(time.Millisecond)
		}
	}
	t.Error("no attempt succeeds")
}

// A big table is never in memory as a whole: the server is read as far as the rows are taken.
func TestATableIsReadRowByRow(t *testing.T) {
	w := newWorld(t, testenv.Postgres(t, "15"), outboxTable,
		"INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload) SELECT 'order', g::text, 'made', jsonb_build_object('x', repeat('x', 10000)) FROM generate_series(1, 20000) g")
	r, err := w.source().Open(t.Context(), Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	rows, err := r.Tables()[0].Select(t.Context(), Selection{})
	if err != nil {
		t.Fatal(err)
	}
	before := heap()
	for i := range 1000 {
		if ev, err := rows.Next(); ev == nil || err != nil {
			t.Fatalf("row %d: %v", i, err)
		}
	}
	if grown := heap() - before; grown > 32<<20 { // 200 MB are in the table
		t.Errorf("%d bytes more are in use after 1000 of 20000 rows", grown)
	}
	if got := w.value("SELECT state FROM pg_stat_activity WHERE query LIKE 'SELECT t.%' AND pid <> pg_backend_pid()"); got != "active" {
		t.Errorf("the server is %s: it must be in the middle of sending", got)
	}
}

func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
