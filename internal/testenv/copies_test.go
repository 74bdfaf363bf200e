//go:build linux || darwin

package testenv

import (
	"fmt"
	"testing"

	"github.com/walpost/walpost/internal/localpg"
)

const (
	identity = "SELECT system_identifier FROM pg_control_system()"
	timeline = "SELECT timeline_id FROM pg_control_checkpoint()"
	position = "SELECT pg_current_wal_lsn()::text"
	rows     = "SELECT string_agg(id::text, ' ' ORDER BY id) FROM t"
)

func same(t *testing.T, what, got, want string) {
	t.Helper()
	if got != want {
		t.Errorf("%s: %s, want %s", what, got, want)
	}
}

func TestCopiesOfAServerInEachVersion(t *testing.T) {
	for _, version := range localpg.Versions() {
		t.Run(version, func(t *testing.T) {
			pg := Postgres(t, version, Private())
			dsn := pg.DSN("postgres")
			value := func(pg *PG, sql string) string { t.Helper(); return pg.Value(t, pg.DSN("postgres"), sql) }
			insert := func(pg *PG, id int) {
				t.Helper()
				pg.Exec(t, pg.DSN("postgres"), fmt.Sprint("INSERT INTO t VALUES (", id, ")"))
			}

			pg.Exec(t, dsn, "CREATE TABLE t (id int)", "SELECT pg_create_logical_replication_slot('s', 'pgoutput')")
			insert(pg, 1)
			earlier := pg.CopyData(t)
			insert(pg, 2)
			target := value(pg, position)
			insert(pg, 3)

			t.Run("a standby follows and is promoted onto a new timeline", func(t *testing.T) {
				sb := pg.Standby(t)
				insert(pg, 4)
				sb.CatchUp(t, pg)
				same(t, "rows", value(sb, rows), "1 2 3 4")
				same(t, "slots", value(sb, "SELECT count(*) FROM pg_replication_slots"), "0")
				sb.Promote(t)
				insert(sb, 5)
				sb.Exec(t, sb.DSN("postgres"), "CHECKPOINT")
				same(t, "timeline", value(sb, timeline), "2")
				same(t, "identity", value(sb, identity), value(pg, identity))
			})
			t.Run("a restored copy has the past, the slot and the timeline", func(t *testing.T) {
				old := pg.derive(t, earlier, nil, nil, func(string) error { return nil })
				same(t, "rows", value(old, rows), "1")
				same(t, "slots", value(old, "SELECT string_agg(slot_name, ' ') FROM pg_replication_slots"), "s")
				same(t, "timeline", value(old, timeline), "1")
				same(t, "identity", value(old, identity), value(pg, identity))
			})
			t.Run("point-in-time recovery forks a timeline at the target", func(t *testing.T) {
				fork := pg.RestoreUntil(t, earlier, target)
				same(t, "rows", value(fork, rows), "1 2")
				fork.Exec(t, fork.DSN("postgres"), "CHECKPOINT")
				same(t, "timeline", value(fork, timeline), "2")
				same(t, "identity", value(fork, identity), value(pg, identity))
				fork.Restart(t)
				same(t, "rows after a restart", value(fork, rows), "1 2")
			})
			t.Run("a server is restored in place", func(t *testing.T) {
				port := pg.Port()
				pg.Restore(t, earlier)
				same(t, "rows", value(pg, rows), "1")
				same(t, "port", fmt.Sprint(pg.Port()), fmt.Sprint(port))
			})
		})
	}
}
