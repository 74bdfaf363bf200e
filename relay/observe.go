package relay

import (
	"errors"
	"time"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/deadletter"
	"github.com/walpost/walpost/relay/internal/badevent"
)

// An Observer is notified when the delivery of an event ends.
//
// The relay calls Ended from one goroutine, which does nothing else during the call, so Ended must
// return quickly and never block. d and its bytes are valid only during the call, and must not be
// changed.
type Observer interface {
	Ended(d *Delivery)
}

// A Delivery is the end of an event's delivery. An event has more than one if it is delivered more than once,
// or if a parked event is released.
type Delivery struct {
	EventID string
	// Topic is the one that has the event. For an event that cannot be delivered, it is the topic of its letter or, if
	// it halts the relay, the topic that refused it; "" if the router makes no record of it.
	Topic     string
	Partition int32 // -1 if it is not known
	Offset    int64 // -1 if it is not known
	// The record. For a letter, Headers has those of the event first.
	Key, Value []byte
	Headers    []cdc.Header
	// Committed is when the event's transaction was committed, by the clock of Postgres or of the column that says it. It is zero
	// if that is not known, and for a row that was read from the table: its age is no delay.
	Committed time.Time
	// Ended is when the brokers acknowledged the record or, with exactly_once, committed its transaction. It is by this
	// machine's clock, so it may be before Committed.
	Ended time.Time
	// Reason says why the event cannot be delivered: a key of delivery.on_poison, or "behind" for an event that is parked
	// behind another one. It is "" for an event that was delivered. Why is the error as text.
	Reason, Why string
}

// observe tells the observer of an event that has ended, or of its letter. The marks among the letters are
// no events.
func (p *parts) observe(a *cdc.Ack) {
	if p.cfg.Observer == nil || a.Record == nil {
		return
	}
	d, rec := &p.outcome, a.Record
	*d = Delivery{
		EventID: rec.EventID, Topic: a.Topic, Partition: a.Partition, Offset: a.Offset, Key: rec.Key, Value: rec.Value, Headers: rec.Headers,
		Committed: rec.Committed, Ended: p.now,
	}
	if a.Latency > 0 && !rec.Committed.IsZero() {
		d.Ended = rec.Committed.Add(a.Latency)
	}
	if a.Ticket.Table != nil && a.Ticket.Commit == 0 && p.keeper == nil {
		d.Committed = time.Time{}
	}
	parked := a.Topic == p.cfg.Poison.ParkingTopic
	switch bad, ok := errors.AsType[*BadEvent](a.Err); {
	case ok:
		d.EventID, d.Reason, d.Why = bad.EventID, string(bad.Because), bad.Reason()
	case a.Err != nil:
		d.Reason, d.Why = string(badevent.Because(a.Err)), a.Err.Error()
	case parked || p.cfg.Poison.IsTopic(a.Topic):
		reason, why := deadletter.Cause(rec)
		d.Reason, d.Why = string(reason), why
	}
	if a.Err != nil {
		d.Offset = -1
	}
	if !parked || d.Reason != "" {
		p.cfg.Observer.Ended(d)
	}
	*d = Delivery{}
}
