//go:build linux || darwin

package testenv

import (
	"context"
	"testing"
	"time"

	"github.com/walpost/walpost/internal/localpg"
)

// own returns the server of a private PG, and panics if pg is shared.
func (pg *PG) own() *localpg.Server {
	if !pg.private {
		panic("testenv: this needs a private server: use testenv.Private()")
	}
	return pg.server
}

// Stop stops a private server: "smart", "fast" or "immediate". It returns an error if the server
// still runs after the timeout.
func (pg *PG) Stop(mode string, timeout time.Duration) error {
	return pg.own().Stop(mode, timeout)
}

// Start starts a stopped or killed private server again, on the same port and data directory.
func (pg *PG) Start(t testing.TB) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	if err := pg.own().Start(ctx); err != nil {
		t.Fatal(err)
	}
}

// Restart stops a private server fast, which disconnects all clients, and starts it again.
func (pg *PG) Restart(t testing.TB) {
	t.Helper()
	if err := pg.Stop("fast", time.Minute); err != nil {
		t.Fatal(err)
	}
	pg.Start(t)
}

// Kill kills the postmaster of a private server with SIGKILL. Its children notice and end.
func (pg *PG) Kill() error { return pg.own().Kill() }

// DataDir returns the data directory of a private server.
func (pg *PG) DataDir() string { return pg.own().DataDir() }
