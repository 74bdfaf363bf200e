package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/walpost/walpost/internal/testenv"
)

// changing is a setting whose relay changes its source.
type changing struct {
	*setting
	pg             *testenv.PG
	w              *watch
	polls, streams string
	rows           int
}

func newChanging(t *testing.T) *changing {
	pg, kafka := testenv.Postgres(t, "17", testenv.Private()), testenv.Kafka(t)
	s := newSetting(t, pg, pg.Database(t), kafka)
	s.extra = "halt_linger: 0s\n"
	s.polled(pg, "")
	return &changing{setting: s, pg: pg, w: s.follow(), polls: s.source, streams: ", order_column: n, time_column: created_at"}
}

// insert writes an event of a key of its own, of some age.
func (c *changing) insert(age string) {
	c.t.Helper()
	c.rows++
	c.pg.Exec(c.t, c.dsn, fmt.Sprintf(`INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload, created_at)
 VALUES ('order', 'k%d', 'Changed', '{"n": 1}', now() - interval '%s')`, c.rows, age))
}

// waits makes an event that is old, and that a transaction delays until the relay is stopped.
func (c *changing) waits(r *relay) {
	c.t.Helper()
	long, err := pgx.Connect(c.t.Context(), c.dsn)
	if err != nil {
		c.t.Fatal(err)
	}
	defer long.Close(c.t.Context()) //nolint:errcheck // it was used
	testenv.Run(c.t, long, "BEGIN", "SELECT pg_current_xact_id()")
	c.insert("2 hours")
	r.stopsClean()
}

// refuses runs walpost, which must halt.
func (c *changing) refuses(with ...string) {
	c.t.Helper()
	r := c.start()
	code := r.wait(time.Minute)
	for _, text := range with {
		if code != 3 || !strings.Contains(r.log.String(), text) {
			c.t.Fatalf("code %d, must be 3 with %q:\n%s", code, text, r.log)
		}
	}
}

// recovers runs recover, and expects a code and texts.
func (c *changing) recovers(code int, out string, want int, with ...string) {
	c.t.Helper()
	for _, text := range with {
		if code != want || !strings.Contains(out, text) {
			c.t.Fatalf("recover: code %d, must be %d with %q:\n%s", code, want, text, out)
		}
	}
}

// A change of the source publishes what was not delivered, however old it is. A change that is not finished can be taken back.
func TestAChangeOfTheSourceCanBeTakenBack(t *testing.T) {
	t.Parallel()
	c := newChanging(t)
	r := c.startReady()
	c.insert("0")
	eventually(t, time.Minute, "the first event", func() bool { return c.w.count() == 1 })
	c.waits(r)

	const unfinished = "is not finished: 0 rows are published"
	c.source = c.streams
	code, out := c.answer("y\nn\n")
	c.recovers(code, out, 1, "1 rows of the table may be in the gap, 0 of them are in Kafka, 1 are missing", "Publish 1 rows")
	c.refuses(unfinished, "recover undoes the change")
	c.source = c.polls
	c.refuses(unfinished)
	code, out = c.command("recover", "--yes")
	c.recovers(code, out, 0, "is undone", "SELECT pg_drop_replication_slot('walpost')")
	c.pg.Exec(t, c.dsn, "SELECT pg_drop_replication_slot('walpost')")
	r = c.startReady()
	eventually(t, time.Minute, "the second event", func() bool { return c.w.count() == 2 })
	c.waits(r)
	c.source = c.streams
	code, out = c.command("recover", "--yes")
	c.recovers(code, out, 0, "recovered: 1 rows")

	r = c.startReady()
	c.insert("0")
	eventually(t, time.Minute, "the event of the stream", func() bool { return c.w.count() == 4 })
	r.stopsClean()
	c.insert("0")
	c.source = c.polls
	code, out = c.answer("y\nn\n")
	c.recovers(code, out, 1, "Publish 1 rows")
	c.refuses(unfinished)
	c.source = c.streams
	code, out = c.command("recover", "--yes")
	c.recovers(code, out, 0, "is undone")
	r = c.startReady()
	c.onceEach(c.w, time.Minute)
	r.stopsClean()
}

// A column of the transaction ids that is added later has the id of ALTER TABLE in all rows that were there.
func TestAnotherColumnOfTheTransactionIDs(t *testing.T) {
	t.Parallel()
	c := newChanging(t)
	r := c.startReady()
	c.insert("0")
	c.insert("0")
	eventually(t, time.Minute, "two events", func() bool { return c.w.count() == 2 })
	c.waits(r)
	c.source = strings.Replace(c.polls, "xid_column: xid", "xid_column: other", 1)
	c.setUp(c.pg)
	c.refuses("source.poll.xid_column other, but checkpoint", "walpost recover")
	code, out := c.command("recover", "--yes")
	c.recovers(code, out, 0, "1 rows of the table may be in the gap", "recovered: 1 rows")
	r = c.startReady()
	c.insert("0")
	c.onceEach(c.w, time.Minute)
	r.stopsClean()
	c.source = c.polls
	c.refuses("If source.kind, source.poll.strategy or source.poll.xid_column is wrong, correct it.", "walpost recover")
}

// The default name depends on source.kind. Under another name, a relay would begin anew.
func TestAChangeOfTheSourceWithoutAName(t *testing.T) {
	t.Parallel()
	c := newChanging(t)
	database := c.pg.Value(t, c.dsn, "SELECT current_database()")
	source := func(more string) string {
		return fmt.Sprintf("source: {dsn: %q, table: public.outbox%s}\nrouter: {route.topic.replacement: \"%s${routedByValue}\"}\nkafka: {brokers: [%s]}\n",
			c.dsn, more, c.prefix, strings.Join(c.brokers, ", "))
	}
	refused := func(name string) {
		t.Helper()
		says := "write name: " + name + ", and run"
		if r := c.start(); r.wait(time.Minute) != 2 || !strings.Contains(r.log.String(), says) {
			t.Errorf("run: must say %q\n%s", says, r.log)
		}
		for _, command := range []string{"recover", "check"} {
			if code, out := c.command(command); code == 0 || !strings.Contains(out, says) {
				t.Errorf("%s: code %d, must say %q\n%s", command, code, says, out)
			}
		}
	}
	runs := func(yaml string) {
		t.Helper()
		c.yaml = yaml
		c.startReady().stopsClean()
	}
	runs(source(c.streams + ", slot: custom"))
	c.yaml = source(c.polls)
	refused(database + ".custom")
	runs(c.yaml + "name: " + database + ".public.outbox\n") // written, so another relay is meant
	c.yaml = source(c.streams)
	refused(database + ".public.outbox")
}

// The places of parked events mean nothing to another source.
func TestAChangeOfTheSourceWaitsForParkedKeys(t *testing.T) {
	t.Parallel()
	c := newChanging(t)
	c.extra += "delivery: {on_poison: park_key, parking_topic: " + c.prefix + "parked}\n"
	r := c.startReady()
	c.pg.Exec(t, c.dsn, "ALTER TABLE outbox ALTER COLUMN aggregate_type DROP NOT NULL",
		"INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload) VALUES (NULL, 'bad', 'Changed', '{}')")
	eventually(t, time.Minute, "a parked event", func() bool {
		code, out := c.command("dead", "list")
		return code == 0 && strings.Contains(out, "bad")
	})
	r.stopsClean()
	c.source = c.streams
	code, out := c.command("recover", "--yes")
	c.recovers(code, out, 2, "has 1 parked keys with 1 events", "walpost dead drop")
	parks := c.extra
	c.source, c.extra = strings.Replace(c.polls, "poll: {", "poll: {strategy: claim, ", 1), strings.Replace(parks, "park_key", "halt", 1)
	code, out = c.command("recover", "--yes")
	c.recovers(code, out, 2, "has 1 parked keys with 1 events", "walpost dead drop")
	c.source, c.extra = c.polls, parks
	r = c.startReady()
	if code, out := c.command("dead", "drop", "--key", "bad", "--reason", "test"); code != 0 {
		t.Fatalf("drop: code %d\n%s", code, out)
	}
	c.pg.Exec(t, c.dsn, "DELETE FROM outbox WHERE aggregate_type IS NULL")
	c.insert("0")
	eventually(t, time.Minute, "an event", func() bool { return c.w.count() == 1 })
	r.stopsClean()
	c.source = c.streams
	code, out = c.command("recover", "--yes")
	c.recovers(code, out, 0, "recovered: 0 rows")
}

// The event that halted the former source halts the new one no more: check and skip say so, and the relay removes the halt.
func TestAHaltOfTheFormerSourceIsNoHaltOfTheNewOne(t *testing.T) {
	t.Parallel()
	c := newChanging(t)
	c.pg.Exec(t, c.dsn, "ALTER TABLE outbox ALTER COLUMN aggregate_type DROP NOT NULL")
	c.source = c.streams
	r := c.startReady()
	c.pg.Exec(t, c.dsn, "INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload) VALUES (NULL, 'bad', 'Changed', '{}')")
	if code := r.wait(time.Minute); code != 3 {
		t.Fatalf("code %d\n%s", code, r.log)
	}
	token := skipInHint.FindStringSubmatch(r.log.String())[1]
	c.source = c.polls
	c.pg.Exec(t, c.dsn, "UPDATE outbox SET aggregate_type = 'order', payload = '{\"n\": 1}'")
	code, out := c.command("recover", "--yes")
	c.recovers(code, out, 0, "recovered: 1 rows")
	if code, out := c.command("check"); code != 0 || strings.Contains(out, "halted the relay") {
		t.Errorf("check: code %d\n%s", code, out)
	}
	if code, out := c.command("skip", token); code != 2 || !strings.Contains(out, "when it read another source") && !strings.Contains(out, "has the token") {
		t.Errorf("skip: code %d\n%s", code, out)
	}
	r = c.startReady()
	c.insert("0")
	eventually(t, time.Minute, "the events", func() bool { return c.w.count() == 2 })
	eventually(t, time.Minute, "the halt is removed", func() bool {
		code, out := c.command("skip", token)
		return code == 2 && strings.Contains(out, "has the token")
	})
	r.stopsClean()
}
