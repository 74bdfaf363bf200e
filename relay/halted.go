package relay

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/walpost/walpost/internal/advice"
	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/relay/internal/badevent"
)

const (
	settleLimit = 2 * time.Second // for acknowledgements after a halt that is not by a bad event
	// seenFor is the least time that a relay lingers after a halt from outside. It covers two
	// scrapes at the interval that the alert rules ask for.
	seenFor = time.Minute
)

// halting is the error of a run that was halted from outside.
type halting struct {
	error
	freed func()
}

func (h *halting) Unwrap() error { return h.error }

// Halt ends Run with err, which needs a person, as a fault of the source would. What is
// acknowledged is checkpointed and confirmed, and nothing more is delivered. Halt also works while
// Run is halted already or stops.
//
// Run calls freed when the session is closed and so the slot is free. freed may take long. Then Run
// lingers for at least a minute, unless its context ends, so that Status is seen. Halt may be
// called from any goroutine and returns at once. A second call does nothing.
func (r *Relay) Halt(err error, freed func()) {
	select {
	case r.halts <- &halting{error: err, freed: freed}:
	default:
	}
}

// fail ends the run because of err. Nothing more is read. If err needs a person, Run lingers so
// that monitoring sees err.
func (s *shutdown) fail(ctx context.Context, err error) error {
	err = advice.Of(err)
	if !fault.NeedsPerson(err) {
		s.noteError(err, nil)
		s.l.to(stops, err.Error())
		s.log.Error("stopping: this process does not try again after this error", errFields(err)...)
		s.settleBriefly(err)
		s.finish()
		if s.outside != nil {
			s.outside.freed()
		}
		s.l.to(ends, err.Error())
		return err
	}
	for next := err; next != nil; {
		err = next
		next = s.halt(ctx, err)
	}
	s.l.to(ends, err.Error())
	return err
}

// errFields are the fields of a log line about err: the error, what to do about it if that is known, and more
// keys and values.
func errFields(err error, more ...any) []any {
	fields := []any{"err", err}
	if text := fault.Hint(err); text != "" {
		fields = append(fields, "hint", text)
	}
	return append(fields, more...)
}

// halt announces err and lingers. If err is a bad event, what is in flight is delivered,
// checkpointed and confirmed first, and the slot is freed when nothing is left that can be
// delivered. Any other fault concerns the slot or the source, so the delivery stops at once. halt
// returns such a fault if one comes up meanwhile, and nil at its end.
func (s *shutdown) halt(ctx context.Context, err error) error {
	since, linger := time.Now(), s.cfg.HaltLinger
	long := "forever"
	if linger >= 0 {
		long = linger.String()
	}
	s.bad = nil
	bad := errors.As(err, &s.bad)
	s.ended("halted", err)
	// Before anybody can see the state, and looks for the reason.
	s.log.Error("halted: this needs an operator", errFields(err, "in_flight", s.inFlight(), "linger", long)...)
	s.l.to(halts, err.Error())
	if bad && !s.at.closed() {
		until := since.Add(max(linger, s.cfg.ShutdownGrace))
		if linger < 0 {
			until = time.Time{}
		}
		if other := s.drain(ctx.Done(), until); other != nil {
			return other
		}
		s.sayDrained()
	} else {
		s.settleBriefly(err)
	}
	s.finish()
	var from *halting
	if errors.As(err, new(*superseded)) {
		linger = 0 // another process does the work, and this one can only begin anew
	}
	switch errors.As(err, &from); {
	case from != s.outside: // the halt from outside came since err
		return s.outside
	case from != nil:
		from.freed()
		if since = time.Now(); linger >= 0 {
			linger = max(linger, seenFor)
		}
	}
	return s.linger(ctx, since, linger)
}

// linger waits until a halt that began at since has lasted for long, or until ctx ends. It returns
// a halt from outside that comes meanwhile. It writes the halts that the store has not taken yet.
func (s *shutdown) linger(ctx context.Context, since time.Time, long time.Duration) error {
	var until time.Time
	if long >= 0 {
		until = since.Add(long)
	}
	c := s.checkpointer
	for s.now = time.Now(); ctx.Err() == nil && (long < 0 || s.now.Before(until)); s.now = time.Now() {
		if err := s.asked(); err != nil {
			return err
		}
		if !c.busy && c.halts.due(s.now) {
			c.saveHalt()
		}
		halts := c.halts.all
		if s.l.wait(ctx.Done(), until); len(c.halts.all) < len(halts) {
			s.log.Info("the halt is written to the checkpoint store: walpost skip accepts its token now", "token", halts[0].Token)
		}
	}
	return nil
}

// settleBriefly takes the acknowledgements that come at once, although err ends the run.
func (s *shutdown) settleBriefly(err error) {
	if s.at.closed() || s.overdue() != nil {
		return
	}
	s.now = time.Now()
	until := s.now.Add(min(settleLimit, s.cfg.ShutdownGrace))
	for !s.landed() && s.now.Before(until) {
		if other := s.l.settle(s.background, until, s.landed); other != nil && !errors.Is(other, err) {
			s.log.Error("while stopping", "err", other)
		}
		s.now = time.Now()
	}
}

// drain delivers, checkpoints and confirms what is in flight, until nothing is left that can be
// delivered, or until (zero for no limit). When stop is closed, drain goes on for ShutdownGrace at
// most.
//
// A refused event does not end drain, because the events of other topics go on. A lost session does
// not end it either, whatever the error: if the error stays, the next start meets it again. But
// without a session drain goes on for ShutdownGrace at most, because another process may hold the
// slot and deliver the same events. drain returns only errors that concern the slot or the source
// and need a person.
func (s *shutdown) drain(stop <-chan struct{}, until time.Time) error {
	alone := false
	for s.inFlight()+s.l.parker.busy() > 0 && s.overdue() == nil && !s.checkpointer.commitless() && (until.IsZero() || s.now.Before(until)) {
		if s.sess == nil && !alone {
			alone = true
			if last := time.Now().Add(s.cfg.ShutdownGrace); until.IsZero() || last.Before(until) {
				until = last
			}
		}
		_, open := s.l.waiting()
		open += s.l.parker.writing()
		if s.checkpointer.writing() {
			open++
		}
		if err := s.l.tick(time.Now()); err != nil {
			if bad, ok := errors.AsType[*BadEvent](err); ok {
				s.anotherBad(bad)
			} else if fault.NeedsPerson(err) {
				return err
			} else { // the session is lost
				s.log.Warn("source lost while the relay ends: the events in flight are delivered without the source", "err", err)
			}
			continue
		}
		if open == 0 {
			if len(s.l.acks)+len(s.l.parker.appended) == 0 { // so tick has sent nothing
				return nil
			}
			continue
		}
		s.l.connector.free() // another session would be of no use: nothing is read any more
		s.l.wait(stop, until)
		select {
		case <-stop:
			if stop = nil; !alone {
				until = time.Now().Add(s.cfg.ShutdownGrace)
			}
		default:
		}
		s.now = time.Now()
	}
	return nil
}

// anotherBad logs a bad event that was found while the relay was about to end. The run ends with
// the first one.
func (s *shutdown) anotherBad(bad *BadEvent) {
	s.noteError(bad, nil)
	if s.bad == nil {
		s.bad = bad
	}
	s.log.Error("another event cannot be delivered: the next start halts there", errFields(bad)...)
}

// sayDrained logs what became of the events that were in flight when the relay halted.
func (s *shutdown) sayDrained() {
	all, open := s.l.waiting()
	if open > 0 {
		s.log.Warn("the halt ends before everything is delivered: walpost reads these events again at the next start"+badevent.DescribeWaiting(all),
			"events", open, slog.String(s.flight.Tracker.Safe().Log()))
		return
	}
	s.log.Info("everything that can be delivered is delivered, while the relay is halted", slog.String(s.flight.Tracker.Safe().Log()))
}
