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
	"github.com/walpost/walpost/relay/internal/release"
)

// opening is the outcome of open or of resume.
type opening struct {
	state   cdc.LogState
	backlog *parking.Backlog // of open: all that is parked
	others  *parking.Others  // of open without an anchor: what relays of other names have parked
	gap     *parking.Lost    // of open: the loss that was accepted, nil for none
	items   []parking.Item   // of resume: what is new
	next    int64
	err     error
}

// openTopic makes this process the only writer of the topic, and reads what is parked. why is not ""
// if another process may have held the slot since this one opened the topic, or if the phase starts over at
// the checkpoint. The record of the session names the place to read from, so it is newer than everything
// that was deleted.
func (p *parker) openTopic(ctx context.Context, why string) error {
	anchor := p.checkpointer.durable.Parking
	// An anchor with no open events may be older than letters: a letter is written at once, and the record follows.
	switch needed := p.cfg.Poison.Policies.Park() || anchor != nil; {
	case p.cfg.Parking == nil || !p.on() && !needed:
		return nil
	case p.opened && why == "" && p.cfg.Parking.Broken() == nil:
		return nil
	case !needed && p.Backlog.Empty(): // all that was parked under another policy is gone
		p.parkingFlight, p.parkingRead, p.Releaser, p.opened = parkingFlight{}, parkingRead{}, nil, false
		return nil
	}
	resumes := p.known && why == "" // the backlog goes on, and so does what is in flight
	if resumes {
		anchor = p.anchor()
	} else {
		p.reset()
	}
	p.opened = false
	for {
		p.l.to(follows, "reading the topic of parked events "+p.cfg.Poison.ParkingTopic)
		var o *opening
		next, epoch := p.next, p.checkpointer.epoch
		p.beside(func() func() {
			var got *opening
			if resumes {
				got = p.resume(p.background, anchor, next, epoch)
			} else {
				got = p.open(p.background, anchor, epoch)
			}
			return func() { o = got }
		})
		// A lost session does not end this, because no two calls of Open may overlap.
		if err := p.l.settle(ctx, time.Time{}, func() bool { return o != nil }); err != nil || o == nil {
			return err
		}
		switch {
		case p.sess == nil: // another process may have the slot by now
			return nil
		case errors.Is(o.err, errSuperseded), errors.Is(o.err, errRecreated):
			p.contested = true // what is in flight comes again
			return p.l.lose(fault.Retry(fmt.Errorf("topic of parked events %s: %w", p.cfg.Poison.ParkingTopic, o.err)))
		case o.err == nil:
			p.take(o, resumes)
			p.failing.Over(time.Now(), p.log).Info("the topic of parked events can be opened again")
			if c := p.Backlog.Counts(); c.Events > 0 && !resumes {
				p.log.Warn("events are parked", "keys", c.Keys, "events", c.Events, "oldest", parking.Since(p.Backlog.Oldest(1)))
			}
			return nil
		}
		err := fmt.Errorf("topic of parked events %s: %w", p.cfg.Poison.ParkingTopic, o.err)
		if !fault.Retryable(err) {
			return err
		}
		p.noteError(err, &p.failing)
		p.failing.Fault(time.Now(), p.log).Warn("the topic of parked events cannot be opened", errFields(err)...)
		p.l.to(follows, "the topic of parked events cannot be opened: "+err.Error())
		if err := p.l.settle(ctx, time.Now().Add(openAgain), func() bool { return p.sess == nil }); err != nil || ctx.Err() != nil || p.sess == nil {
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
	p.l.to(p.l.phase.about())
	return nil
}

// reset forgets what was parked, because another process may have changed it. The flight is over too. So what it
// has read no longer tells which events may be released: they come again.
func (p *parker) reset() {
	p.parkingFlight, p.parkingRead = parkingFlight{void: true}, parkingRead{}
	if !p.on() {
		p.Releaser = &release.Releaser{
			Sink: p.sink, Route: p.router.Route, Log: p.log, Read: p.cfg.Parking.Read, Write: p.write,
			Beside: func(work func(context.Context) func()) { p.beside(func() func() { return work(p.background) }) },
			Note:   p.noteLost, Works: func() bool { return p.sess != nil && p.opened && !p.ending() },
			TopicName: p.cfg.Poison.ParkingTopic, Name: p.cfg.Name, Version: p.cfg.Poison.Version,
		}
	}
	p.Reset(parking.New(p.cfg.Name), p.committer != nil)
}

// errSuperseded is the error of a process that has lost the slot without knowing it.
var errSuperseded = errors.New("another process has taken the slot")

// errRecreated is the error of a topic without open events that is another one than before.
var errRecreated = errors.New("the topic was deleted and created again")

// fence makes this process the only writer. It works beside the loop.
func (p *parker) fence(ctx context.Context, create bool, epoch uint64) (state cdc.LogState, err error) {
	if state, err = p.cfg.Parking.Open(ctx, create); err != nil {
		return state, err
	}
	// Whoever takes the slot writes a record before it fences. So if the record is still this
	// process's own, no later holder has fenced before.
	stored, err := p.newest(ctx)
	if err == nil && (stored.Rec == nil || stored.Rec.Epoch != epoch || stored.Rec.Holder != p.holder) {
		err = errSuperseded
	}
	return state, err
}

// resume reads what is new behind next, where the backlog has come to. It works beside the loop.
func (p *parker) resume(ctx context.Context, anchor *cdc.Anchor, next int64, epoch uint64) *opening {
	o := &opening{next: next}
	if o.state, o.err = p.fence(ctx, false, epoch); o.err != nil {
		return o
	}
	switch _, lost := parking.Judge(p.cfg.Poison.ParkingTopic, anchor, o.state); {
	case lost != nil:
		o.err = lost
	case o.state.Missing, anchor != nil && !parking.SameTopic(o.state.ID, anchor.ID), o.state.End < next:
		o.err = errRecreated // nothing was open: Judge has seen to that
	default:
		var read cdc.LogState
		read, o.err = p.cfg.Parking.Read(ctx, next, func(rec *kgo.Record) bool {
			o.items = append(o.items, parking.Read(rec))
			return ctx.Err() == nil
		})
		o.next, o.err = read.Next, waitOut(o.err)
	}
	return o
}

// waitOut makes the error of a Read one that is waited out: if the topic was trimmed or lost a moment
// ago, the next look judges that.
func waitOut(err error) error {
	if fault.NeedsPerson(err) {
		return fault.Retry(err)
	}
	return err
}

// open reads what is parked, from the anchor on. It works beside the loop.
func (p *parker) open(ctx context.Context, anchor *cdc.Anchor, epoch uint64) *opening {
	topic, park := p.cfg.Poison.ParkingTopic, p.cfg.Poison.Policies.Park()
	o := &opening{backlog: parking.New(p.cfg.Name)}
	accepted := func(err error) bool {
		lost, ok := errors.AsType[*parking.Lost](err)
		if !ok || lost.GapToken() != p.cfg.AcceptGap {
			return false
		}
		o.gap = lost
		p.log.Warn("GAP ACCEPTED: parked events are lost, and newer events of their keys are delivered", "token", p.cfg.AcceptGap, "gap", lost.Error())
		return true
	}
	if o.state, o.err = p.fence(ctx, park && (anchor == nil || anchor.Open == 0), epoch); o.err != nil {
		return o
	}
	from, lost := parking.Judge(topic, anchor, o.state)
	if gap, ok := errors.AsType[*parking.Lost](lost); ok && gap.Loss != parking.Truncated {
		if !accepted(lost) {
			o.err = lost
			return o
		}
		if lost = nil; o.state.Missing {
			if o.state, o.err = p.fence(ctx, park, epoch); o.err != nil {
				return o
			}
		}
		from = o.state.Start
	}
	if o.state.Missing { // and nothing parks
		return o
	}
	if anchor == nil {
		o.others = p.cfg.Poison.Others(p.cfg.Name, &p.found)
	}
	letters := map[string]bool{}
	var read cdc.LogState
	read, o.err = p.cfg.Parking.Read(ctx, from, func(rec *kgo.Record) bool {
		it := parking.Read(rec)
		o.backlog.Add(it)
		o.others.Add(it)
		if anchor != nil && len(letters) < anchor.Open && it.Letter != nil && it.Letter.Name == p.cfg.Name {
			letters[it.Letter.Token] = true
		}
		return ctx.Err() == nil
	})
	o.next, o.err = max(read.Next, from), waitOut(o.err)
	switch {
	case o.err != nil || anchor == nil:
	case lost != nil && o.backlog.Needed < o.state.Start && !accepted(lost):
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
func (p *parker) take(o *opening, resumes bool) {
	if resumes {
		p.add(o.items)
	} else {
		p.Backlog = o.backlog
		p.damaged(0)
		for _, other := range o.others.Strangers() {
			p.log.Warn(other.String(), "relay", other.Relay, "keys", other.Keys, "events", other.Events, "hint", other.Hint())
		}
		for _, key := range p.Backlog.Keys() {
			for _, e := range p.Backlog.Entries(key) {
				if e.SystemID == p.found.SystemID && p.ahead.Before(e.Position) {
					p.ahead = e.Position
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
		case resumes: // the topic may have it already, and adding it twice changes nothing
			p.cfg.Parking.Append(left.Record, left.Ticket)
		case !flight.Untracked(&left.Ticket): // events that are not parked come again in another flight
			p.ended(left.Ticket)
		}
	}
}
