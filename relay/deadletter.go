package relay

import (
	"errors"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/checkpoint"
	"github.com/walpost/walpost/internal/deadletter"
	"github.com/walpost/walpost/internal/parking"
	"github.com/walpost/walpost/relay/internal/badevent"
)

// setAside makes l.rec the letter of an event that is bad, or whose key is parked. err is what the
// router said of the event, which is number row of the transaction at commit, or number row of the
// table. setAside returns an error if the event halts the relay.
func (l *loop) setAside(ev *cdc.Event, err error, commit cdc.Position, row int) (parking.Verdict, error) {
	var bad *BadEvent
	if err != nil {
		bad = l.unroutable(ev, commit, row, err)
		if l.keeper != nil && l.keeper.Refused(uint32(row), bad.Reason()) {
			return parking.Known, nil
		}
	}
	verdict, err := l.parker.event(ev, bad, commit, row)
	if err == nil && verdict == parking.Deliver && bad != nil && !l.buryRow(bad, ev) {
		l.observe(&cdc.Ack{Ticket: cdc.Ticket{Commit: commit, Table: ev.Relation()}, Record: &l.rec, Err: bad, Partition: -1})
		return verdict, l.recordHalt(bad)
	}
	return verdict, err
}

// buryRow makes l.rec the dead letter of a row that has no record, and reports whether the policy
// asks for that. The letter counts as the record of the row.
func (b *badEvents) buryRow(bad *BadEvent, ev *cdc.Event) bool {
	if !b.cfg.Poison.Buries(bad.Because, bad.Topic) {
		return false
	}
	return b.encode(b.names().RowLetter(bad, ev, &b.rec), bad) == nil
}

// putAside makes l.rec the dead letter of an event that a person asked to pass over, whatever the
// policy. ok and err are what the router said of it.
func (b *badEvents) putAside(ev *cdc.Event, asked *checkpoint.Halt, ok bool, err error) error {
	bad := badevent.Skipped(ev, b.rec.EventID, asked, err)
	if err != nil || !ok {
		return b.encode(b.names().RowLetter(bad, ev, &b.rec), bad)
	}
	rec := b.rec
	return b.encode(b.names().RecordLetter(bad, &rec), bad)
}

// encode makes l.rec the letter. It returns bad if the letter cannot be written down.
func (b *badEvents) encode(letter *deadletter.Letter, bad *BadEvent) error {
	rec, err := letter.Encode(b.cfg.Poison.Topic)
	if err != nil {
		bad.Err = errors.Join(bad.Err, err)
		return bad
	}
	b.rec = *rec
	b.note(letter)
	return nil
}

// buryRecord sends a dead letter in place of a record that the sink refused, if the policy asks for
// that, and lets the topic go on. The letter has the ticket of the record, so no position passes
// the event before the brokers have its letter.
func (b *badEvents) buryRecord(bad *BadEvent, a *cdc.Ack) bool {
	if a.Record == nil || !b.cfg.Poison.Buries(bad.Because, bad.Topic) {
		return false
	}
	letter := b.names().RecordLetter(bad, a.Record)
	rec, err := letter.Encode(b.cfg.Poison.Topic)
	if err != nil {
		bad.Err = errors.Join(bad.Err, err)
		return false
	}
	b.note(letter)
	b.sink.Send(rec, a.Ticket)
	b.sink.PassOver(a, nil)
	return true
}

// passes reports whether err is of a topic that waits for PassOver. The loop calls it when it takes
// the acknowledgement of the refused record, so the topic does not stall.
func (l *loop) passes(err error) bool {
	r, ok := errors.AsType[*cdc.Refusal](err)
	return ok && (l.cfg.Poison.Buries(r.Reason, r.Topic) || l.parker.on() && l.cfg.Poison.Parks(r.Reason, r.Topic))
}
