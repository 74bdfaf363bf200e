//go:build linux || darwin

package testenv

import (
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/walpost/walpost/internal/localpg"
)

// CopyData copies the data directory of a private server, with its replication slots, and returns the
// copy's path. The copy is removed with the server. A running server continues, and the copy is its
// state at the end of this call.
func (pg *PG) CopyData(t testing.TB) (dir string) {
	t.Helper()
	return pg.copyData(t, false)
}

func (pg *PG) copyData(t testing.TB, forStandby bool) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	dir := filepath.Join(pg.own().Folder(), unique("copy"))
	if err := pg.server.CopyData(ctx, dir, forStandby); err != nil {
		t.Fatal(err)
	}
	return dir
}

// Restore replaces the data directory of a private server by a copy that CopyData made from a server
// of the same version, and starts the server on the same port. The server goes back in time, with
// the copy's system identifier and timeline.
func (pg *PG) Restore(t testing.TB, dir string) {
	t.Helper()
	if pg.Running() {
		if err := pg.Stop("immediate", time.Minute); err != nil {
			t.Fatal(err)
		}
	}
	if err := pg.own().Restore(dir); err != nil {
		t.Fatal(err)
	}
	pg.Start(t)
}

// StartCopy starts another private server from a copy that CopyData made, like a machine that was restored from a backup.
func (pg *PG) StartCopy(t testing.TB, dir string, opts ...PGOption) *PG {
	t.Helper()
	return pg.derive(t, dir, opts, nil, nil)
}

// Clone is CopyData followed by StartCopy.
func (pg *PG) Clone(t testing.TB, opts ...PGOption) *PG {
	t.Helper()
	return pg.StartCopy(t, pg.CopyData(t), opts...)
}

// derive starts a server with this one's parameters, those given, and those of opts.
func (pg *PG) derive(t testing.TB, dir string, opts []PGOption, params map[string]string, prepare func(*localpg.Server) error) *PG {
	t.Helper()
	o := pgOptions{params: maps.Clone(pg.params)}
	if o.params == nil {
		o.params = map[string]string{}
	}
	maps.Copy(o.params, params)
	for _, opt := range opts {
		opt(&o)
	}
	return privatePG(t, localpg.Config{
		Version: fmt.Sprint(pg.version), Parameters: o.params, Data: dir, Prepare: prepare,
	})
}

// Standby starts a physical standby of a private server, and returns when it streams. A physical slot
// holds the primary's WAL for it. Its primary_conninfo names a database, which
// sync_replication_slots (17 and newer) needs.
func (pg *PG) Standby(t testing.TB, opts ...PGOption) *PG {
	t.Helper()
	name := unique("standby")
	dir := pg.copyData(t, true)
	// The copy has its WAL up to its end, and the temporary slot of the copy is gone. The new slot holds the WAL after that.
	pg.Exec(t, pg.DSN("postgres"), "SELECT pg_create_physical_replication_slot('"+name+"', true)")
	sb := pg.derive(t, dir, opts, map[string]string{
		"hot_standby":          "on",
		"hot_standby_feedback": "on",
		"primary_slot_name":    name,
		"primary_conninfo": fmt.Sprintf("host=127.0.0.1 port=%d user=postgres dbname=postgres sslmode=disable application_name=%s",
			pg.Port(), name),
	}, func(s *localpg.Server) error { return s.WriteFile("standby.signal", "") })
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

// RestoreUntil does a point-in-time recovery. A server starts from dir, a copy that CopyData made
// earlier, replays this private server's WAL up to the LSN, and continues on a new timeline with the
// same system identifier. The WAL since the copy must still exist: if a test writes more than a few
// segments, give the server Param("wal_keep_size", "1GB").
func (pg *PG) RestoreUntil(t testing.TB, dir, lsn string, opts ...PGOption) *PG {
	t.Helper()
	restored := pg.derive(t, dir, opts, map[string]string{
		"restore_command":          `cp "../wal/%f" "%p"`, // runs in the data directory
		"recovery_target_lsn":      lsn,
		"recovery_target_action":   "promote",
		"recovery_target_timeline": "current",
	}, func(s *localpg.Server) error {
		if err := s.Import(filepath.Join(pg.own().DataDir(), "pg_wal"), "wal"); err != nil {
			return err
		}
		return s.WriteFile("recovery.signal", "")
	})
	restored.wait(t, "the end of recovery", "SELECT NOT pg_is_in_recovery()")
	return restored
}

// wait waits until a query returns true.
func (pg *PG) wait(t testing.TB, what, sql string, args ...any) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	conn, err := pgx.Connect(ctx, pg.DSN("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(ctx)
	for {
		var done *bool
		if err := conn.QueryRow(ctx, sql, args...).Scan(&done); err != nil {
			t.Fatalf("wait until %s: %v", what, err)
		}
		if done != nil && *done {
			return
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-ctx.Done():
		}
	}
}
