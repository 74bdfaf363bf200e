//go:build linux || darwin

package e2e

import (
	"errors"
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
