package relay

import (
	"context"
	"fmt"
	"time"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/checkpoint"
	"github.com/walpost/walpost/internal/fault"
)

// connect gets a session. Acknowledgements are taken and checkpoints written meanwhile: the sink does not notice. It returns nil without a
// session when ctx ended.
func (l *loop) connect(ctx context.Context) error {
	if l.state != Connecting {
		l.setState(Connecting, "opening the first session")
	}
	if err := l.pause(ctx); err != nil || ctx.Err() != nil {
		return err
	}
	l.tries++
	trying, cancel := context.WithCancel(ctx)
	defer cancel()
	dead := l.dead
	l.dead, l.arrived = nil, nil
	l.wg.Go(func() {
		if dead != nil {
			closeSession(trying, dead)
		}
		l.attempts <- l.open(trying)
	})
	a, err := l.await(ctx)
	if err != nil { // something else ends the run
		cancel()
		if a = l.giveUp(); a != nil {
			l.attempted(a)
			l.dead = a.sess
		}
		return err
	}
	if a == nil {
		return nil
	}
	l.attempted(a)
	if a.err != nil {
		return l.refused(ctx, a.err)
	}
	a.own = a.own && !l.contested
	return l.install(ctx, a)
}

// attempted takes over the epoch of an attempt, also of one that failed later on or that is not used: its record may be the newest one from
// now on, so the next record must not be below it. The next attempt finds that record, and cannot tell by it that another process held the
// slot before.
func (l *loop) attempted(a *attempt) {
	if a.epoch > l.checkpointer.epoch && l.tracker != nil {
		l.checkpointer.epoch = a.epoch
		l.contested = l.contested || !a.own || a.gap
		// And where the slot was another's meanwhile, or is another one, what this process knows to be safe does not belong into it.
		l.checkpointer.frozen = l.checkpointer.frozen || !a.own || a.gap || !sameHistory(l.found, a.found)
	}
}

// await takes what comes in until the attempt ends. nil: it did not, although ctx ended.
func (l *loop) await(ctx context.Context) (*attempt, error) {
	for {
		if a := l.arrived; a != nil {
			l.arrived = nil
			return a, nil
		}
		if ctx.Err() != nil {
			return l.giveUp(), nil
		}
		l.wait(ctx.Done(), l.now.Add(idleWait))
		if err := l.tick(time.Now()); err != nil {
			return nil, err
		}
	}
}

// giveUp waits for an attempt whose context has ended. It is bounded in case the source does not keep its word.
func (l *loop) giveUp() *attempt {
	until := time.Now().Add(helperLimit)
	for l.arrived == nil && time.Now().Before(until) {
		l.wait(nil, until)
	}
	a := l.arrived
	l.arrived = nil
	return a
}

// pause waits before the next attempt: not at all before the first one, then longer and longer.
func (l *loop) pause(ctx context.Context) error {
	if l.tries == 0 {
		return nil
	}
	b := l.cfg.Backoff
	d := min(b.Max, b.Min<<min(l.tries-1, 30))
	if d <= 0 { // overflow
		d = b.Max
	}
	until := time.Now().Add(d - time.Duration(b.Rand()*float64(d)/2))
	for l.now = time.Now(); l.now.Before(until) && ctx.Err() == nil; {
		l.wait(ctx.Done(), earlier(until, l.now.Add(idleWait)))
		if err := l.tick(time.Now()); err != nil {
			return err
		}
	}
	return nil
}

// refused takes the error of an attempt: nil where another one can help.
func (l *loop) refused(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	if !fault.Retryable(err) {
		l.ended("refused", err)
		return err
	}
	l.noteError(err)
	l.setReason(err.Error())
	l.lost.fault(time.Now(), func(n int, since time.Duration) {
		l.log.Warn().Err(err).Int("times", n).Dur("for", since).Msg("no session, trying again")
	})
	return nil
}

// sameHistory says whether positions of a mean the same in b.
func sameHistory(a, b cdc.Identity) bool {
	return a.SystemID == b.SystemID && a.Timeline == b.Timeline && a.Database == b.Database && a.Slot == b.Slot
}

// install begins to use the session of a. What is in flight stays in flight, and what is received stays received, where the
// source is still the one that sent it and nobody else held the slot meanwhile.
func (l *loop) install(ctx context.Context, a *attempt) error {
	why := ""
	switch {
	case l.tracker == nil:
	case l.fresh:
		why = "what the source sent again differed from before"
	case a.gap:
		why = "a gap was accepted"
	case !a.own:
		why = "another process held the slot meanwhile"
	case !sameHistory(l.found, a.found):
		why = fmt.Sprintf("the source is another one: timeline %d after %d", a.found.Timeline, l.found.Timeline)
	case a.found.Server < l.received:
		why = fmt.Sprintf("the source went back from %s to %s", l.received, a.found.Server)
	}
	l.sess, l.every, l.start = a.sess, confirmEvery(a.sess.StatusEvery()), a.start
	l.opened, l.lastOK, l.moved = time.Now(), time.Now(), false
	l.confirmed = min(a.found.SlotFound.Confirmed, a.start)
	l.now = l.opened
	l.found = a.found
	l.checkpointer.taken(a.rec, a.older)
	l.skipping.take(a)
	l.runID = a.rec.RunID
	if r, ok := l.router.(RunIDTaker); ok {
		r.SetRunID(l.runID)
	}
	l.commitTime, l.looked = a.rec.CommitTime, a.rec.Published
	if l.copy != nil || a.rec.Copy != nil {
		return l.installCopy(ctx, a)
	}
	if why != "" {
		l.log.Warn().Str("why", why).Str("lsn", a.start.String()).Str("received", l.received.String()).Int("in_flight", l.inFlight()).
			Msg("starting over at the checkpoint: events that were received behind it may be delivered twice")
		// What is in flight belongs to the history that was left. It is waited for, so that the window holds, and then forgotten; no
		// position of it is written any more.
		l.fresh, l.checkpointer.frozen = true, true
		if err := l.settle(ctx.Done(), l.now.Add(l.cfg.ShutdownGrace)); err != nil {
			return err
		}
		if ctx.Err() != nil || l.sess == nil {
			return nil
		}
	}
	if l.tracker == nil || why != "" {
		l.begin(a)
	}
	return l.installed(a)
}

// installed is the end of install: what was read before is in order.
func (l *loop) installed(a *attempt) error {
	l.contested = false
	l.progress.reconnected()
	if !l.watched {
		l.watched = true
		l.wg.Go(func() { l.watch(l.background, l.checks) })
	}
	if l.copy != nil {
		l.setState(CopyingRows, "")
	} else {
		l.setState(Streaming, "")
	}
	connected := l.log.Info().Str("slot", l.found.Slot).Str("lsn", a.start.String()).Uint64("epoch", a.rec.Epoch).
		Str("system_identifier", l.found.SystemID).Uint32("timeline", l.found.Timeline)
	if l.lost.times == 0 {
		connected.Msg("connected")
	}
	l.lost.over(l.now, func(n int, since time.Duration) {
		connected.Int("times", n).Dur("for", since).Msg("source recovered")
	})
	return l.confirm()
}

// begin forgets everything received and starts where the record of a is.
func (l *loop) begin(a *attempt) {
	if l.tracker != nil {
		l.gen = (l.gen + 1) & (1<<(64-genShift) - 1)
	}
	// The record may be ahead of where the session starts: this process moved it while it waited for the slot. What is in between is
	// delivered; to read it again would make a replay that a lost session breaks off in the middle.
	l.tracker = checkpoint.New(a.rec.LSN)
	l.marks, l.checkpointer.durableSent = marks{}, 0
	l.received = a.rec.LSN
	l.progress = progress{next: a.rec.Next, whole: a.rec.LSN - 1, message: a.rec.LSN}
	if l.dropNext {
		l.progress.next = nil
	}
	l.fresh, l.dropNext, l.checkpointer.frozen = false, false, false
}

// confirmEvery leaves a margin to what the source wants at least.
func confirmEvery(want time.Duration) time.Duration {
	return max(want-want/8, time.Millisecond)
}
