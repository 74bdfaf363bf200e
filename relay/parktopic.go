package relay

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/checkpoint"
	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/internal/parking"
	"github.com/walpost/walpost/relay/internal/flight"
	"github.com/walpost/walpost/relay/internal/recent"
	"github.com/walpost/walpost/relay/internal/release"
)

const (
	followEvery = time.Second      // between two looks for requests, while something is parked
	lookEvery   = 10 * time.Second // between two looks whether the topic still has what is needed
	openAgain   = time.Second      // after the topic could not be opened
	readBatch   = 1000             // records of the topic that the loop takes at one time
	trimEvery   = 10_000           // offsets that are not needed any more before they are deleted
)

// A parker parks keys and releases them. It is the only writer of the relay's part of the topic of
// parked events: Kafka fences every other process. So what is parked is what the brokers have
// acknowledged, and the loop follows the topic only for the requests of the commands. All methods and
// fields belong to the loop.
type parker struct {
	*loop
	*release.Releaser
	lot    *parking.Lot  // nil if nothing can be parked
	opened bool          // this process is the writer, and lot has all that is parked
	known  bool          // lot had all that is parked once, and goes on from there
	id     string        // of the topic
	sent   int           // letters that are not acknowledged
	read   parking.Place // of the newest event of the flight
	ahead  parking.Place // of the newest event that was parked when the topic was opened
	parks  bool          // the flight has parked an event that was not parked before
	void   bool          // the flight is over, and its events come again in the next one

	next      int64 // offset up to which the topic is read
	wrote     int64 // offset behind the newest record that this process wrote
	following bool  // a reading has not ended
	due       time.Time
	looked    time.Time // at the topic's state
	failing   recent.Edge
	failed    error              // of the newest reading
	lost      error              // the topic has lost records
	durable   *checkpoint.Record // when dropped events were forgotten last

	trimmed  int64 // offset before which the topic was trimmed, or is being trimmed
	appended []cdc.Appended
	held     []cdc.Pending // what was to be appended while the topic was not open

	rel  *cdc.Relation // whose name is name
	name string

	counted time.Time // when Status got what is parked
	letters uint64    // that were made
	parked  uint64    // bad events whose key was parked
	told    recent.Told
}

// on reports whether keys can be parked, or are.
func (p *parker) on() bool { return p.lot != nil }

// opening is the outcome of opening the topic.
type opening struct {
	state   cdc.LogState
	lot     *parking.Lot    // for a lot that doesn't go on: all that is parked
	others  *parking.Others // the same, of relays of other names; only without an anchor
	items   []parking.Item  // for one that goes on: what is new
	next    int64
	gap     *parking.Lost // that was accepted, nil for none
	foreign bool          // another process has taken the slot, or the topic is another one
	err     error
}

// openTopic makes this process the only writer of the topic, and reads what is parked. why is not ""
// if another process may have held the slot since this one opened the topic. The record of the session
// names the place to read from, so it is newer than everything that was deleted.
func (p *parker) openTopic(ctx context.Context, why string) error {
	anchor := p.checkpointer.durable.Parking
	switch needed := p.cfg.Poison.Policies.Park() || anchor != nil && anchor.Open > 0; {
	case p.cfg.Parking == nil || p.lot == nil && !needed:
		return nil
	case p.opened && why == "" && p.cfg.Parking.Broken() == nil:
		return nil
	}
	own := p.known && why == "" // the lot goes on, and so does what is in flight
	if own {
		anchor = p.anchor()
	} else {
		p.reset()
	}
	p.opened = false
	for {
		p.setState(Connecting, "reading the topic of parked events "+p.cfg.Poison.ParkingTopic)
		var o *opening
		next, epoch := p.next, p.checkpointer.epoch
		p.beside(func() func() {
			got := p.open(p.background, anchor, own, next, epoch)
			return func() { o = &got }
		})
		// A lost session does not end this, because no two calls of Fence may overlap.
		if err := p.settle(ctx, time.Time{}, func() bool { return o != nil }); err != nil || o == nil {
			return err
		}
		switch {
		case p.sess == nil: // another process may have the slot by now
			return nil
		case o.foreign:
			p.contested = true // what is in flight comes again
			return p.lose(fault.Retry(fmt.Errorf("topic of parked events %s: %w", p.cfg.Poison.ParkingTopic, o.err)))
		case o.err == nil:
			p.take(o, own)
			p.failing.Over(time.Now(), p.log.Info()).Msg("the topic of parked events can be opened again")
			if c := p.lot.Counts(); c.Events > 0 && !own {
				p.log.Warn().Int("keys", c.Keys).Int("events", c.Events).Time("oldest", parking.Since(p.lot.Oldest(1))).Msg("events are parked")
			}
			return nil
		}
		err := fmt.Errorf("topic of parked events %s: %w", p.cfg.Poison.ParkingTopic, o.err)
		if !fault.Retryable(err) {
			return err
		}
		p.noteError(err, &p.failing)
		p.failing.Fault(time.Now(), p.log.Warn()).Err(err).Str("hint", fault.Hint(err)).Msg("the topic of parked events cannot be opened")
		p.setState(Connecting, "the topic of parked events cannot be opened: "+err.Error())
		if err := p.settle(ctx, time.Now().Add(openAgain), func() bool { return p.sess == nil }); err != nil || ctx.Err() != nil || p.sess == nil {
			return err
		}
	}
}

// reopen opens a broken topic again. The session stays, and so does what is in flight.
func (p *parker) reopen(ctx context.Context) error {
	if !p.on() || p.opened {
		return nil
	}
	if err := p.openTopic(ctx, ""); err != nil || !p.opened {
		return err
	}
	p.setState(p.phase.about())
	return nil
}

// reset forgets what was parked, because another process may have changed it.
func (p *parker) reset() {
	p.void, p.ahead = true, parking.Place{}
	p.lot, p.known, p.next, p.wrote, p.following, p.lost, p.failed = parking.New(p.cfg.Name), false, 0, 0, false, nil, nil
	if p.Releaser != nil {
		p.Reset(p.lot)
		return
	}
	p.Releaser = &release.Releaser{
		Lot: p.lot, Topic: writer{p}, Sink: p.sink, Route: p.router.Route, Log: p.log,
		Beside: func(work func(context.Context) func()) { p.beside(func() func() { return work(p.background) }) },
		Note:   p.noteLost, Works: func() bool { return p.sess != nil && p.opened && !p.ending() },
		TopicName: p.cfg.Poison.ParkingTopic, Name: p.cfg.Name, Version: p.cfg.Poison.Version,
	}
}

// errSuperseded is the error of a process that has lost the slot without knowing it.
var errSuperseded = errors.New("another process has taken the slot")

// errRecreated is the error of a topic without open events that is another one than before.
var errRecreated = errors.New("the topic was deleted and created again")

// open works beside the loop. If the lot goes on, own, next is where it has come to.
func (p *parker) open(ctx context.Context, anchor *cdc.Anchor, own bool, next int64, epoch uint64) (o opening) {
	log, topic, park := p.cfg.Parking, p.cfg.Poison.ParkingTopic, p.cfg.Poison.Policies.Park()
	accepted := func(err error) bool {
		lost, ok := errors.AsType[*parking.Lost](err)
		if !ok || lost.GapToken() != p.cfg.AcceptGap {
			return false
		}
		o.gap = lost
		p.log.Warn().Str("token", p.cfg.AcceptGap).Str("gap", lost.Error()).Msg("GAP ACCEPTED: parked events are lost, and newer events of their keys are delivered")
		return true
	}
	fence := func(create bool) {
		if o.state, o.err = log.Fence(ctx, create); o.err != nil {
			return
		}
		// Whoever takes the slot writes a record before it fences. So if the record is still this
		// process's own, no later holder has fenced before.
		stored, err := p.newest(ctx)
		if o.err = err; err == nil && (stored.Rec == nil || stored.Rec.Epoch != epoch || stored.Rec.Holder != p.holder) {
			o.err, o.foreign = errSuperseded, true
		}
	}
	if fence(park && (anchor == nil || anchor.Open == 0)); o.err != nil {
		return o
	}
	from, lost := parking.Judge(topic, anchor, o.state)
	if gap, ok := errors.AsType[*parking.Lost](lost); ok && (gap.Loss != parking.Truncated || own) {
		if o.err = lost; !accepted(lost) {
			return o
		}
		if lost, o.err = nil, nil; o.state.Missing {
			if fence(park); o.err != nil {
				return o
			}
		}
		from = o.state.Start
	}
	o.lot = parking.New(p.cfg.Name)
	switch {
	case o.state.Missing: // and nothing parks
		return o
	case own && anchor != nil && (o.state.ID != anchor.ID || o.state.End < next):
		o.err, o.foreign = errRecreated, true // nothing was open: Judge has seen to that
		return o
	case own:
		from = next
	case anchor == nil:
		o.others = p.cfg.Poison.Others(p.cfg.Name, &p.found)
	}
	letters := map[string]bool{}
	o.next, o.err = log.Read(ctx, from, func(rec *kgo.Record) bool {
		it := parking.Read(rec)
		if own {
			o.items = append(o.items, it)
			return ctx.Err() == nil
		}
		o.lot.Add(it)
		o.others.Add(it)
		if anchor != nil && len(letters) < anchor.Open && it.Letter != nil && it.Letter.Name == p.cfg.Name {
			letters[it.Letter.Token] = true
		}
		return ctx.Err() == nil
	})
	o.next = max(o.next, from)
	if fault.NeedsPerson(o.err) { // it was trimmed or lost a moment ago: the next look judges that
		o.err = fault.Retry(o.err)
	}
	switch {
	case o.err != nil || own || anchor == nil:
	case lost != nil && o.lot.Needed < o.state.Start && !accepted(lost):
		o.err = lost
	case lost == nil && o.gap == nil && len(letters) < anchor.Open:
		lost = &parking.Lost{Loss: parking.Incomplete, Anchor: *anchor, Topic: topic, Now: o.state, Left: len(letters)}
		if !accepted(lost) {
			o.err = lost
		}
	}
	return o
}

// take takes over an opening.
func (p *parker) take(o *opening, own bool) {
	if own {
		p.add(o.items)
	} else {
		p.lot, p.Lot = o.lot, o.lot
		p.damaged(0)
		for _, other := range o.others.Strangers() {
			p.log.Warn().Str("relay", other.Relay).Int("keys", other.Keys).Int("events", other.Events).Str("hint", other.Hint()).Msg(other.String())
		}
		for _, key := range p.lot.Keys() {
			for _, e := range p.lot.Entries(key) {
				if e.SystemID == p.found.SystemID && p.ahead.Before(e.Place) {
					p.ahead = e.Place
				}
			}
		}
	}
	if o.gap != nil { // the rows of these events are the only place that has them
		p.checkpointer.accepted = append(p.checkpointer.accepted, checkpoint.Accepted{Token: o.gap.GapToken(), Gap: o.gap.Error(), Time: time.Now().UTC()})
	}
	p.wrote = max(p.wrote, o.next)
	p.id, p.next, p.opened, p.known, p.failed, p.due = o.state.ID, max(p.next, o.next), true, true, nil, time.Now().Add(followEvery)
	unwritten := append(p.cfg.Parking.Unwritten(), p.held...)
	p.held = nil
	for _, left := range unwritten {
		switch {
		case !own && flight.Uncounted(&left.Ticket): // nobody waits for it any more
		case !own || p.written(left.Record): // events that are not parked come again in another flight
			p.ended(left.Ticket)
		default:
			p.cfg.Parking.Append(left.Record, left.Ticket)
		}
	}
}

// written reports whether a record of this process that may have been committed is known to be.
func (p *parker) written(rec *cdc.Record) bool {
	it := parking.Written(rec, 0)
	switch {
	case it.Letter != nil:
		e := p.lot.Entry(it.Letter.Token)
		return e == nil || e.Offset != parking.Unwritten && e.Attempts >= it.Letter.Attempts
	case it.Mark != nil && it.Mark.Token != "":
		return p.lot.Entry(it.Mark.Token) == nil
	}
	return false
}

// add takes over records that were read from the topic. The lot has what this process wrote before
// p.wrote, and some of that is closed.
func (p *parker) add(items []parking.Item) {
	before := p.lot.Damaged
	for _, it := range items {
		if it.Offset >= p.wrote || it.IsRequest() {
			p.lot.Add(it)
		}
	}
	p.damaged(before)
}

// damaged reports records that cannot be read.
func (p *parker) damaged(before int) {
	if p.lot.Damaged > before {
		p.noteError(fmt.Errorf("the topic of parked events has damaged records: %w", p.lot.Problem), nil)
		p.log.Error().Err(p.lot.Problem).Int("records", p.lot.Damaged).
			Msg("records of the topic of parked events cannot be read, and are ignored: walpost verify lists the rows whose events are in no topic")
	}
}

// anchor is what a checkpoint records of the topic: nil if there is nothing to come back to.
func (p *parker) anchor() *cdc.Anchor {
	if p.lot.Empty() && !p.cfg.Poison.Policies.Park() {
		return nil
	}
	return &cdc.Anchor{Topic: p.cfg.Poison.ParkingTopic, ID: p.id, Offset: p.lot.Anchor(p.next), Open: p.lot.Written()}
}

// anchored reports whether the durable record names the topic, so that the next start reads it. Before,
// no letter may be written.
func (p *parker) anchored() bool {
	if !p.on() || !p.cfg.Poison.Policies.Park() {
		return true
	}
	known := p.checkpointer.durable.Parking
	return known != nil && known.Topic == p.cfg.Poison.ParkingTopic && known.ID == p.id
}

// writable reports whether a letter may be appended: this process is the writer, and the durable record
// names the topic.
func (p *parker) writable() bool { return !p.on() || p.opened && p.anchored() }

// append has a letter written. No position passes its event before the brokers have it.
func (p *parker) append(letter *cdc.Record, ticket cdc.Ticket) {
	p.sent++
	writer{p}.Append(letter, ticket)
}

// A writer appends to the topic, but only while this process has opened it. A Fence may have made it the only writer although
// another process has the slot.
type writer struct{ *parker }

func (w writer) Append(rec *cdc.Record, ticket cdc.Ticket) {
	if w.opened {
		w.cfg.Parking.Append(rec, ticket)
	} else {
		w.held = append(w.held, cdc.Pending{Record: rec, Ticket: ticket})
	}
}

func (w writer) Read(ctx context.Context, from int64, each func(*kgo.Record) bool) (int64, error) {
	return w.cfg.Parking.Read(ctx, from, each)
}

// collect takes what the brokers have committed.
func (p *parker) collect() (bad *cdc.Ack, err error) {
	if p.cfg.Parking == nil {
		return nil, nil
	}
	p.appended = p.cfg.Parking.Appends(p.appended[:0])
	defer clear(p.appended)
	for i := range p.appended {
		a := &p.appended[i]
		switch {
		case a.Err == nil:
			if p.known && a.Offset >= p.wrote { // otherwise the lot has it from a reading, or will
				p.lot.Add(parking.Written(a.Record, a.Offset))
				p.wrote = a.Offset + 1
			}
			p.ended(a.Ticket)
		case flight.Uncounted(&a.Ticket):
			err = fault.Person(fmt.Errorf("the topic of parked events refuses a record: %w", a.Err), "Repair the topic or its limit, and start walpost again.")
		case bad == nil:
			p.sent--
			bad = &cdc.Ack{Ticket: a.Ticket, Err: a.Err, Record: a.Record, EventID: a.Record.EventID, Topic: p.cfg.Poison.ParkingTopic}
		}
	}
	if len(p.appended) > 0 {
		p.checkpointer.active = true
	}
	return bad, err
}

// ended takes the end of a record of the topic that the lot has.
func (p *parker) ended(ticket cdc.Ticket) {
	if flight.Uncounted(&ticket) {
		p.Written(ticket)
		return
	}
	if p.sent--; p.flight.Ack(ticket) {
		p.st.Events++
	}
}

// follow reads the requests of the commands now and then, while something is parked.
func (p *parker) follow() error {
	switch {
	case p.lost != nil:
		return p.lost
	case !p.on() || !p.opened || p.following || p.now.Before(p.due) || p.lot.Empty() && p.next >= p.wrote:
		return nil
	}
	p.following = true
	from, lot := p.next, p.lot
	look := p.now.Sub(p.looked) >= lookEvery
	if look {
		p.looked = p.now
	}
	p.beside(func() func() {
		var items []parking.Item
		next, err := p.cfg.Parking.Read(p.background, from, func(rec *kgo.Record) bool {
			if items = append(items, parking.Read(rec)); len(items) == readBatch {
				batch := items
				items = nil
				p.report(func() {
					if lot == p.lot {
						p.add(batch)
					}
				})
			}
			return p.background.Err() == nil
		})
		var state cdc.LogState
		var unseen error
		if look {
			state, unseen = p.cfg.Parking.State(p.background)
		}
		return func() {
			if lot != p.lot {
				return
			}
			p.add(items)
			if look && unseen == nil && p.lost == nil {
				// What this process deletes itself is before the anchor.
				if _, lost := parking.Judge(p.cfg.Poison.ParkingTopic, p.anchor(), state); fault.NeedsPerson(lost) {
					p.lost = lost
				}
			}
			p.following, p.next, p.due, p.failed = false, max(p.next, next), time.Now().Add(followEvery), err
			switch {
			case err == nil:
				p.failing.Over(time.Now(), p.log.Info()).Msg("the topic of parked events can be read again")
			case fault.NeedsPerson(err):
				p.lost = fmt.Errorf("read the topic of parked events: %w", err)
			default:
				p.noteError(fmt.Errorf("read the topic of parked events: %w", err), &p.failing)
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

// advance follows the topic, carries out requests, and releases keys.
func (p *parker) advance() error {
	if err := p.follow(); err != nil || !p.on() {
		return err
	}
	if err := p.cfg.Parking.Broken(); err != nil && p.opened && p.sess != nil && !p.ending() {
		p.noteError(fmt.Errorf("the topic of parked events: %w", err), &p.failing)
		p.failing.Fault(time.Now(), p.log.Warn()).Err(err).Msg("the topic of parked events is to be opened again")
		p.opened = false // the phase opens it again: see reopen
	}
	if d := p.checkpointer.durable; d != p.durable {
		p.durable = d
		p.lot.Forget(p.passed)
		p.trim()
	}
	if !p.opened {
		return nil
	}
	p.Advance(release.Now{Time: p.now, Room: p.cfg.Window.Events - p.inFlight(), Ready: p.ready})
	if p.Pausing && p.landed() {
		p.checkpointer.last = time.Time{} // what was parked last can be delivered once it is in the checkpoint
	}
	return nil
}

// trim deletes what is before the anchor of the durable record. A mark says so first, because another
// process can have read an older record.
func (p *parker) trim() {
	anchor := p.durable.Parking
	if anchor == nil || !p.opened || anchor.ID != p.id || anchor.Offset-p.trimmed < trimEvery || p.ending() {
		return
	}
	before := anchor.Offset
	p.trimmed = before
	p.Append(parking.TrimmedMark(p.cfg.Poison.ParkingTopic, p.cfg.Name, before, p.now), func() {
		p.beside(func() func() {
			err := p.cfg.Parking.Trim(p.background, before, func(rec *kgo.Record) bool { return parking.Owns(p.cfg.Name, rec) })
			return func() {
				if err != nil {
					p.noteError(fmt.Errorf("delete records of the topic of parked events: %w", err), nil)
				}
			}
		})
	})
}

// pauses reports whether the loop reads no more for a moment, so that a key becomes free.
func (p *parker) pauses() bool { return p.on() && p.Pausing }

// ErrParkedUnknown is the error of ParkedEvents while the relay does not know what is parked.
var ErrParkedUnknown = errors.New("the relay does not know what is parked: it holds no session")

// ParkedEvents returns the ids of the events that are parked now; "" is an event without an id. The answer is
// complete: an event that is not in it is delivered, is dropped, or is not read yet. Without a session the error is
// ErrParkedUnknown. It may be called from any goroutine.
func (r *Relay) ParkedEvents(ctx context.Context) (ids []string, err error) {
	answered := make(chan struct{})
	ask := func(l *loop) {
		defer close(answered)
		switch p := &l.parker; {
		case l.sess == nil || p.on() && !p.opened || p.lost != nil:
			err = ErrParkedUnknown
		case p.on():
			p.lot.IDs(func(id string) { ids = append(ids, id) })
		}
	}
	select {
	case r.asks <- ask:
		<-answered
		return ids, err
	case <-ctx.Done():
		return nil, errors.Join(ErrParkedUnknown, context.Cause(ctx))
	}
}

// busy is how many results and released events are sent and not acknowledged, and sentAside how many
// records the parker has sent.
func (p *parker) busy() int {
	if p.Releaser == nil {
		return 0
	}
	return p.Busy()
}

// writing is how many records wait for the topic of parked events and can still be written.
func (p *parker) writing() int {
	if p.Releaser == nil || !p.opened || p.cfg.Parking.Broken() != nil {
		return 0
	}
	return p.sent + p.Writing
}

func (p *parker) sentAside() uint64 {
	if p.Releaser == nil {
		return 0
	}
	return p.letters + p.Sent
}
