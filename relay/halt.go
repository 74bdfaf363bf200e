package relay

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/walpost/walpost/internal/fault"
)

const (
	finalLimit = 5 * time.Second // for the last checkpoint
	closeLimit = 2 * time.Second // for the last Confirm, the Close of the session, and the Close of the sink
)

// A shutdown ends the run.
type shutdown struct {
	parts
	l       *loop
	outside *halting  // what halts the run from outside, once the loop knows it
	bad     *BadEvent // the first one; reading ended there
}

// asked returns what halts the run from outside, if it came since the last call.
func (s *shutdown) asked() error {
	if len(s.l.relay.halts) == 0 {
		return nil
	}
	s.outside = <-s.l.relay.halts
	return s.outside
}

// run ends the run because of err, which is nil for a stop.
func (s *shutdown) run(ctx context.Context, err error) error {
	switch {
	case err == nil || errors.Is(err, errCopied):
		return s.stop()
	case errors.Is(err, ErrNoGap) || errors.Is(err, ErrDeclined):
		s.l.to(stops, err.Error())
		s.finish()
		s.l.to(ends, err.Error())
		return err
	}
	return s.fail(ctx, err)
}

// stop is the clean end of a run.
func (s *shutdown) stop() error {
	s.l.to(stops, "stopping")
	s.log.Info("stopping", "in_flight", s.inFlight(), "grace", s.cfg.ShutdownGrace)
	from := s.now
	err := s.drain(nil, s.now.Add(s.cfg.ShutdownGrace))
	s.finish()
	if s.outside != nil {
		s.outside.freed()
		err = s.outside
	}
	again := s.flight.Sent - s.checkpointer.sent
	if again > 0 {
		s.log.Warn("stopped before everything was acknowledged and checkpointed: the next start delivers these events again",
			"events", again, "unacknowledged", s.inFlight(), slog.String(s.checkpointer.durable.Position.Log()))
	} else {
		s.log.Info("stopped", slog.String(s.checkpointer.durable.Position.Log()), "took", time.Since(from).Round(time.Millisecond))
	}
	if err == nil && s.bad != nil {
		err = s.bad
	}
	if !fault.NeedsPerson(err) {
		s.l.to(ends, "stopped")
		return nil
	}
	s.l.to(ends, err.Error())
	return err
}

// settle takes what comes in until done reports true, ctx ends, something cannot go on, or until
// (zero for no limit).
func (l *loop) settle(ctx context.Context, until time.Time, done func() bool) error {
	for !done() && ctx.Err() == nil && (until.IsZero() || l.now.Before(until)) {
		l.wait(ctx.Done(), until)
		if err := l.tick(time.Now()); err != nil {
			return err
		}
	}
	return nil
}

// finish writes the last checkpoint, confirms it and frees everything. It ends within some seconds,
// whatever is unreachable.
func (s *shutdown) finish() {
	if s.at.closed() {
		return
	}
	if a := s.l.connector.arrived; a != nil {
		s.l.connector.unused(a)
	}
	c := s.checkpointer
	until := s.now.Add(finalLimit)
	for tried := false; s.now.Before(until); {
		if c.writing() || tried && s.now.Before(c.retry) || len(c.halts.all) > 0 {
			s.l.wait(nil, until)
			if s.l.tick(time.Now()) != nil {
				s.now = time.Now() // an error changes nothing any more
			}
			continue
		}
		if !c.unsaved(s.now, s.l.phase) {
			break
		}
		c.save(s.now)
		tried = true
	}
	for _, halt := range c.halts.all {
		s.log.Error("the halt is not stored yet: walpost skip accepts its token only after the relay has stored it, now or at the next start", "token", halt.Token)
	}
	if s.sess != nil {
		last := func(ctx context.Context) error { return s.sess.Confirm(ctx, c.durable.Position) }
		if s.within(closeLimit, last) == nil {
			s.confirmed = max(s.confirmed, c.durable.Position)
		}
		if err := s.within(closeLimit, s.sess.Close); err != nil {
			s.log.Warn("closing the session", "err", err)
		}
		s.sess = nil
		s.ended("stopped", nil)
	}
	s.l.connector.free()
	if err := s.within(closeLimit, s.sink.Close); err != nil {
		s.log.Warn("closing the sink", "err", err)
	}
	s.l.to(closes, s.reason)
}

// end frees what runs beside the loop.
func (s *shutdown) end() {
	s.now = time.Now()
	s.l.remark(true)
	if !s.tasks.end() {
		s.log.Warn("a call to the database or the checkpoint store has not returned; stopping without waiting for it")
	}
}
