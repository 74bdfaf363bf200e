package relay

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/deadletter"
	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/internal/parking"
	"github.com/walpost/walpost/relay/internal/badevent"
	"github.com/walpost/walpost/relay/internal/flight"
)

// errBehind is the error of an event that is parked behind another one.
var errBehind = errors.New("an earlier event of its key is parked")

// key is the key of the event that the router filled l.rec from. It reports false if the event has
// no key, or if nothing is parked that the event could be behind.
func (p *parker) key(rel *cdc.Relation, rec *cdc.Record, bad *BadEvent) (parking.Key, bool) {
	if rec.Key == nil || bad != nil && !bad.KeyFound() {
		return parking.Key{}, false
	}
	table := p.tableOf(rel)
	if bad == nil && !p.Backlog.Knows(table, rec.Key) {
		return parking.Key{}, false
	}
	return parking.Key{Table: table, Key: string(rec.Key)}, true
}

// tableOf is the table of a Key.
func (p *parker) tableOf(rel *cdc.Relation) string {
	if rel != p.rel || rel == nil {
		p.rel, p.name = rel, rel.String()
	}
	if rel == nil {
		return p.name
	}
	return p.Backlog.Table(p.found.SystemID, rel.ID, p.name)
}

// event decides what an event gets that the router made l.rec of, or refused with bad. It is number
// row of the transaction at commit; commit is 0 for a row of the table. If the event is parked,
// l.rec is its letter afterwards.
func (p *parker) event(ev *cdc.Event, bad *BadEvent, commit cdc.Position, row int) (parking.Verdict, error) {
	if !p.on() || bad == nil && p.Backlog.Empty() {
		return parking.Deliver, nil
	}
	parks := bad != nil && p.cfg.Poison.Parks(bad.Because, "")
	key, ok := p.key(ev.Relation(), &p.rec, bad)
	if !ok {
		if parks {
			bad.Keyless = true
		}
		return parking.Deliver, nil
	}
	cause := bad
	if cause == nil {
		cause = p.behind(&BadEvent{EventID: p.rec.EventID, Table: ev.Relation(), Commit: commit, Row: row})
	}
	var letter *deadletter.Letter
	if rec := p.rec; bad != nil {
		letter = p.names().RowLetter(cause, ev, &rec)
	} else {
		letter = p.names().RecordLetter(cause, &rec)
	}
	at := p.positionOf(commit, row)
	verdict := p.Backlog.Judge(key, letter.Token, p.found.SystemID, at)
	if verdict == parking.Deliver && parks {
		if commit == 0 {
			bad.Keyless = true
			return verdict, nil
		}
		verdict = parking.Park
	}
	if verdict != parking.Park {
		return verdict, nil
	}
	rec, err := p.letter(letter, cause, at)
	if err != nil {
		return verdict, err
	}
	p.rec = *rec
	return verdict, nil
}

// behind makes bad the error of an event that is not bad itself.
func (p *parker) behind(bad *BadEvent) *BadEvent {
	bad.Because, bad.Err = deadletter.Behind, errBehind
	return p.named(bad)
}

func (p *parker) positionOf(commit cdc.Position, row int) parking.Position {
	if commit == 0 {
		return parking.Position{}
	}
	return parking.Position{Timeline: p.names().Timeline(commit), Commit: commit, Row: row}
}

// letter makes the record of the letter of a parked event. The key is parked from now on.
func (p *parker) letter(letter *deadletter.Letter, bad *BadEvent, at parking.Position) (*cdc.Record, error) {
	if bad.Because == deadletter.Behind {
		letter.Error = ""
	}
	letter.SystemID, letter.Timeline = p.found.SystemID, at.Timeline
	if bad.Table != nil {
		letter.TableID = bad.Table.ID
	}
	rec, err := letter.Encode(p.cfg.Poison.ParkingTopic)
	if err != nil {
		bad.Err = errors.Join(bad.Err, err)
		return nil, bad
	}
	p.Backlog.Expect(letter)
	p.parks = true
	if bad.Because != deadletter.Behind {
		p.parked++
		p.st.NewestParked = badevent.NewestFirst(p.st.NewestParked, letter, p.now)
	}
	return rec, nil
}

// parkRefused parks the key of a record that the sink refused, if the policy asks for that, and takes
// back the later records of the key that wait in the topic. It reports whether it did.
func (p *parker) parkRefused(bad *BadEvent, a *cdc.Ack) (bool, error) {
	if a.Record == nil || !p.on() || !p.cfg.Poison.Parks(bad.Because, a.Topic) {
		return false, nil
	}
	if bad.Keyless = a.Record.Key == nil || bad.Commit == 0; bad.Keyless {
		return false, nil
	}
	mine := p.flight.Owns(&a.Ticket)
	switch {
	case mine && p.void:
		p.flight.Ack(a.Ticket)
	case mine: // otherwise the event comes again
		rec, err := p.letter(p.names().RecordLetter(bad, a.Record), bad, p.positionOf(bad.Commit, bad.Row))
		if err != nil {
			return false, err
		}
		p.append(rec, a.Ticket)
	}
	key, table := string(a.Record.Key), p.tableOf(bad.Table)
	p.sink.PassOver(a, func(k []byte, t *cdc.Ticket) bool {
		return string(k) == key && !flight.Untracked(t) && p.flight.Owns(t) == mine && p.tableOf(t.Table) == table
	})
	return true, nil
}

// tookBack parks an event that the sink gave back because an earlier one of its key is parked.
func (p *parker) tookBack(a *cdc.Ack) error {
	if p.void || !p.flight.Owns(&a.Ticket) {
		p.flight.Ack(a.Ticket)
		return nil
	}
	bad := p.behind(badevent.Refused(a))
	rec, err := p.letter(p.names().RecordLetter(bad, a.Record), bad, p.positionOf(bad.Commit, bad.Row))
	if err == nil {
		p.append(rec, a.Ticket)
	}
	return err
}

// passed reports whether everything up to an event is in the checkpoint, so that it cannot come
// again, and no letter of an earlier event of its key can come any more.
func (p *parker) passed(e *parking.Entry) bool {
	durable := p.checkpointer.durable
	switch {
	case e.Commit == 0:
		return durable.Copy == nil
	case e.SystemID != p.found.SystemID:
		return true
	}
	return e.Position.Before(parking.Position{Timeline: p.names().Timeline(durable.Position), Commit: durable.Position})
}

// ready reports whether an event may be released: no letter of an earlier event of its key can come
// any more. Above the limit nothing is read, so that is also true of the transaction that is read in
// part, once nothing is in flight. A crash then repeats its events from the beginning.
func (p *parker) ready(e *parking.Entry) bool {
	return p.passed(e) || p.landed() && p.waits() && !p.read.Before(e.Position)
}

// waits reports whether the loop reads no more because more is parked than the limit allows. A flight
// that begins above the limit reads on up to the first event that is to be parked and that is not, and
// at least past all that was parked before.
func (p *parker) waits() bool {
	return p.on() && p.parks && p.Backlog.Exceeds(p.cfg.Poison.ParkLimit) && !p.read.Before(p.ahead)
}

// limitReached is why a relay reads nothing more: more is parked than delivery.park_limit allows.
type limitReached struct {
	parking.Counts
	limit parking.Limit
}

func (l *limitReached) Error() string {
	return fmt.Sprintf("%d events of %d keys are parked, and delivery.park_limit is %d events and %d keys", l.Events, l.Keys, l.limit.Events, l.limit.Keys)
}

// Hint says what makes room. Everything works while the relay waits.
func (l *limitReached) Hint() string {
	return "The relay reads nothing more until there is room, and carries out requests meanwhile. Fix the cause and release the parked events that " +
		fault.Command("dead", "list") + " shows (walpost dead retry), or give events up (walpost dead drop), or raise the limit and start walpost again. " +
		"walpost dead retry --all also delivers open dead letters, after newer events of their keys."
}

// stalled is why events are not parked or not released although the sink goes on, or nil.
func (p *parker) stalled() error {
	switch {
	case !p.on():
		return nil
	case p.waits():
		return &limitReached{p.Backlog.Counts(), p.cfg.Poison.ParkLimit}
	}
	err := cmp.Or(p.cfg.Parking.Stalled(), p.Stalled())
	if err == nil && p.failed != nil && !p.Backlog.Empty() {
		err = fmt.Errorf("the topic of parked events cannot be read: %w", p.failed)
	}
	return err
}

// say logs the bad events whose keys were parked: the first one at once, and later ones together.
func (p *parker) say(end bool) {
	if p.parked > 0 {
		log := p.told.Due(p.parked, p.now, end, p.log)
		log.Error("an event cannot be delivered: it is parked, and so are all later events of its key, in the topic "+p.cfg.Poison.ParkingTopic,
			p.st.NewestParked[0].Fields()...)
	}
}
