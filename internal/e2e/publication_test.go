package e2e

import (
	"strings"
	"testing"
	"time"

	"github.com/walpost/walpost/internal/testenv"
)

// publications are changed so that rows are not published for a while, and changed back.
var publications = []struct {
	name, version string
	first         string // the publication at first; "" is the one that walpost makes
	away, back    []string
	says          string
	wedged        bool // the slot cannot read what was written in between
}{
	{
		name: "the table out and in", version: "15",
		away: []string{"ALTER PUBLICATION walpost DROP TABLE outbox"}, back: []string{"ALTER PUBLICATION walpost ADD TABLE outbox"},
		says: `table public.outbox was removed from publication "walpost" and added again`,
	},
	{
		name: "the table made again", version: "18",
		away: []string{"CREATE TABLE made (LIKE outbox INCLUDING ALL)", "INSERT INTO made SELECT * FROM outbox", "DROP TABLE outbox", "ALTER TABLE made RENAME TO outbox"},
		back: []string{"ALTER PUBLICATION walpost ADD TABLE outbox"},
		says: `table public.outbox in publication "walpost" was dropped and created again`,
	},
	{
		name: "updates only", version: "17",
		away: []string{"ALTER PUBLICATION walpost SET (publish = 'update')"}, back: []string{"ALTER PUBLICATION walpost SET (publish = 'insert')"},
		says: `publication "walpost" was altered`,
	},
	{
		name: "the schema out and in", version: "16", first: "FOR TABLES IN SCHEMA public",
		away: []string{"ALTER PUBLICATION walpost DROP TABLES IN SCHEMA public"}, back: []string{"ALTER PUBLICATION walpost ADD TABLES IN SCHEMA public"},
		says: `table public.outbox was removed from publication "walpost" and added again`,
	},
	{
		name: "all tables, updates only", version: "14", first: "FOR ALL TABLES",
		away: []string{"ALTER PUBLICATION walpost SET (publish = 'update')"}, back: []string{"ALTER PUBLICATION walpost SET (publish = 'insert')"},
		says: `publication "walpost" was altered`,
	},
	{
		name: "the publication created again", version: "17",
		away: []string{"DROP PUBLICATION walpost"}, back: []string{"CREATE PUBLICATION walpost FOR TABLE outbox WITH (publish = 'insert')"},
		says: `publication "walpost" was dropped and created again`, wedged: true,
	},
}

// What was written while the publication was another one is not in the stream. That is refused at the next start, and recover
// publishes it from the table, on the same slot.
func TestAPublicationThatIsChangedAndPutBackIsAGap(t *testing.T) {
	t.Parallel()
	for _, c := range publications {
		for _, running := range []bool{false, true} {
			name := "down/"
			if running {
				name = "between two looks/"
			}
			t.Run(name+c.name, func(t *testing.T) {
				t.Parallel()
				kafka := testenv.Kafka(t)
				pg := testenv.Postgres(t, c.version)
				slot := strings.ReplaceAll(unique("publication"), "-", "_")
				w := worldIn(t, kafka, pg, pg.Database(t), slot)
				if c.first != "" {
					w.exec("CREATE PUBLICATION walpost " + c.first + " WITH (publish = 'insert')")
				}
				r := w.start("--slot", slot)
				eventually(t, time.Minute, "ready", r.ready)
				w.arrive(w.insert(10))
				if !running {
					w.stopCleanly(r)
				}
				before := w.insert(5) // while down, the slot has these
				w.exec(c.away...)
				missing := w.insert(7)
				w.exec(c.back...)
				after := w.insert(5)
				if running {
					w.halted(r, "") // for what was away, where the look came just then
				}
				token := w.refused([]string{c.says, "rows that were committed after "}, "--slot", slot)
				if again := w.refused([]string{c.says}, "--slot", slot); again != token {
					t.Errorf("the same gap has the tokens %s and %s", token, again)
				}
				check := func(code int, says string) { // as docs/troubleshooting.md says
					t.Helper()
					if got, out := w.command("check", "--slot", slot); got != code || !strings.Contains(out, says) {
						t.Errorf("check: code %d, no %q in\n%s", got, says, out)
					}
				}
				check(1, "FAIL  postgres: checkpoint: "+c.says)
				w.refused([]string{c.says, "but walpost found another gap"}, "--slot", slot, "--accept-gap=0123456789ab")
				if n := w.arrived(missing); n > 0 {
					t.Fatalf("%d of the rows that are not in the stream arrived", n)
				}
				recovers := func() {
					t.Helper()
					code, out := w.command("recover", "--yes", "--unordered", "--slot", slot)
					if code != 0 || !strings.Contains(out, "recovered: ") {
						t.Fatalf("recover: code %d\n%s", code, out)
					}
				}
				recovers()
				w.arrive(missing)
				if c.wedged {
					_, log := w.halted(w.start("--slot", slot), "", "publication")
					if hint := hintOf(log); !strings.Contains(hint, "Drop the slot") {
						t.Errorf("the hint is %s", hint)
					}
					check(0, "ok    postgres: checkpoint: ")
					w.exec("SELECT pg_drop_replication_slot('" + slot + "')")
					recovers()
				}
				r = w.start("--slot", slot)
				w.arrive(append(append(before, after...), w.insert(5)...))
				w.stopCleanly(r)
				if code, out := w.command("recover", "--yes", "--slot", slot); code != 0 || !strings.Contains(out, "nothing to recover") {
					t.Errorf("recover once more: code %d\n%s", code, out)
				}
				r = w.start("--slot", slot)
				w.arrive(w.insert(5))
				w.stopCleanly(r)
				// Of a slot that cannot be read to its end nothing tells what it still gives.
				if n := w.again(); n > 0 && (!c.wedged || running) {
					t.Errorf("%d events came again", n)
				}
			})
		}
	}
}

// Accepted by its token, the gap stays open, and nothing else is left out or comes twice.
func TestAChangedPublicationIsAcceptedByItsToken(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "17")
	r := w.startReady()
	w.arrive(w.insert(10))
	w.stopCleanly(r)
	before := w.insert(5)
	w.exec("ALTER PUBLICATION walpost DROP TABLE outbox")
	missing := w.insert(5)
	w.exec("ALTER PUBLICATION walpost ADD TABLE outbox")
	after := w.insert(5)
	token := w.refused([]string{"added again"})
	r = w.startReady("--accept-gap=" + token)
	w.arrive(append(before, after...))
	if !strings.Contains(r.log.String(), "GAP ACCEPTED") {
		t.Error("an accepted gap is not logged")
	}
	w.stopCleanly(r)
	r = w.startReady("--accept-gap=" + token)
	w.arrive(w.insert(5))
	w.stopCleanly(r)
	if n := w.arrived(missing) + w.again(); n > 0 || strings.Contains(r.log.String(), "GAP ACCEPTED") {
		t.Errorf("%d of the gap, or again; the used token was taken again: %t", n, strings.Contains(r.log.String(), "GAP ACCEPTED"))
	}
	// The next change is another gap, with the same token for a look and for a start.
	r = w.startReady()
	w.exec("ALTER PUBLICATION walpost SET (publish = 'insert')")
	_, log := w.halted(r, "", `publication "walpost" was altered`, "rows that were committed after ")
	if next := w.refused([]string{"was altered", "but walpost found another gap"}, "--accept-gap="+token); next == token || !strings.Contains(log, next) {
		t.Errorf("the token at the start is %s, of the gap before %s, and the look said\n%s", next, token, hintOf(log))
	}
}

// What is put right leaves no trace in the catalog here: the rows of the other name are in the WAL, and not as the table's. The relay
// has seen it, so the next start refuses.
func TestATableThatWasRenamedForAWhileIsAGap(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "17")
	r := w.startReady()
	w.arrive(w.insert(10))
	w.exec("ALTER TABLE outbox RENAME TO away", `CREATE VIEW outbox AS SELECT * FROM away`)
	missing := w.insert(5)
	w.halted(r, "", "public.outbox is a view", "may be missing")
	w.exec("DROP VIEW outbox", "ALTER TABLE away RENAME TO outbox")
	after := w.insert(5)
	w.refused([]string{"a check found that public.outbox is a view", "rows that were committed after "})
	code, out := w.command("recover", "--yes", "--unordered")
	if code != 0 || !strings.Contains(out, "recovered: ") {
		t.Fatalf("recover: code %d\n%s", code, out)
	}
	w.arrive(missing)
	r = w.startReady()
	w.arrive(append(after, w.insert(5)...))
	w.stopCleanly(r)
}
