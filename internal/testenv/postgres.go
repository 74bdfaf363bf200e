//go:build linux || darwin

package testenv

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/walpost/walpost/internal/localpg"
	"github.com/walpost/walpost/internal/testenv/short"
)

// A PG is a running Postgres with wal_level = logical. Autovacuum is off, because its transactions hold
// back snapshots of the whole server at any moment. Param("autovacuum", "on") turns it on.
//
// Only a private server may be stopped, killed or copied.
type PG struct {
	*localpg.Server
	private bool
	params  map[string]string // of a private server, at its start
}

type pgOptions struct {
	private bool
	own     bool // system identifier
	params  map[string]string
}

// A PGOption is a property of a Postgres.
type PGOption func(*pgOptions)

// Private means a server that only this test uses, so the test may stop, kill and copy it. It ends
// with the test.
func Private() PGOption { return func(o *pgOptions) { o.private = true } }

// OwnIdentity means a private server with a system identifier of its own. The others have one in common, because their data directory is a copy
// of one empty cluster, which takes a sixth of the CPU time of initdb.
func OwnIdentity() PGOption { return func(o *pgOptions) { o.private, o.own = true, true } }

// Param sets a server parameter, such as wal_sender_timeout. Tests with the same parameters share a
// server.
func Param(name, value string) PGOption {
	return func(o *pgOptions) { o.params[name] = value }
}

var sharedPGs sync.Map // from options to func() (*PG, error)

// Postgres returns a running server of a major version, "14" to "18". If version is empty, it is
// $WALPOST_PG, or 15.
func Postgres(t testing.TB, version string, opts ...PGOption) *PG {
	t.Helper()
	short.Skip(t, "Postgres")
	o := pgOptions{params: map[string]string{}}
	for _, opt := range opts {
		opt(&o)
	}
	version = cmp.Or(version, os.Getenv("WALPOST_PG"), localpg.DefaultVersion)
	if o.private {
		return privatePG(t, localpg.Config{Version: version, Parameters: o.params, Reuse: !o.own})
	}
	key := fmt.Sprintf("%s %q", version, o.params) // fmt sorts a map
	start, _ := sharedPGs.LoadOrStore(key, sync.OnceValues(func() (*PG, error) {
		pg, err := startPG(context.Background(), localpg.Config{Version: version, Parameters: o.params, Reuse: true})
		if err == nil {
			closeAtEnd(pg.Close)
		}
		return pg, err
	}))
	pg, err := start.(func() (*PG, error))()
	if err != nil {
		t.Fatal(err)
	}
	return pg
}

func startPG(ctx context.Context, c localpg.Config) (*PG, error) {
	c.Progress = func(step string) { loudly("%s", step) }
	c.Folder = tempFolder()
	params := map[string]string{"autovacuum": "off"}
	maps.Copy(params, c.Parameters)
	c.Parameters = params
	server, err := localpg.Start(ctx, c)
	if err != nil {
		return nil, err
	}
	return &PG{Server: server}, nil
}

// privatePG starts a server that ends with the test.
func privatePG(t testing.TB, c localpg.Config) *PG {
	t.Helper()
	pg, err := startPG(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	pg.private, pg.params = true, c.Parameters
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("last messages of postgres %d on port %d:\n%s", pg.Version(), pg.Port(), pg.Said())
		}
		if err := pg.Close(); err != nil {
			t.Error(err)
		}
	})
	return pg
}

// own returns the server of a private PG, and panics if pg is shared.
func (pg *PG) own() *localpg.Server {
	if !pg.private {
		panic("testenv: this needs a private server: use testenv.Private()")
	}
	return pg.Server
}

// Stop is localpg.Server.Stop.
func (pg *PG) Stop(mode string, timeout time.Duration) error { return pg.own().Stop(mode, timeout) }

// Kill is localpg.Server.Kill.
func (pg *PG) Kill() error { return pg.own().Kill() }

// Start starts a stopped or killed server again, on the same port and data directory.
func (pg *PG) Start(t testing.TB) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	if err := pg.own().Start(ctx); err != nil {
		t.Fatal(err)
	}
}

// Restart stops the server fast, which disconnects all clients, and starts it again.
func (pg *PG) Restart(t testing.TB) {
	t.Helper()
	if err := pg.Stop("fast", time.Minute); err != nil {
		t.Fatal(err)
	}
	pg.Start(t)
}

// Database creates a database with a unique name. At the end of the test, the database and its
// replication slots are dropped, even if they are in use.
func (pg *PG) Database(t testing.TB) (dsn string) {
	t.Helper()
	name := unique("wp")
	pg.Exec(t, pg.DSN("postgres"), "CREATE DATABASE "+name)
	t.Cleanup(func() {
		if !pg.Running() {
			return
		}
		if err := pg.drop(name); err != nil {
			t.Errorf("drop database %s: %v", name, err)
		}
	})
	return pg.DSN(name)
}

func (pg *PG) drop(database string) error {
	// The server waits for each of its processes, also for those of other tests. One that compresses a large row doesn't answer for a while.
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	conn, err := pgx.Connect(ctx, pg.DSN("postgres"))
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	for {
		// The server drops the database with its slots, unless a slot is in use. A terminated
		// walsender holds its slot for a moment.
		_, err := conn.Exec(ctx, `SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE database = $1 AND active`, database)
		if err == nil {
			_, err = conn.Exec(ctx, "DROP DATABASE IF EXISTS "+database+" WITH (FORCE)")
		}
		// "trying to drop stats entry already dropped" is a race in the server (seen on 16) if a
		// slot has just been dropped.
		if err == nil || ctx.Err() != nil || !strings.Contains(err.Error(), "(SQLSTATE 55006)") &&
			!strings.Contains(err.Error(), "stats entry already dropped") {
			return err
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
		}
	}
}

// Exec runs statements one after the other in one session, each in its own transaction. A slot that is to be dropped
// may be in use for a moment, because its walsender ends after its client.
func (pg *PG) Exec(t testing.TB, dsn string, sql ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(ctx)
	for _, s := range sql {
		_, err := conn.Exec(ctx, s)
		for err != nil && strings.Contains(err.Error(), "(SQLSTATE 55006)") && strings.Contains(s, "pg_drop_replication_slot") && ctx.Err() == nil {
			time.Sleep(20 * time.Millisecond)
			_, err = conn.Exec(ctx, s)
		}
		if err != nil {
			t.Fatalf("%s: %v", s, err)
		}
	}
}

// Value returns the one value of a query as text. NULL is "".
func (pg *PG) Value(t testing.TB, dsn, sql string, args ...any) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(ctx)
	var v any
	if err := conn.QueryRow(ctx, sql, args...).Scan(&v); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	if v == nil {
		return ""
	}
	return fmt.Sprint(v)
}
