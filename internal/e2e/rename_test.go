package e2e

import (
	"strings"
	"testing"
)

// renames are changes of the table's name. If back is set, it puts the old name back.
var renames = []struct {
	name, version string
	first         string // the publication at first; "" is the one that walpost makes
	away          []string
	table         string // its name then
	back          []string
}{
	{
		name: "another name", version: "14",
		away: []string{"ALTER TABLE outbox RENAME TO events"}, table: "public.events",
	},
	{
		name: "another schema", version: "18",
		away: []string{"CREATE SCHEMA app", "ALTER TABLE outbox SET SCHEMA app"}, table: "app.outbox",
	},
	{
		name: "another name of the schema", version: "16", first: "FOR TABLES IN SCHEMA public",
		away: []string{"ALTER SCHEMA public RENAME TO app"}, table: "app.outbox",
	},
	{
		name: "for a while", version: "18",
		away: []string{"ALTER TABLE outbox RENAME TO events"}, table: "public.events", back: []string{"ALTER TABLE events RENAME TO outbox"},
	},
	{
		name: "another schema for a while, of all tables", version: "14", first: "FOR ALL TABLES",
		away: []string{"CREATE SCHEMA app", "ALTER TABLE outbox SET SCHEMA app"}, table: "app.outbox", back: []string{"ALTER TABLE app.outbox SET SCHEMA public"},
	},
}

// The stream gives a row under the name that its table had when the row was written. All rows of the
// table arrive once each, whatever its name was.
func TestRowsOfATableThatWasRenamedArrive(t *testing.T) {
	t.Parallel()
	for _, c := range renames {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, c.version)
			if c.first != "" {
				w.exec("CREATE PUBLICATION walpost " + c.first + " WITH (publish = 'insert')")
			}
			r := w.startReady()
			w.arrive(w.insert(10))
			w.stopCleanly(r)
			rows := w.insert(10)
			w.exec(c.away...)
			rows = append(rows, w.insertInto(c.table, 10)...)
			flag := "--table=" + c.table
			if w.exec(c.back...); c.back != nil {
				flag = "--table=public.outbox"
			}
			if code, out := w.command("check", flag); code != 0 || !strings.Contains(out, "ok    postgres: checkpoint: ") {
				t.Errorf("check: code %d\n%s", code, out)
			}
			r = w.startReady(flag)
			w.arrive(rows)
			if !strings.Contains(r.log.String(), "under another name") {
				t.Error("the log does not say that rows come under another name")
			}
			w.stopCleanly(r)
			if n := w.again(); n > 0 {
				t.Errorf("%d events came again", n)
			}
		})
	}
}
