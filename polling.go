package walpost

import (
	"cmp"
	"context"
	"fmt"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/checkpoint"
	"github.com/walpost/walpost/internal/conf"
	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/internal/pg"
	"github.com/walpost/walpost/poll"
	"github.com/walpost/walpost/relay"
	"github.com/walpost/walpost/replication"
)

// polls reports whether the table is read by SQL.
func (c *Config) polls() bool { return c.Source.Kind == KindPoll }

// needsSlot adds a problem if the command needs a slot, and the configuration has none.
func (c *Config) needsSlot(found *Problems, command string) {
	if c.polls() {
		found.Add("source.kind", conf.MustBe, "wal for walpost "+command, c.Source.Kind)
	}
}

// polling is the configuration as the source wants it that polls.
func (r *Relay) polling() poll.Settings {
	return poll.Settings{
		Config: r.cfg.Source.Poll, Name: r.cfg.Name, DB: r.rows.DB, Table: r.rows.Names.Tables[0], OrderColumn: r.cfg.Source.OrderColumn,
		TimeColumn: r.cfg.Source.TimeColumn, Snapshot: r.cfg.Source.Snapshot, Needs: r.router.Needs, Logger: r.cfg.Logger,
		ID:  func(rel *cdc.Relation) string { return r.router.Columns(rel).ID },
		Key: func(rel *cdc.Relation) string { return r.router.Columns(rel).Key },
	}
}

// reads is what the relay reads.
func (r *Relay) reads() relay.Source {
	if r.polled != nil {
		return pollSource{r.polled}
	}
	return pgSource{r.source}
}

// pollSource is poll.Source as package relay wants it.
type pollSource struct{ *poll.Source }

func (s pollSource) Open(ctx context.Context, create, replaceLost bool) (relay.Session, error) {
	session, err := s.Source.Open(ctx, create, replaceLost)
	if err != nil {
		return nil, err // not session: a nil *Session would be a Session that is not nil
	}
	return session, nil
}

// pollSetup is what SetupSQL prints for a source that polls. run executes it where that is wanted.
func (r *Relay) pollSetup(ctx context.Context, run bool) (sql string, why, err error) {
	set, table := r.polling(), ""
	conn, why := set.DB.ConnectSQL(ctx)
	var f *poll.Facts
	if why == nil {
		defer pg.Close(conn)
		if f, why = set.Describe(ctx, conn); why == nil && !f.Table.Exists() {
			f = nil
		}
	}
	if f == nil {
		outbox := *r.source.Config()
		table = replication.SetupSQL(outbox, replication.SetupOptions{Tables: []pg.Table{set.Table}}) + "\n"
	}
	sql = table + set.SetupSQL(f)
	if r.cfg.SetupRole != "" && sql != "" {
		sql += pg.ReadingRights(set.Table, r.cfg.SetupRole) + "\n"
	}
	if run && why == nil && sql != "" {
		if _, err := conn.Exec(ctx, sql).ReadAll(); err != nil {
			return sql, nil, pg.Classify(fmt.Errorf("make what polling needs: %w", err))
		}
	}
	return sql, why, nil
}

// applyPolling makes what polling needs, and returns what it made.
func (r *Relay) applyPolling(ctx context.Context) ([]string, error) {
	sql, why, err := r.pollSetup(ctx, true)
	if why != nil || err != nil || sql == "" {
		return nil, cmp.Or(why, err)
	}
	return []string{"what polling needs of table " + r.rows.Names.Tables[0].String()}, nil
}

// delivered is the position below which a relay has delivered everything, 0 if it does not know.
func delivered(s relay.Status) cdc.Position {
	if s.State == relay.Standby {
		return 0 // another process delivers
	}
	return max(s.Confirmed, s.Checkpoint)
}

// ReadPoll looks at the table that a relay polls: what is not delivered, and what delays it. Everything below at is delivered; if at is
// 0, the checkpoint says what is.
func ReadPoll(ctx context.Context, cfg Config, at cdc.Position) (poll.Status, error) {
	wrong := cfg.ValidateDatabase()
	if at == 0 {
		wrong = cfg.Validate()
	}
	r, err := prepare(cfg, wrong)
	if err != nil {
		return poll.Status{}, err
	}
	s := r.polled.Status()
	if at == 0 {
		if at, err = r.storedPosition(ctx); err != nil {
			return s, err
		}
	}
	s.Backlog, err = r.polled.Backlog(ctx, at)
	return s, err
}

// storedPosition is the position of the newest checkpoint of a relay that polls.
func (r *Relay) storedPosition(ctx context.Context) (cdc.Position, error) {
	rec, err := r.stored(ctx)
	switch {
	case err != nil:
		return 0, err
	case rec == nil:
		return 0, fault.WithHint(fmt.Errorf("no checkpoint of %s is stored: the relay has delivered nothing yet", r.cfg.Name), "The first walpost run writes it.")
	case rec.Poll == "":
		return 0, fault.Config(fmt.Errorf("checkpoint %s was written for slot %q, not for polling", rec.Key(), rec.Slot), "")
	}
	return rec.LSN, nil
}

// stored is the newest checkpoint, nil for none.
func (r *Relay) stored(ctx context.Context) (*checkpoint.Record, error) {
	store, free, err := r.openStore()
	if err != nil {
		return nil, err
	}
	defer free()
	records, err := store.Look(ctx, r.cfg.Name)
	if err != nil {
		return nil, fmt.Errorf("read checkpoint: %w", err)
	}
	rec, _, err := checkpoint.Newest(r.cfg.Name, records)
	if err != nil {
		return nil, fmt.Errorf("read checkpoint: %w", err)
	}
	return rec, nil
}

// formerSlot makes sure, before a recover, that no relay delivers by the other kind of source: that relay would go on, and its events would
// come twice. If the relay read a slot and polls from now on, formerSlot returns the slot.
func (r *Relay) formerSlot(ctx context.Context) (slot string, err error) {
	rec, err := r.stored(ctx)
	if err != nil || rec == nil || (rec.Poll != "") == r.cfg.polls() {
		return "", nil //nolint:nilerr // the relay's loop reads the store once more, and says what is wrong
	}
	conn, err := r.rows.DB.ConnectSQL(ctx)
	if err != nil {
		return "", err
	}
	defer pg.Close(conn)
	var pid int32
	if rec.Poll != "" {
		pid, err = poll.Holder(ctx, conn, r.cfg.Name)
	} else {
		var found []struct{ PID int32 }
		found, err = pg.Rows[struct{ PID int32 }](ctx, conn, "read the slot", "SELECT coalesce(active_pid, 0) AS pid FROM pg_replication_slots WHERE slot_name = "+pg.QuoteLiteral(rec.Slot))
		for _, f := range found {
			slot, pid = rec.Slot, f.PID
		}
	}
	if err == nil && pid != 0 {
		return "", fault.Config(fmt.Errorf("the relay runs with its former configuration (server process %d)", pid), "Stop that walpost run first.")
	}
	return slot, err
}
