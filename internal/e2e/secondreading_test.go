package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/walpost/walpost/internal/testenv"
)

// A snapshot that was interrupted reads the table once more, later than the slot was made. What is in the stream must come from the stream,
// so that an event whose row is deleted comes before the next one of its key; and no row may be left out because it looks new.
func TestASecondReadingOfTheTableKeepsTheOrder(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, version string
		commitTimes   string
		sql           []string // changes the table, at first
		rewrite       string   // changes it between the readings
		keyed         bool
	}{
		{"by commit time", "18", "on", nil, "ALTER TABLE outbox ADD COLUMN further uuid DEFAULT gen_random_uuid()", true},
		{"by a column", "14", "off", nil, "ALTER TABLE outbox ADD COLUMN further uuid DEFAULT gen_random_uuid()", true},
		// A row without a key is known by all its columns: the same text in them is the same row.
		{"without a key", "16", "off", []string{"ALTER TABLE outbox DROP CONSTRAINT outbox_pkey"}, "ALTER TABLE outbox ALTER COLUMN n TYPE int", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			pg := testenv.Postgres(t, c.version, testenv.Private(), testenv.Param("track_commit_timestamp", c.commitTimes))
			kafka := testenv.Kafka(t)
			s := newSetting(t, pg, pg.Database(t), kafka)
			s.source, s.extra = ", snapshot: initial, order_column: n", "delivery: {window: {events: 20}}"
			pg.Exec(t, s.dsn, append([]string{"ALTER TABLE outbox ADD COLUMN n bigint GENERATED ALWAYS AS IDENTITY"}, c.sql...)...)
			const rows = 5000
			pg.Exec(t, s.dsn, fmt.Sprintf(`INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload)
 SELECT 'order', 'old', 'made', to_json('row ' || g) FROM generate_series(1, %d) g`, rows),
				// Two rows wait for their topics, and the readings with them: each is killed in the middle.
				"UPDATE outbox SET aggregate_type = 'late' WHERE n = 1000",
				"UPDATE outbox SET aggregate_type = 'later' WHERE n = 2000")
			w := s.follow()
			r := s.start()
			w.total(t, time.Minute, 999)
			r.kill()
			// Behind the slot, and before the second reading.
			write := func(key string, payloads ...string) {
				for _, p := range payloads {
					pg.Exec(t, s.dsn, fmt.Sprintf(`INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload) VALUES ('order', '%s', 'made', '"%s"')`, key, p))
				}
			}
			write("deleted", "e1", "e2", "e3")
			write("updated", "e1", "e2", "e3")
			write("first", "e1")
			pg.Exec(t, s.dsn,
				`DELETE FROM outbox WHERE payload::text = '"e1"'`,
				`UPDATE outbox SET event_type = 'changed' WHERE aggregate_id = 'updated'`,
				fmt.Sprintf(`UPDATE outbox SET event_type = 'changed' WHERE payload::text IN ('"row %d"', '"row %d"')`, rows, rows-1),
				c.rewrite)
			kafka.CreateTopic(t, s.prefix+"late", 1, nil)
			r = s.start()
			w.total(t, time.Minute, 1998)
			r.kill()
			kafka.CreateTopic(t, s.prefix+"later", 1, nil)
			r = s.startReady()
			pg.Exec(t, s.dsn, `INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload, n) OVERRIDING SYSTEM VALUE VALUES ('order', 'last', 'made', '"e1"', 1000000)`)
			arrived := map[string][]string{}
			eventually(t, time.Minute, "the last row", func() bool {
				clear(arrived)
				for _, rec := range s.records() {
					arrived[string(rec.Key)] = append(arrived[string(rec.Key)], strings.Trim(string(rec.Value), `"`))
				}
				return len(arrived["last"]) > 0
			})
			r.stopsClean()
			if s := r.log.String(); !strings.Contains(s, "reading ahead of the slot") {
				t.Error("nothing was read twice: this says nothing")
			}
			once := func(all []string) (first []string) {
				for _, p := range all {
					if !slices.Contains(first, p) {
						first = append(first, p)
					}
				}
				return first
			}
			all := []string{"e1", "e2", "e3"}
			if got := arrived["deleted"]; !slices.Equal(got, all) {
				t.Errorf("a deleted row: %v", got)
			}
			if got := arrived["updated"]; c.keyed && !slices.Equal(got, all) || len(once(got)) != 3 {
				t.Errorf("an updated row: %v", got)
			}
			if got := arrived["first"]; !slices.Equal(got, all[:1]) {
				t.Errorf("a row that is gone from the table: %v", got)
			}
			old := once(arrived["old"])
			if len(old) != rows-2 {
				t.Errorf("%d of %d old rows arrived", len(old), rows-2)
			}
			t.Logf("%d duplicates of %d old rows", len(arrived["old"])-len(old), len(old))
		})
	}
}

// Without a key and without an id, a row from before the slot may be equal to one that the stream will give. Each of them is an event.
func TestASecondReadingLeavesOutNoRowThatIsEqualToOneOfTheStream(t *testing.T) {
	t.Parallel()
	pg := testenv.Postgres(t, "17", testenv.Param("track_commit_timestamp", "on"))
	for _, identity := range []string{"DEFAULT", "FULL"} {
		t.Run(identity, func(t *testing.T) {
			t.Parallel()
			s := twinSetting(t, pg, "table: public.outbox, snapshot: initial", nil,
				"CREATE TABLE outbox (id uuid, aggregate_type text, aggregate_id text, payload json)", "ALTER TABLE outbox REPLICA IDENTITY "+identity)
			equal := insertOf("outbox", 1, "{}")
			pg.Exec(t, s.dsn, strings.Replace(equal, "'order'", "'late'", 1), equal)
			r := s.start()
			eventually(t, time.Minute, "the snapshot begins", func() bool { return strings.Contains(r.log.String(), "publishing rows of the table") })
			r.kill()
			pg.Exec(t, s.dsn, equal) // behind the slot
			testenv.Kafka(t).CreateTopic(t, s.name+".late", 1, nil)
			before := len(s.records())
			r = s.startReady()
			pg.Exec(t, s.dsn, insertOf("outbox", 1, `"last"`))
			rest := 0
			eventually(t, time.Minute, "the last row", func() bool {
				all := s.records()
				rest = len(all) - 1 // of which before may have come in the first reading
				return rest >= 0 && string(all[rest].Value) == `"last"`
			})
			r.stopsClean()
			if rest-before < 2 {
				t.Errorf("%d records of two equal rows", rest-before)
			}
		})
	}
}

// A row that cannot be routed halts a snapshot. The hint says to update or delete the row: both go on, also where the rows that were
// published last are deleted by then.
func TestASnapshotGoesOnBehindABadRowThatIsUpdatedOrDeleted(t *testing.T) {
	t.Parallel()
	pg := testenv.Postgres(t, "15")
	for name, repair := range map[string]string{
		"updated": "UPDATE outbox SET aggregate_type = 'order' WHERE aggregate_type IS NULL",
		"deleted": "DELETE FROM outbox WHERE id BETWEEN 4 AND 6",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := twinSetting(t, pg, "table: public.outbox, order_column: id, snapshot: initial", nil, numbered("outbox"))
			pg.Exec(t, s.dsn, inserts("outbox", 10, 1, "n%d")...)
			pg.Exec(t, s.dsn, "UPDATE outbox SET aggregate_type = NULL WHERE id = 6")
			r := s.start()
			if code := r.wait(time.Minute); code != 3 || !strings.Contains(r.log.String(), "update or delete the row") {
				t.Fatalf("the bad row: exit code %d\n%s", code, r.log)
			}
			if n := len(s.records()); n != 5 {
				t.Errorf("%d records before the bad row", n)
			}
			pg.Exec(t, s.dsn, repair)
			r = s.startReady()
			pg.Exec(t, s.dsn, insertOf("outbox", 1, "last"))
			want := []string{"n1", "n2", "n3", "n4", "n5", "n6", "n7", "n8", "n9", "n10", "last"}
			if name == "deleted" {
				want = slices.Delete(want, 5, 6)
			}
			var got []string
			eventually(t, time.Minute, "the last row", func() bool {
				got = nil
				for _, rec := range s.records() {
					got = append(got, string(rec.Value))
				}
				return len(got) > 0 && got[len(got)-1] == "last"
			})
			r.stopsClean()
			if !slices.Equal(got, want) {
				t.Errorf("arrived: %v", got)
			}
		})
	}
}
