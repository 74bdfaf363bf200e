package e2e

import (
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/walpost/walpost/internal/testenv"
)

const (
	makePublication = "CREATE PUBLICATION walpost FOR TABLE outbox WITH (publish = 'insert')"
	onePair         = "INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload) VALUES ('order', 'k', 'made', '{}'), ('order', 'k', 'made', '{}')"
)

// preconditions are what may be wrong with a database. {slot} in sql, fix and args is the slot's name. check must print FAIL with
// fix, and run end with the code and say what.
var preconditions = []struct {
	name string
	sql  []string
	args []string
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
		name: "no slot, and none to be made", sql: []string{makePublication}, args: []string{"--create=false"},
		code: 2, what: "A new slot has no events from before its creation", fix: "Only for a new relay, create the slot: SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput');",
	},
	{
		name: "a slot of another plugin", sql: []string{makePublication, "SELECT pg_create_logical_replication_slot('{slot}', 'test_decoding')"},
		code: 1, what: "slot {slot} uses the plugin test_decoding", fix: "SELECT pg_drop_replication_slot('{slot}');",
	},
	{
		name: "a slot of another database", sql: []string{makePublication},
		code: 1, what: "slot {slot} belongs to the database postgres", fix: "Set source.slot to another name",
	},
	{
		name: "a physical slot", sql: []string{makePublication, "SELECT pg_create_physical_replication_slot('{slot}')"},
		code: 1, what: "slot {slot} is a physical slot", fix: "SELECT pg_drop_replication_slot('{slot}');",
	},
	{
		name: "a publication without the table", sql: []string{"CREATE PUBLICATION walpost FOR TABLE orders WITH (publish = 'insert')"},
		code: 1, what: "publication walpost does not contain table public.outbox", fix: `set source.slot and source.publication to names that only this relay uses. Or: ALTER PUBLICATION "walpost" ADD TABLE "public"."outbox";`,
	},
	{
		name: "a publication without inserts", sql: []string{"CREATE PUBLICATION walpost FOR TABLE outbox WITH (publish = 'update')"},
		code: 1, what: "publication walpost does not publish inserts", fix: `ALTER PUBLICATION "walpost" SET (publish = 'insert');`,
	},
	{
		name: "a publication that lacks a mapped column", sql: []string{"CREATE PUBLICATION walpost FOR TABLE outbox (id, aggregate_type, aggregate_id) WITH (publish = 'insert')"},
		code: 1, what: "has a column list for public.outbox that lacks payload", fix: `ALTER PUBLICATION "walpost" DROP TABLE "public"."outbox"; ALTER PUBLICATION "walpost" ADD TABLE "public"."outbox"; COMMIT;`,
	},
	{
		name: "a slot whose publication is missing", sql: []string{"SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput')"},
		code: 3, what: "publication walpost does not exist, but slot {slot} does", fix: "run walpost recover",
	},
	{
		name: "a missing table", sql: []string{"DROP TABLE outbox"},
		code: 1, what: "table public.outbox does not exist", fix: "walpost setup prints the SQL",
	},
	{
		name: "a missing column", sql: []string{"ALTER TABLE outbox DROP COLUMN payload"},
		code: 2, what: `router.table.field.event.payload: there is no column "payload"`, fix: "Set router.table.field.event.payload to an existing column of the table",
	},
	{
		name: "a role without REPLICATION", sql: []string{"GRANT SELECT ON outbox TO plain"}, dsn: func(u *url.URL) { u.User = url.User("plain") },
		code: 1, what: "replication", fix: `ALTER ROLE "plain" REPLICATION;`,
	},
	{
		name: "a role that does not exist", dsn: func(u *url.URL) { u.User = url.User("nobody_here") },
		code: 1, what: "nobody_here", fix: "exists and may log in",
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
	pg.Exec(t, pg.DSN("postgres"), "CREATE ROLE plain LOGIN")
	for _, c := range preconditions {
		t.Run(c.name, func(t *testing.T) {
			dsn := pg.Database(t)
			slot := strings.ReplaceAll(unique("bad"), "-", "_")
			fill := func(text string) string { return strings.ReplaceAll(text, "{slot}", slot) }
			s := newSetting(t, pg, dsn, kafka)
			for _, sql := range c.sql {
				pg.Exec(t, dsn, fill(sql))
			}
			if strings.Contains(c.what, "belongs to the database") {
				pg.Exec(t, pg.DSN("postgres"), fill("SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput')"))
				t.Cleanup(func() { pg.Exec(t, pg.DSN("postgres"), fill("SELECT pg_drop_replication_slot('{slot}')")) })
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
			args := append(c.args, "--slot", slot)
			s.extra = "halt_linger: 0s"
			code, out := s.command(append([]string{"check"}, args...)...)
			fail := ""
			for part := range strings.SplitSeq(out, "\nFAIL ") { // each with the lines up to the next one
				if strings.Contains(part, "fix: ") && strings.Contains(part, fill(c.fix)) {
					fail = part
				}
			}
			if code != 1 || !strings.Contains(out, "FAIL ") || fail == "" {
				t.Errorf("check: exit code %d, want 1 and FAIL with the fix %q:\n%s", code, fill(c.fix), out)
			}
			code, out = s.command(append([]string{"run"}, args...)...)
			if code != c.code || !strings.Contains(out, fill(c.what)) || !strings.Contains(out, "hint: ") {
				t.Errorf("run: exit code %d, want %d, and %q, and a hint:\n%s", code, c.code, fill(c.what), out)
			}
			if after := pg.Value(t, dsn, made); after != before {
				t.Errorf("slots and publications: %s, and there were %s", after, before)
			}
		})
	}
}

func TestABoundBeginsWithWhatComes(t *testing.T) {
	t.Parallel()
	kafka, pg := testenv.Kafka(t), testenv.Postgres(t, "15")
	slot := strings.ReplaceAll(unique("never"), "-", "_")
	w := worldIn(t, kafka, pg, pg.Database(t), slot)
	old := w.insert(10)
	r := w.start("--slot", slot, "--snapshot", w.bound())
	eventually(t, 60*time.Second, "ready", r.ready)
	w.arrive(w.insert(10))
	if n := w.arrived(old); n > 0 {
		t.Errorf("%d rows from before the slot arrived", n)
	}
}

func TestWalLevelAndPasswords(t *testing.T) {
	t.Parallel()
	kafka := testenv.Kafka(t)
	pg := testenv.Postgres(t, "15", testenv.Private(), testenv.Param("wal_level", "replica"))
	s := newSetting(t, pg, pg.DSN("postgres"), kafka)
	s.extra = "halt_linger: 0s"
	if code, out := s.command("check"); code != 1 || !strings.Contains(out, "FAIL  postgres: wal_level: ") || !strings.Contains(out, "ALTER SYSTEM SET wal_level = 'logical'") {
		t.Errorf("check with wal_level=replica: exit code %d\n%s", code, out)
	}
	if code, out := s.command("run"); code != 1 || !strings.Contains(out, "wal_level is replica") || !strings.Contains(out, "ALTER SYSTEM SET wal_level") {
		t.Errorf("run with wal_level=replica: exit code %d\n%s", code, out)
	}

	pg.Exec(t, s.dsn, "CREATE ROLE careful LOGIN SUPERUSER PASSWORD 'right'")
	hba := filepath.Join(pg.DataDir(), "pg_hba.conf")
	rules, err := os.ReadFile(hba)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(hba, append([]byte("host all careful all scram-sha-256\n"), rules...), 0o600); err != nil {
		t.Fatal(err)
	}
	pg.Exec(t, s.dsn, "SELECT pg_reload_conf()")
	u, err := url.Parse(s.dsn)
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.UserPassword("careful", "wrong_secret")
	s.dsn = u.String()
	var out string
	eventually(t, 10*time.Second, "a refused password", func() bool {
		var code int
		code, out = s.command("run")
		return code == 1 && strings.Contains(out, "password authentication failed") && strings.Contains(out, "hint: ")
	})
	code, checked := s.command("check")
	if code != 1 || !strings.Contains(checked, "FAIL") || !strings.Contains(checked, "source.password") {
		t.Errorf("check with a wrong password: exit code %d\n%s", code, checked)
	}
	if strings.Contains(out+checked, "wrong_secret") {
		t.Errorf("the password is printed:\n%s%s", out, checked)
	}
}

func TestKafkaThatIsNotThereIsWaitedFor(t *testing.T) {
	t.Parallel()
	kafka, pg := testenv.Kafka(t), testenv.Postgres(t, "15")
	slot := strings.ReplaceAll(unique("waits"), "-", "_")
	w := worldIn(t, kafka, pg, pg.Database(t), slot)
	reachable := w.brokers
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
	w.brokers = reachable

	// A topic that is missing from the start is waited for too, and what is behind it arrives once it is there.
	if code, out := w.command("check", "--slot", slot, "--topic-replacement", w.prefix+"missing"); code != 1 || !strings.Contains(out, w.prefix+"missing") {
		t.Errorf("check without the topic: exit code %d\n%s", code, out)
	}
	r = w.start("--slot", slot)
	eventually(t, 60*time.Second, "ready", r.ready)
	pg.Exec(t, w.dsn, "INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload) VALUES ('late', 'k1', 'made', '{}')")
	rows := w.insert(10)
	eventually(t, 60*time.Second, "not ready, and why", func() bool {
		code, body := r.get("/readyz")
		return code == http.StatusServiceUnavailable && strings.Contains(body, w.prefix+"late")
	})
	w.arrive(rows)
	before := w.confirmed()
	kafka.CreateTopic(t, w.prefix+"late", 1, nil)
	eventually(t, 60*time.Second, "ready again", r.ready)
	eventually(t, 60*time.Second, "confirmed", func() bool { return w.confirmed() != before })
	if code := r.stop(); code != 0 {
		t.Errorf("exit code %d after SIGTERM", code)
	}
}

func TestAWrongFileIsRefusedWholeBeforeAnythingIsDone(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "walpost.yaml")
	text := `source:
  dsn: postgres://walpost@127.0.0.1:1/shop
  password_file: /no/such/secret
  tabel: public.outbox
  table: public.outbox
  tables: [public.other]
  snapshot: sometimes
kafka:
  brokers: [127.0.0.1:2]
  compression: rar
delivery: {window: {events: 0}}
checkpoint: {store: kafka, path: /tmp/position}
monitor: {interval: 1ms}
shutdown_grace: soon
`
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, command := range []string{"run", "check", "setup", "status"} {
		cmd := exec.Command(program, command, "--config", path)
		out, _ := cmd.CombinedOutput() // the code says how it ended
		if code := cmd.ProcessState.ExitCode(); code != 2 {
			t.Errorf("%s: exit code %d, want 2", command, code)
		}
		for _, want := range []string{
			"walpost.yaml:4:3: source.tabel: unknown key (did you mean table?)",
			"walpost.yaml:14:", "shutdown_grace", "soon",
			"source.password_file", "/no/such/secret",
			"source.tables: contradicts source.table",
			"source.snapshot: must be one of never, initial (got \"sometimes\")",
			"kafka.compression",
			"delivery.window.events: must be at least 1 (got 0)",
			"checkpoint.path: contradicts checkpoint.store kafka: it is only for checkpoint.store file",
			"monitor.interval: must be at least 1s (got 1ms)",
		} {
			if !strings.Contains(string(out), want) {
				t.Errorf("%s does not say %q:\n%s", command, want, out)
			}
		}
	}
}
