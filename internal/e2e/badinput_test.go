package e2e

import (
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/walpost/walpost/internal/testenv"
)

const (
	makePublication = "CREATE PUBLICATION walpost FOR TABLE outbox WITH (publish = 'insert')"
	onePair         = "INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload) VALUES ('order', 'k', 'made', '{}'), ('order', 'k', 'made', '{}')"
)

// preconditions are what may be wrong with a database. {slot} in sql, what and fix is the slot's name. check must print FAIL with
// fix, and run end with the code and say what.
var preconditions = []struct {
	name string
	sql  []string
	dsn  func(u *url.URL)
	code int
	what string // run says
	fix  string // check says
}{
	{
		name: "rows and no word about them", sql: []string{onePair},
		code: 2, what: "source.snapshot must say what becomes of the rows that are there, because there is no checkpoint: table public.outbox has 2 rows", fix: "snapshot: initial ",
	},
	{
		name: "a slot of another plugin", sql: []string{makePublication, "SELECT pg_create_logical_replication_slot('{slot}', 'test_decoding')"},
		code: 1, what: "slot {slot} uses the plugin test_decoding", fix: "SELECT pg_drop_replication_slot('{slot}');",
	},
	{
		name: "a slot whose publication is missing", sql: []string{"SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput')"},
		code: 3, what: "publication walpost does not exist, but slot {slot} does", fix: "run walpost recover",
	},
	{
		name: "a missing column", sql: []string{"ALTER TABLE outbox DROP COLUMN payload"},
		code: 2, what: `router.table.field.event.payload: there is no column "payload"`, fix: "Set router.table.field.event.payload to an existing column of the table",
	},
	{
		name: "a missing database", dsn: func(u *url.URL) { u.Path = "/no_such_database" },
		code: 1, what: "no_such_database", fix: `or create it: CREATE DATABASE "no_such_database";`,
	},
}

func TestWhatIsWrongWithTheDatabaseIsSaidWithWhatMendsIt(t *testing.T) {
	t.Parallel()
	kafka := testenv.Kafka(t)
	pg := testenv.Postgres(t, "15", testenv.Private())
	for _, c := range preconditions {
		t.Run(c.name, func(t *testing.T) {
			dsn := pg.Database(t)
			slot := strings.ReplaceAll(unique("bad"), "-", "_")
			fill := func(text string) string { return strings.ReplaceAll(text, "{slot}", slot) }
			s := newSetting(t, pg, dsn, kafka)
			for _, sql := range c.sql {
				pg.Exec(t, dsn, fill(sql))
			}
			if c.dsn != nil {
				u, err := url.Parse(dsn)
				if err != nil {
					t.Fatal(err)
				}
				c.dsn(u)
				s.dsn = u.String()
			}
			made := "SELECT (SELECT count(*) FROM pg_replication_slots) || ' ' || (SELECT count(*) FROM pg_publication)"
			before := pg.Value(t, dsn, made)
			s.extra = "halt_linger: 0s"
			code, out := s.command("check", "--slot", slot)
			fail := ""
			for part := range strings.SplitSeq(out, "\nFAIL ") { // each with the lines up to the next one
				if strings.Contains(part, "fix: ") && strings.Contains(part, fill(c.fix)) {
					fail = part
				}
			}
			if code != 1 || !strings.Contains(out, "FAIL ") || fail == "" {
				t.Errorf("check: exit code %d, want 1 and FAIL with the fix %q:\n%s", code, fill(c.fix), out)
			}
			code, out = s.command("run", "--slot", slot)
			if code != c.code || !strings.Contains(out, fill(c.what)) || !strings.Contains(out, "hint: ") {
				t.Errorf("run: exit code %d, want %d, and %q, and a hint:\n%s", code, c.code, fill(c.what), out)
			}
			if after := pg.Value(t, dsn, made); after != before {
				t.Errorf("slots and publications: %s, and there were %s", after, before)
			}
		})
	}
}

func TestKafkaThatIsNotThereIsWaitedFor(t *testing.T) {
	t.Parallel()
	kafka, pg := testenv.Kafka(t), testenv.Postgres(t, "15")
	slot := strings.ReplaceAll(unique("waits"), "-", "_")
	w := worldIn(t, kafka, pg, pg.Database(t), slot)
	w.brokers = []string{"127.0.0.1:1"}
	if code, out := w.command("check", "--slot", slot); code != 1 || !strings.Contains(out, "FAIL  kafka: ") {
		t.Errorf("check without Kafka: exit code %d\n%s", code, out)
	}
	r := w.start("--slot", slot)
	eventually(t, 60*time.Second, "not ready, and why", func() bool {
		code, body := r.get("/readyz")
		return code == http.StatusServiceUnavailable && strings.Contains(body, "127.0.0.1:1")
	})
	if code, body := r.get("/livez"); code != http.StatusOK {
		t.Errorf("/livez: %d %s", code, body)
	}
	if code := r.stop(); code != 0 {
		t.Errorf("exit code %d after SIGTERM", code)
	}
}
