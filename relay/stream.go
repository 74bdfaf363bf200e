package relay

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/checkpoint"
	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/internal/parking"
	"github.com/walpost/walpost/relay/internal/flight"
)

// streaming is the phase that publishes the stream. A lost session does not end it.
type streaming struct {
	parts
	l         *loop
	progress  flight.Progress
	fresh     bool // the next session must start over at the checkpoint
	dropNext  bool // and must not skip what the checkpoint says was delivered
	batch     int  // events until the next look at the clock
	batchSize int
}

// newStreaming starts the stream at the durable record. next says how much of the first transaction
// is delivered, nil for nothing of it. The record may be ahead of where the
// session starts, because this process moved it while it waited for the slot. The events between
// are delivered. Reading them again would make a replay that a lost session breaks off in the
// middle.
func (l *loop) newStreaming(next *checkpoint.Next) *streaming {
	rec := l.checkpointer.durable
	l.startFlight(rec.Position)
	l.flight.Resume(next)
	l.st.Received = rec.Position
	s := &streaming{parts: l.parts, l: l, batch: 1, batchSize: 1}
	s.progress = flight.Resume(rec.Position, next)
	if seeker, ok := l.sess.(Seeker); ok {
		s.progress.Cut = true
		var open cdc.Position
		if rec.Next != nil {
			open = rec.Next.Commit
		}
		seeker.Seek(rec.Position, open, rec.Border)
	}
	return s
}

func (s *streaming) resume(ctx context.Context, a *attempt, why string) error {
	switch {
	case a.Rec.Copy != nil:
		return s.l.resumeCopy(ctx, a, nil)
	case !s.begun:
	case why == "":
		if seeker, ok := s.sess.(Seeker); ok {
			seeker.Continue()
		} else {
			s.progress.Reconnected()
		}
		s.checkpointer.frozen = false // a stop saves what is in flight, even if it comes now
		return nil
	default:
		again := "starting over at the checkpoint: events that were received after it may be delivered twice"
		if s.committer != nil {
			again = "starting over at the checkpoint: what was not committed is read again"
		}
		s.log.Warn(again,
			"why", why, slog.String(a.start.Log()), "received", s.st.Received.String(), "in_flight", s.inFlight())
		// What is in flight belongs to the history that was left. Waiting for it keeps the window's
		// bound. Then it is forgotten.
		s.fresh = true
		if err := s.l.settle(ctx, s.now.Add(s.cfg.ShutdownGrace), s.landed); err != nil || ctx.Err() != nil || s.sess == nil {
			return err
		}
		// A parked event does not count again, so its letter must be written.
		if err := s.l.settle(ctx, time.Time{}, func() bool { return s.l.parker.sent == 0 || s.sess == nil }); err != nil || ctx.Err() != nil || s.sess == nil {
			return err
		}
	}
	next := s.checkpointer.durable.Next
	if s.dropNext {
		next = nil
	}
	s.l.phase = s.l.newStreaming(next)
	return nil
}

func (s *streaming) run(ctx context.Context) error {
	for s.sess != nil {
		if err := s.l.parker.reopen(ctx); err != nil || ctx.Err() != nil || s.sess == nil {
			return err
		}
		if s.holds() {
			if err := s.waitFull(ctx); err != nil || ctx.Err() != nil {
				return err
			}
			continue
		}
		// Not ctx: a call that ctx cut short would leave a session that cannot confirm any more.
		ev, err := s.sess.Next(s.reading, s.patience())
		if err != nil {
			return s.l.lose(fmt.Errorf("read: %w", err))
		}
		if err := s.handle(ctx, ev); err != nil {
			return unlessUnread(err)
		}
		if s.batch--; s.batch > 0 && ev.Kind != cdc.Idle {
			continue
		}
		now := time.Now()
		s.checkpointer.commits.has(ev.Kind != cdc.Idle, now)
		s.pace(now.Sub(s.now))
		if err := s.l.tick(now); err != nil {
			return err
		}
		if ctx.Err() != nil {
			return nil
		}
	}
	return nil
}

// pace sets how many events may pass before the next look at the clock. While events are sparse,
// the loop looks after each one, so that nothing waits for the next event. While they are dense,
// that would cost too much.
func (s *streaming) pace(took time.Duration) {
	switch {
	case took < time.Millisecond:
		s.batchSize = min(2*s.batchSize, maxBatch)
	case took > 4*time.Millisecond:
		s.batchSize = 1
	}
	s.batch = s.batchSize
}

// patience is how long Next may wait. While a topic waits for PassOver, each refusal of its records
// costs at least that long.
func (s *streaming) patience() time.Duration {
	if newest := s.st.NewestDead; len(newest) > 0 && s.now.Sub(newest[0].At.Time) < recently {
		return soonWait
	}
	if c := s.checkpointer; c.uncovered(s.flight.Sent) {
		if c.free(s.now) && c.commits.cutting == nil && s.l.parker.sent == 0 {
			return 0
		}
		return soonWait
	}
	if s.inFlight() > 0 || s.checkpointer.busy {
		return min(busyWait, s.every/maxBatch)
	}
	return min(idleWait, s.every/4)
}

func (s *streaming) waitFull(ctx context.Context) error {
	from := time.Now()
	s.checkpointer.commits.more = false
	if err := s.l.tick(from); err != nil || s.sess == nil || !s.holds() {
		return err
	}
	s.l.wait(ctx.Done(), time.Time{})
	now := time.Now()
	s.st.WindowFull += now.Sub(from)
	return s.l.tick(now)
}

// holds reports whether nothing is to be read now. A release does not pause within a transaction,
// because its event is ready once the checkpoint has passed the whole transaction.
func (s *streaming) holds() bool {
	return s.l.full() || s.checkpointer.overdue() || s.l.parker.pauses() && s.progress.Between()
}

// handle takes one event from the session.
func (s *streaming) handle(ctx context.Context, ev *cdc.Event) error {
	switch ev.Kind {
	case cdc.Insert, cdc.Update, cdc.Delete, cdc.Message:
		return s.row(ctx, ev)
	case cdc.Begin:
		s.flight.HeldBy(ev.Pos, ev.WAL)
		fresh, err := s.progress.Begin(ev.Pos)
		if fresh {
			s.moved, s.sawEvent = true, true
			s.flight.Tracker.Begin(ev.Time)
		}
		if err != nil {
			return s.inconsistent(err)
		}
	case cdc.Commit:
		fresh, err := s.progress.Commit()
		if err != nil {
			return s.inconsistent(err)
		}
		if fresh {
			s.st.Transactions++
			s.received(ev.Pos)
			if err := s.flight.Tracker.Commit(ev.Pos); err != nil {
				return fmt.Errorf("end of transaction %s: %w", s.progress.Whole, err)
			}
		}
	case cdc.Idle:
		// While a transaction is read in part, the position can only be from before that
		// transaction.
		if ev.Pos > 0 && s.progress.Between() {
			s.received(ev.Pos)
			s.flight.Tracker.Idle(ev.Pos)
		}
	}
	return nil
}

func (s *streaming) received(pos cdc.Position) { s.st.Received = max(s.st.Received, pos) }

// row takes an event inside a transaction.
func (s *streaming) row(ctx context.Context, ev *cdc.Event) error {
	mine, err := s.progress.Event()
	if err != nil {
		return s.inconsistent(err)
	}
	if !mine {
		return nil
	}
	s.sawEvent = true
	ok, err := s.l.route(ctx, ev)
	if _, is := errors.AsType[*unread](err); is {
		s.progress.Unread()
		return err
	}
	commit, number := s.progress.Open, s.progress.Events
	s.l.parker.read = s.l.parker.positionOf(commit, number)
	if s.keeper != nil {
		commit, number = 0, int(ev.Claim)
	}
	asked := s.passOver(ev, commit, number)
	discard := asked != nil && (asked.Discard || s.cfg.Poison.Topic == "")
	verdict := parking.Deliver
	switch {
	case discard:
	case asked == nil && err == nil && !ok:
		if s.keeper != nil {
			s.keeper.Delivered(uint32(number))
		}
		return nil
	case s.progress.Delivered(): // the run before has dealt with it
	case asked != nil:
		if err := s.putAside(ev, asked, ok, err); err != nil {
			return err
		}
	default:
		if verdict, err = s.l.setAside(ev, err, commit, number); err != nil {
			return err
		}
	}
	s.part()
	// An event that is passed over, parked, or that goes to the dead letter topic, counts as a
	// record, whatever the router makes of it: the next start finds the same count.
	send, err := s.progress.Record(s.rec.EventID)
	if err != nil {
		return s.inconsistent(err)
	}
	if send && !discard && verdict != parking.Known {
		s.l.send(s.progress.Open, commit, number, ev.Relation(), verdict)
	}
	return nil
}

// part ends a part of a large transaction now and then, so that a crash does not start the transaction
// over.
func (s *streaming) part() {
	if s.keeper != nil {
		return // the table says what is delivered
	}
	if next := s.progress.Part(max(1, s.cfg.Window.Events/windowParts)); next != nil {
		s.flight.Part(next)
	}
}

// windowParts is how many parts of a transaction the window holds.
const windowParts = 8

// inconsistent handles a source that contradicts what is known of its history. The loop forgets
// that history, and the next session starts at the checkpoint and skips nothing. Other errors are
// returned as errors of the source.
func (s *streaming) inconsistent(err error) error {
	switch {
	case errors.Is(err, flight.ErrNext):
		s.dropNext = true
	case errors.Is(err, flight.ErrChanged):
	default:
		return fmt.Errorf("source: %w", err)
	}
	s.fresh = true
	s.progress = flight.Progress{} // otherwise a checkpoint would say how far this transaction came
	s.flight.Resume(nil)
	s.checkpointer.frozen = s.checkpointer.frozen || s.committer != nil // no record covers what was sent of this transaction
	s.log.Error("starting again at the checkpoint and skipping nothing: events may be delivered twice", "err", err, slog.String(s.checkpointer.durable.Position.Log()))
	return s.l.lose(fault.Retry(err))
}

func (s *streaming) advance() { s.flight.Drop() }

func (s *streaming) forget() { s.l.startFlight(s.checkpointer.durable.Position) }

func (s *streaming) safe() cdc.Position { return s.flight.Tracker.Safe() }

func (s *streaming) describe(rec *checkpoint.Record, all bool) uint64 {
	var sent uint64
	end := s.flight.Tracker.SafeEnd()
	if rec.Position = s.safe(); all {
		rec.Position, end = s.flight.Tracker.Last(), s.flight.Tracker.LastEnd()
	}
	rec.Deliver(end)
	rec.Next, sent = s.flight.Delivered()
	if all {
		if rec.Next != nil && rec.Next.Commit < rec.Position {
			rec.Next = nil
		}
		if left := s.progress.Left(); left != nil {
			rec.Next = left
		}
	}
	rec.Pass()
	rec.WAL = max(rec.WAL, s.flight.WAL(rec.Position, rec.Next))
	if when := s.flight.Tracker.SafeTime(); !when.IsZero() {
		rec.CommitTime = when
	}
	sent = max(sent, s.flight.Drop())
	if all { // Next covers what is sent of the open transaction
		sent = s.flight.Sent
	}
	return sent
}

func (s *streaming) about() (trigger, string) { return flows, "" }
