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
	followEvery = time.Second // between two looks for requests, while something is parked
	openAgain   = time.Second // after the topic could not be opened
	readBatch   = 1000        // records of the topic that the loop takes at one time
	trimEvery   = 10_000      // offsets that are not needed any more before they are deleted
)

// A parker parks keys and releases them. It is the only writer of the relay's part of the topic of
// parked events: Kafka fences every other process. So what is parked is what the brokers have
// acknowledged, and the loop follows the topic only for the requests of the commands. All methods and
// fields belong to the loop.
type parker struct {
	parts
	l *loop
	// Releaser has what is parked, in its Backlog. It's nil if nothing can be parked.
	*release.Releaser
	parkingFlight
	parkingRead

	opened   bool   // this process is the writer, and Backlog has all that is parked
	id       string // of the topic
	sent     int    // letters that are not acknowledged
	appended []cdc.Appended
	held     []cdc.Pending      // what was to be appended while the topic was not open
	trimmed  int64              // offset before which the topic was trimmed, or is being trimmed
	durable  *checkpoint.Record // when dropped events were forgotten last
	due      time.Time          // of the next look for requests
	failing  recent.FaultLog

	rel  *cdc.Relation // whose name is name
	name string

	counted time.Time // when Status got what is parked
	parked  uint64    // bad events whose key was parked
	told    recent.CountLog
}

// A parkingFlight is what the parker knows of the present flight. The next one begins anew.
type parkingFlight struct {
	read  parking.Position // of the newest event
	parks bool             // an event was parked that was not parked before
	void  bool             // the flight is over, and its events come again in the next one
}

// A parkingRead is how far the topic is read. It begins anew when another process may have changed the topic.
type parkingRead struct {
	known     bool             // Backlog had all that is parked once, and goes on from there
	next      int64            // offset up to which the topic is read
	wrote     int64            // offset behind the newest record that this process wrote
	ahead     parking.Position // of the newest event that was parked when the topic was opened
	following bool             // a reading has not ended
	failed    error            // of the newest reading
	lost      error            // the topic has lost records
}

// on reports whether keys can be parked, or are.
func (p *parker) on() bool { return p.Releaser != nil }

// add takes over records that were read from the topic. The backlog has what this process wrote before
// p.wrote, and some of that is closed.
func (p *parker) add(items []parking.Item) {
	before := p.Backlog.Damaged
	for _, it := range items {
		if it.Offset >= p.wrote || it.IsRequest() {
			p.Backlog.Add(it)
		}
	}
	p.damaged(before)
}

// damaged reports records that cannot be read.
func (p *parker) damaged(before int) {
	if p.Backlog.Damaged > before {
		p.noteError(fmt.Errorf("the topic of parked events has damaged records: %w", p.Backlog.Problem), nil)
		p.log.Error("records of the topic of parked events cannot be read, and are ignored: walpost verify lists the rows whose events are in no topic",
			"err", p.Backlog.Problem, "records", p.Backlog.Damaged)
	}
}

// anchor is what a checkpoint records of the topic: nil if there is nothing to come back to.
func (p *parker) anchor() *cdc.Anchor {
	if p.Backlog.Empty() && !p.cfg.Poison.Policies.Park() {
		return nil
	}
	return &cdc.Anchor{Topic: p.cfg.Poison.ParkingTopic, ID: p.id, Offset: p.Backlog.Anchor(p.next), Open: p.Backlog.Written()}
}

// anchored reports whether the durable record names the topic, so that the next start reads it. Before,
// no letter may be written.
func (p *parker) anchored() bool {
	if !p.on() || !p.cfg.Poison.Policies.Park() {
		return true
	}
	known := p.checkpointer.durable.Parking
	return known != nil && known.Topic == p.cfg.Poison.ParkingTopic && parking.SameTopic(known.ID, p.id)
}

// writable reports whether a letter may be appended: this process is the writer, and the durable record
// names the topic.
func (p *parker) writable() bool { return !p.on() || p.opened && p.anchored() }

// append has a letter written. No position passes its event before the brokers have it.
func (p *parker) append(letter *cdc.Record, ticket cdc.Ticket) {
	p.sent++
	p.write(letter, ticket)
}

// write appends to the topic, but only while this process has opened it. An Open may have made it the only writer although
// another process has the slot.
func (p *parker) write(rec *cdc.Record, ticket cdc.Ticket) {
	if p.opened {
		p.cfg.Parking.Append(rec, ticket)
	} else {
		p.held = append(p.held, cdc.Pending{Record: rec, Ticket: ticket})
	}
}

// collect takes what the brokers have committed. refused are the letters that they refuse.
func (p *parker) collect() (refused []cdc.Ack, err error) {
	if p.cfg.Parking == nil {
		return nil, nil
	}
	p.appended = p.cfg.Parking.Appends(p.appended[:0])
	defer clear(p.appended)
	for i := range p.appended {
		a := &p.appended[i]
		switch {
		case a.Err == nil:
			p.observe(&cdc.Ack{Ticket: a.Ticket, Record: a.Record, Topic: p.cfg.Poison.ParkingTopic, Offset: a.Offset, Latency: a.Latency})
			if p.known && a.Offset >= p.wrote { // otherwise the backlog has it from a reading, or will
				p.Backlog.Add(parking.Written(a.Record, a.Offset))
				p.wrote = a.Offset + 1
			}
			p.ended(a.Ticket)
		case flight.Untracked(&a.Ticket):
			err = fault.Person(fmt.Errorf("the topic of parked events refuses a record: %w", a.Err), "Repair the topic or its limit, and start walpost again.")
		default:
			p.sent--
			refused = append(refused, cdc.Ack{Ticket: a.Ticket, Err: a.Err, Record: a.Record, EventID: a.Record.EventID, Topic: p.cfg.Poison.ParkingTopic})
		}
	}
	if len(p.appended) > 0 {
		p.checkpointer.active = true
	}
	return refused, err
}

// ended takes the end of a record of the topic that the backlog has.
func (p *parker) ended(ticket cdc.Ticket) {
	if flight.Untracked(&ticket) {
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
	case !p.on() || !p.opened || p.following || p.now.Before(p.due) || p.Backlog.Empty() && p.next >= p.wrote:
		return nil
	}
	p.following = true
	from, backlog := p.next, p.Backlog
	p.beside(func() func() {
		var items []parking.Item
		state, err := p.cfg.Parking.Read(p.background, from, func(rec *kgo.Record) bool {
			if items = append(items, parking.Read(rec)); len(items) == readBatch {
				batch := items
				items = nil
				p.report(func() {
					if backlog == p.Backlog {
						p.add(batch)
					}
				})
			}
			return p.background.Err() == nil
		})
		return func() {
			if backlog != p.Backlog {
				return
			}
			p.add(items)
			if err == nil && p.lost == nil {
				// What this process deletes itself is before the anchor.
				if _, lost := parking.Judge(p.cfg.Poison.ParkingTopic, p.anchor(), state); fault.NeedsPerson(lost) {
					p.lost = lost
				}
			}
			p.following, p.next, p.due, p.failed = false, max(p.next, state.Next), time.Now().Add(followEvery), err
			switch {
			case err == nil:
				p.failing.Over(time.Now(), p.log).Info("the topic of parked events can be read again")
			case fault.NeedsPerson(err):
				p.lost = fmt.Errorf("read the topic of parked events: %w", err)
			default:
				p.noteError(fmt.Errorf("read the topic of parked events: %w", err), &p.failing)
				p.failing.Fault(time.Now(), p.log).Warn("the topic of parked events cannot be read", "err", err)
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
		p.failing.Fault(time.Now(), p.log).Warn("the topic of parked events is to be opened again", "err", err)
		p.opened = false // the phase opens it again: see reopen
	}
	if d := p.checkpointer.durable; d != p.durable {
		p.durable = d
		p.Backlog.Forget(p.passed)
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
	if anchor == nil || !p.opened || !parking.SameTopic(anchor.ID, p.id) || anchor.Offset-p.trimmed < trimEvery || p.ending() {
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

var errParkedUnknown = errors.New("the relay does not know what is parked: it holds no session")

// ParkedEvents returns the ids of the events that are parked now; "" is an event without an id. The answer is
// complete: an event that is not in it is delivered, is dropped, or is not read yet. Without a session it returns an
// error. It may be called from any goroutine.
func (r *Relay) ParkedEvents(ctx context.Context) (ids []string, err error) {
	answered := make(chan struct{})
	ask := func(l *loop) {
		defer close(answered)
		switch p := &l.parker; {
		case l.sess == nil || p.on() && !p.opened || p.lost != nil:
			err = errParkedUnknown
		case p.on():
			p.Backlog.IDs(func(id string) { ids = append(ids, id) })
		}
	}
	select {
	case r.asks <- ask:
		<-answered
		return ids, err
	case <-ctx.Done():
		return nil, errors.Join(errParkedUnknown, context.Cause(ctx))
	}
}

// busy is how many results and released events are sent and not acknowledged.
func (p *parker) busy() int {
	if !p.on() {
		return 0
	}
	return p.Busy()
}

// writing is how many records wait for the topic of parked events and can still be written.
func (p *parker) writing() int {
	if !p.on() || !p.opened || p.cfg.Parking.Broken() != nil {
		return 0
	}
	return p.sent + p.Writing
}
