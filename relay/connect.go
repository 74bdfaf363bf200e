package relay

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/advice"
	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/internal/lib/backoff"
	"github.com/walpost/walpost/relay/internal/records"
)

// connectAgain spaces out the attempts to get a session.
var connectAgain = backoff.Backoff{Min: 100 * time.Millisecond, Max: 30 * time.Second}

// A connector gets sessions for the loop.
type connector struct {
	parts
	l       *loop
	dead    Session  // lost, and not closed yet
	arrived *attempt // has ended, and is not used yet
	tries   int      // attempts since a session worked
}

// drop takes a session that was lost. worked says that it did.
func (c *connector) drop(sess Session, worked bool) {
	if c.dead = sess; worked {
		c.tries = 0
	}
}

// free closes the session that was lost.
func (c *connector) free() {
	closeSession(c.background, c.dead)
	c.dead = nil
}

// connect gets a session. Meanwhile acknowledgements are taken and checkpoints written. connect
// returns nil without a session if ctx ended, or if another attempt can help.
func (c *connector) connect(ctx context.Context) error {
	if c.at.stage == atStart {
		c.l.to(begins, "opening the first session")
	}
	if err := c.pause(ctx); err != nil || ctx.Err() != nil {
		return err
	}
	c.tries++
	trying, cancel := context.WithCancel(ctx)
	defer cancel()
	dead := c.dead
	c.dead, c.arrived = nil, nil
	c.beside(func() func() {
		closeSession(trying, dead)
		a := c.open(trying, c.inUse)
		return func() { c.arrived = &a }
	})
	err := c.l.settle(ctx, time.Time{}, func() bool { return c.arrived != nil })
	if err != nil { // something else ends the run
		cancel()
	}
	// If an attempt goes on although its context has ended, the source breaks its contract.
	for until := time.Now().Add(helperLimit); c.arrived == nil && time.Now().Before(until); {
		c.l.wait(nil, until)
	}
	a := c.arrived
	if c.arrived = nil; a == nil {
		return err
	}
	if err != nil {
		c.unused(a)
		return err
	}
	c.attempted(a)
	if a.err != nil {
		return c.refused(ctx, a.err)
	}
	a.own = a.own && !c.contested
	return c.install(ctx, a)
}

// inUse tells the page that another process holds the slot. It is called beside the loop.
func (c *connector) inUse(why string) {
	c.report(func() {
		if c.sess == nil {
			c.worked = true
			c.l.to(inUse, why)
		}
	})
}

// attempted takes over the epoch of an attempt, even if the attempt failed or is not used. The
// record of the attempt may be the newest one, so the next record must not have a lower epoch. The
// next attempt finds that record. So it cannot tell whether another process held the slot before.
func (c *connector) attempted(a *attempt) {
	cp := c.checkpointer
	c.contested, cp.frozen = c.contested || a.fenced, cp.frozen || a.fenced
	if a.epoch > cp.epoch && c.begun {
		cp.epoch = a.epoch
		c.contested = c.contested || !a.own || a.gap
		// If another process held the slot in the meantime, or the slot is another one, what is safe here
		// does not belong into a record.
		cp.frozen = cp.frozen || !a.own || a.gap || !c.found.SameHistory(a.found)
	}
}

// unused takes over an attempt that came too late. finish closes its session.
func (c *connector) unused(a *attempt) {
	c.attempted(a)
	c.dead = a.sess
}

// pause waits before the next attempt. It does not wait before the first one after a session that
// worked.
func (c *connector) pause(ctx context.Context) error {
	if c.tries == 0 {
		return nil
	}
	c.now = time.Now()
	return c.l.settle(ctx, c.now.Add(connectAgain.Pause(c.tries)), func() bool { return false })
}

// refused takes the error of an attempt. It returns nil if another attempt can help.
func (c *connector) refused(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	err = advice.Of(err)
	if !fault.Passing(err, c.worked) {
		c.ended("refused", err)
		return err
	}
	failed, edge := fails, &c.lost
	if errors.As(err, new(records.StoreError)) {
		failed, edge = noStore, &c.unread
	}
	c.noteError(err, edge)
	edge.Fault(time.Now(), c.log).Warn("no session, trying again", errFields(err)...)
	c.l.to(failed, err.Error())
	return nil
}

// changed says why what was received before does not fit the session of a, and "" if it fits.
func (c *connector) changed(a *attempt) string {
	s, streams := c.l.phase.(*streaming)
	switch {
	case a.gap:
		return "a gap was accepted"
	case a.fenced:
		return "a session begins with a new Kafka transaction"
	case !a.own:
		return "another process held the slot in the meantime"
	case !c.found.SameHistory(a.found):
		return fmt.Sprintf("the source has changed: it is on timeline %d, and was on timeline %d", a.found.Timeline, c.found.Timeline)
	case a.found.Server < c.reached():
		return fmt.Sprintf("the source went back from %s to %s", c.reached(), a.found.Server)
	case streams && s.fresh:
		return "the source did not send the same events again"
	}
	return ""
}

// reached is the LSN that everything received was written before.
func (c *connector) reached() cdc.LSN {
	if !c.st.Received.IsNumber() {
		return c.st.Received.LSN()
	}
	return max(c.checkpointer.durable.WAL, c.flight.NewestWAL())
}

// install begins to use the session of a. What is in flight stays in flight, and what was received
// stays received, if the source is the same and nobody else held the slot meanwhile.
func (c *connector) install(ctx context.Context, a *attempt) error {
	why := c.changed(a)
	c.contested = c.contested || why != "" // until the phase has resumed
	c.now = time.Now()
	c.held = held{
		sess: a.sess, found: a.found, start: a.start, every: confirmEvery(a.sess.StatusEvery()),
		opened: c.now, lastOK: c.now, confirmed: min(a.found.SlotFound.Confirmed, a.start),
	}
	c.checkpointer.taken(a.Rec, a.Older)
	if a.fenced { // the sink has forgotten what was in flight
		c.l.phase.forget()
		c.checkpointer.frozen = true
		c.checkpointer.begin()
	}
	c.l.to(opens, "taking up the work of the session before")
	c.skipping.Take(&a.Stored, c.names().Readable)
	c.router.SetRunID(a.Rec.RunID)
	if _, ok := c.l.phase.(*streaming); ok && c.begun && why == "" && a.Rec.Copy == nil {
		c.checkpointer.frozen = false // what is in flight stays, and a stop saves it, even if the topic can't be opened
	}
	if err := c.l.parker.openTopic(ctx, why); err != nil || c.sess == nil || c.l.parker.on() && !c.l.parker.opened {
		return err
	}
	if err := c.l.phase.resume(ctx, a, why); err != nil || ctx.Err() != nil || c.sess == nil {
		return err
	}
	c.contested = false
	if !c.begun {
		c.begun = true
		c.wg.Go(func() { c.l.monitor.watch(func() bool { return len(c.l.relay.Status().Accepted) > 0 }) })
	}
	if _, copies := c.l.phase.(*copying); !copies { // a copy has yet to read its first row
		c.worked = true
	}
	if err := c.l.parker.advance(); err != nil || c.sess == nil { // so that room is made before more is parked
		return err
	}
	c.l.to(c.l.phase.about())
	c.unread.Over(c.now, c.log).Info("checkpoint store recovered")
	log, msg := c.log, "connected"
	if c.lost.Times > 0 {
		log, msg = c.lost.Over(c.now, log), "source recovered"
	}
	log.Info(msg, slog.String(c.found.Reader()), slog.String(a.start.Log()), "epoch", a.Rec.Epoch,
		"system_identifier", c.found.SystemID, "timeline", c.found.Timeline)
	return c.l.confirm()
}
