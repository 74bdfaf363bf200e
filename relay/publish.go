package relay

import (
	"cmp"
	"fmt"
	"maps"
	"time"

	"github.com/walpost/walpost/internal/parking"
	"github.com/walpost/walpost/relay/internal/badevent"
	"github.com/walpost/walpost/relay/internal/recent"
)

// publish makes the loop's state what Status returns.
func (l *loop) publish() {
	l.remark(false)
	st, c, at := &l.st, &l.checkpointer, l.at
	st.State, st.Turned, st.Reason, st.Waiting, st.Bad, st.Stall = at.shown, l.now, l.reason, nil, nil, nil
	worse := func(s State, why string) {
		if st.Reason != "" {
			why += "; " + st.Reason
		}
		st.State, st.Reason = s, why
	}
	if at.shown == Halted || at.shown == Stopped {
		st.Bad = l.bad
	}
	if at.stage == atHalt && l.bad != nil {
		st.Waiting, _ = l.waiting()
		st.Reason += badevent.DescribeWaiting(st.Waiting)
	}
	if at.covered {
		if at.reads != readsNothing {
			_, st.Reason = l.phase.about()
		}
		if c.failure != "" {
			worse(NoCheckpoint, "checkpoint cannot be written: "+c.failure)
		}
		switch err := cmp.Or(l.sink.Stalled(), l.parker.stalled()); {
		case l.passes(err):
		case err != nil:
			st.Stall = err
			why := fmt.Errorf("delivery waits: %w", err)
			worse(Stalled, why.Error())
			st.Troubles = l.outage.Waits(st.Troubles, why, &l.stalled, l.now)
			l.stalled.Cause(err).Fault(l.now, l.log.Warn()).Err(err).Func(hint(err)).Int("in_flight", l.inFlight()).Msg("delivery stalled")
		case !at.closed(): // a closed sink does not wait, although it has not delivered
			l.stalled.Over(l.now, l.log.Info()).Msg("delivery recovered")
			l.outage = ""
		}
	}
	st.Troubles = recent.Past(st.Troubles, l.now)
	st.InStream, st.Ready = at.reads == readsStream, st.State == Streaming
	switch p := &l.parker; {
	case !p.known || at.stage == atWait: // the other process knows better
		st.Parked, st.OldestParked = parking.Counts{}, nil
	case l.now.Sub(p.counted) >= recent.ListEvery || l.ending():
		p.counted, st.Parked, st.OldestParked = l.now, p.lot.Counts(), p.lot.Oldest(badevent.Newest)
	}
	st.Identity, st.Opened, st.Epoch, st.RunID = l.found, l.opened, c.epoch, c.durable.RunID
	st.Safe, st.Checkpoint, st.Confirmed = l.phase.safe(), c.durable.LSN, l.confirmed
	st.Accepted = c.accepted
	st.InFlightEvents, st.InFlightBytes = l.flight.Tracker.InFlight()
	st.OldestUnacked = l.flight.Tracker.Oldest()
	if l.recent.Due(l.now, st.State != Streaming) {
		st.Recent = l.recent.List(l.now)
	}
	st.CheckpointError = c.failure
	l.mu.Lock()
	defer l.mu.Unlock()
	if st.State != l.shown.State {
		st.Since = l.now
	}
	l.shown = *st
}

// remark logs dead letters, and counts and logs what the router passed over. At the end it logs the rest.
func (l *loop) remark(end bool) {
	l.sayBuried(end)
	l.parker.say(end)
	l.st.Remarks = l.told.Log(l.router.Remarks, l.now, end, &l.log)
}

// ended counts a session that ended, or an attempt that was refused.
func (l *loop) ended(how string, err error) {
	l.st.Sessions = maps.Clone(l.st.Sessions) // Status has given the former map away
	l.st.Sessions[how]++
	if err != nil {
		l.noteError(err, nil)
	}
}

// noteError lists err, which is a case of the fault of, in Status. of is nil if err ends the run.
func (l *loop) noteError(err error, of *recent.Edge) {
	l.st.Troubles = recent.Troubled(l.st.Troubles, err, of, time.Now())
}
