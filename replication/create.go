package replication

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/internal/lib/pgname"
	"github.com/walpost/walpost/internal/pg"
)

// Making a slot waits for every transaction that is open. Who is waited for is asked, and logged, after the first while and
// then now and then.
const (
	askAfter = 3 * time.Second
	askEvery = 30 * time.Second
)

// A madeSlot is what came of making a slot.
type madeSlot struct {
	created  bool   // false where somebody else made it in the same moment
	snapshot string // name of the exported snapshot, where one was wanted
}

// make makes the publication, where it is missing, and then the slot: a slot that is older than its publication could not
// read it.
func (s *Source) make(ctx context.Context, conn, sql *pgconn.PgConn, f *pg.Facts, replace, export bool) (made madeSlot, err error) {
	if f.Publication == nil {
		publication := publicationSQL(s.cfg.publishable(f))
		_, err := sql.Exec(ctx, publication).ReadAll()
		switch state := pg.SQLState(err); {
		case state == pg.StateDuplicate, state == pg.StateNotUnique:
		case state == pg.StateNoRight:
			return made, fault.WithHint(fmt.Errorf("create publication %s: %w", s.cfg.Publication, err), "As the owner of the tables: "+publication)
		case err != nil:
			return made, pg.Classify(fmt.Errorf("create publication %s: %w", s.cfg.Publication, err))
		default:
			s.cfg.Logger.Info("publication created", "publication", s.cfg.Publication, "tables", append([]string{}, s.cfg.AllTables()...)) // not null where there is none
		}
	}
	if replace {
		err := pglogrepl.DropReplicationSlot(ctx, conn, pgname.QuoteIdent(s.cfg.Slot), pglogrepl.DropReplicationSlotOptions{})
		if err != nil && pg.SQLState(err) != pg.StateUndefinedObject {
			return made, pg.Classify(fmt.Errorf("drop the lost slot %s: %w", s.cfg.Slot, err))
		}
		s.cfg.Logger.Warn("dropped the lost slot; walpost creates it again", "slot", s.cfg.Slot)
	}
	return s.makeSlot(ctx, conn, sql, f, export)
}

// slotOptions are the options of CREATE_REPLICATION_SLOT, whose spelling changed with 15. An exported snapshot costs a
// transaction that stays open, so it's made only if it's wanted. pglogrepl has no field for FAILOVER, but it sends what is in
// the place of the snapshot's action as it is.
func (c *Config) slotOptions(version int, export bool) pglogrepl.CreateReplicationSlotOptions {
	action, snapshot := "NOEXPORT_SNAPSHOT", "nothing"
	if export {
		action, snapshot = "EXPORT_SNAPSHOT", "export"
	}
	if version >= 150000 {
		action = "(SNAPSHOT '" + snapshot + "')"
		if c.Failover {
			action = "(SNAPSHOT '" + snapshot + "', FAILOVER)"
		}
	}
	return pglogrepl.CreateReplicationSlotOptions{SnapshotAction: action}
}

func (s *Source) makeSlot(ctx context.Context, conn, sql *pgconn.PgConn, f *pg.Facts, export bool) (made madeSlot, err error) {
	step := "create slot " + s.cfg.Slot
	// The command is cancelled by request, so that the server gives up its half-made slot at once; the connection is cut only
	// where that does not help.
	running, cut := context.WithCancel(context.WithoutCancel(ctx))
	defer cut()
	limited, stop := context.WithTimeout(ctx, s.cfg.CreateTimeout)
	defer stop()
	done := make(chan error, 1)
	var snapshot string // written before done
	go func() {
		slot, err := pglogrepl.CreateReplicationSlot(running, conn, pgname.QuoteIdent(s.cfg.Slot), "pgoutput", s.cfg.slotOptions(f.Server.Version, export))
		snapshot = slot.SnapshotName
		done <- err
	}()
	ask := time.NewTimer(askAfter)
	defer ask.Stop()
	waits := func(ctx context.Context) (string, []int32) {
		text, pids := pg.Blockers(ctx, sql, conn.PID())
		if f.Server.Recovery && text == "" {
			text = "the primary to log its running transactions (on the primary, run SELECT pg_log_standby_snapshot();)"
		}
		return text, pids
	}
	var waitsFor string
	var pids []int32
	for {
		select {
		case err := <-done:
			return s.slotMade(step, snapshot, err)
		case <-ask.C:
			ask.Reset(askEvery)
			if waitsFor, pids = waits(limited); waitsFor != "" {
				s.cfg.Logger.Warn("creating the slot waits for "+waitsFor, "slot", s.cfg.Slot, "pids", pids)
			}
			continue
		case <-limited.Done():
		}
		break
	}
	if text, now := waits(context.WithoutCancel(ctx)); text != "" {
		waitsFor, pids = text, now
	}
	cancel, free := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer free()
	_ = conn.CancelRequest(cancel)
	select {
	case err = <-done:
	case <-cancel.Done():
		cut()
		err = <-done
	}
	if err == nil { // it was made in the last moment
		return s.slotMade(step, snapshot, nil)
	}
	if ctx.Err() != nil {
		return made, fault.Retry(fmt.Errorf("%s: %w", step, context.Cause(ctx)))
	}
	if pg.SQLState(err) != pg.StateCancelled {
		return s.slotMade(step, snapshot, err)
	}
	err = fmt.Errorf("%s: waited %s for %s", step, s.cfg.CreateTimeout, cmp.Or(waitsFor, "open transactions"))
	if len(pids) > 0 {
		err = fault.WithHint(err, fmt.Sprintf("End the transactions that are named, for example with SELECT pg_terminate_backend(%d);", pids[0]))
	}
	return made, fault.Retry(err)
}

func (s *Source) slotMade(step, snapshot string, err error) (made madeSlot, _ error) {
	switch state := pg.SQLState(err); {
	case err == nil:
		s.cfg.Logger.Info("slot created", "slot", s.cfg.Slot)
		return madeSlot{created: true, snapshot: snapshot}, nil
	case state == pg.StateDuplicate:
		return made, nil
	case state == pg.StateNoRight:
		return made, fault.WithHint(fmt.Errorf("%s: %w", step, err), "ALTER ROLE … REPLICATION;")
	case state == pg.StateLimitReached:
		return made, fault.WithHint(fmt.Errorf("%s: %w", step, err), "Raise max_replication_slots and restart Postgres, or drop a slot that nobody uses.")
	}
	return made, pg.Classify(fmt.Errorf("%s: %w", step, err))
}

// Copies reports whether the first start publishes rows of the tables.
func (c *Config) Copies() bool { return c.Snapshot == "initial" || pg.IsBound(c.Snapshot) }

// RefuseRows is an error where a table has rows that a slot created now would leave out, and source.snapshot does not say what
// becomes of them.
func (c *Config) RefuseRows(ctx context.Context, sql *pgconn.PgConn, f *pg.Facts) error {
	if c.Snapshot == "initial" {
		return nil
	}
	if bound, err := pg.ParseBound(c.Snapshot); err == nil {
		if holds, err := bound.Holds(ctx, sql, &f.Server); holds || err != nil {
			return err
		}
	}
	has, err := countAll(ctx, sql, f)
	if err != nil || has == "" {
		return err
	}
	bound, err := pg.TakeBound(ctx, sql, &f.Server)
	if err != nil {
		return err
	}
	return bound.Refuse(has, c.Snapshot)
}

// countAll says how many rows the tables have, "" for none.
func countAll(ctx context.Context, sql *pgconn.PgConn, f *pg.Facts) (string, error) {
	var words []string
	for i := range f.Tables {
		if !f.Tables[i].Exists() {
			continue
		}
		count, err := pg.CountRows(ctx, sql, &f.Tables[i], f.Publication.Filter(f.Tables[i].Table))
		if err != nil {
			return "", err
		}
		if count != "" {
			words = append(words, fmt.Sprintf("table %s has %s", f.Tables[i].Table, count))
		}
	}
	return strings.Join(words, ", "), nil
}

// CheckRows is RefuseRows on a connection of its own.
func (s *Source) CheckRows(ctx context.Context) error {
	return s.beside(ctx, func(sql *pgconn.PgConn) error {
		f, err := s.cfg.Names().Describe(ctx, sql)
		if err != nil {
			return err
		}
		return s.cfg.RefuseRows(ctx, sql, f)
	})
}

// publishedTables are the tables as a publication names them.
func (c *Config) publishedTables() string {
	var names []string
	for _, t := range c.tables() {
		names = append(names, t.SQL())
	}
	return strings.Join(names, ", ")
}

// publicationSQL makes the publication: inserts only, unless updates are wanted, so that the application's updates and deletes
// need no replica identity and cost nothing here; a partitioned table under its own name. Without tables it is empty: the server
// sends messages whatever is published, but its output plugin does not work without a publication.
func publicationSQL(c *Config) string {
	tables := ""
	if all := c.publishedTables(); all != "" {
		tables = " FOR TABLE " + all
	}
	return fmt.Sprintf("CREATE PUBLICATION %s%s WITH (%s, publish_via_partition_root = true);", pgname.QuoteIdent(c.Publication), tables, c.publishSetting())
}

// slotSQL makes the slot by SQL. It must run after the publication is committed.
func slotSQL(c *Config, failover bool) string {
	if failover {
		return fmt.Sprintf("SELECT pg_create_logical_replication_slot(%s, 'pgoutput', false, false, true);", pgname.QuoteLiteral(c.Slot))
	}
	return fmt.Sprintf("SELECT pg_create_logical_replication_slot(%s, 'pgoutput');", pgname.QuoteLiteral(c.Slot))
}
