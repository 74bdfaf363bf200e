package e2e

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/walpost/walpost/internal/testenv"
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

// A relay for another table does not take over the slot of a relay that is killed: it would confirm, without delivering them,
// the rows of the first table. With the slot and the publication of walpost init it delivers its rows, and nothing is missing.
func TestASecondRelayWithTheSlotOfTheFirstIsRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "18", testenv.Param("track_commit_timestamp", "on"))
	first := w.startReady()
	w.arrive(w.insert(10))
	w.exec("CREATE SCHEMA sales")
	if code, out := w.command("setup", "--apply", "--table=sales.outbox"); code != 1 || !strings.Contains(out, "publication walpost exists, and has other tables than sales.outbox") || !strings.Contains(out, "set source.slot and source.publication") {
		t.Errorf("setup: code %d\n%s", code, out)
	}
	w.exec("CREATE TABLE sales.outbox (LIKE outbox INCLUDING ALL)")
	sales := w.insertInto("sales.outbox", 5)
	for _, command := range []string{"check", "setup"} {
		if code, out := w.command(command, "--table=sales.outbox"); code == 0 || !strings.Contains(out, "publication walpost does not contain table sales.outbox") || !strings.Contains(out, "set source.slot and source.publication") {
			t.Errorf("%s: code %d\n%s", command, code, out)
		}
	}
	w.exec("ALTER PUBLICATION walpost ADD TABLE sales.outbox")
	second := w.start("--table=sales.outbox")
	rows := w.insert(5)
	sales = append(sales, w.insertInto("sales.outbox", 5)...)
	w.arrive(rows)
	first.kill()
	rows = w.insert(10)
	sales = append(sales, w.insertInto("sales.outbox", 5)...)
	eventually(t, time.Minute, "the second relay has the slot, and halts", func() bool {
		_, body := second.get("/readyz")
		return strings.HasPrefix(body, "halted: ")
	})
	first = w.startReady() // the halted relay does not hold the slot
	w.arrive(rows)
	w.halted(second, "", "source.table is sales.outbox, but checkpoint ", " was written for public.outbox")
	file, err := exec.Command(program, "init", "--dsn", w.dsn, "--table=sales.outbox", "--brokers="+strings.Join(w.brokers, ",")).Output()
	if err != nil {
		t.Fatal(err)
	}
	own := *w.setting
	own.yaml, _, _ = strings.Cut(string(file), "http:")
	own.yaml = strings.Replace(own.yaml, "router:\n", fmt.Sprintf("router:\n  route.topic.replacement: \"%s${routedByValue}\"\n", w.prefix), 1)
	second = own.startReady("--snapshot=initial")
	w.arrive(append(sales, w.insertInto("sales.outbox", 5)...))
	w.arrive(w.insert(5))
	if code := second.stop(); code != 0 {
		t.Errorf("code %d", code)
	}
	w.stopCleanly(first)
}

// A relay that is to deliver another table first delivers both. A person can give up the rest of the first table instead.
func TestTheSlotOfAnotherTableIsRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "18")
	r := w.startReady()
	w.arrive(w.insert(10))
	w.stopCleanly(r)
	rows := w.insert(10)
	w.exec("CREATE SCHEMA sales", "CREATE TABLE sales.outbox (LIKE outbox INCLUDING ALL)", "ALTER PUBLICATION walpost ADD TABLE sales.outbox")
	rows = append(rows, w.insertInto("sales.outbox", 5)...)
	says := []string{"source.table is sales.outbox, but checkpoint ", " was written for public.outbox"}
	w.refused(says, "--table=sales.outbox")
	if code, out := w.command("check", "--table=sales.outbox"); code != 1 || !strings.Contains(out, "FAIL  postgres: checkpoint: source.table is sales.outbox") {
		t.Errorf("check: code %d\n%s", code, out)
	}
	if code, out := w.command("recover", "--yes", "--table=sales.outbox"); code != 3 || !strings.Contains(out, says[0]) {
		t.Errorf("recover: code %d\n%s", code, out)
	}
	r = w.startReady("--table=public.outbox,sales.outbox")
	w.arrive(rows)
	w.stopCleanly(r)
	r = w.startReady("--table=sales.outbox")
	w.arrive(w.insertInto("sales.outbox", 5))
	w.stopCleanly(r)
	lost := w.insertInto("sales.outbox", 5)
	token := w.refused([]string{"source.table is public.outbox, but checkpoint ", " was written for sales.outbox"})
	r = w.startReady("--accept-gap=" + token)
	w.arrive(w.insert(5))
	w.stopCleanly(r)
	r = w.startReady()
	w.arrive(w.insert(5))
	w.stopCleanly(r)
	if n := w.arrived(lost) + w.again(); n > 0 {
		t.Errorf("%d of the gap, or again", n)
	}
}

// A table that a relay is to deliver from now on may have rows that its slot does not have, and that the checkpoint knows nothing of.
func TestTheRowsOfATableThatIsAddedArriveByReplay(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "18", testenv.Param("track_commit_timestamp", "on"))
	const both = "--table=public.outbox,sales.outbox"
	r := w.startReady()
	w.exec("CREATE SCHEMA sales", "CREATE TABLE sales.outbox (LIKE outbox INCLUDING ALL)")
	rows := append(w.insertInto("sales.outbox", 5), w.insert(5)...)
	w.arrive(rows[5:])
	w.stopCleanly(r)
	if code, out := w.command("check", both); code != 1 || !strings.Contains(out, "publish these rows with walpost replay --all --table=sales.outbox, and then") || !strings.Contains(out, `ALTER PUBLICATION "walpost" ADD TABLE "sales"."outbox";`) {
		t.Errorf("check: code %d\n%s", code, out)
	}
	w.exec("ALTER PUBLICATION walpost ADD TABLE sales.outbox")
	if code, out := w.command("recover", "--yes", both); code != 0 || !strings.Contains(out, "nothing to recover") {
		t.Errorf("recover: code %d\n%s", code, out)
	}
	if code, out := w.command("replay", "--all", "--table=sales.outbox"); code != 0 {
		t.Errorf("replay: code %d\n%s", code, out)
	}
	r = w.startReady(both)
	w.arrive(append(rows, w.insertInto("sales.outbox", 5)...))
	w.stopCleanly(r)
}

// A parked row has the name that its table had. After the table is renamed, walpost must not take it for a row without an event.
func TestAParkedRowOutlivesTheRenameOfItsTable(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "17")
	w.exec("ALTER TABLE outbox ALTER COLUMN aggregate_type DROP NOT NULL")
	w.extra += fmt.Sprintf("\ndelivery: {on_poison: park_key, parking_topic: %sparked}\n", w.prefix)
	r := w.startReady()
	w.exec("INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload) VALUES (NULL, 'k', 'Changed', '{}')")
	eventually(t, time.Minute, "the key is parked", func() bool { return r.metric("walpost_parked_keys") == 1 })
	w.stopCleanly(r)
	w.exec("ALTER TABLE outbox RENAME TO events")
	r = w.startReady("--table=public.events")
	if code, out := w.command("dead", "retry", "--all"); code != 0 {
		t.Fatalf("retry: code %d\n%s", code, out)
	}
	eventually(t, time.Minute, "the key stays parked", func() bool {
		return strings.Contains(r.log.String(), "the configuration produces no record for this row of public.outbox") && r.metric("walpost_parked_keys") == 1
	})
	w.stopCleanly(r)
}
