package relay

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/checkpoint"
	"github.com/walpost/walpost/internal/fault"
)

const (
	settleLimit = 2 * time.Second // for acknowledgements once halted
	finalLimit  = 5 * time.Second // for the last checkpoint
	closeLimit  = 2 * time.Second // for the last Confirm, for the session's Close, for the sink's
	helperLimit = 5 * time.Second // for helpers to notice that they are not wanted any more
)

// poison is the error for an event that can not be routed or delivered.
func (l *loop) poison(err error, id, table string, begin cdc.Position) error {
	if id == "" {
		id = "without id"
	}
	if table == "" {
		table = "unknown table"
	}
	where, hint := "", "nothing from this row on is published: repair the row, its topic or the routing, then start again"
	if begin > 0 {
		where = " in transaction " + begin.String()
		hint = fmt.Sprintf("Nothing from this event on is confirmed, and the WAL keeps the row as it was written: repair its topic, the limit or the routing, then start again. "+
			"To go on without its transaction, and what else is in it: SELECT pg_replication_slot_advance('%s', '%s'); then walpost run with the --accept-gap that it asks for.", l.found.Slot, begin+1)
	}
	return fault.Person(fmt.Errorf("event %s of %s%s: %w", id, table, where, err), hint)
}

// describe names what an event came from.
func describe(ev *cdc.Event) string {
	if ev.Kind == cdc.Message {
		return fmt.Sprintf("message %q at %s", ev.Msg.Prefix, ev.Pos)
	}
	if rel := relationOf(ev); rel != nil {
		return rel.String()
	}
	return ""
}

func relationOf(ev *cdc.Event) *cdc.Relation {
	if ev.Row.Relation != nil {
		return ev.Row.Relation
	}
	return ev.Old.Relation
}

// watch asks the source at every interval whether what the stream rests on is still there. It is not one of the loop's methods: it runs beside it.
func (r *Relay) watch(ctx context.Context, found chan<- error) {
	ticker := time.NewTicker(r.cfg.MonitorInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		limited, cancel := context.WithTimeout(ctx, max(r.cfg.MonitorInterval, defaultMonitor))
		err := r.source.Check(limited)
		cancel()
		select {
		case <-ctx.Done():
			return
		case found <- err:
		}
	}
}

// checked takes what the monitor found.
func (l *loop) checked(err error) error {
	switch {
	case err == nil:
		l.check.over(l.now, func(n int, since time.Duration) {
			l.log.Info().Int("times", n).Dur("for", since).Msg("source can be checked again")
		})
	case fault.NeedsPerson(err):
		return fmt.Errorf("check of the source: %w", err)
	default:
		l.noteError(err)
		l.check.fault(l.now, func(n int, since time.Duration) {
			l.log.Warn().Err(err).Int("times", n).Dur("for", since).Msg("source cannot be checked")
		})
	}
	return nil
}

// halting is the error of a run that was halted from outside.
type halting struct {
	error
	freed func()
}

func (h *halting) Unwrap() error { return h.error }

// Halt ends Run with err, which needs a person, as a fault that was found inside would: what is acknowledged is checkpointed and
// confirmed, nothing new is delivered. freed is called by Run when the session is closed, so that the slot is free, and before Run
// lingers; it may take its time. Halt may be called from any goroutine and returns at once; a second call does nothing.
func (r *Relay) Halt(err error, freed func()) {
	select {
	case r.halts <- &halting{error: err, freed: freed}:
	default:
	}
}

// stop is the clean end.
func (l *loop) stop() error {
	l.now = time.Now()
	l.stopping = true
	l.setState(Draining, "stopping")
	l.log.Info().Int("in_flight", l.inFlight()).Dur("grace", l.cfg.ShutdownGrace).Msg("stopping")
	from := l.now
	err := l.settle(nil, l.now.Add(l.cfg.ShutdownGrace))
	l.finish()
	again := 0
	if l.tracker != nil { // else nothing was ever read
		again = l.comesAgain()
	}
	if again > 0 {
		l.log.Warn().Int("events", again).Int("unacknowledged", l.inFlight()).Str("lsn", l.checkpointer.durable.String()).
			Msg("stopped before everything was acknowledged and checkpointed: so many events come again at the next start")
	} else {
		l.log.Info().Str("lsn", l.checkpointer.durable.String()).Dur("took", time.Since(from)).Msg("stopped")
	}
	l.setState(Stopped, "stopped")
	if fault.NeedsPerson(err) {
		return err
	}
	return nil
}

// comesAgain is the number of records that the next start delivers again.
func (l *loop) comesAgain() int {
	c := &l.checkpointer
	if l.copy != nil {
		return int(l.copy.sent - c.durableSent)
	}
	if l.inFlight() == 0 && c.durable >= l.tracker.Safe() {
		if left := l.progress.left(c.durable, true); left == nil || c.next != nil && *c.next == *left {
			return 0
		}
	}
	return int(l.marks.sent - c.durableSent)
}

// settle takes acknowledgements until nothing is in flight, something cannot go on, stop is closed, or until.
func (l *loop) settle(stop <-chan struct{}, until time.Time) error {
	for l.inFlight() > 0 && l.now.Before(until) {
		l.wait(stop, earlier(until, l.now.Add(publishEvery)))
		if err := l.tick(time.Now()); err != nil {
			return err
		}
		select {
		case <-stop:
			return nil
		default:
		}
	}
	return nil
}

// finish writes the last checkpoint, confirms it and frees everything. It works whatever is unreachable, within some seconds.
func (l *loop) finish() {
	l.stopping = true
	if a := l.arrived; a != nil { // too late to be used; its record holds
		l.arrived = nil
		l.dead = a.sess
	}
	until := l.now.Add(finalLimit)
	for tried := false; l.tracker != nil && l.now.Before(until); {
		if l.checkpointer.busy || tried && l.now.Before(l.checkpointer.retry) {
			l.wait(nil, earlier(until, l.now.Add(publishEvery)))
			if l.tick(time.Now()) != nil {
				l.now = time.Now() // what is wrong now changes nothing any more
			}
			continue
		}
		next := l.progress.left(l.tracker.Safe(), l.inFlight() == 0)
		if !l.unsaved(next) {
			break
		}
		l.checkpointer.save(l, next)
		tried = true
	}
	if l.sess != nil {
		ctx, cancel := context.WithTimeout(l.background, closeLimit)
		if err := l.sess.Confirm(ctx, l.checkpointer.durable); err == nil {
			l.confirmed = max(l.confirmed, l.checkpointer.durable)
		}
		cancel()
		ctx, cancel = context.WithTimeout(l.background, closeLimit)
		if err := l.sess.Close(ctx); err != nil {
			l.log.Warn().Err(err).Msg("closing the session")
		}
		cancel()
		l.sess = nil
		l.ended("stopped", nil)
	}
	if l.dead != nil {
		closeSession(l.background, l.dead)
		l.dead = nil
	}
	ctx, cancel := context.WithTimeout(l.background, closeLimit)
	defer cancel()
	if err := l.sink.Close(ctx); err != nil {
		l.log.Warn().Err(err).Msg("closing the sink")
	}
	l.publish()
}

// unsaved says whether the newest record lacks something that is known now.
func (l *loop) unsaved(next *checkpoint.Next) bool {
	c := &l.checkpointer
	if c.epoch == 0 || c.frozen {
		return false
	}
	if cp := l.copy; cp != nil {
		return !cp.over && (cp.acknowledged() || cp.spec.Rows > cp.savedRows)
	}
	if l.tracker.Safe() > c.durable {
		return true
	}
	return l.tracker.Safe() == c.durable && next != nil && (c.next == nil || *c.next != *next)
}

// fail ends the run because of err: what is acknowledged is checkpointed and confirmed, nothing new is delivered. Where a person is
// needed it lingers, so that monitoring sees it.
func (l *loop) fail(ctx context.Context, err error) error {
	l.now = time.Now()
	l.stopping = true
	l.noteError(err)
	person := fault.NeedsPerson(err)
	if !person {
		l.setState(Draining, err.Error())
		l.log.Error().Err(err).Str("hint", fault.Hint(err)).Msg("stopping: this cannot be waited out")
	} else {
		l.setState(Halted, err.Error())
		l.ended("halted", err)
		l.log.Error().Err(err).Str("hint", fault.Hint(err)).Dur("linger", l.cfg.HaltLinger).
			Msg("halted: this needs a person")
	}
	since := l.now
	until := l.now.Add(min(settleLimit, l.cfg.ShutdownGrace))
	for l.inFlight() > 0 && l.now.Before(until) {
		if other := l.settle(nil, until); other != nil && !errors.Is(other, err) {
			l.log.Error().Err(other).Msg("while stopping")
		}
		l.now = time.Now()
	}
	l.finish()
	var from *halting
	if errors.As(err, &from) {
		from.freed()
	}
	if person && l.cfg.HaltLinger != 0 {
		var over <-chan time.Time
		if l.cfg.HaltLinger > 0 {
			timer := time.NewTimer(time.Until(since.Add(l.cfg.HaltLinger)))
			defer timer.Stop()
			over = timer.C
		}
		select {
		case <-ctx.Done():
		case <-over:
		}
	}
	l.setState(Stopped, err.Error())
	return err
}

// end frees what runs beside the loop.
func (l *loop) end() {
	l.now = time.Now()
	l.remark(true)
	l.unbind()
	l.cancel()
	done := make(chan struct{})
	go func() {
		l.wg.Wait()
		close(done)
	}()
	timer := time.NewTimer(helperLimit)
	defer timer.Stop()
	for {
		select {
		case <-done:
			return
		case <-l.saves:
		case <-l.checks:
		case <-timer.C:
			l.log.Warn().Msg("a call to the source or the store does not end: left behind")
			return
		}
	}
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}
