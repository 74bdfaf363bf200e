package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/walpost/walpost/internal/testenv"
)

// A publication of the user's own has a row filter, inserts only, and a column list without a column of a placement that may be
// missing. The stream, the first snapshot, recover and explain give the same rows, and nothing removes a row.
func TestARowFilterHoldsForTheStreamAndTheTable(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"15", "18"} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			pg := testenv.Postgres(t, version)
			slot := strings.ReplaceAll(unique("rowfilter"), "-", "_")
			w := worldIn(t, testenv.Kafka(t), pg, pg.Database(t), slot)
			w.exec("ALTER TABLE outbox ADD COLUMN note text, ADD COLUMN n bigint GENERATED ALWAYS AS IDENTITY",
				"CREATE PUBLICATION walpost FOR TABLE outbox (id, aggregate_type, aggregate_id, event_type, payload, created_at, n) WHERE (aggregate_id <> 'k3') WITH (publish = 'insert')")
			w.source = ", snapshot: initial, publish: [insert, update], order_column: n, slot: " + slot
			w.router = ", table.field.additional.missing: ignore, table.fields.additional.placement: 'note:header'"
			w.extra += "cleanup: {mode: delete, keep: 0s}\n"
			w.source += ", time_column: created_at"
			// split divides what insert(5) gives by the filter.
			split := func(ids []string) (kept, leftOut []string) {
				for _, id := range ids {
					if w.pg.Value(t, w.dsn, "SELECT aggregate_id FROM outbox WHERE id = $1", id) == "k3" {
						leftOut = append(leftOut, id)
					} else {
						kept = append(kept, id)
					}
				}
				return kept, leftOut
			}
			first, not := split(w.insert(5))
			code, out := w.command("check")
			for _, want := range []string{
				"publication walpost has a row filter for public.outbox: walpost publishes only rows for which (aggregate_id <> 'k3'::text)",
				"publication walpost publishes no updates", "does not publish column note of public.outbox",
				"walpost cannot tell which rows were delivered, and removes none",
			} {
				if !strings.Contains(strings.Join(strings.Fields(out), " "), want) {
					t.Errorf("check (code %d) does not say %q:\n%s", code, want, out)
				}
			}
			r := w.start()
			eventually(t, time.Minute, "ready", r.ready)
			w.arrive(first)
			second, more := split(w.insert(5))
			not = append(not, more...)
			w.arrive(second)
			w.stopCleanly(r)
			if !strings.Contains(r.log.String(), "has a row filter for public.outbox") {
				t.Error("the start does not log the filter")
			}
			if code, out := w.command("explain", "--id", not[0]); code != 1 || !strings.Contains(out, "the publication's row filter leaves the row out: only rows that match (aggregate_id <> 'k3'::text)") {
				t.Errorf("explain: code %d\n%s", code, out)
			}
			// What was written while the table was not published is recovered by the same filter.
			w.exec("ALTER PUBLICATION walpost DROP TABLE outbox")
			missing, more := split(w.insert(5))
			not = append(not, more...)
			w.exec("ALTER PUBLICATION walpost ADD TABLE outbox WHERE (aggregate_id <> 'k3')")
			w.refused([]string{"was removed from publication"})
			code, out = w.command("recover", "--yes")
			if code != 0 || !strings.Contains(out, fmt.Sprintf("%d are missing", len(missing))) || !strings.Contains(out, "walpost compares only rows with (aggregate_id <> 'k3'::text)") {
				t.Fatalf("recover: code %d\n%s", code, out)
			}
			w.arrive(missing)
			// Another filter is another publication: rows may be missing.
			r = w.start()
			eventually(t, time.Minute, "ready", r.ready)
			w.exec("ALTER PUBLICATION walpost SET TABLE outbox WHERE (aggregate_id <> 'k4')")
			w.halted(r, "", "was removed from publication")
			if code, out := w.command("recover", "--yes"); code != 0 {
				t.Fatalf("recover: code %d\n%s", code, out)
			}
			w.arrive(not) // they match the filter of now
			if rows := w.pg.Value(t, w.dsn, "SELECT count(*)::text FROM outbox"); rows != "15" {
				t.Errorf("%s rows are left of 15, although the cleanup cannot know what was delivered", rows)
			}
			if n := w.again(); n > 0 {
				t.Errorf("%d events came again", n)
			}
		})
	}
}
