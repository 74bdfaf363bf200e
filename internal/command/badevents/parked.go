package badevents

import (
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/deadletter"
	"github.com/walpost/walpost/internal/parking"
	"github.com/walpost/walpost/internal/pump"
	"github.com/walpost/walpost/internal/wait"
)

// Parked is what the topic of parked events says, as of the newest Read. It keeps no payload.
type Parked struct {
	log
	relays map[string]*parkedRelay // by name; "" has the records that are nobody's
}

// A parkedRelay is what one relay has parked.
type parkedRelay struct {
	name    string
	backlog *parking.Backlog
	closed  map[string]*parking.Entry // the newest entry that was closed, by token
}

// NewParked returns Parked that has read nothing. progress is told how many records were read, and how
// many there are.
func NewParked(client *kgo.Client, topic string, progress func(done, total int64)) *Parked {
	p := &Parked{log: log{Topic: topic, client: client, decode: deadletter.Decode, progress: progress}}
	p.reset = func() { p.relays = map[string]*parkedRelay{} }
	p.add = func(rec *kgo.Record) {
		it, name := parking.Read(rec), ""
		switch {
		case it.Letter != nil:
			name = it.Letter.Name
		case it.Mark != nil:
			name = it.Mark.Name
		}
		if p.relays[name] == nil {
			p.relays[name] = newParkedRelay(name)
		}
		p.relays[name].backlog.Add(it)
	}
	p.reset()
	return p
}

func newParkedRelay(name string) *parkedRelay {
	r := &parkedRelay{name: name, closed: map[string]*parking.Entry{}}
	r.backlog = parking.History(name, func(e *parking.Entry) { r.closed[e.Token] = e })
	return r
}

// owned returns an error if the topic has records, and none of them is walpost's.
func (p *Parked) owned() error {
	if nobody := p.relays[""]; len(p.relays) == 1 && nobody != nil && nobody.backlog.Foreign > 0 && nobody.backlog.Damaged == 0 {
		return p.notOurs(nobody.backlog.Foreign, "parking_topic")
	}
	return nil
}

// Events are all events that the topic has: those that are parked, key by key and in the order of
// their delivery, and then those that are not any more.
func (p *Parked) Events() (all []*Event) {
	for _, name := range slices.Sorted(maps.Keys(p.relays)) {
		r := p.relays[name]
		for _, key := range r.backlog.Keys() {
			for _, e := range r.backlog.Entries(key) {
				all = append(all, r.event(e))
			}
		}
		for _, token := range slices.Sorted(maps.Keys(r.closed)) {
			if r.backlog.Entry(token) == nil { // otherwise the event was parked once more
				all = append(all, r.event(r.closed[token]))
			}
		}
	}
	return all
}

func (r *parkedRelay) event(e *parking.Entry) *Event {
	l, place := *e.Letter, deadletter.Place{Offset: e.Offset}
	open := e.State == deadletter.Open
	return &Event{
		Where: InParking, Releasing: open && r.backlog.Releases(e.Key), Dropping: open && e.Drop != 0, key: parkedKey{r.name, e.Key},
		Entry: &deadletter.Entry{Letter: l, State: e.State, Why: e.Why, Size: e.Size, First: place, Newest: place},
	}
}

// parkedKey is the key of a parked event.
type parkedKey struct {
	relay string
	parking.Key
}

// Requested says what became of parked events that their relay was asked to release or to drop.
type Requested struct {
	Keys     int `json:"keys"`     // of the events
	Events   int `json:"events"`   // that are to be dropped, or all that are parked of keys to be released
	Requests int `json:"requests"` // that were written now; those of some drops were written before

	Released int `json:"released"` // events that the relay has delivered
	Dropped  int `json:"dropped"`  // events that it has given up
	Closed   int `json:"closed"`   // one of the two: the topic no longer says which
	Refused  int `json:"refused"`  // events that could not be delivered again
	Waiting  int `json:"waiting"`  // events that the relay has not dealt with yet
	Parked   int `json:"parked"`   // events that stay parked, because one before them was refused or nobody asked
}

// A request is what a command asks the relays for, which hold the slots and write the results.
type request struct {
	*Topics
	keys   map[parkedKey]bool
	events []requested
	drop   bool   // the events are to be dropped, because of why; otherwise their keys are to be released
	why    string // of drop
}

// A requested is a parked event that a request is about.
type requested struct {
	parkedKey
	token    string
	attempts int // before the request
}

// request selects the events that are parked, and for a release all others of their keys.
func (t *Topics) request(selected []*Event, drop bool, why string) *request {
	r := &request{Topics: t, keys: map[parkedKey]bool{}, drop: drop, why: why}
	for _, e := range selected {
		if e.Where == InParking && e.State == deadletter.Open {
			if r.keys[e.key] = true; drop {
				r.events = append(r.events, requested{e.key, e.Token, e.Attempts})
			}
		}
	}
	for key := range r.keys {
		for _, e := range t.Parked.relays[key.relay].backlog.Entries(key.Key) {
			if !drop {
				r.events = append(r.events, requested{key, e.Token, e.Attempts})
			}
		}
	}
	return r
}

// records are the requests for the topic. A release that was asked for is asked for again, because the
// topic may have lost the letter that the relay knows its key by.
func (r *request) records() (all []*cdc.Record) {
	now := time.Now()
	if !r.drop {
		for key := range r.keys {
			first := r.Parked.relays[key.relay].backlog.Entries(key.Key)[0]
			all = append(all, parking.ReleaseRequest(r.Parked.Topic, key.relay, first, now))
		}
		return all
	}
	for _, asked := range r.events {
		if e := r.Parked.relays[asked.relay].backlog.Entry(asked.token); e.Drop == 0 {
			all = append(all, parking.DropRequest(r.Parked.Topic, asked.relay, e, r.why, now))
		}
	}
	return all
}

// result says what the topic has of the events now, and which relays have not dealt with theirs.
func (r *request) result() (now Requested, relays map[string]bool) {
	now, relays = Requested{Keys: len(r.keys), Events: len(r.events)}, map[string]bool{}
	for _, asked := range r.events {
		has := r.Parked.relays[asked.relay]
		if has == nil {
			now.Closed++
			continue
		}
		e, closed := has.backlog.Entry(asked.token), has.closed[asked.token]
		switch {
		case e != nil && (r.drop || has.backlog.Releases(asked.Key)):
			now.Waiting++
			relays[asked.relay] = true
		case e != nil && e.Attempts > asked.attempts:
			now.Refused++
		case e != nil:
			now.Parked++
		case closed == nil:
			now.Closed++
		case closed.State == deadletter.Released:
			now.Released++
		default:
			now.Dropped++
		}
	}
	return now, relays
}

// quiet is how long a command waits for a relay before it says what may be wrong.
const quiet = 30 * time.Second

// do writes the request, and waits until the relays have dealt with the events, or for limit.
func (r *request) do(ctx context.Context, limit time.Duration) (*Requested, error) {
	now, _ := r.result()
	if len(r.events) == 0 {
		return &now, nil
	}
	written, err := r.writeParked(ctx, r.records())
	began, moved := time.Now(), time.Now()
	for waiting := now.Waiting; err == nil; {
		if err = r.Parked.Read(ctx); err != nil {
			break
		}
		var relays map[string]bool
		now, relays = r.result()
		r.Progress("parked events wait for their relay", int64(now.Waiting), 0)
		at := time.Now()
		if now.Waiting == 0 || at.Sub(began) >= limit {
			break
		}
		switch {
		case now.Waiting != waiting:
			waiting, moved = now.Waiting, at
		case at.Sub(moved) >= quiet:
			r.Say(fmt.Sprintf("%s has not answered for %s: walpost run with this name must hold the slot, and must not be halted (walpost status)%s", named(relays), quiet, r.first()))
			moved = at
		}
		if !wait.For(ctx, min(pump.Every, limit)) {
			err = context.Cause(ctx)
		}
	}
	now.Requests = written
	return &now, err
}

// first is what may keep a relay at work from releasing a key.
func (r *request) first() string {
	if r.drop {
		return ""
	}
	return ". If it is stalled, older events wait for their topics, and come first"
}

// named names relays for a person.
func named(relays map[string]bool) string {
	return "relay " + strings.Join(slices.Sorted(maps.Keys(relays)), ", relay ")
}

// WouldRelease says what is parked of the keys of events.
func (t *Topics) WouldRelease(events []*Event) *Requested {
	now, _ := t.request(events, false, "").result()
	return &now
}

// Release asks the relays that hold the slots to deliver what is parked of the keys of events. With
// waits, it returns when each of these events is delivered, or cannot be because one was refused again.
func (t *Topics) Release(ctx context.Context, events []*Event, waits bool) (*Requested, error) {
	limit := time.Duration(0)
	if waits {
		limit = math.MaxInt64
	}
	return t.request(events, false, "").do(ctx, limit)
}

// DropParked asks the relays that hold the slots to give up parked events, and waits for the results,
// for limit. An event that a relay is just delivering is released instead.
func (t *Topics) DropParked(ctx context.Context, events []*Event, why string, limit time.Duration) (*Requested, error) {
	return t.request(events, true, why).do(ctx, limit)
}

// writeParked writes records to the topic of parked events, and returns how many the brokers have.
func (t *Topics) writeParked(ctx context.Context, records []*cdc.Record) (n int, err error) {
	if len(records) == 0 {
		return 0, nil
	}
	err = t.writing(ctx, func(c *change) error {
		for _, rec := range records {
			if err := c.Wait(ctx, time.Time{}, c.Room); err != nil {
				return err
			}
			c.mark(rec, func() { n++ })
		}
		return c.settle(ctx)
	})
	return n, err
}
