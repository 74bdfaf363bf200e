package slot

import (
	"fmt"
	"os"
	"testing"

	"github.com/jackc/pgx/v5"

	ipg "github.com/walpost/walpost/internal/pg"
	"github.com/walpost/walpost/internal/testenv"
)

func TestMain(m *testing.M) { os.Exit(testenv.Main(m)) }

var versions = []string{"14", "15", "16", "17", "18"}

const (
	outboxTable = "CREATE TABLE public.outbox (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, payload text)"
	insertRow   = "INSERT INTO public.outbox (payload) VALUES ('x')"
)

// limited are servers on which a slot can be lost, and a transaction prepared.
func onEachLimited(t *testing.T, test func(t *testing.T, pg *testenv.PG)) {
	for _, v := range versions {
		t.Run(v, func(t *testing.T) {
			test(t, testenv.Postgres(t, v, testenv.Param("max_prepared_transactions", "5"), testenv.Param("max_slot_wal_keep_size", "32MB"), testenv.Param("wal_keep_size", "0"), testenv.Param("max_wal_size", "64MB")))
		})
	}
}

// A world is a fresh database and the name of a slot in it.
type world struct {
	*testing.T
	pg   *testenv.PG
	dsn  string       // of the superuser
	db   ipg.Database // of the Reader
	slot string
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
	r := NewReader(w.db, w.slot, false)
	w.Cleanup(r.Close)
	return r
}

func (w *world) read(m *Reader) Health {
	w.Helper()
	h, err := m.Read(w.Context())
	if err != nil {
		w.Fatal(err)
	}
	return h
}

func (w *world) connect() *pgx.Conn {
	w.Helper()
	conn, err := pgx.Connect(w.Context(), w.dsn)
	if err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() { conn.Close(w.Context()) })
	return conn
}

func (w *world) run(conn *pgx.Conn, sql ...string) {
	w.Helper()
	for _, s := range sql {
		if _, err := conn.Exec(w.Context(), s); err != nil {
			w.Fatalf("%s: %v", s, err)
		}
	}
}

// follow lets the slot follow the server as a consumer that has everything would, behind a fresh record of the running transactions.
func (w *world) follow() {
	w.Helper()
	w.exec("CHECKPOINT", fmt.Sprintf("SELECT pg_replication_slot_advance('%s', pg_current_wal_lsn())", w.slot))
}

// lose makes the server invalidate the world's slot.
func (w *world) lose() {
	w.Helper()
	w.exec("CREATE TABLE IF NOT EXISTS filler (a text)")
	for range 20 {
		w.exec("INSERT INTO filler SELECT repeat('x', 1000) FROM generate_series(1, 1000)", "SELECT pg_switch_wal()", "CHECKPOINT")
		if w.value("SELECT wal_status FROM pg_replication_slots WHERE slot_name = '"+w.slot+"'") == "lost" {
			return
		}
	}
	w.Fatal("the slot is not lost")
}
