package relay

import (
	"fmt"
	"time"
)

// publish makes the loop's state what Status returns.
func (l *loop) publish() {
	l.published = l.now
	l.remark(false)
	reason := l.reason
	if l.state == CopyingRows && l.copy != nil {
		reason = fmt.Sprintf("publishing rows of the table (%s): %d so far; the stream comes behind them", l.copy.spec.Origin, l.copy.spec.Rows)
	}
	var waiting []Waiting
	if l.state == Halted && l.bad != nil && !l.finished {
		waiting, _ = l.waiting()
		reason += describeWaiting(waiting)
	}
	if l.state == Streaming || l.state == CopyingRows {
		if err := l.sink.Stalled(); err != nil {
			reason = "delivery waits: " + err.Error()
			l.stalled.fault(l.now, func(n int, since time.Duration) {
				l.log.Warn().Err(err).Dur("for", since).Int("in_flight", l.inFlight()).Msg("delivery stalled")
			})
		} else {
			l.stalled.over(l.now, func(_ int, since time.Duration) {
				l.log.Info().Dur("for", since).Msg("delivery recovered")
			})
		}
		if err := l.checkpointer.err; err != nil && reason == "" {
			reason = "checkpoint cannot be written: " + err.Error()
		}
	}
	c := &l.checkpointer

	l.mu.Lock()
	defer l.mu.Unlock()
	st := &l.st
	if st.State != l.state {
		st.State, st.Since = l.state, l.now
	}
	st.Turned = l.now
	st.Bad, st.Waiting = nil, waiting
	if l.bad != nil && (l.state == Halted || l.state == Stopped) {
		st.Bad = l.bad
	}
	st.Reason, st.Ready = reason, l.state == Streaming && reason == ""
	st.Identity, st.Epoch, st.RunID = l.found, c.epoch, l.runID
	st.Received, st.Checkpoint, st.Confirmed = l.received, c.durable, l.confirmed
	if l.tracker != nil {
		if st.Safe = c.durable; l.copy == nil {
			st.Safe = l.tracker.Safe()
		}
		st.InFlightEvents, st.InFlightBytes = l.tracker.InFlight()
		st.OldestUnacked = l.tracker.Oldest()
	}
	st.Skipped = l.skipped
	st.Events, st.Transactions, st.WindowFull, st.Latency = l.events, l.transactions, l.windowFull, l.latency
	l.remarks(st)
	st.LastEvent, st.LastAck = l.lastEvent, l.lastAck
	if l.recent.due(l.now, l.state != Streaming) {
		st.Recent = l.recent.list(l.now)
	}
	st.CheckpointError = ""
	if c.err != nil {
		st.CheckpointError = c.err.Error()
	}
}

// setState changes what the relay is doing, and says why it is not ready, at once.
func (l *loop) setState(s State, reason string) {
	l.now = time.Now()
	l.state, l.reason = s, reason
	l.publish()
}

func (l *loop) setReason(reason string) { l.setState(l.state, reason) }

// ended counts a session that ended, or one that could not be had.
func (l *loop) ended(how string, err error) {
	l.mu.Lock()
	l.st.Sessions[how]++
	l.mu.Unlock()
	if err != nil {
		l.noteError(err)
	}
}

func (l *loop) noteError(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.st.LastError, l.st.LastErrorAt = err.Error(), time.Now()
	l.st.Troubles = troubled(l.st.Troubles, err, l.st.LastErrorAt)
}
