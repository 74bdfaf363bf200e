package relay

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/checkpoint"
	"github.com/walpost/walpost/internal/deadletter"
	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/internal/parking"
	"github.com/walpost/walpost/relay/internal/badevent"
	"github.com/walpost/walpost/relay/internal/flight"
	"github.com/walpost/walpost/relay/internal/recent"
	"github.com/walpost/walpost/relay/internal/release"
)

const (
	followEvery = time.Second // between two looks for requests, while something is parked
	readBatch   = 1000        // records of the topic that the loop takes at one time
)

// A parker parks keys and releases them. What is parked it knows from the topic alone: it writes
// letters and marks through the sink, and follows the topic with a reader beside the loop. A key is
// parked from the moment that a letter of it is sent until all its letters are read back and
// released or dropped. All methods and fields belong to the loop.
type parker struct {
	*loop
	lot   *parking.Lot // nil if nothing can be parked
	off   bool         // the policy parks nothing, and this relay never did
	leads bool         // this process has opened the topic
	*release.Releaser
	writes deadletter.Writer // Writer when the present flight began, for the letters of its events

	next    int64           // offset of the topic
	reading bool            // a reading has not ended
	read    uint64          // what Written was when the newest complete reading began
	others  *parking.Others // nil after the first complete reading
	due     time.Time
	failing recent.Edge
	failed  error              // of the newest reading
	lost    error              // the topic has lost records
	durable *checkpoint.Record // when released events were forgotten last

	unread flight.Letters // of the present flight

	rel   *cdc.Relation // whose name table is
	table string

	counted time.Time // when Status got what is parked

	letters uint64      // that were made
	parked  uint64      // bad events whose key was parked
	told    recent.Told // what the log has of them
}

// on reports whether keys can be parked, or are.
func (p *parker) on() bool { return p.lot != nil && !p.off }

// open reports whether this process knows what is parked, and its letters count.
func (p *parker) open() bool {
	return !p.on() || p.Writer.Epoch != 0 && p.lot.Opened() == p.Writer
}

// openTopic makes this process the one whose letters count, and reads what is parked. why is not ""
// if somebody else may have held the slot since this process opened the topic.
func (p *parker) openTopic(ctx context.Context, a *attempt, why string) error {
	if p.cfg.Parking == nil || why == "" && p.open() {
		return nil
	}
	if p.lot == nil {
		p.lot, p.others = parking.New(p.cfg.Name, false), p.cfg.Poison.Others(p.cfg.Name, &a.found)
		p.Releaser = &release.Releaser{
			Lot: p.lot, Read: p.cfg.Parking.Read, Send: p.sink.Send, Pass: p.sink.PassOver, Route: p.router.Route, Log: p.log,
			Beside: func(work func(context.Context) func()) { p.beside(func() func() { return work(p.background) }) },
			Note:   p.noteLost, Works: func() bool { return p.sess != nil && !p.ending() && p.open() },
			Topic: p.cfg.Poison.ParkingTopic, Name: p.cfg.Name, Version: p.cfg.Poison.Version,
		}
	}
	p.setState(Connecting, "reading the topic of parked events "+p.cfg.Poison.ParkingTopic)
	p.leads = false
	up := func() bool { return p.sess == nil || p.read == p.Written }
	former := p.lot.Opened().Epoch // from before this session had the slot
	if p.off = false; !p.cfg.Poison.Policies.Park() && former == 0 {
		p.Written++
		if err := p.settle(ctx, time.Time{}, up); err != nil || ctx.Err() != nil || p.sess == nil {
			return err
		}
		// Whoever never parks writes nothing to the topic, also if other relays park events in it.
		if p.off = p.lot.Opened().Epoch == 0; p.off {
			return nil
		}
	}
	if p.Writer.Epoch == 0 || why != "" {
		// After the loss of a checkpoint its epochs begin again, and the topic knows higher ones. Then
		// this session is given up below: only the next one is sure to be newer than what is read.
		p.Open(deadletter.Writer{Epoch: max(a.Rec.Epoch, former+1), Holder: p.holder})
	}
	p.Written++
	// Releases of a former session may wait for their topics for ever.
	up = func() bool { return p.sess == nil || p.read == p.Written && (p.open() || p.Marks == 0) }
	if err := p.settle(ctx, time.Time{}, up); err != nil || ctx.Err() != nil || p.sess == nil {
		return err
	}
	if !p.open() {
		return p.superseded()
	}
	p.leads = true
	if c := p.lot.Counts(); c.Events > 0 {
		p.log.Warn().Int("keys", c.Keys).Int("events", c.Events).Time("oldest", c.Oldest).Msg("events are parked")
	}
	return nil
}

// superseded ends the session, because another process has opened the topic. What this process writes
// there is void until it has taken the slot once more.
func (p *parker) superseded() error {
	p.leads, p.Writer = false, deadletter.Writer{}
	return p.lose(fault.Retry(fmt.Errorf("the topic of parked events was opened by another process in the meantime, or under a later checkpoint that is now lost: the topic has epoch %d, and this process has epoch %d",
		p.lot.Opened().Epoch, p.checkpointer.epoch)))
}

// follow reads the topic on: when something was written, and now and then for what the commands
// write.
func (p *parker) follow() error {
	switch {
	case p.lost != nil:
		return p.lost
	case !p.on() || p.reading || p.now.Before(p.due) && (p.read == p.Written || p.failing.Times > 0):
		return nil
	case p.read == p.Written && p.lot.Empty():
		return nil
	}
	p.reading = true
	written, from := p.Written, p.next
	p.beside(func() func() {
		var items []parking.Item
		next, err := p.cfg.Parking.Read(p.background, from, func(rec *kgo.Record) bool {
			if items = append(items, parking.Read(rec)); len(items) == readBatch {
				batch := items
				items = nil
				p.report(func() { p.take(batch) })
			}
			return p.background.Err() == nil
		})
		return func() {
			p.take(items)
			p.reading, p.next, p.due, p.failed = false, next, time.Now().Add(followEvery), err
			switch {
			case err == nil:
				p.read = written
				for _, o := range p.others.Strangers() {
					p.log.Warn().Str("relay", o.Relay).Int("keys", o.Keys).Int("events", o.Events).Str("hint", o.Hint()).Msg(o.String())
				}
				p.others = nil
				p.failing.Over(time.Now(), p.log.Info()).Msg("the topic of parked events can be read again")
			case fault.NeedsPerson(err):
				p.lost = fmt.Errorf("read the topic of parked events: %w", err)
			default:
				p.noteError(fmt.Errorf("read the topic of parked events: %w", err), &p.failing)
				if p.st.State == Connecting && p.sess != nil {
					p.setState(Connecting, "the topic of parked events cannot be read: "+err.Error())
				}
				p.failing.Fault(time.Now(), p.log.Warn()).Err(err).Msg("the topic of parked events cannot be read")
			}
		}
	})
	return nil
}

// noteLost notes an error of a release. It ends the run if the topic has lost records.
func (p *parker) noteLost(err error) {
	p.noteError(err, nil)
	if fault.NeedsPerson(err) {
		p.lost = err
	}
}

// stalled says why events wait for their letters although the sink goes on, or nil.
func (p *parker) stalled() error {
	if p.failed == nil || p.unread.Len() == 0 {
		return nil
	}
	return fmt.Errorf("the topic of parked events cannot be read: %w", p.failed)
}

func (p *parker) take(items []parking.Item) {
	damaged := p.lot.Damaged
	defer func() {
		if p.lot.Damaged > damaged {
			p.noteError(fmt.Errorf("the topic of parked events has damaged records: %w", p.lot.Problem), nil)
			p.log.Error().Err(p.lot.Problem).Int("records", p.lot.Damaged).
				Msg("records of the topic of parked events cannot be read, and are ignored: walpost verify names the rows whose events are in no topic")
		}
	}()
	for _, it := range items {
		p.lot.Add(it)
		p.others.Add(it)
		if it.Letter == nil || it.Letter.Writer != p.writes {
			continue
		}
		if p.lot.Opened() != p.writes { // what this process acknowledges is not true any more
			p.checkpointer.frozen = true
		}
		if ticket, whole := p.unread.Back(it.Letter.Token); whole {
			p.settled(ticket)
		}
	}
	p.lot.Forget(p.passed)
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
	return e.Place.Before(parking.Place{Timeline: p.names().Timeline(durable.LSN), Commit: durable.LSN})
}

// key is the key of the event that the router filled l.rec from. It reports false if the event has
// no key.
func (p *parker) key(rel *cdc.Relation, rec *cdc.Record, bad *BadEvent) (parking.Key, bool) {
	if rec.Key == nil || bad != nil && !bad.KeyFound() {
		return parking.Key{}, false
	}
	if rel != p.rel || rel == nil {
		p.rel, p.table = rel, rel.String()
	}
	if bad == nil && !p.lot.Knows(p.table, rec.Key) {
		return parking.Key{}, false
	}
	return parking.Key{Table: p.table, Key: string(rec.Key)}, true
}

// event decides what an event gets that the router made l.rec of, or refused with bad. It is number
// row of the transaction at commit; commit is 0 for a row of the table. If the event is parked,
// l.rec is its letter afterwards.
func (p *parker) event(ev *cdc.Event, bad *BadEvent, commit cdc.Position, row int) (parking.Verdict, error) {
	if !p.on() || bad == nil && p.lot.Empty() {
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
	is := bad
	if is == nil {
		is = p.named(&BadEvent{EventID: p.rec.EventID, Table: ev.Relation(), Commit: commit, Row: row, Because: deadletter.Behind, Err: errBehind})
	}
	var letter *deadletter.Letter
	if rec := p.rec; bad != nil {
		letter = p.names().RowLetter(is, ev, &rec)
	} else {
		letter = p.names().RecordLetter(is, &rec)
	}
	at := p.place(commit, row)
	verdict := p.lot.Judge(key, letter.Token, p.found.SystemID, at)
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
	rec, err := p.letter(key, letter, is, at)
	if err != nil {
		return verdict, err
	}
	p.rec = *rec
	return verdict, nil
}

// errBehind is the error of an event that is parked behind another one.
var errBehind = errors.New("an earlier event of its key is parked")

func (p *parker) place(commit cdc.Position, row int) parking.Place {
	if commit == 0 {
		return parking.Place{}
	}
	return parking.Place{Timeline: p.names().Timeline(commit), Commit: commit, Row: row}
}

// letter makes the record of the letter of a parked event. The key is parked from now on.
func (p *parker) letter(key parking.Key, letter *deadletter.Letter, bad *BadEvent, at parking.Place) (*cdc.Record, error) {
	if limit := p.cfg.Poison.ParkLimit; p.lot.Over(key, limit) {
		return nil, overLimit(p.lot.Counts(), limit)
	}
	if bad.Because == deadletter.Behind {
		letter.Error = ""
	}
	letter.SystemID, letter.Timeline, letter.Writer = p.found.SystemID, at.Timeline, p.writes
	rec, err := letter.Encode(p.cfg.Poison.ParkingTopic)
	if err != nil {
		bad.Err = errors.Join(bad.Err, err)
		return nil, bad
	}
	if p.writes == p.Writer { // the letter of a flight that was left behind is void
		p.lot.Expect(key, letter.Token, p.writes, at)
		p.unread.Expect(letter.Token, bad.Commit, bad.Row)
	}
	p.letters++
	if bad.Because != deadletter.Behind {
		p.parked++
		p.st.NewestParked = badevent.NewestFirst(p.st.NewestParked, letter, p.now)
	}
	return rec, nil
}

// overLimit is the error of a relay that may park no more.
func overLimit(c parking.Counts, limit parking.Limit) error {
	return fault.Person(fmt.Errorf("%d events of %d keys are parked, and delivery.park_limit is %d events and %d keys", c.Events, c.Keys, limit.Events, limit.Keys),
		"Repair the causes and release all keys ("+fault.Command("dead", "retry", "--all")+"), or give events up (walpost dead drop), or raise the limit. Then start walpost again. walpost first delivers the events of the keys that you released, and only then parks more events.")
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
	key := parking.Key{Table: bad.Table.String(), Key: string(a.Record.Key)}
	mine := p.flight.Mine(&a.Ticket)
	if mine { // otherwise the event comes again
		at := p.place(bad.Commit, bad.Row)
		rec, err := p.letter(key, p.names().RecordLetter(bad, a.Record), bad, at)
		if err != nil {
			return false, err
		}
		p.sink.Send(rec, a.Ticket)
	}
	p.sink.PassOver(a.Topic, func(k []byte, t *cdc.Ticket) bool {
		return string(k) == key.Key && !flight.Uncounted(t) && p.flight.Mine(t) == mine && t.Table.String() == key.Table
	})
	return true, nil
}

// written takes the acknowledgement of a letter of the present flight. It reports false for any other
// record.
func (p *parker) written(a *cdc.Ack) bool {
	if p.unread.Len() == 0 || a.Topic != p.cfg.Poison.ParkingTopic || !p.flight.Mine(&a.Ticket) {
		return false
	}
	p.Written++
	known, whole := p.unread.Acked(a.Ticket)
	if whole {
		p.settled(a.Ticket)
	}
	return known
}

// settled acknowledges the event of a letter that is acknowledged and read back.
func (p *parker) settled(t cdc.Ticket) {
	p.flight.Ack(t)
	p.st.Events++
	p.checkpointer.active = true
}

// fly begins another flight. The letters of the former one count for nobody.
func (p *parker) fly() {
	p.writes, p.unread = deadletter.Writer{}, flight.Letters{}
	if p.lot != nil {
		p.writes = p.Writer
	}
}

// advance reads the topic on and releases keys.
func (p *parker) advance() error {
	if err := p.follow(); err != nil || !p.on() {
		return err
	}
	if p.leads && !p.open() && p.sess != nil {
		return p.superseded()
	}
	if d := p.checkpointer.durable; d != p.durable {
		p.durable = d
		p.lot.Forget(p.passed)
	}
	p.Advance(release.Now{Time: p.now, Room: p.cfg.Window.Events - p.inFlight(), Seen: p.read, Ready: p.passed})
	if p.Pausing && p.landed() {
		p.checkpointer.last = time.Time{} // what was parked last can be delivered once it is in the checkpoint
	}
	return nil
}

// pauses reports whether the loop reads no more for a moment, so that a key becomes free.
func (p *parker) pauses() bool { return p.on() && p.Pausing }

// waits reports whether the loop reads no more because no further event may be parked. It waits
// only as long as releases make room.
func (p *parker) waits() bool {
	return p.on() && p.Waits() && p.lot.Over(parking.Key{}, p.cfg.Poison.ParkLimit)
}

// busy is how many marks and released events are sent and not acknowledged, and wrote how many records
// the parker has sent.
func (p *parker) busy() int {
	if p.lot == nil {
		return 0
	}
	return p.Busy()
}

func (p *parker) wrote() uint64 {
	if p.lot == nil {
		return 0
	}
	return p.letters + p.Sent
}

// tookBack parks an event that the sink gave back because an earlier one of its key is parked.
func (p *parker) tookBack(a *cdc.Ack) error {
	if !p.flight.Mine(&a.Ticket) {
		return nil
	}
	bad := badevent.Refused(a)
	bad.Because = deadletter.Behind
	p.named(bad)
	key := parking.Key{Table: bad.Table.String(), Key: string(a.Record.Key)}
	rec, err := p.letter(key, p.names().RecordLetter(bad, a.Record), bad, p.place(bad.Commit, bad.Row))
	if err == nil {
		p.sink.Send(rec, a.Ticket)
	}
	return err
}

// say logs the bad events whose keys were parked: the first one at once, and later ones together.
func (p *parker) say(end bool) {
	if p.parked > 0 {
		p.st.NewestParked[0].Log(p.told.Due(p.parked, p.now, end, p.log.Error())).
			Msg("an event cannot be delivered: it is parked, and so are all later events of its key, in the topic " + p.cfg.Poison.ParkingTopic)
	}
}
