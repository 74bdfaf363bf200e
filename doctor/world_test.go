package doctor

import (
	"context"
	"fmt"
	"regexp"
	"slices"
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

// examine is checkPostgres without the pause in which the rate of WAL is measured.
func (w *world) examine() []Finding {
	w.Helper()
	return checkPostgres(w.Context(), &w.cfg, time.Minute, time.Millisecond)
}

// slotOf makes a slot of the world's name by SQL, as somebody else would.
func (w *world) slotOf(plugin string) string {
	return fmt.Sprintf("SELECT pg_create_logical_replication_slot('%s', '%s')", w.cfg.Slot, plugin)
}

// What a start refuses, the doctor reports with the same fix, and it looks at the rest all the same. Which of the list a start refuses is
// tested with the list.
func TestTheDoctorReportsWhatAStartRefuses(t *testing.T) {
	taken := regexp.MustCompile(`after \d+/\d+`) // every look at the rows takes a new bound for the fix
	fix := func(text string) string { return taken.ReplaceAllString(text, "after a bound") }
	for name, sql := range map[string][]string{"no_table": nil, "rows": {outboxTable, insertRow}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, testenv.Postgres(t, ""), sql...)
			err := w.open()
			if err == nil {
				t.Fatal("opened")
			}
			found := w.examine()
			i := slices.IndexFunc(found, func(f Finding) bool { return f.Verdict == Fail })
			if i < 0 || !strings.Contains(err.Error(), found[i].Why) || fix(fault.Hint(err)) != fix(found[i].FixText()) || len(found) < 10 {
				t.Errorf("refused: %v (%s)\nfound: %+v", err, fault.Hint(err), found)
			}
		})
	}
}
