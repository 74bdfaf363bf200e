package badevents

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/deadletter"
	"github.com/walpost/walpost/internal/parking"
	"github.com/walpost/walpost/internal/wait"
)

// Parked is what the topic of parked events says, as of the newest Read. It keeps no payload.
type Parked struct {
	log
	Lots map[string]*parking.Lot // by the name of the relay
}

// NewParked returns Parked that has read nothing. progress is told how many records were read, and how
// many there are.
func NewParked(client *kgo.Client, topic string, progress func(done, total int64)) *Parked {
	p := &Parked{log: log{Topic: topic, client: client, progress: progress}}
	p.reset = func() { p.Lots = map[string]*parking.Lot{} }
	p.add = func(rec *kgo.Record) {
		it, name := parking.Read(rec), ""
		switch {
		case it.Letter != nil:
			name = it.Letter.Name
		case it.Mark != nil:
			name = it.Mark.Name
		}
		if p.Lots[name] == nil {
			p.Lots[name] = parking.New(name, true)
		}
		p.Lots[name].Add(it)
	}
	p.reset()
	return p
}

// Owned returns an error if the topic has records, and none of them is walpost's.
func (p *Parked) Owned() error {
	if nobody := p.Lots[""]; len(p.Lots) == 1 && nobody != nil && nobody.Foreign > 0 && nobody.Damaged == 0 {
		return p.notOurs(nobody.Foreign, "parking_topic")
	}
	return nil
}

// parkedKey is the key of a parked event.
type parkedKey struct {
	relay string
	parking.Key
}

// events are the events of all keys, each key in its order.
func (p *Parked) events() (all []*Event) {
	for _, relay := range slices.Sorted(maps.Keys(p.Lots)) {
		lot := p.Lots[relay]
		for _, key := range lot.Keys() {
			for _, e := range lot.Entries(key) {
				l := *e.Letter
				place := deadletter.Place{Offset: e.Offset}
				all = append(all, &Event{
					Where: InParking, Asked: e.State == deadletter.Open && lot.Asked(key), key: parkedKey{relay, key},
					Entry: &deadletter.Entry{Letter: l, State: e.State, Why: e.Why, Size: e.Size, First: place, Newest: place},
				})
			}
		}
	}
	return all
}

// Release says what became of the keys that were to be released.
type Release struct {
	Keys      int `json:"keys"`      // selected, with parked events
	Asked     int `json:"asked"`     // for which the release was asked now; the others wait for an earlier request
	Released  int `json:"released"`  // of which nothing is parked any more
	Refused   int `json:"refused"`   // of which an event was refused again
	Remaining int `json:"remaining"` // events that are still parked
}

// keysOf are the keys of parked events that are open.
func keysOf(events []*Event) []parkedKey {
	keys := map[parkedKey]bool{}
	for _, e := range events {
		if e.Where == InParking && e.State == deadletter.Open {
			keys[e.key] = true
		}
	}
	return slices.Collect(maps.Keys(keys))
}

// WouldRelease says what Release would do.
func (t *Topics) WouldRelease(events []*Event) *Release {
	r := &Release{}
	for _, k := range keysOf(events) {
		r.Keys++
		r.Remaining += t.Parked.Lots[k.relay].Left(k.Key)
	}
	return r
}

// quiet is how long Release waits for a relay before it says what may be wrong.
const quiet = 30 * time.Second

// Release asks the relay that holds the slot to deliver what is parked of the keys of events. With
// waits it returns when nothing of a key is parked any more, or an event was refused again.
func (t *Topics) Release(ctx context.Context, events []*Event, waits bool) (*Release, error) {
	keys := keysOf(events)
	r := &Release{Keys: len(keys)}
	if len(keys) == 0 {
		return r, nil
	}
	var requests []*cdc.Record
	for _, k := range keys {
		if !t.Parked.Lots[k.relay].Asked(k.Key) {
			requests = append(requests, parking.Request(t.Parked.Topic, k.relay, k.Key, time.Now()))
		}
	}
	var err error
	if r.Asked, err = t.writeParked(ctx, requests); err != nil {
		return r, err
	}
	relays := map[string]bool{}
	for _, k := range keys {
		relays[k.relay] = true
	}
	if waits {
		t.Say("waiting until " + named(relays) + " has delivered the parked events")
	}
	left, since := -1, time.Now()
	for {
		if err := t.Parked.Read(ctx); err != nil {
			return r, err
		}
		waiting := 0
		clear(relays)
		r.Released, r.Refused, r.Remaining = 0, 0, 0
		for _, k := range keys {
			lot := t.Parked.Lots[k.relay]
			open := 0
			if lot != nil {
				open = lot.Left(k.Key)
			}
			r.Remaining += open
			switch {
			case open == 0:
				r.Released++
			case lot.Asked(k.Key):
				waiting++
				relays[k.relay] = true
			default:
				r.Refused++
			}
		}
		if t.Progress("released events wait", int64(r.Remaining), 0); waiting == 0 || !waits {
			return r, nil
		}
		switch now := time.Now(); {
		case r.Remaining != left:
			left, since = r.Remaining, now
		case now.Sub(since) > quiet:
			t.Say(fmt.Sprintf("%s released nothing for %s: walpost run with this name must hold the slot, and must not be halted or stalled (walpost status)", named(relays), quiet))
			since = now
		}
		if !wait.For(ctx, look) {
			return r, context.Cause(ctx)
		}
	}
}

// named names relays for a person.
func named(relays map[string]bool) string {
	return "relay " + strings.Join(slices.Sorted(maps.Keys(relays)), ", relay ")
}

// DropParked marks parked events as given up. left is how many events of their keys stay parked.
func (t *Topics) DropParked(ctx context.Context, events []*Event, why string) (dropped, left int, err error) {
	keys := keysOf(events)
	if len(keys) == 0 {
		return 0, 0, nil
	}
	var marks []*cdc.Record
	for _, e := range events {
		if e.Where == InParking && e.State == deadletter.Open {
			entry := t.Parked.Lots[e.key.relay].Entry(e.Token)
			marks = append(marks, parking.DroppedMark(t.Parked.Topic, e.key.relay, entry, why, time.Now()))
		}
	}
	if dropped, err = t.writeParked(ctx, marks); err == nil {
		err = t.Parked.Read(ctx)
	}
	for _, k := range keys {
		if lot := t.Parked.Lots[k.relay]; lot != nil {
			left += lot.Left(k.Key)
		}
	}
	return dropped, left, err
}

// writeParked writes records to the topic of parked events, and returns how many the brokers have.
func (t *Topics) writeParked(ctx context.Context, records []*cdc.Record) (n int, err error) {
	if len(records) == 0 {
		return 0, nil
	}
	c, err := t.writer(false)
	if err != nil {
		return 0, err
	}
	defer c.close()
	for i, rec := range records {
		c.write(rec, func(err error) {
			if err != nil {
				c.broken = err
			} else {
				n++
			}
		})
		if len(c.open) == chunkEvents || i == len(records)-1 {
			if err := c.settle(ctx); err != nil {
				return n, fmt.Errorf("topic %s: %w", rec.Topic, err)
			}
		}
	}
	return n, nil
}
