package doctor

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/conf"
	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/internal/testenv"
	"github.com/walpost/walpost/replication"
)

const outboxTable = `CREATE TABLE public.outbox (id uuid PRIMARY KEY DEFAULT gen_random_uuid(), aggregate_type text NOT NULL,
 aggregate_id text NOT NULL, event_type text NOT NULL, payload jsonb, created_at timestamptz NOT NULL DEFAULT now())`

const insertRow = `INSERT INTO public.outbox (aggregate_type, aggregate_id, event_type, payload) VALUES ('order', '1', 'made', '{"n": 1}')`

const publicationForOutbox = "CREATE PUBLICATION walpost FOR TABLE public.outbox WITH (publish = 'insert')"

func valid() replication.Config {
	return replication.Config{DSN: "postgres://u:geheim@db:5432/shop", Tables: []string{"public.outbox"}, Slot: "walpost", Publication: "walpost"}
}

// world is one fresh database with a configuration for it.
type world struct {
	*testing.T
	pg  *testenv.PG
	dsn string
	cfg replication.Config
}

func newWorld(t *testing.T, pg *testenv.PG, sql ...string) *world {
	t.Helper()
	w := &world{T: t, pg: pg, dsn: pg.Database(t)}
	w.cfg = replication.DefaultConfig()
	w.cfg.DSN, w.cfg.Tables = conf.Secret(w.dsn), []string{"public.outbox"}
	w.cfg.Slot, _ = w.cfg.Database()
	w.cfg.Needs = func(*cdc.Relation) ([]string, error) { return []string{"id", "aggregate_id", "payload"}, nil }
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

func (w *world) source() *replication.Source {
	w.Helper()
	return replication.NewSource(w.cfg)
}

// open opens a session as a run does, and closes it.
func (w *world) open() error {
	w.Helper()
	ctx, cancel := context.WithTimeout(w.Context(), time.Minute)
	defer cancel()
	session, err := w.source().Open(ctx, true, false)
	if err == nil {
		err = session.Close(ctx)
	}
	return err
}

// examine is CheckPostgres without the pause in which the rate of WAL is measured.
func (w *world) examine() []Finding {
	w.Helper()
	return checkPostgres(w.Context(), &w.cfg, time.Minute, time.Millisecond)
}

// slotOf makes a slot of the world's name by SQL, as somebody else would.
func (w *world) slotOf(plugin string) string {
	return fmt.Sprintf("SELECT pg_create_logical_replication_slot('%s', '%s')", w.cfg.Slot, plugin)
}

// What a start refuses, the doctor reports with the same fix, and it looks at the rest all the same.
func TestTheDoctorReportsWhatAStartRefuses(t *testing.T) {
	taken := regexp.MustCompile(`after \d+/\d+`) // every look at the rows takes a new bound for the fix
	fix := func(text string) string { return taken.ReplaceAllString(text, "after a bound") }
	testenv.OnEach(t, func(t *testing.T, pg *testenv.PG) {
		for name, sql := range map[string][]string{
			"no table":       nil,
			"unlogged":       {strings.Replace(outboxTable, "CREATE TABLE", "CREATE UNLOGGED TABLE", 1)},
			"no column":      {"CREATE TABLE outbox (id int PRIMARY KEY)"},
			"no inserts":     {outboxTable, "CREATE PUBLICATION walpost FOR TABLE outbox WITH (publish = 'delete')"},
			"other table":    {outboxTable, "CREATE TABLE b (id int)", "CREATE PUBLICATION walpost FOR TABLE b"},
			"other plugin":   {outboxTable, publicationForOutbox, "SELECT pg_create_logical_replication_slot(current_database(), 'test_decoding')"},
			"no publication": {outboxTable, "SELECT pg_create_logical_replication_slot(current_database(), 'pgoutput')"},
			"rows":           {outboxTable, insertRow},
		} {
			t.Run(strings.ReplaceAll(name, " ", "_"), func(t *testing.T) {
				t.Parallel()
				w := newWorld(t, pg, sql...)
				err := w.open()
				if err == nil {
					t.Fatal("opened")
				}
				found := w.examine()
				var fails []Finding
				for _, f := range found {
					if f.Verdict == Fail {
						fails = append(fails, f)
					}
				}
				if len(fails) == 0 || !strings.Contains(err.Error(), fails[0].Why) || fix(fault.Hint(err)) != fix(fails[0].FixText()) || len(found) < 10 {
					t.Errorf("refused: %v (%s)\nfound: %+v", err, fault.Hint(err), found)
				}
			})
		}
	})
}
