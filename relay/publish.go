package relay

import (
	"maps"
	"time"
)

// publish makes the loop's state what Status returns.
func (l *loop) publish() {
	l.remark(false)
	st, c := &l.st, &l.checkpointer
	st.Turned, st.Reason, st.Waiting, st.Bad = l.now, l.reason, nil, nil
	switch st.State {
	case CopyingRows, Streaming:
		if _, st.Reason = l.phase.about(); c.err != nil && st.Reason == "" {
			st.Reason = "checkpoint cannot be written: " + c.err.Error()
		}
		if err := l.sink.Stalled(); err != nil {
			st.Reason = "delivery waits: " + err.Error()
			l.stalled.fault(l.now, l.log.Warn()).Err(err).Int("in_flight", l.inFlight()).Msg("delivery stalled")
		} else {
			l.stalled.over(l.now, l.log.Info()).Msg("delivery recovered")
		}
	case Halted:
		if st.Bad = l.bad; l.bad != nil && !l.finished {
			st.Waiting, _ = l.waiting()
			st.Reason += describeWaiting(st.Waiting)
		}
	case Stopped:
		st.Bad = l.bad
	case Starting, Connecting, Draining:
	}
	st.Ready = st.State == Streaming && st.Reason == ""
	st.Identity, st.Epoch, st.RunID = l.found, c.epoch, c.durable.RunID
	st.Safe, st.Checkpoint, st.Confirmed = l.phase.safe(), c.durable.LSN, l.confirmed
	st.InFlightEvents, st.InFlightBytes = l.flight.tracker.InFlight()
	st.OldestUnacked = l.flight.tracker.Oldest()
	if l.recent.due(l.now, st.State != Streaming) {
		st.Recent = l.recent.list(l.now)
	}
	st.CheckpointError = ""
	if c.err != nil {
		st.CheckpointError = c.err.Error()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.shown = *st
}

// setState changes what the relay is doing, and says why it is not ready, at once.
func (l *loop) setState(s State, reason string) {
	l.now = time.Now()
	if l.reason = reason; l.st.State != s {
		l.st.State, l.st.Since = s, l.now
	}
	l.publish()
}

// ended counts a session that ended, or an attempt that was refused.
func (l *loop) ended(how string, err error) {
	l.st.Sessions = maps.Clone(l.st.Sessions) // Status has given the former map away
	l.st.Sessions[how]++
	if err != nil {
		l.noteError(err)
	}
}

func (l *loop) noteError(err error) {
	l.st.Troubles = troubled(l.st.Troubles, err, time.Now())
}

// ending reports whether the relay reads no more.
func (l *loop) ending() bool {
	return l.st.State == Draining || l.st.State == Halted || l.st.State == Stopped
}
