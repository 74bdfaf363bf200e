package walpost

import (
	"context"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/walpost/walpost/cleanup"
	"github.com/walpost/walpost/relay"
	"github.com/walpost/walpost/replication"
)

// cleaner makes the cleaner of old rows; nil where none is wanted. It asks loop how far the relay is.
func (r *Relay) cleaner(loop *relay.Relay) *cleanup.Cleaner {
	c := r.cfg.Cleanup
	if c.Mode == "none" {
		return nil
	}
	cfg := cleanup.Config{
		Mode:       cleanup.Mode(c.Mode),
		TimeColumn: r.cfg.Source.TimeColumn,
		Keep:       c.Keep,
		Slot:       r.cfg.Source.Slot,
		Connect:    func(ctx context.Context) (*pgconn.PgConn, error) { return r.source.Connect(ctx) },
		Progress:   func() cleanup.Progress { return progress(loop.Status()) },
		Logger:     r.cfg.Logger,
	}
	for _, name := range r.cfg.Source.AllTables() {
		if t, err := replication.ParseTable(name); err == nil { // New has refused the others
			cfg.Tables = append(cfg.Tables, cleanup.Table(t))
		}
	}
	return cleanup.New(cfg)
}

// progress is how far the relay is: in a session only while it streams. Its epoch names the session, as each takes the next one.
func progress(s relay.Status) cleanup.Progress {
	if s.State != relay.Streaming {
		return cleanup.Progress{}
	}
	return cleanup.Progress{Session: s.Epoch, Confirmed: s.Confirmed}
}
