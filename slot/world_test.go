package slot

import (
	"fmt"
	"os"
	"testing"

	ipg "github.com/walpost/walpost/internal/pg"
	"github.com/walpost/walpost/internal/testenv"
)

func TestMain(m *testing.M) { os.Exit(testenv.Main(m)) }

const (
	outboxTable = "CREATE TABLE public.outbox (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, payload text)"
	insertRow   = "INSERT INTO public.outbox (payload) VALUES ('x')"
)

// A world is a fresh database and the name of a slot in it.
type world struct {
	*testing.T
	pg   *testenv.PG
	dsn  string       // of the superuser
	db   ipg.Database // of the Reader
	slot string

	walDir bool // read measures pg_wal
}

func newWorld(t *testing.T, pg *testenv.PG, sql ...string) *world {
	t.Helper()
	w := &world{T: t, pg: pg, dsn: pg.Database(t)}
	w.db.DSN = w.dsn
	var err error
	if w.slot, err = w.db.Name(); err != nil {
		t.Fatal(err)
	}
	w.exec(sql...)
	return w
}

func (w *world) exec(sql ...string) { w.Helper(); w.pg.Exec(w.T, w.dsn, sql...) }

func (w *world) value(sql string) string { w.Helper(); return w.pg.Value(w.T, w.dsn, sql) }

// made is the statement that makes the slot.
func (w *world) made() string {
	return fmt.Sprintf("SELECT pg_create_logical_replication_slot('%s', 'pgoutput')", w.slot)
}

func (w *world) reader() *Reader {
	r := NewReader(w.db, w.slot)
	w.Cleanup(r.Close)
	return r
}

func (w *world) read(m *Reader) Health {
	w.Helper()
	h, err := m.Read(w.Context(), w.walDir)
	if err != nil {
		w.Fatal(err)
	}
	return h
}

// follow lets the slot follow the server as a consumer that has everything would, behind a fresh record of the running transactions.
func (w *world) follow() {
	w.Helper()
	w.exec("CHECKPOINT", fmt.Sprintf("SELECT pg_replication_slot_advance('%s', pg_current_wal_lsn())", w.slot))
}
