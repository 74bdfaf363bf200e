package table

import (
	"strings"
	"testing"
	"time"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/testenv"
)

// The server applies the publication's row filter to what is read from the table. A row for which the filter is NULL is not published.
func TestTheRowFilterHoldsForTheTable(t *testing.T) {
	testenv.OnEach(t, func(t *testing.T, pg *testenv.PG) {
		if pg.Version() < 15 {
			return
		}
		w := newWorld(t, pg, `CREATE TABLE outbox (id int, "Kind" text, place int)`,
			`CREATE PUBLICATION walpost FOR TABLE outbox WHERE ("Kind" <> 'it''s' OR place = 9 AND "Kind" IS NOT NULL) WITH (publish = 'insert')`,
			"INSERT INTO outbox VALUES (1, 'a', 1), (2, 'it''s', 2), (3, NULL, NULL), (7, 'it''s', 4), (4, 'b', 4), (5, 'it''s', 9), (6, 'it''s', NULL), (6, 'it''s', NULL)")
		byPlace := Order{By: ByColumn, Column: "place"}
		if got, _ := w.take(Selection{Order: byPlace}, 0); got != "1 4 5" {
			t.Errorf("read %s", got)
		}
		if got, _ := w.take(Selection{Order: byPlace, All: true}, 0); got != "1 2 7 4 5 3 6 6" {
			t.Errorf("of all rows, read %s", got)
		}
		_, at := w.take(Selection{Order: byPlace}, 2)
		if got, _ := w.take(Selection{Order: byPlace, After: at}, 0); got != "5" {
			t.Errorf("behind the second row, read %s", got)
		}
		r, err := w.source().Open(t.Context(), Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		table := r.Tables()[0]
		if unplaced, err := table.Unplaced(t.Context(), Selection{Order: byPlace}, ""); err != nil || unplaced != "" {
			t.Errorf("%v, unplaced: %s", err, unplaced) // the rows without a place are left out
		}
		if equal, err := table.HasEqual(t.Context()); err != nil || equal {
			t.Errorf("%v, equal rows: %t", err, equal)
		}
		for json, leftOut := range map[string]bool{`{"Kind": "a"}`: false, `{"Kind": "it's", "place": 9}`: false, `{"Kind": "it's"}`: true, `{}`: true} {
			rows, err := table.FromJSON(t.Context(), []byte(json))
			if err != nil {
				t.Fatal(err)
			}
			if ev, err := rows.Next(); ev == nil || err != nil || rows.LeftOut != leftOut {
				t.Errorf("%s: %v, %v, left out %t", json, ev, err, rows.LeftOut)
			}
			if _, err := rows.Next(); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// What the server lets through to the stream is the oracle. Of a partitioned table, the filter of a partition's own entry does not count.
func TestTheTableIsFilteredAsTheStreamIs(t *testing.T) {
	testenv.OnEach(t, func(t *testing.T, pg *testenv.PG) {
		for name, sql := range map[string][]string{
			"a column list":            {"CREATE TABLE outbox (id int, kind text)", "CREATE PUBLICATION walpost FOR TABLE outbox (id) WHERE (kind LIKE 'a%') WITH (publish = 'insert')"},
			"a padded type and a cast": {"CREATE TABLE outbox (id int, kind char(3))", "CREATE PUBLICATION walpost FOR TABLE outbox WHERE (kind <> 'b' AND length(kind::text) > 0) WITH (publish = 'insert')"},
			"the schema's entry":       {"CREATE TABLE outbox (id int, kind text)", "CREATE PUBLICATION walpost FOR TABLE outbox WHERE (id > 3), TABLES IN SCHEMA public WITH (publish = 'insert')"},
			"a partition and its root": {"CREATE TABLE outbox (id int, kind text) PARTITION BY RANGE (id)", "CREATE TABLE low PARTITION OF outbox FOR VALUES FROM (0) TO (4)", "CREATE TABLE high PARTITION OF outbox DEFAULT", "CREATE PUBLICATION walpost FOR TABLE outbox WHERE (kind <> 'b'), low WHERE (kind = 'b') WITH (publish = 'insert', publish_via_partition_root = true)"},
			"a partition without":      {"CREATE TABLE outbox (id int, kind text) PARTITION BY RANGE (id)", "CREATE TABLE low PARTITION OF outbox FOR VALUES FROM (0) TO (4)", "CREATE TABLE high PARTITION OF outbox DEFAULT", "CREATE PUBLICATION walpost FOR TABLE outbox, low WHERE (kind = 'b') WITH (publish = 'insert', publish_via_partition_root = true)"},
		} {
			if pg.Version() < 15 {
				continue
			}
			t.Run(name, func(t *testing.T) {
				w := newWorld(t, pg, sql...)
				s := w.stream()
				w.exec("INSERT INTO outbox VALUES (1, 'a'), (2, 'b'), (3, NULL), (4, 'ab'), (5, 'b'), (6, 'ba')", "SELECT pg_logical_emit_message(true, 'end', '')",
					"CREATE TABLE behind (id int)")
				end := w.value("SELECT pg_current_wal_lsn()::text")
				behind, err := cdc.ParseLSN(end)
				if err != nil {
					t.Fatal(err)
				}
				var streamed []string
				for at := cdc.LSN(0); at < behind; {
					ev, err := s.Next(t.Context(), time.Second)
					if err != nil {
						t.Fatal(err)
					}
					if ev.Kind == cdc.Insert {
						streamed = append(streamed, string(ev.Row.Values[0].Bytes))
					} else if ev.Kind == cdc.Idle || ev.Kind == cdc.Commit {
						at = max(at, ev.Pos.LSN())
					}
				}
				if got, _ := w.take(Selection{Order: Order{By: ByColumn, Column: "id"}}, 0); got != strings.Join(streamed, " ") {
					t.Errorf("the table gives %s, the stream %s", got, streamed)
				}
			})
		}
	})
}
