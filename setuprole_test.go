package walpost

import (
	"strings"
	"testing"

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
