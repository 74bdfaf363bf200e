package relay

import (
	"cmp"
	"fmt"
	"log/slog"
	"maps"
	"time"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/deadletter"
	"github.com/walpost/walpost/internal/parking"
	"github.com/walpost/walpost/relay/internal/badevent"
	"github.com/walpost/walpost/relay/internal/recent"
)

// A board has what Status shows and the loop does not decide by. publish completes it.
type board struct {
	now      time.Time // when the clock was last looked at
	st       Status    // publish copies it to Relay.shown
	sawEvent bool      // since the last look at the clock
	recent   recent.Events
	lost     recent.FaultLog // there is no session
	unread   recent.FaultLog // there is no session, because the store of checkpoints cannot be read
	stalled  recent.FaultLog // the sink does not deliver
	outage   recent.Outage   // while the sink does not deliver

	buried     uint64          // events sent to the dead letter topic
	toldBuried recent.CountLog // what the log has of them
	told       recent.Remarks  // what the log has of the router
}

// publish makes the loop's state what Status returns.
func (l *loop) publish() {
	l.remark(false)
	st, c, at := &l.st, l.checkpointer, l.at
	st.State, st.Turned, st.Reason, st.Waiting, st.Bad, st.Stall = at.shown, l.now, l.reason, nil, nil, nil
	worse := func(s State, why string) {
		if st.Reason != "" {
			why += "; " + st.Reason
		}
		st.State, st.Reason = s, why
	}
	if at.shown == Halted || at.shown == Stopped {
		st.Bad = l.shutdown.bad
	}
	if at.stage == atHalt && l.shutdown.bad != nil {
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
		switch err := cmp.Or(l.sink.Stalled(), l.parker.stalled(), l.unanswered()); {
		case l.passes(err):
		case err != nil:
			st.Stall = err
			why := fmt.Errorf("delivery waits: %w", err)
			worse(Stalled, why.Error())
			st.Troubles = l.outage.Waits(st.Troubles, why, &l.stalled, l.now)
			l.stalled.Cause(err).Fault(l.now, l.log).Warn("delivery stalled", errFields(err, "in_flight", l.inFlight())...)
		case !at.closed(): // a closed sink does not wait, although it has not delivered
			l.stalled.Over(l.now, l.log).Info("delivery recovered")
			l.outage = ""
		}
	}
	st.Troubles = recent.Past(st.Troubles, l.now)
	st.InStream, st.Ready = at.reads == readsStream, st.State == Streaming
	switch p := &l.parker; {
	case !p.known || at.stage == atWait: // the other process knows better
		st.Parked, st.OldestParked = parking.Counts{}, nil
	case l.now.Sub(p.counted) >= recent.ListEvery || l.ending():
		p.counted, st.Parked, st.OldestParked = l.now, p.Backlog.Counts(), p.Backlog.Oldest(badevent.Newest)
	}
	st.Identity, st.Opened, st.Epoch, st.RunID = l.found, l.opened, c.epoch, c.durable.RunID
	st.Safe, st.Checkpoint, st.Confirmed = l.phase.safe(), c.durable.Position, l.confirmed
	st.Accepted = c.accepted
	st.InFlight.Events, st.InFlight.Bytes = l.flight.Tracker.InFlight()
	st.InFlight.Oldest.Time = l.flight.Tracker.Oldest()
	if l.recent.Due(l.now, st.State != Streaming) {
		st.Recent = l.recent.List(l.now)
	}
	st.CheckpointError = c.failure
	l.relay.show(st)
}

// unanswered is why the event that was read last cannot be routed yet, nil for no reason.
func (l *loop) unanswered() error {
	if l.awaits == nil {
		return nil
	}
	return l.awaits.Stalled()
}

// remark logs dead letters, and counts and logs what the router passed over. At the end it logs the rest.
func (l *loop) remark(end bool) {
	l.sayBuried(end, l.cfg.Poison.Topic, l.log)
	l.parker.say(end)
	l.st.Remarks = l.told.Log(l.router.Remarks, l.now, end, l.log)
}

// ended counts a session that ended, or an attempt that was refused.
func (b *board) ended(how string, err error) {
	b.st.Sessions = maps.Clone(b.st.Sessions) // Status has given the former map away
	b.st.Sessions[how]++
	if err != nil {
		b.noteError(err, nil)
	}
}

// noteError lists err, which is a case of the fault of, in Status. of is nil if err ends the run.
func (b *board) noteError(err error, of *recent.FaultLog) {
	b.st.Troubles = recent.Troubled(b.st.Troubles, err, of, time.Now())
}

// note counts a dead letter. The log has it within a moment: see sayBuried.
func (b *board) note(letter *deadletter.Letter) {
	b.buried++
	b.st.DeadLetters = maps.Clone(b.st.DeadLetters) // Status has given the former map away
	if b.st.DeadLetters == nil {
		b.st.DeadLetters = map[cdc.Reason]uint64{}
	}
	b.st.DeadLetters[letter.Reason]++
	b.st.NewestDead = badevent.NewestFirst(b.st.NewestDead, letter, b.now)
}

// sayBuried logs dead letters: the first one at once, and later ones together.
func (b *board) sayBuried(end bool, topic string, log *slog.Logger) {
	if b.buried > 0 {
		log = b.toldBuried.Due(b.buried, b.now, end, log)
		log.Error("an event cannot be delivered and goes to the dead letter topic "+topic, b.st.NewestDead[0].Fields()...)
	}
}
