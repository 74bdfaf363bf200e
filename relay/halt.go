package relay

import (
	"context"
	"time"

	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/relay/internal/sessions"
)

const (
	finalLimit  = 5 * time.Second // for the last checkpoint
	closeLimit  = 2 * time.Second // for the last Confirm, the Close of the session, and the Close of the sink
	helperLimit = 5 * time.Second // for goroutines beside the loop to end
)

// stop is the clean end of a run.
func (l *loop) stop() error {
	l.to(stops, "stopping")
	l.log.Info().Int("in_flight", l.inFlight()).Dur("grace", l.cfg.ShutdownGrace).Msg("stopping")
	from := l.now
	err := l.drain(nil, l.now.Add(l.cfg.ShutdownGrace))
	l.finish()
	if l.outside != nil {
		l.outside.freed()
		err = l.outside
	}
	again := l.flight.Sent - l.checkpointer.sent
	if again > 0 {
		l.log.Warn().Uint64("events", again).Int("unacknowledged", l.inFlight()).Str(l.found.At(l.checkpointer.durable.LSN)).
			Msg("stopped before everything was acknowledged and checkpointed: the next start delivers these events again")
	} else {
		l.log.Info().Str(l.found.At(l.checkpointer.durable.LSN)).Dur("took", time.Since(from).Round(time.Millisecond)).Msg("stopped")
	}
	if err == nil && l.bad != nil {
		err = l.bad
	}
	if !fault.NeedsPerson(err) {
		l.to(ends, "stopped")
		return nil
	}
	l.to(ends, err.Error())
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

// landed reports whether nothing is in flight.
func (l *loop) landed() bool { return l.inFlight() == 0 }

// finish writes the last checkpoint, confirms it and frees everything. It ends within some seconds,
// whatever is unreachable.
func (l *loop) finish() {
	if l.at.closed() {
		return
	}
	if a := l.arrived; a != nil {
		l.unused(a)
	}
	c := &l.checkpointer
	until := l.now.Add(finalLimit)
	for tried := false; l.now.Before(until); {
		if c.busy || tried && l.now.Before(c.retry) || len(c.halts) > 0 {
			l.wait(nil, until)
			if l.tick(time.Now()) != nil {
				l.now = time.Now() // an error changes nothing any more
			}
			continue
		}
		if !c.unsaved(l.now, l.phase) {
			break
		}
		c.save(l.now)
		tried = true
	}
	for _, halt := range c.halts {
		l.log.Error().Str("token", halt.Token).Msg("the halt is not stored yet: walpost skip accepts its token only after the relay has stored it, now or at the next start")
	}
	if l.sess != nil {
		last := func(ctx context.Context) error { return l.sess.Confirm(ctx, c.durable.LSN) }
		if l.within(closeLimit, last) == nil {
			l.confirmed = max(l.confirmed, c.durable.LSN)
		}
		if err := l.within(closeLimit, l.sess.Close); err != nil {
			l.log.Warn().Err(err).Msg("closing the session")
		}
		l.sess = nil
		l.ended("stopped", nil)
	}
	sessions.Close(l.background, l.dead)
	l.dead = nil
	if err := l.within(closeLimit, l.sink.Close); err != nil {
		l.log.Warn().Err(err).Msg("closing the sink")
	}
	l.to(closes, l.reason)
}

// within calls do with a context that ends after limit.
func (l *loop) within(limit time.Duration, do func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(l.background, limit)
	defer cancel()
	return do(ctx)
}

// end frees what runs beside the loop.
func (l *loop) end() {
	l.now = time.Now()
	l.remark(true)
	l.cancel()
	done := make(chan struct{})
	go func() {
		l.wg.Wait()
		close(done)
	}()
	timer := time.NewTimer(helperLimit)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
		l.log.Warn().Msg("a call to the database or the checkpoint store has not returned; stopping without waiting for it")
	}
}
