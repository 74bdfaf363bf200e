package relay

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/advice"
	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/relay/internal/records"
	"github.com/walpost/walpost/relay/internal/sessions"
)

const (
	minBackoff = 100 * time.Millisecond
	maxBackoff = 30 * time.Second
)

// connect gets a session. Meanwhile acknowledgements are taken and checkpoints written. connect
// returns nil without a session if ctx ended, or if another attempt can help.
func (l *loop) connect(ctx context.Context) error {
	if l.at.stage == atStart {
		l.to(begins, "opening the first session")
	}
	if err := l.pause(ctx); err != nil || ctx.Err() != nil {
		return err
	}
	l.tries++
	trying, cancel := context.WithCancel(ctx)
	defer cancel()
	dead := l.dead
	l.dead, l.arrived = nil, nil
	l.beside(func() func() {
		sessions.Close(trying, dead)
		a := l.open(trying, l.inUse)
		return func() { l.arrived = &a }
	})
	err := l.settle(ctx, time.Time{}, func() bool { return l.arrived != nil })
	if err != nil { // something else ends the run
		cancel()
	}
	// If an attempt goes on although its context has ended, the source breaks its contract.
	for until := time.Now().Add(helperLimit); l.arrived == nil && time.Now().Before(until); {
		l.wait(nil, until)
	}
	a := l.arrived
	if l.arrived = nil; a == nil {
		return err
	}
	if err != nil {
		l.unused(a)
		return err
	}
	l.attempted(a)
	if a.err != nil {
		return l.refused(ctx, a.err)
	}
	a.own = a.own && !l.contested
	return l.install(ctx, a)
}

// inUse tells the page that another process holds the slot. It is called beside the loop.
func (l *loop) inUse(found cdc.Identity) {
	l.report(func() {
		if l.sess == nil {
			l.worked = true
			what := "slot " + found.Slot + " is in use"
			if found.Poll != "" {
				what = "the table is polled for this relay"
			}
			l.to(inUse, fmt.Sprintf("%s by server process %d: waiting for it", what, found.SlotFound.ActivePID))
		}
	})
}

// attempted takes over the epoch of an attempt, even if the attempt failed or is not used. The
// record of the attempt may be the newest one, so the next record must not have a lower epoch. The
// next attempt finds that record. So it cannot tell whether another process held the slot before.
func (l *loop) attempted(a *attempt) {
	c := &l.checkpointer
	if a.epoch > c.epoch && l.begun {
		c.epoch = a.epoch
		l.contested = l.contested || !a.own || a.gap
		// If another process held the slot in the meantime, or the slot is another one, what is safe here
		// does not belong into a record.
		c.frozen = c.frozen || !a.own || a.gap || !l.found.SameHistory(a.found)
	}
}

// unused takes over an attempt that came too late. finish closes its session.
func (l *loop) unused(a *attempt) {
	l.attempted(a)
	l.dead = a.sess
}

// pause waits before the next attempt. It does not wait before the first one after a session that
// worked. Then the wait doubles each time, and chance shortens it by up to a half.
func (l *loop) pause(ctx context.Context) error {
	if l.tries == 0 {
		return nil
	}
	d := min(maxBackoff, minBackoff<<min(l.tries-1, 30))
	l.now = time.Now()
	until := l.now.Add(d - time.Duration(rand.Float64()*float64(d)/2))
	return l.settle(ctx, until, func() bool { return false })
}

// refused takes the error of an attempt. It returns nil if another attempt can help.
func (l *loop) refused(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	err = advice.Of(err)
	if !fault.Passing(err, l.worked) {
		l.ended("refused", err)
		return err
	}
	failed, edge := fails, &l.lost
	if errors.As(err, new(records.StoreError)) {
		failed, edge = noStore, &l.unread
	}
	l.noteError(err, edge)
	edge.Fault(time.Now(), l.log.Warn()).Err(err).Func(hint(err)).Msg("no session, trying again")
	l.to(failed, err.Error())
	return nil
}

// changed says why what was received before does not fit the session of a, and "" if it fits.
func (l *loop) changed(a *attempt) string {
	switch {
	case a.gap:
		return "a gap was accepted"
	case !a.own:
		return "another process held the slot in the meantime"
	case !l.found.SameHistory(a.found):
		return fmt.Sprintf("the source has changed: it is on timeline %d, and was on timeline %d", a.found.Timeline, l.found.Timeline)
	case a.found.Server < l.reached():
		return fmt.Sprintf("the source went back from %s to %s", l.reached(), a.found.Server)
	}
	return ""
}

// reached is the position of the server that everything received was written before.
func (l *loop) reached() cdc.Position {
	if l.found.Poll == "" {
		return l.st.Received
	}
	return max(l.checkpointer.durable.WAL, l.flight.NewestWAL())
}

// install begins to use the session of a. What is in flight stays in flight, and what was received
// stays received, if the source is the same and nobody else held the slot meanwhile.
func (l *loop) install(ctx context.Context, a *attempt) error {
	why := l.changed(a)
	l.contested = l.contested || why != "" // until the phase has resumed
	l.now = time.Now()
	l.held = held{
		sess: a.sess, found: a.found, start: a.start, every: sessions.Every(a.sess.StatusEvery()),
		opened: l.now, lastOK: l.now, confirmed: min(a.found.SlotFound.Confirmed, a.start),
	}
	l.checkpointer.taken(a.Rec, a.Older)
	l.to(opens, "taking up the work of the session before")
	l.skipping.Take(&a.Stored, l.names().Gives)
	l.router.SetRunID(a.Rec.RunID)
	if s, ok := l.phase.(*streaming); ok && l.begun && why == "" && !s.fresh && a.Rec.Copy == nil {
		l.checkpointer.frozen = false // what is in flight stays, and a stop saves it, even if the topic can't be opened
	}
	if err := l.parker.openTopic(ctx, why); err != nil || l.sess == nil || l.parker.on() && !l.parker.opened {
		return err
	}
	if err := l.phase.resume(ctx, a, why); err != nil || ctx.Err() != nil || l.sess == nil {
		return err
	}
	l.contested = false
	if !l.begun {
		l.begun = true
		l.wg.Go(l.watch)
	}
	if _, copies := l.phase.(*copying); !copies { // a copy has yet to read its first row
		l.worked = true
	}
	if err := l.parker.advance(); err != nil || l.sess == nil { // so that room is made before more is parked
		return err
	}
	l.to(l.phase.about())
	l.unread.Over(l.now, l.log.Info()).Msg("checkpoint store recovered")
	connected, msg := l.log.Info(), "connected"
	if l.lost.Times > 0 {
		connected, msg = l.lost.Over(l.now, connected), "source recovered"
	}
	connected.Str(l.found.Reader()).Str(l.found.At(a.start)).Uint64("epoch", a.Rec.Epoch).
		Str("system_identifier", l.found.SystemID).Uint32("timeline", l.found.Timeline).Msg(msg)
	return l.confirm()
}
