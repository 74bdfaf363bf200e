package walpost

import (
	"io"
	"regexp"
	"strings"
	"testing"

	"github.com/walpost/walpost/cleanup"
	"github.com/walpost/walpost/internal/conf"
	"github.com/walpost/walpost/internal/testenv"
)

// A relay that polls needs no right to replicate. Setup makes its role, and grants what the role lacks, also when the table is complete.
func TestSetupOfAPolledTableMakesTheRole(t *testing.T) {
	for strategy, rights := range map[string][]string{
		"cursor": {"GRANT SELECT"},
		"claim":  {"GRANT SELECT", "GRANT UPDATE"},
		"delete": {"GRANT SELECT", "GRANT UPDATE", "GRANT DELETE"},
	} {
		t.Run(strategy, func(t *testing.T) {
			t.Parallel()
			pg := testenv.Postgres(t, "14")
			dsn := pg.Database(t)
			cfg := DefaultConfig()
			cfg.Source.DSN, cfg.Source.Table, cfg.Source.Kind = conf.Secret(dsn), "public.outbox", KindPoll
			cfg.Source.OrderColumn, cfg.Source.TimeColumn, cfg.Source.Poll.Strategy = "seq", "written_at", strategy
			if strategy == "cursor" {
				cfg.Source.Poll.XIDColumn = "xid"
			}
			cfg.SetupRole = "Relay of " + pg.Value(t, dsn, "SELECT current_database()")
			role := `"` + cfg.SetupRole + `"`
			t.Cleanup(func() { pg.Exec(t, dsn, "DROP OWNED BY "+role, "DROP ROLE "+role) })
			for _, c := range []struct {
				name, broken string
				want, other  []string
			}{
				{"an empty database", "", append([]string{"CREATE TABLE", "CREATE ROLE " + role + " LOGIN;"}, rights...), nil},
				{"no rights", "REVOKE ALL ON outbox FROM " + role, rights, []string{"CREATE", "ALTER"}},
				{"no login", "ALTER ROLE " + role + " NOLOGIN", []string{"ALTER ROLE " + role + " LOGIN;"}, []string{"CREATE", "GRANT"}},
				{"no role", "DROP OWNED BY " + role + "; DROP ROLE " + role, append([]string{"CREATE ROLE"}, rights...), []string{"TABLE"}},
			} {
				if c.broken != "" {
					pg.Exec(t, dsn, c.broken)
				}
				sql, why, err := SetupSQL(t.Context(), cfg)
				if why != nil || err != nil {
					t.Fatalf("%s: %v, %v", c.name, why, err)
				}
				for _, part := range c.want {
					if !strings.Contains(sql, part) {
						t.Errorf("%s: setup does not print %s:\n%s", c.name, part, sql)
					}
				}
				for _, part := range c.other {
					if strings.Contains(sql, part) {
						t.Errorf("%s: setup prints %s:\n%s", c.name, part, sql)
					}
				}
				if made, err := Setup(t.Context(), cfg); err != nil || len(made) != 1 {
					t.Fatalf("%s: made %q, %v", c.name, made, err)
				}
				if sql, why, err := SetupSQL(t.Context(), cfg); sql != "-- Everything is there.\n" || why != nil || err != nil {
					t.Errorf("%s: afterwards %v, %v, and setup prints\n%s", c.name, why, err, sql)
				}
			}
			cfg.Source.DSN = "postgres://postgres@127.0.0.1:1/x"
			if sql, why, err := SetupSQL(t.Context(), cfg); why == nil || err != nil || !strings.Contains(sql, "CREATE ROLE") || !strings.Contains(sql, "GRANT SELECT") {
				t.Errorf("without a database: %v, %v\n%s", why, err, sql)
			}
		})
	}
}

// A transaction that builds an index blocks the writers of the table. So setup leaves an index of a table that exists to a person.
func TestSetupOfAPolledTableBuildsNoIndexWhileWritersWait(t *testing.T) {
	for strategy, indexes := range map[string]int{"cursor": 1, "claim": 3} {
		t.Run(strategy, func(t *testing.T) {
			t.Parallel()
			pg := testenv.Postgres(t, "14")
			dsn := pg.Database(t)
			cfg := DefaultConfig()
			cfg.Source.DSN, cfg.Source.Table, cfg.Source.Kind = conf.Secret(dsn), "public.outbox", KindPoll
			cfg.Source.OrderColumn, cfg.Source.Poll.Strategy, cfg.Source.Poll.XIDColumn = "seq", strategy, "xid"
			pg.Exec(t, dsn, "CREATE TABLE outbox (id uuid, aggregate_type text, aggregate_id text, event_type text, payload text, seq bigint)", "INSERT INTO outbox VALUES (gen_random_uuid(), 'a', 'b', 'c', 'd', 1)")
			sql, _, err := SetupSQL(t.Context(), cfg)
			if n := strings.Count(sql, "CREATE INDEX CONCURRENTLY"); err != nil || n != indexes || strings.Count(sql, "CREATE INDEX") != n || strings.Count(sql, "outside a transaction") != 1 {
				t.Fatalf("%v, and setup prints\n%s", err, sql)
			}
			if made, err := Setup(t.Context(), cfg); err != nil || len(made) != 1 || pg.Value(t, dsn, "SELECT count(*) FROM pg_index WHERE indrelid = 'outbox'::regclass") != "0" {
				t.Errorf("made %q, and perhaps an index, %v", made, err)
			}
			left, _, err := SetupSQL(t.Context(), cfg)
			if err != nil || strings.Count(left, ";") != indexes {
				t.Fatalf("%v, and setup still prints\n%s", err, left)
			}
			if made, err := Setup(t.Context(), cfg); err != nil || len(made) != 0 {
				t.Errorf("made %q, %v", made, err)
			}
			for statement := range strings.SplitSeq(strings.TrimSpace(left), "\n") {
				pg.Exec(t, dsn, statement)
			}
			if left, _, err = SetupSQL(t.Context(), cfg); err != nil || left != "-- Everything is there.\n" {
				t.Errorf("%v, and setup still prints\n%s", err, left)
			}
		})
	}
}

// A cleanup needs the same rights whatever reads the table. Setup grants them, and check prints what was taken away.
func TestTheCleanupOfAPolledTableIsSetUpAndChecked(t *testing.T) {
	const name = "cleanup of public.outbox"
	statements := regexp.MustCompile(`(?s)(GRANT|ALTER|CREATE) .*;`)
	deletes, index := `GRANT SELECT, DELETE, UPDATE ("created_at")`, "index for the "+name
	for mode, c := range map[cleanup.Mode]struct {
		taken        string   // beside the rights
		setup, found []string // what setup prints, and what check finds, one behind the other
	}{
		cleanup.Delete: {"DROP INDEX outbox_created_at_idx", []string{deletes, "CREATE INDEX"}, []string{index + ": no index", name + ": role ROLE may not delete from public.outbox"}},
		cleanup.MoveToArchive: {
			"DROP INDEX outbox_created_at_idx; DROP TABLE outbox_archive",
			[]string{deletes, `CREATE TABLE IF NOT EXISTS "public"."outbox_archive"`},
			[]string{index + ": no index", "archive of public.outbox: archive table public.outbox_archive does not exist", name + ": role ROLE may not delete from public.outbox"},
		},
		cleanup.DropPartitions: {"SELECT", []string{`ALTER TABLE "public"."outbox" OWNER TO`}, []string{name + ": public.outbox belongs to postgres: role ROLE may neither create nor drop its partitions"}},
	} {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			pg := testenv.Postgres(t, "14")
			dsn := pg.Database(t)
			role := "cleaner_" + pg.Value(t, dsn, "SELECT current_database()")
			t.Cleanup(func() { pg.Exec(t, dsn, "DROP OWNED BY "+role, "DROP ROLE "+role) })
			cfg := DefaultConfig()
			cfg.Source.DSN, cfg.Source.Table, cfg.Source.Kind, cfg.Stdout = conf.Secret(dsn), "public.outbox", KindPoll, io.Discard
			cfg.Source.OrderColumn, cfg.Source.TimeColumn, cfg.Source.Poll.XIDColumn = "seq", "created_at", "xid"
			cfg.Checkpoint.Store, cfg.Checkpoint.Path = "file", t.TempDir()+"/checkpoint"
			cfg.Cleanup.Mode, cfg.SetupRole, cfg.SetupPartitioned = mode, role, mode == cleanup.DropPartitions
			setup := func(want ...string) (sql string) {
				t.Helper()
				sql, why, err := SetupSQL(t.Context(), cfg)
				if why != nil || err != nil {
					t.Fatal(why, err)
				}
				for _, part := range want {
					if !strings.Contains(sql, part) {
						t.Errorf("setup does not print %s:\n%s", part, sql)
					}
				}
				return sql
			}
			// check returns what is wrong with the cleanup, in order.
			check := func() (wrong []Finding) {
				t.Helper()
				as := cfg
				as.Source.DSN = conf.Secret(strings.Replace(dsn, "postgres@", role+"@", 1))
				found, err := Check(t.Context(), as)
				if err != nil {
					t.Fatal(err)
				}
				met := 0
				for _, f := range found {
					switch {
					case f.Name == name && f.Verdict == OK:
						met++
					case strings.HasPrefix(f.Name, "archive of") || strings.Contains(f.Name, name):
						wrong = append(wrong, f)
					}
				}
				if len(wrong) == 0 && met != 1 {
					t.Errorf("check does not find that the role may remove rows: %+v", found)
				}
				return wrong
			}
			take := func() {
				t.Helper()
				pg.Exec(t, dsn, "ALTER TABLE outbox OWNER TO postgres", "REVOKE ALL ON outbox FROM "+role, "GRANT SELECT ON outbox TO "+role, c.taken)
			}
			pg.Exec(t, dsn, setup(append(c.setup, "CREATE ROLE")...)) // in one transaction
			if wrong := check(); len(wrong) > 0 {
				t.Errorf("what setup makes of an empty database: %+v", wrong)
			}
			take()
			for _, want := range c.found {
				wrong := check()
				if len(wrong) == 0 || !strings.HasPrefix(wrong[0].Name+": "+wrong[0].Why, strings.Replace(want, "ROLE", role, 1)) {
					t.Fatalf("check finds %+v, must find %s", wrong, want)
				}
				pg.Exec(t, dsn, strings.Split(statements.FindString(wrong[0].FixText()), "; ")...)
			}
			if wrong := check(); len(wrong) > 0 {
				t.Errorf("not healed by what check prints: %+v", wrong)
			}
			take()
			sql, concurrently, _ := strings.Cut(setup(c.setup...), "CREATE INDEX CONCURRENTLY")
			if pg.Exec(t, dsn, sql); concurrently != "" {
				pg.Exec(t, dsn, "CREATE INDEX CONCURRENTLY"+concurrently)
			}
			if wrong := check(); len(wrong) > 0 {
				t.Errorf("not healed by what setup prints: %+v", wrong)
			}
			take()
			made, err := Setup(t.Context(), cfg)
			wrong := check() // an index of a table that exists is left to a person
			if err != nil || len(made) != 1 || len(wrong) > 1 || len(wrong) == 1 && wrong[0].Name != index {
				t.Errorf("setup made %q, %v, and check finds %+v", made, err, wrong)
			}
			if sql := setup(); sql != "-- Everything is there.\n" {
				t.Errorf("setup still prints\n%s", sql)
			}
			cfg.Source.DSN = "postgres://postgres@127.0.0.1:1/x"
			if sql, why, err := SetupSQL(t.Context(), cfg); why == nil || err != nil || !strings.Contains(sql, c.setup[0]) {
				t.Errorf("without a database: %v, %v\n%s", why, err, sql)
			}
		})
	}
}
