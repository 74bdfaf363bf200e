package replication

import (
	"context"
	"fmt"
	"log/slog"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/condition"
	"github.com/walpost/walpost/internal/conf"
	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/internal/fix"
	ipg "github.com/walpost/walpost/internal/pg"
	"github.com/walpost/walpost/internal/testenv"
)

const outboxTable = `CREATE TABLE public.outbox (id uuid PRIMARY KEY DEFAULT gen_random_uuid(), aggregate_type text NOT NULL,
 aggregate_id text NOT NULL, event_type text NOT NULL, payload jsonb, created_at timestamptz NOT NULL DEFAULT now())`

const insertRow = `INSERT INTO public.outbox (aggregate_type, aggregate_id, event_type, payload) VALUES ('order', '1', 'made', '{"n": 1}')`

// world is one fresh database with a source on it.
type world struct {
	*testing.T
	pg   *testenv.PG
	dsn  string
	cfg  Config
	logs *strings.Builder
}

func newWorld(t *testing.T, pg *testenv.PG, sql ...string) *world {
	t.Helper()
	w := &world{T: t, pg: pg, dsn: pg.Database(t), logs: &strings.Builder{}}
	w.cfg = DefaultConfig()
	w.cfg.DSN, w.cfg.Tables = conf.Secret(w.dsn), []string{"public.outbox"}
	w.cfg.Slot, _ = w.cfg.Database()
	w.cfg.Needs = needsRealColumns("id", "aggregate_id", "payload")
	w.cfg.Logger = slog.New(slog.NewJSONHandler(w.logs, nil))
	w.exec(sql...)
	return w
}

func (w *world) exec(sql ...string) {
	w.Helper()
	if len(sql) > 0 {
		w.pg.Exec(w.T, w.dsn, sql...)
	}
}

func (w *world) value(sql string) string { w.Helper(); return w.pg.Value(w.T, w.dsn, sql) }

func (w *world) source() *Source {
	w.Helper()
	return NewSource(w.cfg)
}

// facts are what a start finds with cfg.
func (w *world) facts(cfg *Config) *ipg.Facts {
	w.Helper()
	sql, err := cfg.Connection().ConnectSQL(w.Context())
	if err != nil {
		w.Fatal(err)
	}
	defer ipg.Close(sql)
	f, err := cfg.Names().Describe(w.Context(), sql)
	if err != nil {
		w.Fatal(err)
	}
	return f
}

// unmet is what a start finds unmet, with the refusal of a table that has rows as the last one. The slot is made.
func (w *world) unmet() []*condition.Finding {
	w.Helper()
	sql, err := w.cfg.Connection().ConnectSQL(w.Context())
	if err != nil {
		w.Fatal(err)
	}
	defer ipg.Close(sql)
	f, err := w.cfg.Names().Describe(w.Context(), sql)
	if err != nil {
		w.Fatal(err)
	}
	makes := f.Slot == nil && w.cfg.Create
	found := condition.Unmet(w.cfg.Conditions(f, makes))
	if makes && w.cfg.Snapshot == "" {
		if err := w.cfg.RefuseRows(w.Context(), sql, f); err != nil {
			found = append(found, &condition.Finding{Name: "source.snapshot", Why: err.Error(), Fix: fix.ByWords(fault.Hint(err))})
		}
	}
	return found
}

// restricted makes a role that may replicate and nothing else, and has the world connect as it. exec goes on as the superuser.
func (w *world) restricted() (role string) {
	w.Helper()
	role = "role_" + w.cfg.Slot
	w.exec("CREATE ROLE " + role + " LOGIN REPLICATION")
	w.Cleanup(func() { w.exec("DROP OWNED BY "+role+" CASCADE", "DROP ROLE "+role) })
	w.cfg.DSN = conf.Secret(strings.Replace(string(w.cfg.DSN), "postgres@", role+"@", 1))
	return role
}

// open opens a session that ends with the test.
func (w *world) open(s *Source, create, replace bool) (*Session, error) {
	w.Helper()
	ctx, cancel := context.WithTimeout(w.Context(), time.Minute)
	defer cancel()
	session, err := s.Open(ctx, create, replace)
	if err == nil {
		w.Cleanup(func() { session.Close(context.Background()) })
	}
	return session, err
}

func (w *world) mustOpen(s *Source, create bool) *Session {
	w.Helper()
	session, err := w.open(s, create, false)
	if err != nil {
		w.Fatalf("open: %v (hint: %s)", err, fault.Hint(err))
	}
	return session
}

// slotOf makes a slot of the world's name by SQL, as somebody else would.
func (w *world) slotOf(plugin string) string {
	return fmt.Sprintf("SELECT pg_create_logical_replication_slot('%s', '%s')", w.cfg.Slot, plugin)
}

func behaviourOf(err error) string {
	switch {
	case err == nil:
		return "none"
	case fault.Misconfigured(err):
		return "config"
	case fault.NeedsPerson(err):
		return "person"
	case fault.Retryable(err):
		return "retry"
	}
	return "fail"
}

const publicationForOutbox = "CREATE PUBLICATION walpost FOR TABLE public.outbox WITH (publish = 'insert')"

// refusals are what a start finds wrong: the world, what Open says and how, and the statement that its hint has.
var refusals = []struct {
	name    string
	min     int
	sql     []string
	slot    string // plugin of a slot that is made after sql
	after   []string
	cfg     func(*Config)
	error   string
	behaves string
	hint    string
}{
	{name: "no table", error: "table public.outbox does not exist in database", behaves: "fail", hint: "walpost setup prints the SQL"},
	{
		name: "a renamed table", sql: []string{outboxTable, publicationForOutbox, "ALTER TABLE outbox RENAME TO events"},
		error: "table public.outbox does not exist in database", behaves: "fail", hint: "Publication walpost has public.events. If the table was renamed",
	},
	{
		name: "a table in another case", sql: []string{`CREATE TABLE public."outBox" (id int)`}, cfg: func(c *Config) { c.Tables = []string{"public.outBox"} },
		error: `table public.outbox does not exist, but public."outBox" does`, behaves: "fail", hint: `'public."outBox"'`,
	},
	{name: "a view", sql: []string{`CREATE VIEW public.outbox AS SELECT 1 AS id`}, error: "public.outbox is a view, not a table", behaves: "fail", hint: "source.table"},
	{
		name: "an unlogged table", sql: []string{strings.Replace(outboxTable, "CREATE", "CREATE UNLOGGED", 1)},
		error: "table public.outbox is UNLOGGED", behaves: "fail", hint: `ALTER TABLE "public"."outbox" SET LOGGED;`,
	},
	{
		name: "a missing column", sql: []string{outboxTable, "ALTER TABLE outbox DROP COLUMN payload"},
		error: "public.outbox does not fit the configuration: there is no column payload", behaves: "config",
	},
	{
		name: "a table that does not fit", sql: []string{outboxTable},
		cfg: func(c *Config) {
			c.Needs = func(rel *cdc.Relation) ([]string, error) {
				return nil, fmt.Errorf("%s has %d columns", rel, len(rel.Columns))
			}
		},
		error: "public.outbox does not fit the configuration: public.outbox has 6 columns", behaves: "config",
	},
	{
		name: "a generated column", sql: []string{"CREATE TABLE outbox (id int, aggregate_id text, payload text GENERATED ALWAYS AS (aggregate_id || 'x') STORED)"},
		error: "column payload of public.outbox is generated", behaves: "fail", hint: "ordinary column",
	},
	{
		name: "rows and no word about them", sql: []string{outboxTable, insertRow, insertRow},
		error: "source.snapshot must say what becomes of the rows that are there, because there is no checkpoint: table public.outbox has 2 rows", behaves: "config", hint: "snapshot: after ",
	},
	{name: "a slot without its publication", sql: []string{outboxTable}, slot: "pgoutput", error: "publication walpost does not exist, but slot", behaves: "person", hint: "walpost recover"},
	{name: "a slot of another plugin", sql: []string{outboxTable, publicationForOutbox}, slot: "test_decoding", error: "uses the plugin test_decoding, not pgoutput", behaves: "fail", hint: "source.slot"},
	{
		name: "a physical slot", sql: []string{outboxTable, publicationForOutbox}, slot: "physical", error: "is a physical slot", behaves: "fail", hint: "pg_drop_replication_slot",
	},
	{
		name: "a slot for two-phase decoding", sql: []string{outboxTable, publicationForOutbox}, slot: "two_phase", error: "two-phase decoding", behaves: "fail", hint: "source.slot",
	},
	{
		name: "a slot of another database", sql: []string{outboxTable, publicationForOutbox}, slot: "elsewhere", error: "belongs to the database postgres, not to", behaves: "fail", hint: "source.slot",
	},
	{
		name: "a publication without the table", sql: []string{outboxTable, "CREATE PUBLICATION walpost"},
		error: "publication walpost does not contain table public.outbox", behaves: "fail", hint: `ALTER PUBLICATION "walpost" ADD TABLE "public"."outbox";`,
	},
	{
		name: "a publication of another table", sql: []string{outboxTable, "CREATE TABLE ev (id int)", "CREATE PUBLICATION walpost FOR TABLE ev"},
		error: "publication walpost does not contain table public.outbox", behaves: "fail",
		hint: `Another relay may use this publication: set source.slot and source.publication to names that only this relay uses. Or: ALTER PUBLICATION "walpost" ADD TABLE "public"."outbox";`,
	},
	{
		name: "the table taken out under a slot", sql: []string{outboxTable, publicationForOutbox}, slot: "pgoutput", after: []string{"ALTER PUBLICATION walpost DROP TABLE outbox"},
		error: "publication walpost does not contain table public.outbox; events after", behaves: "person", hint: "ADD TABLE",
	},
	{
		name: "a publication without inserts", sql: []string{outboxTable, "CREATE PUBLICATION walpost FOR TABLE outbox WITH (publish = 'update')"},
		error: "publication walpost does not publish inserts", behaves: "fail", hint: `ALTER PUBLICATION "walpost" SET (publish = 'insert');`,
	},
	{
		name: "a column list that lacks a column", min: 15, sql: []string{outboxTable, "CREATE PUBLICATION walpost FOR TABLE outbox (id, aggregate_id) WITH (publish = 'insert')"},
		error: "publication walpost has a column list for public.outbox that lacks payload", behaves: "fail", hint: "DROP TABLE",
	},
	{
		name: "partitions under their own names",
		sql:  []string{"CREATE TABLE outbox (id int, aggregate_id text, payload text) PARTITION BY RANGE (id)", "CREATE TABLE outbox_1 PARTITION OF outbox DEFAULT", "CREATE PUBLICATION walpost FOR TABLE outbox"},

		error: "publication walpost publishes the partitions of public.outbox under their own names", behaves: "fail", hint: "publish_via_partition_root = true",
	},
	{
		name: "failover before 17", sql: []string{outboxTable}, cfg: func(c *Config) { c.Failover = true },
		error: "source.failover: needs Postgres 17 or newer", behaves: "config",
	},
}

// A publication of the user's own may leave something out, and a table need not have a key. walpost makes a publication for inserts
// only if the application's updates would fail otherwise.
func TestAPublicationThatLeavesSomethingOutIsRead(t *testing.T) {
	keyless := []string{outboxTable, "ALTER TABLE outbox DROP CONSTRAINT outbox_pkey"}
	mayLack := func(c *Config) {
		c.Needs = func(rel *cdc.Relation) (needs []string, _ error) {
			for i := range rel.Columns {
				needs = append(needs, rel.Columns[i].Name)
			}
			return needs, nil
		}
	}
	testenv.OnEach(t, func(t *testing.T, pg *testenv.PG) {
		for _, c := range []struct {
			name    string
			min     int
			sql     []string
			cfg     func(c *Config)
			updates string
		}{
			{"inserts only", 0, []string{outboxTable, publicationForOutbox}, nil, "false"},
			{"a row filter", 15, []string{outboxTable, "CREATE PUBLICATION walpost FOR TABLE outbox WHERE (event_type <> 'x') WITH (publish = 'insert')"}, nil, "false"},
			{"a column list", 15, []string{outboxTable, "CREATE PUBLICATION walpost FOR TABLE outbox (id, aggregate_id) WITH (publish = 'insert')"}, mayLack, "false"},
			{"its own", 0, []string{outboxTable}, nil, "true"},
			{"its own without a key", 0, keyless, nil, "false"},
			{"its own with the whole row as identity", 0, append(keyless, "ALTER TABLE outbox REPLICA IDENTITY FULL"), nil, "true"},
		} {
			if pg.Version() < c.min {
				continue
			}
			t.Run(strings.ReplaceAll(c.name, " ", "_"), func(t *testing.T) {
				w := newWorld(t, pg, c.sql...)
				w.cfg.Publish = []string{"insert", "update"}
				if c.cfg != nil {
					c.cfg(&w.cfg)
				}
				s := w.source()
				w.mustOpen(s, true)
				if _, err := s.Check(t.Context()); err != nil {
					t.Errorf("a look: %v", err)
				}
				if got := w.value("SELECT pubupdate::text FROM pg_publication WHERE pubname = 'walpost'"); got != c.updates {
					t.Errorf("publishes updates: %s, want %s", got, c.updates)
				}
			})
		}
	})
}

func TestOpenRefusesWhatCannotWorkAndSaysWhatToRun(t *testing.T) {
	testenv.OnEach(t, func(t *testing.T, pg *testenv.PG) {
		for _, r := range refusals {
			if pg.Version() < r.min || strings.HasPrefix(r.name, "failover") && pg.Version() >= 17 {
				continue
			}
			t.Run(strings.ReplaceAll(r.name, " ", "_"), func(t *testing.T) {
				w := newWorld(t, pg, r.sql...)
				switch r.slot {
				case "":
				case "physical":
					w.exec(fmt.Sprintf("SELECT pg_create_physical_replication_slot('%s')", w.cfg.Slot))
					t.Cleanup(func() { w.exec(fmt.Sprintf("SELECT pg_drop_replication_slot('%s')", w.cfg.Slot)) })
				case "two_phase":
					w.exec(fmt.Sprintf("SELECT pg_create_logical_replication_slot('%s', 'pgoutput', false, true)", w.cfg.Slot))
				case "elsewhere":
					pg.Exec(t, pg.DSN("postgres"), w.slotOf("pgoutput"))
					t.Cleanup(func() { w.exec(fmt.Sprintf("SELECT pg_drop_replication_slot('%s')", w.cfg.Slot)) })
				default:
					w.exec(w.slotOf(r.slot))
				}
				w.exec(r.after...)
				if r.cfg != nil {
					r.cfg(&w.cfg)
				}
				before := w.value("SELECT count(*) FROM pg_replication_slots") + w.value("SELECT count(*) FROM pg_publication")
				_, err := w.open(w.source(), true, false)
				if err == nil {
					t.Fatal("opened")
				}
				if !strings.Contains(err.Error(), r.error) || behaviourOf(err) != r.behaves || !strings.Contains(fault.Hint(err), r.hint) {
					t.Errorf("got  %s %q\n hint %q\nwant %s %q\n hint %q", behaviourOf(err), err, fault.Hint(err), r.behaves, r.error, r.hint)
				}
				if after := w.value("SELECT count(*) FROM pg_replication_slots") + w.value("SELECT count(*) FROM pg_publication"); before != after {
					t.Errorf("slots and publications went from %s to %s", before, after)
				}
			})
		}
	})
}

func TestFirstOpenMakesPublicationThenSlot(t *testing.T) {
	testenv.OnEach(t, func(t *testing.T, pg *testenv.PG) {
		w := newWorld(t, pg, outboxTable)
		w.cfg.Failover = pg.Version() >= 17
		if found := w.unmet(); len(found) > 0 {
			t.Errorf("unmet before: %v", found)
		}
		s := w.source()
		id := w.mustOpen(s, true).Identity()
		slot := id.SlotFound
		if !slot.Exists || !slot.Created || slot.Confirmed == 0 || slot.Restart == 0 || slot.Active || slot.Invalidation != "" || slot.WALStatus != "reserved" {
			t.Errorf("slot: %+v", slot)
		}
		if id.SystemID == "" || id.Timeline != 1 || len(id.History) != 0 || id.Slot != w.cfg.Slot || id.Server < slot.Confirmed.LSN() {
			t.Errorf("identity: %+v", id)
		}
		if got := w.value("SELECT pubinsert::text || pubupdate || pubdelete || pubtruncate || pubviaroot FROM pg_publication"); got != "truefalsefalsefalsetrue" {
			t.Errorf("publication: insert, update, delete, truncate, via root = %s", got)
		}
		if w.cfg.Failover && w.slot("failover") != "true" {
			t.Error("the slot is not a failover slot")
		}
		again := w.mustOpen(w.source(), true).Identity()
		if again.SlotFound.Created || again.SlotFound.Confirmed != slot.Confirmed {
			t.Errorf("opened again: %+v, was %+v", again.SlotFound, slot)
		}
		if _, err := s.Check(t.Context()); err != nil {
			t.Errorf("check: %v", err)
		}
		if found := w.unmet(); len(found) > 0 {
			t.Errorf("unmet: %v", found)
		}
		if strings.Contains(w.logs.String(), `"level":"WARN"`) {
			t.Errorf("warnings: %s", w.logs)
		}
	})
}

func TestMissingSlotIsTheCallersToJudge(t *testing.T) {
	w := newWorld(t, testenv.Postgres(t, "")) // not even a table
	id := w.mustOpen(w.source(), false).Identity()
	if id.SlotFound.Exists || id.SystemID == "" || id.Server == 0 {
		t.Errorf("identity: %+v", id)
	}
}

// A bound that a refusal printed is good for this server only.
func TestRowsDoNotMatterOnceTheUserHasChosen(t *testing.T) {
	w := newWorld(t, testenv.Postgres(t, ""), outboxTable, insertRow)
	w.cfg.Snapshot = "never"
	_, err := w.source().Open(t.Context(), true, false)
	printed := regexp.MustCompile(`snapshot: (after (\d+)/(\d+))`).FindStringSubmatch(fault.Hint(err))
	if printed == nil {
		t.Fatalf("no bound: %v (%s)", err, fault.Hint(err))
	}
	for _, wrong := range []string{"after 1/" + printed[3], "after " + printed[2] + "/18446744073709551615"} {
		w.cfg.Snapshot = wrong
		if _, err := w.source().Open(t.Context(), true, false); !fault.Misconfigured(err) {
			t.Errorf("%s: %v", wrong, err)
		}
	}
	w.cfg.Snapshot = printed[1]
	if wrong := w.cfg.Validate(); len(wrong) > 0 {
		t.Error(wrong)
	}
	if !w.mustOpen(w.source(), true).Identity().SlotFound.Created {
		t.Error("no slot created")
	}
}

func TestRowsDoNotMatterOverAnAcceptedGap(t *testing.T) {
	w := newWorld(t, testenv.Postgres(t, ""), outboxTable, insertRow)
	w.cfg.Create = false // as in a configuration that takes over a connector's slot
	session, err := w.open(w.source(), true, true)
	if err != nil {
		t.Fatal(err)
	}
	if !session.Identity().SlotFound.Created {
		t.Error("no slot created")
	}
}

func TestTwoFirstOpensAtOnceShareOneSlot(t *testing.T) {
	testenv.OnEach(t, func(t *testing.T, pg *testenv.PG) {
		w := newWorld(t, pg, outboxTable)
		const n = 4
		type result struct {
			id  cdc.Identity
			err error
		}
		results := make(chan result, n)
		for range n {
			go func() {
				session, err := NewSource(w.cfg).Open(t.Context(), true, false)
				if err != nil {
					results <- result{err: err}
					return
				}
				results <- result{id: session.Identity()}
				session.Close(context.Background())
			}()
		}
		made := 0
		for range n {
			r := <-results
			// The slot is visible while it is being made, without a position yet; that passes.
			if r.err != nil && !fault.Retryable(r.err) {
				t.Errorf("open: %v", r.err)
			}
			if r.id.SlotFound.Created {
				made++
			}
		}
		if made != 1 {
			t.Errorf("%d of %d say that they made the slot", made, n)
		}
	})
}

// A role whose defaults differ must not change a byte of what we read.
func TestPinnedFormatWithstandsTheRolesDefaults(t *testing.T) {
	testenv.OnEach(t, func(t *testing.T, pg *testenv.PG) {
		w := newWorld(t, pg, outboxTable)
		role := "role_" + w.cfg.Slot
		w.exec("CREATE ROLE "+role+" SUPERUSER LOGIN", "ALTER ROLE "+role+" SET DateStyle = 'German, DMY'", "ALTER ROLE "+role+" SET TimeZone = 'Asia/Kolkata'",
			"ALTER ROLE "+role+" SET IntervalStyle = 'iso_8601'", "ALTER ROLE "+role+" SET extra_float_digits = 0", "ALTER ROLE "+role+" SET bytea_output = 'escape'",
			"ALTER ROLE "+role+" SET client_encoding = 'LATIN1'", "ALTER ROLE "+role+" SET statement_timeout = '50ms'", "ALTER ROLE "+role+" SET search_path = 'public'",
			"ALTER ROLE "+role+" SET default_transaction_read_only = on",
			"ALTER DATABASE "+w.cfg.Slot+" SET DateStyle = 'SQL, DMY'", "ALTER DATABASE "+w.cfg.Slot+" SET bytea_output = 'escape'")
		t.Cleanup(func() { pg.Exec(t, pg.DSN("postgres"), "DROP ROLE "+role) })
		w.cfg.DSN += conf.Secret(map[bool]string{true: "&", false: "?"}[strings.Contains(w.dsn, "?")] + "user=" + role)
		const query = `SELECT '2026-01-02 03:04:05.678+00'::timestamptz::text || '2026-01-02'::date || '1 day 02:03:04'::interval::text || (0.1::float8 + 0.2::float8) || 'é' || '\x00ff'::bytea::text || current_user`
		want := "2026-01-02 03:04:05.678+002026-01-021 day 02:03:040.30000000000000004é\\x00ff" + role
		for name, connect := range map[string]func(context.Context) (*pgconn.PgConn, error){"sql": w.cfg.Connection().ConnectSQL, "replication": w.cfg.Connection().ConnectReplication} {
			conn, err := connect(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			results, err := conn.Exec(t.Context(), query).ReadAll()
			if err != nil {
				t.Fatal(err)
			}
			if got := string(results[0].Rows[0][0]); got != want {
				t.Errorf("%s: got %q, want %q", name, got, want)
			}
			if name == "replication" {
				results, err = conn.Exec(t.Context(), "SELECT current_setting('statement_timeout')").ReadAll()
				if err != nil || string(results[0].Rows[0][0]) != "0" {
					t.Errorf("statement_timeout of the stream: %s %v", results[0].Rows[0][0], err)
				}
			}
			ipg.Close(conn)
		}
	})
}

// A slot that somebody else is making is in the catalog already, without a position. It must not be taken for one at 0/0.
func TestSlotThatIsBeingMadeIsWaitedFor(t *testing.T) {
	w := newWorld(t, testenv.Postgres(t, ""), outboxTable, publicationForOutbox)
	blocker, maker := testenv.Conn(w.T, w.dsn), testenv.Conn(w.T, w.dsn)
	testenv.Run(w.T, blocker, "BEGIN", insertRow)
	made := make(chan error, 1)
	go func() {
		_, err := maker.Exec(t.Context(), w.slotOf("pgoutput"))
		made <- err
	}()
	for w.slot("slot_name") == "" {
		time.Sleep(5 * time.Millisecond) // until the server shows it
	}
	_, err := w.open(w.source(), true, false)
	if !fault.Retryable(err) || !strings.Contains(err.Error(), fmt.Sprintf("is still being created by process %d", maker.PgConn().PID())) {
		t.Errorf("%s %v", behaviourOf(err), err)
	}
	testenv.Run(w.T, blocker, "COMMIT")
	if err := <-made; err != nil {
		t.Fatal(err)
	}
	if slot := w.mustOpen(w.source(), true).Identity().SlotFound; slot.Created || slot.Confirmed == 0 {
		t.Errorf("%+v", slot)
	}
}
