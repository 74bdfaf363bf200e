package replication

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/fault"
)

const (
	statusMost  = reportsEvery
	statusLeast = 100 * time.Millisecond
	// usualTimeout is wal_sender_timeout's default: what we go by where it is off.
	usualTimeout = 60 * time.Second
)

// StatusEvery is how often Confirm must be called at least: every second, as promised to relays that wait for the slot, or
// three times within a shorter wal_sender_timeout.
func (s *Session) StatusEvery() time.Duration {
	if s.cfg.walSenderTimeout <= 0 {
		return statusMost
	}
	return max(statusLeast, min(statusMost, s.cfg.walSenderTimeout/3))
}

// Confirm sends a status: upTo, and everything before it, will not be sent again. A position that is behind one
// confirmed before confirms that one again.
func (s *Session) Confirm(ctx context.Context, upTo cdc.Position) error {
	safe := upTo.LSN()
	if err := s.over(); err != nil {
		return err
	}
	// A session before this one may have received more than this one has by now; no session more than the server has.
	if known := max(s.received, s.identity.Server); safe > known {
		return s.fail(fmt.Errorf("confirm %s of slot %s, but nothing after %s was received", safe, s.cfg.slot, known))
	}
	s.flush = max(s.flush, safe)
	s.received = max(s.received, s.flush)
	if err := s.sendStatus(ctx, time.Now()); err != nil {
		return s.fail(err)
	}
	return nil
}

// sendStatus sends where we are. It is the sign of life, so it is sent also when nothing is new.
//
// All three positions are always set. Only flush moves the slot. The server ignores a flush of 0, but pglogrepl replaces it
// by write, which would confirm what was not delivered: without a flush position there is no write position either.
func (s *Session) sendStatus(ctx context.Context, now time.Time) error {
	write := s.received
	if s.flush == 0 {
		write = 0
	}
	if now.Sub(s.wire.read) > restsAfter && s.wire.socket.unheard() { // of the status before
		s.wire.socket.widen()
	}
	_ = s.wire.conn.SetWriteDeadline(s.writeDeadline(ctx)) // an error means that the connection is closed, which the write says better
	err := pglogrepl.SendStandbyStatusUpdate(ctx, s.conn, pglogrepl.StandbyStatusUpdate{
		WALWritePosition: pglogrepl.LSN(write),
		WALFlushPosition: pglogrepl.LSN(s.flush),
		WALApplyPosition: pglogrepl.LSN(s.flush),
		ClientTime:       now,
		// Nothing may be wrong: an idle server that hears from us says nothing by itself.
		ReplyRequested: s.unheard(now) > s.timeout()/2,
	})
	if err != nil {
		return s.broken(err)
	}
	s.statusAt, s.owed = now, false
	return nil
}

// writeDeadline bounds a write, so that a peer that takes nothing does not hold us.
func (s *Session) writeDeadline(ctx context.Context) time.Time {
	within := 30 * time.Second
	if t := s.cfg.walSenderTimeout; t > 0 {
		within = min(within, max(t, time.Second))
	}
	deadline := time.Now().Add(within)
	if d, ok := ctx.Deadline(); ok && d.Before(deadline) {
		return d
	}
	return deadline
}

// answerEvery is the shortest time between two answers to keepalives. A server that shuts down asks again as soon as it
// is answered, tens of thousands of times a second.
func (s *Session) answerEvery() time.Duration {
	const most = 500 * time.Millisecond
	if s.cfg.walSenderTimeout <= 0 {
		return most
	}
	return min(most, s.cfg.walSenderTimeout/4)
}

// Why a keepalive that comes before a late BEGIN can be confirmed: Since Postgres 15, pgoutput sends BEGIN with
// the first change and not before. So a keepalive can come while the server works on a transaction of which
// walpost has seen nothing. walpost takes a keepalive outside of a transaction as "everything before walEnd was
// sent", and confirms it.
//
// That is safe because of what walEnd is. The walsender decodes a transaction when it reads the commit record,
// and it advances its sent position past that record only after it has sent the whole transaction. A keepalive
// that is sent in between carries the sent position, which is at most the beginning of the commit record.
// Postgres skips a transaction only if its commit record begins *before* the confirmed position
// (SnapBuildXactNeedsSkip). So confirming the beginning of the commit record does not confirm the transaction.
// For a transaction that gave nothing, the keepalive carries the end of its commit, and then nothing is missing.
//
// Some forks of Postgres send keepalives ahead of their data. For them, set source.confirm_keepalives: false.

// keepalive handles a keepalive: end is how far the server has read. What it sent before is all there is up to end, so
// outside a transaction it stands for an empty one that ends there.
func (s *Session) keepalive(end cdc.LSN, asked bool) (*cdc.Event, error) {
	s.received = max(s.received, end)
	if asked {
		now := time.Now()
		s.owed = true // and is paid before the next read, when the time has come
		if s.spin.asked(end, now, s.early(now)) {
			s.probeNow()
		}
		if s.spin.over(now) {
			return nil, fault.Retry(fmt.Errorf("stream of slot %s: %w: it asks again and again for a confirmation of %s", s.cfg.slot, errGoingDown, end))
		}
	}
	if !s.cfg.confirmKeepalives || s.dec.InTx || end <= s.dec.Ended || end <= s.idle {
		// The server starts to read behind the position we asked for, so keepalives may lie below it.
		return nil, nil
	}
	s.idle = end
	return s.dec.Idle(end), nil
}

// early says whether a keepalive that asks for an answer comes sooner than a living server asks: it does so half a
// wal_sender_timeout after it heard from us.
func (s *Session) early(now time.Time) bool {
	t := s.cfg.walSenderTimeout
	return t <= 0 || now.Sub(s.statusAt) < t/2
}

// A spin is a row of early requests for an answer with the same position and no data in between. A server that shuts
// down waits like that, without end, for the confirmation of all that it has sent.
type spin struct {
	end   cdc.LSN
	count int
	first time.Time
}

const (
	spinSuspect = 3               // requests: look whether the server shuts down
	spinCertain = 8               // requests, over at least
	spinFor     = 8 * time.Second // : it does, whatever the look says
)

// asked counts a request and says whether it is time to look what the server is doing.
func (p *spin) asked(end cdc.LSN, now time.Time, early bool) bool {
	if !early || p.count == 0 || p.end != end {
		*p = spin{end: end, first: now}
	}
	if early {
		p.count++
	}
	return p.count == spinSuspect
}

func (p *spin) over(now time.Time) bool { return p.count >= spinCertain && now.Sub(p.first) >= spinFor }

// silenceLimit is how long a server may say nothing, although it was asked. It is long on purpose: a walsender that decodes a
// big transaction answers nothing until it has something to send (200,000 rows took Postgres 14 and 15 more than 2 s on a busy
// machine), and to break it off would make it begin again, for ever. A peer that is gone is noticed sooner, by the kernel:
// limitUnacknowledged and keepalives.
func (s *Session) silenceLimit() time.Duration { return max(10*s.timeout(), time.Minute) }

// timeout is the server's wal_sender_timeout, or the usual one where it is off.
func (s *Session) timeout() time.Duration {
	if t := s.cfg.walSenderTimeout; t > 0 {
		return t
	}
	return usualTimeout
}

// unheard is how long nothing was received while we were reading. While we do not read we cannot tell.
func (s *Session) unheard(now time.Time) time.Duration {
	if now.Sub(s.wire.read) > resumedAfter {
		return 0
	}
	return now.Sub(s.wire.heard)
}

// silence reports a peer that is gone without a word.
func (s *Session) silence() error {
	if quiet := s.unheard(time.Now()); quiet > s.silenceLimit() {
		return lost(s.cfg.slot, fmt.Errorf("no message from the server for %s", quiet.Round(time.Millisecond)))
	}
	return nil
}
