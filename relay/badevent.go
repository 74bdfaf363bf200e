package relay

import (
	"time"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/checkpoint"
	"github.com/walpost/walpost/relay/internal/badevent"
	"github.com/walpost/walpost/relay/internal/records"
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

// badEvents names the events that cannot be delivered, and makes their dead letters.
type badEvents struct {
	*opener
	*link
	*board
	*traffic
	checkpointer *checkpointer
	skipping     records.Skips
}

// names gives events their names.
func (b *badEvents) names() *badevent.Names {
	return &badevent.Names{Relay: b.cfg.Name, Version: b.cfg.Poison.Version, Found: b.found}
}

// unroutable returns the error for an event that the router refused. commit is 0 for a row of the
// table.
func (b *badEvents) unroutable(ev *cdc.Event, commit cdc.Position, row int, err error) *BadEvent {
	return b.named(badevent.Unroutable(ev, b.rec.EventID, commit, row, err))
}

// named gives an event of the stream its token. A row of the table has none, and a row that is claimed. And it says whether the
// dead letter topic refused the event.
func (b *badEvents) named(bad *BadEvent) *BadEvent {
	bad.Letter = b.cfg.Poison.IsTopic(bad.Topic)
	bad.Recover = b.cfg.Copying != nil && b.cfg.Copying.Origin == checkpoint.OriginRecover
	if bad.Commit != 0 && b.keeper == nil {
		bad.Token = b.haltOf(bad).Token
	}
	return bad
}

func (b *badEvents) haltOf(bad *BadEvent) *checkpoint.Halt {
	return b.names().Halt(bad.Commit, bad.Row, bad.Table, bad.EventID)
}

// recordHalt has the checkpoint store remember a bad event that halts the relay, and returns it.
func (b *badEvents) recordHalt(bad *BadEvent) *BadEvent {
	if bad.Commit == 0 {
		return bad
	}
	h := b.haltOf(bad)
	h.Topic, h.Reason, h.Error, h.Keyless, h.Time = bad.Topic, bad.Because, bad.Reason(), bad.Keyless, time.Now()
	b.checkpointer.halts.add(h)
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
