package relay

import (
	"time"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/checkpoint"
	"github.com/walpost/walpost/relay/internal/badevent"
)

// A BadEvent is an event that cannot be delivered. A Waiting is a topic with events that were sent
// and are not delivered. A DeadLetter is an event that was sent to the dead letter topic. Poison
// and Policies say what becomes of bad events.
type (
	BadEvent   = badevent.Event
	Waiting    = badevent.Waiting
	DeadLetter = badevent.DeadLetter
	Poison     = badevent.Poison
	Policies   = badevent.Policies
)

// The policies of a bad event, and the key of the policy for all reasons without one of their own.
const (
	PolicyHalt       = badevent.PolicyHalt
	PolicyDeadLetter = badevent.PolicyDeadLetter
	PolicyParkKey    = badevent.PolicyParkKey
	DefaultPolicy    = badevent.DefaultPolicy
)

// names gives events their names.
func (l *loop) names() *badevent.Names {
	return &badevent.Names{Relay: l.cfg.Name, Version: l.cfg.Poison.Version, Found: l.found}
}

// unroutable returns the error for an event that the router refused. commit is 0 for a row of the
// table.
func (l *loop) unroutable(ev *cdc.Event, commit cdc.Position, row int, err error) *BadEvent {
	return l.named(badevent.Unroutable(ev, l.rec.EventID, commit, row, err))
}

// named gives an event of the stream its token. A row of the table has none, and a row that is claimed. And it says whether the
// dead letter topic refused the event, and how the event was read.
func (l *loop) named(bad *BadEvent) *BadEvent {
	bad.Letter, bad.Polled = l.cfg.Poison.IsTopic(bad.Topic), l.found.Poll != ""
	bad.Recover = l.cfg.Copying != nil && l.cfg.Copying.Origin == checkpoint.OriginRecover
	if bad.Commit != 0 && l.keeper == nil {
		bad.Token = l.haltOf(bad).Token
	}
	return bad
}

func (l *loop) haltOf(bad *BadEvent) *checkpoint.Halt {
	return l.names().Halt(bad.Commit, bad.Row, bad.Table, bad.EventID)
}

// give has the checkpoint store remember a bad event that halts the relay, and returns it.
func (l *loop) give(bad *BadEvent) *BadEvent {
	if bad.Commit == 0 {
		return bad
	}
	h := l.haltOf(bad)
	h.Topic, h.Reason, h.Error, h.Keyless, h.Time = bad.Topic, bad.Because, bad.Reason(), bad.Keyless, time.Now()
	l.checkpointer.halts = append(l.checkpointer.halts, h)
	return bad
}

// waiting asks the sink what is not delivered. The topic with the most events comes first. open is
// how many events can still be delivered.
func (l *loop) waiting() (all []Waiting, open int) {
	l.sink.Pending(func(topic string, records int, why error, closed bool) {
		closed = closed && !l.passes(why)
		w := Waiting{Topic: topic, Events: records, Closed: closed}
		if why != nil {
			w.Why = why.Error()
		}
		if !closed {
			open += records
		}
		all = append(all, w)
	})
	badevent.SortWaiting(all)
	return all, open
}
