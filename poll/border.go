package poll

import (
	"context"
	"fmt"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/internal/lib/pgname"
	"github.com/walpost/walpost/internal/pg"
)

// A border is the moment from which on a relay polls that read a slot before. It is a snapshot: what the
// snapshot sees is delivered otherwise, and the source gives everything else. A position alone cannot say
// that, because the ids of transactions that were open at that moment are below ids that had committed.

// OpenAtBorder is Open for a relay that begins behind everything that has committed by now. The session's
// Identity has the border.
func (s *Source) OpenAtBorder(ctx context.Context) (*Session, error) {
	if s.set.Claims() {
		return nil, fault.Config(fmt.Errorf("with source.poll.strategy %s walpost cannot know which rows the former source has delivered", s.set.Strategy),
			"Change to source.poll.strategy cursor first, and from there to "+s.set.Strategy+": run walpost recover each time.")
	}
	session, err := s.Open(ctx, false, false)
	if err != nil {
		return nil, err
	}
	if err := session.strategy.(*cursor).takeBorder(ctx); err != nil {
		pg.Close(session.conn)
		return nil, err
	}
	return session, nil
}

// takeBorder takes the border in the identity. Then it takes an id, which is above all ids of the border, and
// waits until the id is in the WAL on disk. So the server never gives out an id of the border again.
func (s *cursor) takeBorder(ctx context.Context) error {
	got, err := pg.Row[struct{ Sees string }](ctx, s.conn, "take the border", "SELECT pg_current_snapshot()::text AS sees")
	if err != nil {
		return err
	}
	border, err := cdc.ParseSnapshot(got.Sees)
	if err != nil {
		return fmt.Errorf("take the border: %w: %w", pg.ErrAnswer, err)
	}
	if err := s.exec(ctx, "take a transaction id", "SELECT pg_current_xact_id()"); err != nil {
		return err
	}
	l, err := s.look(ctx, border.XMin)
	if err != nil {
		return err
	}
	id := &s.identity
	id.SlotFound.Exists, id.SlotFound.Created, id.SlotFound.Confirmed = true, true, cdc.Numbered(border.XMin)
	id.Border, id.Server = got.Sees, max(id.Server, l.insert)
	return s.flushed(ctx, l.insert, l.flush)
}

// setBorder has the source leave out what a border sees; "" for nothing.
func (s *Source) setBorder(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sees, s.border = "", nil
	if border, err := cdc.ParseSnapshot(text); err == nil {
		s.sees, s.border = text, &border
	}
}

// beyond is the condition for the rows that the border does not see, if there are any at or behind from.
func (s *cursor) beyond(alias string, from uint64) string {
	s.src.mu.Lock()
	defer s.src.mu.Unlock()
	if b := s.src.border; b == nil || from >= b.XMax {
		return ""
	}
	return fmt.Sprintf(" AND NOT pg_visible_in_snapshot(%s, %s)", s.xid(alias), pgname.QuoteLiteral(s.src.sees))
}
