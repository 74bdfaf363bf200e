//go:build linux || darwin

package testenv

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/walpost/walpost/internal/localpg"
)

// Versions are the major versions of Postgres that walpost supports.
var Versions = localpg.Versions()

// OnEach runs a test against every version of Postgres.
func OnEach(t *testing.T, test func(t *testing.T, pg *PG), opts ...PGOption) {
	for _, v := range Versions {
		t.Run(v, func(t *testing.T) { test(t, Postgres(t, v, opts...)) })
	}
}

// OnEachLimited is OnEach on servers that lose slots (LoseSlot) and take prepared transactions.
func OnEachLimited(t *testing.T, test func(t *testing.T, pg *PG)) {
	OnEach(t, test, Param("max_prepared_transactions", "5"), Param("max_slot_wal_keep_size", "32MB"), Param("wal_keep_size", "0"), Param("max_wal_size", "64MB"))
}

// Conn connects to dsn until the test ends.
func Conn(t testing.TB, dsn string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

// Run runs statements on one connection, in order.
func Run(t testing.TB, conn *pgx.Conn, sql ...string) {
	t.Helper()
	for _, s := range sql {
		if _, err := conn.Exec(t.Context(), s); err != nil {
			t.Fatalf("%s: %v", s, err)
		}
	}
}

// LoseSlot makes a server of OnEachLimited invalidate a slot.
func (pg *PG) LoseSlot(t testing.TB, dsn, slot string) {
	t.Helper()
	pg.Exec(t, dsn, "CREATE TABLE IF NOT EXISTS filler (a text)")
	for range 20 {
		pg.Exec(t, dsn, "INSERT INTO filler SELECT repeat('x', 1000) FROM generate_series(1, 1000)", "SELECT pg_switch_wal()", "CHECKPOINT")
		if pg.Value(t, dsn, "SELECT wal_status FROM pg_replication_slots WHERE slot_name = '"+slot+"'") == "lost" {
			return
		}
	}
	t.Fatal("the slot is not lost")
}
