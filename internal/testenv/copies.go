//go:build linux || darwin

package testenv

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"testing"

	"github.com/walpost/walpost/internal/localpg"
)

// CopyData copies the data directory of a private server, which must run, with its replication
// slots, and returns the copy's path. It leaves out the content of the folders in empty. The copy
// is removed with the server. No client is disconnected, and the copy is the server's state at the
// end of this call. It follows the manual, "Making a Base Backup Using the Low Level API".
func (pg *PG) CopyData(t testing.TB, empty ...string) (dir string) {
	t.Helper()
	data := pg.own().DataDir()
	dir = filepath.Join(pg.Folder(), unique("copy"))
	start, stop := "pg_backup_start('copy', true)", "pg_backup_stop(false)"
	if pg.Version() < 15 {
		start, stop = "pg_start_backup('copy', true, false)", "pg_stop_backup(false, false)"
	}
	// At the end of the session, the server ends the backup and drops the temporary slot, which
	// keeps the WAL until then.
	conn := Conn(t, pg.DSN("postgres"))
	defer conn.Close(context.Background()) //nolint:errcheck // nothing depends on it
	Run(t, conn, "SELECT pg_create_physical_replication_slot('"+unique("copy")+"', true, true)", "SELECT "+start)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("copy of %s: %v", data, err)
		}
	}
	must(localpg.CopyDir(data, dir, append(empty, "pg_wal", "pg_dynshmem")...))
	var label string
	must(conn.QueryRow(t.Context(), "SELECT labelfile FROM "+stop).Scan(&label))
	must(os.Remove(filepath.Join(dir, "pg_wal")))
	must(localpg.CopyDir(filepath.Join(data, "pg_wal"), filepath.Join(dir, "pg_wal"), "archive_status"))
	must(os.WriteFile(filepath.Join(dir, "backup_label"), []byte(label), 0o600))
	must(os.Remove(filepath.Join(dir, "postmaster.pid")))
	return dir
}

// Standby starts a physical standby of a private server, and returns when it streams. A physical
// slot holds the primary's WAL for it. The standby has the primary's parameters and those of opts. Its primary_conninfo names a database, which
// sync_replication_slots (17 and newer) needs.
func (pg *PG) Standby(t testing.TB, opts ...PGOption) *PG {
	t.Helper()
	name := unique("standby")
	dir := pg.CopyData(t, "pg_replslot") // as with pg_basebackup
	// The copy has its WAL up to its end, and the temporary slot of the copy is gone. The new slot
	// holds the WAL after that.
	pg.Exec(t, pg.DSN("postgres"), "SELECT pg_create_physical_replication_slot('"+name+"', true)")
	o := pgOptions{params: maps.Clone(pg.params)}
	maps.Copy(o.params, map[string]string{
		"hot_standby":          "on",
		"hot_standby_feedback": "on",
		"primary_slot_name":    name,
		"primary_conninfo": fmt.Sprintf("host=127.0.0.1 port=%d user=postgres dbname=postgres sslmode=disable application_name=%s",
			pg.Port(), name),
	})
	for _, opt := range opts {
		opt(&o)
	}
	sb := privatePG(t, localpg.Config{Version: fmt.Sprint(pg.Version()), Parameters: o.params, Data: func(data string) error {
		return errors.Join(localpg.CopyDir(dir, data), os.WriteFile(filepath.Join(data, "standby.signal"), nil, 0o600))
	}})
	pg.wait(t, "the standby streams",
		"SELECT count(*) = 1 FROM pg_stat_replication WHERE application_name = $1 AND state = 'streaming'", name)
	return sb
}

// CatchUp returns when the standby has replayed everything that its primary has written until now.
func (pg *PG) CatchUp(t testing.TB, primary *PG) {
	t.Helper()
	lsn := primary.Value(t, primary.DSN("postgres"), "SELECT pg_current_wal_lsn()::text")
	pg.wait(t, "replay of "+lsn, "SELECT pg_last_wal_replay_lsn() >= $1::text::pg_lsn", lsn)
}

// Promote makes a standby a primary, on a new timeline.
func (pg *PG) Promote(t testing.TB) {
	t.Helper()
	if got := pg.Value(t, pg.DSN("postgres"), "SELECT pg_promote(true, 60)"); got != "true" {
		t.Fatalf("pg_promote: %s", got)
	}
}

// wait waits until a query returns true.
func (pg *PG) wait(t testing.TB, what, sql string, args ...any) {
	t.Helper()
	soon(t, what, func() bool { return pg.Value(t, pg.DSN("postgres"), sql, args...) == "true" })
}
