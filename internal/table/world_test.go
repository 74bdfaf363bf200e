package table

import (
	"context"
	"os"
	"strings"
	"testing"

	"github.com/walpost/walpost/internal/conf"
	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/internal/lib/pgname"
	ipg "github.com/walpost/walpost/internal/pg"
	"github.com/walpost/walpost/internal/testenv"
	"github.com/walpost/walpost/replication"
)

func TestMain(m *testing.M) { os.Exit(testenv.Main(m)) }

const outboxTable = `CREATE TABLE public.outbox (id uuid PRIMARY KEY DEFAULT gen_random_uuid(), aggregate_type text NOT NULL,
 aggregate_id text NOT NULL, event_type text NOT NULL, payload jsonb, created_at timestamptz NOT NULL DEFAULT now())`

// A world is a fresh database.
type world struct {
	*testing.T
	pg   *testenv.PG
	dsn  string       // of the superuser
	db   ipg.Database // of the Reader
	name string
}

func newWorld(t *testing.T, pg *testenv.PG, sql ...string) *world {
	t.Helper()
	w := &world{T: t, pg: pg, dsn: pg.Database(t)}
	w.db.DSN = w.dsn
	var err error
	if w.name, err = w.db.Name(); err != nil {
		t.Fatal(err)
	}
	w.exec(sql...)
	return w
}

func (w *world) exec(sql ...string) { w.Helper(); w.pg.Exec(w.T, w.dsn, sql...) }

func (w *world) value(sql string) string { w.Helper(); return w.pg.Value(w.T, w.dsn, sql) }

func (w *world) source() Source {
	return Source{DB: w.db, Names: ipg.Names{Publication: "walpost", Tables: []pgname.Table{{Schema: "public", Name: "outbox"}}}}
}

// stream makes the publication and the slot, and begins to stream.
func (w *world) stream() *replication.Session {
	w.Helper()
	cfg := replication.DefaultConfig()
	cfg.DSN, cfg.Table, cfg.Slot = conf.Secret(w.dsn), "public.outbox", w.name
	s, err := replication.NewSource(cfg).Open(w.Context(), true, false)
	if err != nil {
		w.Fatalf("open: %v (hint: %s)", err, fault.Hint(err))
	}
	w.Cleanup(func() { s.Close(context.Background()) })
	if err := s.Start(w.Context(), s.Identity().SlotFound.Confirmed); err != nil {
		w.Fatal(err)
	}
	return s
}

func wantFault(t *testing.T, err error, config bool, text, hint string) {
	t.Helper()
	if err == nil || fault.Misconfigured(err) != config || !config && (fault.Retryable(err) || fault.NeedsPerson(err)) || !strings.Contains(err.Error(), text) || !strings.Contains(fault.Hint(err), hint) {
		t.Errorf("%v\nhint: %s\nmust be: %s\nhint: %s", err, fault.Hint(err), text, hint)
	}
}
