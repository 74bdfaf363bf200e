package poll

import (
	"context"
	"errors"
	"fmt"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/internal/pg"
)

// A Former is where a relay stands that has used another strategy.
type Former struct {
	Strategy string
	// For the strategy cursor: all rows below At are delivered, and those that the snapshot Border sees. Of
	// the transaction that begins at Open, 0 for none, the rows up to the one with the event id Last are.
	At, Open cdc.Position
	Last     string
	Border   string
	// Agree is called before anything changes, with what is true of the server while no relay runs. Its error ends the change.
	Agree func(found cdc.Identity) error
}

// Change makes the table fit the strategy of the Source, while no relay reads the table. It returns what a
// checkpoint begins with, and how many rows it has marked as delivered. It can be repeated.
func (s *Source) Change(ctx context.Context, former Former) (at cdc.Position, found cdc.Identity, marked int64, err error) {
	session, err := s.Open(ctx, false, false)
	if err != nil {
		return 0, found, 0, err
	}
	defer pg.Close(session.conn)
	if err := session.exec(ctx, "set up the session", "SET statement_timeout = 0"); err != nil {
		return 0, found, 0, err
	}
	got, err := pg.Row[struct {
		Got    bool
		Holder *int32
	}](ctx, session.conn, "take the lock of the relay", fmt.Sprintf("SELECT pg_try_advisory_lock(%d, %d) AS got, %s AS holder", nameLock, digest(s.set.Name), holderQuery(nameLock, digest(s.set.Name))))
	if err != nil {
		return 0, found, 0, err
	}
	if !got.Got {
		return 0, found, 0, fault.Config(fmt.Errorf("the relay runs with its former configuration (server process %d)", deref(got.Holder)), "Stop every walpost run of this relay first.")
	}
	if err := session.claimTable(ctx); err != nil {
		return 0, found, 0, err
	}
	if err := session.recheck(ctx); err != nil {
		return 0, found, 0, err
	}
	if err := former.Agree(session.identity); err != nil {
		return 0, found, 0, err
	}
	c := &cursor{Session: session}
	switch claims := former.Strategy != Cursor; {
	case s.set.Claims() && !claims:
		at = 1
		marked, err = c.mark(ctx, &former)
	case !s.set.Claims() && claims:
		at, err = c.unfinished(ctx)
	default:
		at = 1 // the table says what is to be done, to claim and to delete
	}
	return at, session.identity, marked, err
}

func deref(pid *int32) int32 {
	if pid == nil {
		return 0
	}
	return *pid
}

// mark finishes the rows that the strategy cursor has delivered.
func (s *cursor) mark(ctx context.Context, former *Former) (int64, error) {
	s.src.setBorder(former.Border)
	done := "NOT (" + s.atLeast("t", former.At) + ")"
	if former.Open != 0 && former.Last != "" {
		open := s.condition("t", former.At, former.Open+1)
		done = fmt.Sprintf("(%s OR %s AND %s <= (SELECT max(%s) FROM %s WHERE %s = %s AND %s))", done, open, s.rows.order,
			s.rows.order, s.rows.from, s.rows.id, pg.QuoteLiteral(former.Last), open)
	}
	results, err := s.conn.Exec(ctx, fmt.Sprintf("UPDATE %s SET finished_at = now() WHERE t.finished_at IS NULL AND %s", s.rows.from, done)).ReadAll()
	if err != nil {
		return 0, pg.Classify(fmt.Errorf("mark delivered rows: %w", err))
	}
	return results[0].CommandTag.RowsAffected(), nil
}

// unfinished is the position below which no row is unfinished.
func (s *cursor) unfinished(ctx context.Context) (cdc.Position, error) {
	if i := s.facts.Table.Relation.Index("finished_at"); i < 0 {
		return 0, errors.New("the table has no column finished_at, which says what is delivered")
	}
	at, err := s.beginning(ctx, true)
	if err != nil {
		return 0, err
	}
	least, err := s.one(ctx, fmt.Sprintf("SELECT %[1]s::text FROM %[2]s WHERE t.finished_at IS NULL ORDER BY %[1]s LIMIT 1", s.xid("t"), s.rows.from))
	if err == nil && least != 0 {
		at = min(at, least)
	}
	return at, err
}
