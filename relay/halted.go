package relay

import (
	"context"
	"errors"
	"time"

	"github.com/rs/zerolog"

	"github.com/walpost/walpost/internal/advice"
	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/relay/internal/badevent"
	"github.com/walpost/walpost/relay/internal/sessions"
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
func (l *loop) fail(ctx context.Context, err error) error {
	err = advice.Of(err)
	if !fault.NeedsPerson(err) {
		l.noteError(err, nil)
		l.to(stops, err.Error())
		l.log.Error().Err(err).Func(hint(err)).Msg("stopping: this process does not try again after this error")
		l.settleBriefly(err)
		l.finish()
		if l.outside != nil {
			l.outside.freed()
		}
		l.to(ends, err.Error())
		return err
	}
	for next := err; next != nil; {
		err = next
		next = l.halt(ctx, err)
	}
	l.to(ends, err.Error())
	return err
}

// hint is the field of a log line that says what to do about err. A line has no such field if there is nothing to say.
func hint(err error) func(*zerolog.Event) {
	return func(e *zerolog.Event) {
		if text := fault.Hint(err); text != "" {
			e.Str("hint", text)
		}
	}
}

// halt announces err and lingers. If err is a bad event, what is in flight is delivered,
// checkpointed and confirmed first, and the slot is freed when nothing is left that can be
// delivered. Any other fault concerns the slot or the source, so the delivery stops at once. halt
// returns such a fault if one comes up meanwhile, and nil at its end.
func (l *loop) halt(ctx context.Context, err error) error {
	since, linger := time.Now(), l.cfg.HaltLinger
	long := "forever"
	if linger >= 0 {
		long = linger.String()
	}
	l.bad = nil
	bad := errors.As(err, &l.bad)
	l.ended("halted", err)
	l.log.Error().Err(err).Func(hint(err)).Int("in_flight", l.inFlight()).Str("linger", long).
		Msg("halted: this needs a person") // before anybody can see the state, and looks for the reason
	l.to(halts, err.Error())
	if bad && !l.at.closed() {
		until := since.Add(max(linger, l.cfg.ShutdownGrace))
		if linger < 0 {
			until = time.Time{}
		}
		if other := l.drain(ctx.Done(), until); other != nil {
			return other
		}
		l.sayDrained()
	} else {
		l.settleBriefly(err)
	}
	l.finish()
	var from *halting
	switch errors.As(err, &from); {
	case from != l.outside: // the halt from outside came since err
		return l.outside
	case from != nil:
		from.freed()
		if since = time.Now(); linger >= 0 {
			linger = max(linger, seenFor)
		}
	}
	return l.linger(ctx, since, linger)
}

// linger waits until a halt that began at since has lasted for long, or until ctx ends. It returns
// a halt from outside that comes meanwhile. It writes the halts that the store has not taken yet.
func (l *loop) linger(ctx context.Context, since time.Time, long time.Duration) error {
	var until time.Time
	if long >= 0 {
		until = since.Add(long)
	}
	c := &l.checkpointer
	for l.now = time.Now(); ctx.Err() == nil && (long < 0 || l.now.Before(until)); l.now = time.Now() {
		if len(l.halts) > 0 {
			l.outside = <-l.halts
			return l.outside
		}
		if len(c.halts) > 0 && !c.busy && !l.now.Before(c.haltAt) {
			c.saveHalt()
		}
		halts := c.halts
		if l.wait(ctx.Done(), until); len(c.halts) < len(halts) {
			l.log.Info().Str("token", halts[0].Token).Msg("the halt is written to the checkpoint store: walpost skip accepts its token now")
		}
	}
	return nil
}

// settleBriefly takes the acknowledgements that come at once, although err ends the run.
func (l *loop) settleBriefly(err error) {
	if l.at.closed() || l.overdue() != nil {
		return
	}
	l.now = time.Now()
	until := l.now.Add(min(settleLimit, l.cfg.ShutdownGrace))
	for !l.landed() && l.now.Before(until) {
		if other := l.settle(l.background, until, l.landed); other != nil && !errors.Is(other, err) {
			l.log.Error().Err(other).Msg("while stopping")
		}
		l.now = time.Now()
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
func (l *loop) drain(stop <-chan struct{}, until time.Time) error {
	alone := false
	for l.inFlight()+l.parker.busy() > 0 && l.overdue() == nil && (until.IsZero() || l.now.Before(until)) {
		if l.sess == nil && !alone {
			alone = true
			if last := time.Now().Add(l.cfg.ShutdownGrace); until.IsZero() || last.Before(until) {
				until = last
			}
		}
		_, open := l.waiting()
		open += l.parker.writing()
		sent := l.sentAside()
		if err := l.tick(time.Now()); err != nil {
			if bad, ok := errors.AsType[*BadEvent](err); ok {
				l.anotherBad(bad)
			} else if fault.NeedsPerson(err) {
				return err
			} else { // the session is lost
				l.log.Warn().Err(err).Msg("source lost while the relay ends: the events in flight are delivered without the source")
			}
			continue
		}
		if open == 0 && l.sentAside() == sent { // and tick has taken the acknowledgements
			return nil
		}
		sessions.Close(l.background, l.dead) // another session would be of no use: nothing is read any more
		l.dead = nil
		l.wait(stop, until)
		select {
		case <-stop:
			if stop = nil; !alone {
				until = time.Now().Add(l.cfg.ShutdownGrace)
			}
		default:
		}
		l.now = time.Now()
	}
	return nil
}

// sentAside is how many records the loop sent while it took acknowledgements.
func (l *loop) sentAside() uint64 { return l.buried + l.parker.sentAside() }

// anotherBad logs a bad event that was found while the relay was about to end. The run ends with
// the first one.
func (l *loop) anotherBad(bad *BadEvent) {
	l.noteError(bad, nil)
	if l.bad == nil {
		l.bad = bad
	}
	l.log.Error().Err(bad).Func(hint(bad)).Msg("another event cannot be delivered: the next start halts there")
}

// sayDrained logs what became of the events that were in flight when the relay halted.
func (l *loop) sayDrained() {
	all, open := l.waiting()
	if open > 0 {
		l.log.Warn().Int("events", open).Str(l.found.At(l.flight.Tracker.Safe())).
			Msg("the halt ends before everything is delivered: walpost reads these events again at the next start" + badevent.DescribeWaiting(all))
		return
	}
	l.log.Info().Str(l.found.At(l.flight.Tracker.Safe())).Msg("everything that can be delivered is delivered, while the relay is halted")
}
