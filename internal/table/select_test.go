package table

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/walpost/walpost/internal/testenv"
)

// take reads n rows (0: all) and returns their ids and where the last one stands.
func (w *world) take(sel Selection, n int) (ids string, at Place) {
	w.Helper()
	r, err := w.source().Open(w.Context(), Options{})
	if err != nil {
		w.Fatal(err)
	}
	defer r.Close()
	sel.IDColumn = "id"
	rows, err := r.Tables()[0].Select(w.Context(), sel)
	if err != nil {
		w.Fatal(err)
	}
	var all []string
	for n == 0 || len(all) < n {
		ev, err := rows.Next()
		if err != nil {
			w.Fatal(err)
		}
		if ev == nil {
			break
		}
		all = append(all, string(ev.Row.Values[0].Bytes))
		at = rows.Place()
		if at.ID != all[len(all)-1] {
			w.Errorf("row %s stands at %+v", all[len(all)-1], at)
		}
	}
	return strings.Join(all, " "), at
}

// A reading that goes on behind another leaves out what that one saw, as it saw it: not a row that was changed since, nor one that was
// committed since with a key of before.
func TestAReadingGoesOnBehindAnother(t *testing.T) {
	for _, keep := range []string{"on", "off"} {
		t.Run("track_commit_timestamp "+keep, func(t *testing.T) {
			w := newWorld(t, testenv.Postgres(t, "15", testenv.Param("track_commit_timestamp", keep)),
				"CREATE TABLE outbox (id int PRIMARY KEY, aggregate_id text, payload text, place int)")
			order := Order{By: ByColumn, Column: "place"}
			if keep == "on" {
				order = Order{By: ByCommit, Column: "place"}
			}
			late := testenv.Conn(w.T, w.dsn)
			testenv.Run(w.T, late, "BEGIN", "INSERT INTO outbox VALUES (99, 'a', '', 1)", "SAVEPOINT s", "INSERT INTO outbox VALUES (98, 'a', '', 1)")
			// In one transaction: by commit time all have one key, by column two of each.
			w.exec("INSERT INTO outbox SELECT g, 'a', '', g / 2 + 1 FROM generate_series(1, 9) g")
			whole, _ := w.take(Selection{Order: order}, 0)
			if whole != "1 2 3 4 5 6 7 8 9" {
				t.Fatalf("all: %s", whole)
			}
			for n := 1; n <= 9; n++ {
				head, at := w.take(Selection{Order: order}, n)
				rest, end := w.take(Selection{Order: order, After: at}, 0)
				if got := strings.TrimSpace(head + " " + rest); got != whole {
					t.Errorf("after %d rows (%+v): %s", n, at, got)
				}
				if n < 9 && end.ID != "9" {
					t.Errorf("the rest ends at %+v", end)
				}
				// And once more behind the second one.
				second, next := w.take(Selection{Order: order, After: at}, 2)
				if third, _ := w.take(Selection{Order: order, After: next}, 0); n < 8 && strings.TrimSpace(head+" "+second+" "+third) != whole {
					t.Errorf("after %d and 2 rows: %s, %s, %s", n, head, second, third)
				}
			}
			_, at := w.take(Selection{Order: order}, 5)
			testenv.Run(w.T, late, "COMMIT")
			w.exec("UPDATE outbox SET payload = 'changed' WHERE id = 2", "DELETE FROM outbox WHERE id = 7")
			w.exec("INSERT INTO outbox VALUES (55, 'a', '', NULL)") // which compares with nothing
			rest, _ := w.take(Selection{Order: order, After: at}, 0)
			for _, id := range []string{"99", "2", "6", "8", "9", "55"} {
				if !strings.Contains(" "+rest+" ", " "+id+" ") {
					t.Errorf("row %s is left out: %s", id, rest)
				}
			}
			for _, id := range []string{"1", "3", "7"} {
				if keep == "off" && strings.Contains(" "+rest+" ", " "+id+" ") {
					t.Errorf("row %s comes again, or is back: %s", id, rest)
				}
			}
			// A row that is not where it was: the whole key again, and nothing less.
			at.ID = "77"
			if rest, _ := w.take(Selection{Order: order, After: at}, 0); !strings.Contains(rest, "6") || !strings.Contains(rest, "5") {
				t.Errorf("behind a row that is not there: %s", rest)
			}
		})
	}
}

// A server forgets the commit times of old transactions between two readings, as it freezes their rows. A row that the first reading had not
// come to looks like one from before the server kept them, which comes first in the order.
func TestARowWhoseCommitTimeIsForgottenIsStillRead(t *testing.T) {
	pg := testenv.Postgres(t, "16", testenv.Private(), testenv.Param("track_commit_timestamp", "on"))
	w := newWorld(t, pg, "CREATE TABLE outbox (id int PRIMARY KEY, aggregate_id text, payload text)")
	for id := range 6 {
		w.exec(fmt.Sprintf("INSERT INTO outbox VALUES (%d)", id))
	}
	order := Order{By: ByCommit}
	head, at := w.take(Selection{Order: order}, 3)
	if rest, _ := w.take(Selection{Order: order, After: at}, 0); head+" "+rest != "0 1 2 3 4 5" {
		t.Fatalf("read %s, then %s", head, rest)
	}
	w.exec("ALTER DATABASE template0 ALLOW_CONNECTIONS true")
	databases := strings.Fields(w.value("SELECT string_agg(datname, ' ') FROM pg_database"))
	for _, name := range databases {
		pg.Exec(t, pg.DSN(name), "VACUUM (FREEZE)")
	}
	if n := w.value("SELECT count(*)::text FROM outbox WHERE pg_xact_commit_timestamp(xmin) IS NOT NULL"); n != "0" {
		t.Fatalf("%s commit times are still known: this says nothing", n)
	}
	rest, _ := w.take(Selection{Order: order, After: at}, 0)
	for _, id := range []string{"3", "4", "5"} {
		if !strings.Contains(rest, id) {
			t.Errorf("row %s is left out: %q", id, rest)
		}
	}
}

func TestSinceLeavesOutWhatIsKnownToBeOlder(t *testing.T) {
	for _, keep := range []string{"on", "off"} {
		t.Run("track_commit_timestamp "+keep, func(t *testing.T) {
			w := newWorld(t, testenv.Postgres(t, "17", testenv.Param("track_commit_timestamp", keep)),
				"CREATE TABLE outbox (id bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY, aggregate_id text, payload text, at timestamptz DEFAULT clock_timestamp())")
			for range 4 {
				w.exec("INSERT INTO outbox DEFAULT VALUES")
			}
			w.exec("DELETE FROM outbox WHERE id = 3")
			age := "at"
			if keep == "on" {
				age = "pg_xact_commit_timestamp(xmin)"
			}
			since, err := time.Parse("2006-01-02 15:04:05.999999", w.value("SELECT to_char("+age+" AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS.US') FROM outbox WHERE id = 2"))
			if err != nil {
				t.Fatal(err)
			}
			ask := func(since time.Time, column string) string {
				ids, _ := w.take(Selection{Order: Order{By: ByColumn, Column: "id"}, Since: since, TimeColumn: column}, 0)
				r, err := w.source().Open(t.Context(), Options{})
				if err != nil {
					t.Fatal(err)
				}
				defer r.Close()
				cuts, err := r.Tables()[0].Cuts(t.Context(), since, column)
				if err != nil {
					t.Fatal(err)
				}
				holes, unknown, err := r.Tables()[0].Holes(t.Context(), "id", since, column)
				if err != nil {
					t.Fatal(err)
				}
				return fmt.Sprintf("%s, cuts %t, %d holes %s", ids, cuts, holes, unknown)
			}
			for what, want := range map[string]string{
				ask(since, "at"):                       "2 4, cuts true, 1 holes ",
				ask(since.Add(time.Microsecond), "at"): "4, cuts true, 1 holes ",
				ask(since.Add(-time.Hour), "at"):       "1 2 4, cuts true, 0 holes no row in the table is older than the gap",
				ask(time.Time{}, "at"):                 "1 2 4, cuts false, 0 holes it is unknown when the first missing event was written",
			} {
				if what != want {
					t.Errorf("%s, must be %s", what, want)
				}
			}
			want := "1 2 4, cuts false, 0 holes the age of the rows is unknown (set source.time_column)"
			if keep == "on" { // which need no column
				want = "2 4, cuts true, 1 holes "
			}
			if got := ask(since, ""); got != want {
				t.Errorf("without a column: %s, must be %s", got, want)
			}
			if keep == "off" { // a row of unknown age is looked at
				w.exec("INSERT INTO outbox (at) VALUES (NULL)")
				if got := ask(since, "at"); got != "2 4 5, cuts false, 1 holes " {
					t.Errorf("with a NULL: %s", got)
				}
			}
		})
	}
}

// The largest values come first, whether the server keeps them in the row, compressed or beside it, and no value last.
func TestTheLargestRowsAreRead(t *testing.T) {
	w := newWorld(t, testenv.Postgres(t, "15"), "CREATE TABLE outbox (id int PRIMARY KEY, payload text)",
		"ALTER TABLE outbox ALTER payload SET STORAGE EXTERNAL",
		"INSERT INTO outbox VALUES (1, 'x'), (2, repeat('x', 90000)), (3, NULL), (4, repeat('x', 5000)), (5, 'xx')")
	if got, _ := w.take(Selection{Order: Order{By: BySize, Column: "payload"}, Newest: 3}, 0); got != "2 4 5" {
		t.Errorf("read %s", got)
	}
	if got, _ := w.take(Selection{Order: Order{By: BySize, Column: "payload"}}, 0); got != "3 1 5 4 2" {
		t.Errorf("all: %s", got)
	}
}

// A reading of some rows goes on behind another one of the same rows, although other rows have the same place in the order.
func TestAReadingOfSomeRowsGoesOn(t *testing.T) {
	w := newWorld(t, testenv.Postgres(t, "15", testenv.Param("track_commit_timestamp", "off")),
		"CREATE TABLE outbox (id int PRIMARY KEY, aggregate_id text, payload text, place int)",
		"INSERT INTO outbox SELECT g, (ARRAY['a', 'b', 'c'])[1 + g % 3], '', 1 + g / 7 FROM generate_series(1, 14) g")
	sel := Selection{Order: Order{By: ByColumn, Column: "place"}, In: []In{{"aggregate_id", []string{"a", "c"}}, {"place", []string{"1", "2"}}}}
	const whole = "2 3 5 6 8 9 11 12"
	for n := 1; n < 8; n++ {
		head, at := w.take(sel, n)
		rest := sel
		rest.After = at
		tail, _ := w.take(rest, 0)
		if head+" "+tail != whole {
			t.Errorf("after %d rows: %s, then %s; must be %s", n, head, tail, whole)
		}
		r, err := w.source().Open(t.Context(), Options{})
		if err != nil {
			t.Fatal(err)
		}
		rest.IDColumn = "id"
		if left, err := r.Tables()[0].Count(t.Context(), rest); err != nil || left != int64(8-n) {
			t.Errorf("after %d rows, %d are left, %v", n, left, err)
		}
		r.Close()
	}
}

// Only the selected rows need a place in the order.
func TestOnlySelectedRowsNeedAPlace(t *testing.T) {
	w := newWorld(t, testenv.Postgres(t, "15", testenv.Param("track_commit_timestamp", "off")),
		"CREATE TABLE outbox (id int PRIMARY KEY, aggregate_id text, payload text, place int)", "INSERT INTO outbox VALUES (1, 'a', '', 1), (2, 'b', '', NULL)")
	r, err := w.source().Open(t.Context(), Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	for key, want := range map[string]string{"a": "", "b": "rows with a NULL in place"} {
		sel := Selection{Order: Order{By: ByColumn, Column: "place"}, In: []In{{"aggregate_id", []string{key}}}}
		if got, err := r.Tables()[0].Unplaced(t.Context(), sel, "aggregate_id"); err != nil || got != want {
			t.Errorf("key %s: %q, %v", key, got, err)
		}
	}
	for key, want := range map[string]string{"a": "rows", "c": ""} {
		sel := Selection{Order: Order{By: Unordered}, In: []In{{"aggregate_id", []string{key}}}}
		if got, err := r.Tables()[0].Unplaced(t.Context(), sel, "aggregate_id"); err != nil || got != want {
			t.Errorf("without an order, key %s: %q, %v", key, got, err)
		}
	}
}

// Without a column of transaction ids, a bound is compared with the xmin of the rows.
func TestABoundWithoutAColumnSelectsLaterRows(t *testing.T) {
	w := newWorld(t, testenv.Postgres(t, "15"), "CREATE TABLE outbox (id int PRIMARY KEY)", "INSERT INTO outbox VALUES (1)", "INSERT INTO outbox VALUES (2), (3)")
	xid, err := strconv.ParseUint(w.pg.Value(t, w.dsn, "SELECT xmin FROM outbox WHERE id = 2"), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	for from, want := range map[uint64]string{3: "1 2 3", xid: "2 3", xid + 1: ""} {
		if got, _ := w.take(Selection{Behind: &Behind{From: from}}, 0); got != want {
			t.Errorf("from %d, which is %d transactions behind the second one: rows %q, must be %q", from, int64(from-xid), got, want)
		}
	}
}
