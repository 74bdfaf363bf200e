//go:build linux || darwin

package e2e

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/walpost/walpost/internal/localpg"
	"github.com/walpost/walpost/internal/testenv"
)

// restore replaces the data directory of a private server by a copy that CopyData made from a server of the same version, and starts
// the server on the same port. The server goes back in time, with the copy's system identifier and timeline. prepare completes the
// data directory.
func restore(t *testing.T, pg *testenv.PG, dir string, prepare ...func(data string) error) {
	t.Helper()
	data := pg.DataDir()
	err := errors.Join(pg.Stop("immediate", time.Minute), os.RemoveAll(data), localpg.CopyDir(dir, data))
	for _, p := range prepare {
		err = errors.Join(err, p(data))
	}
	if err != nil {
		t.Fatal(err)
	}
	pg.Start(t)
}

// restoreUntil does a point-in-time recovery. A server starts from dir, a copy that CopyData made earlier, replays the private server's
// WAL up to the LSN, and continues on a new timeline with the same system identifier. The WAL since the copy must still exist: if a
// test writes more than a few segments, give the server Param("wal_keep_size", "1GB").
func restoreUntil(t *testing.T, pg *testenv.PG, dir, lsn string) *testenv.PG {
	t.Helper()
	restored := testenv.Postgres(t, strconv.Itoa(pg.Version()), testenv.Private(),
		testenv.Param("restore_command", `cp "../wal/%f" "%p"`), // runs in the data directory
		testenv.Param("recovery_target_lsn", lsn), testenv.Param("recovery_target_action", "promote"),
		testenv.Param("recovery_target_timeline", "current"))
	restore(t, restored, dir, func(data string) error {
		return errors.Join(
			localpg.CopyDir(filepath.Join(pg.DataDir(), "pg_wal"), filepath.Join(data, "..", "wal")),
			os.WriteFile(filepath.Join(data, "recovery.signal"), nil, 0o600))
	})
	eventually(t, time.Minute, "the end of recovery", func() bool {
		return restored.Value(t, restored.DSN("postgres"), "SELECT NOT pg_is_in_recovery()") == "true"
	})
	return restored
}

func TestCopiesOfAServerInEachVersion(t *testing.T) {
	const (
		identity = "SELECT system_identifier FROM pg_control_system()"
		timeline = "SELECT timeline_id FROM pg_control_checkpoint()"
		position = "SELECT pg_current_wal_lsn()::text"
		rows     = "SELECT string_agg(id::text, ' ' ORDER BY id) FROM t"
	)
	same := func(t *testing.T, what, got, want string) {
		t.Helper()
		if got != want {
			t.Errorf("%s: %s, want %s", what, got, want)
		}
	}
	t.Parallel()
	for _, version := range testenv.Versions {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			pg := testenv.Postgres(t, version, testenv.Private())
			dsn := pg.DSN("postgres")
			value := func(pg *testenv.PG, sql string) string { t.Helper(); return pg.Value(t, pg.DSN("postgres"), sql) }
			insert := func(pg *testenv.PG, id int) {
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
				old := testenv.Postgres(t, version, testenv.Private())
				restore(t, old, earlier)
				same(t, "rows", value(old, rows), "1")
				same(t, "slots", value(old, "SELECT string_agg(slot_name, ' ') FROM pg_replication_slots"), "s")
				same(t, "timeline", value(old, timeline), "1")
				same(t, "identity", value(old, identity), value(pg, identity))
			})
			t.Run("point-in-time recovery forks a timeline at the target", func(t *testing.T) {
				fork := restoreUntil(t, pg, earlier, target)
				same(t, "rows", value(fork, rows), "1 2")
				fork.Exec(t, fork.DSN("postgres"), "CHECKPOINT")
				same(t, "timeline", value(fork, timeline), "2")
				same(t, "identity", value(fork, identity), value(pg, identity))
				fork.Restart(t)
				same(t, "rows after a restart", value(fork, rows), "1 2")
			})
			t.Run("a server is restored in place", func(t *testing.T) {
				port := pg.Port()
				restore(t, pg, earlier)
				same(t, "rows", value(pg, rows), "1")
				same(t, "port", fmt.Sprint(pg.Port()), fmt.Sprint(port))
			})
		})
	}
}
