package badevents

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/deadletter"
	"github.com/walpost/walpost/internal/fault"
)

// Where says which topic an event is in.
type Where string

// The topics.
const (
	InDeadLetters Where = "dead"
	InParking     Where = "parked"
)

// An Event is one that could not be delivered, or that is parked behind such an event.
type Event struct {
	Where Where
	// Of a parked event: the relay is to deliver it, or to give it up.
	Releasing, Dropping bool
	*deadletter.Entry

	key parkedKey
}

// An unknownToken is the error of a token that no event has.
type unknownToken struct {
	token  string
	topics []string
}

func (e *unknownToken) Error() string {
	if len(e.topics) == 1 {
		return fmt.Sprintf("no event in the topic %s has the token %s", e.topics[0], e.token)
	}
	return fmt.Sprintf("no event in the topics %s has the token %s", strings.Join(e.topics, " and "), e.token)
}

// Misconfigured is true: the token is wrong.
func (e *unknownToken) Misconfigured() bool { return true }

// Hint says whose token it may be.
func (e *unknownToken) Hint() string {
	if len(e.topics) == 1 { // of consumers
		return "If it's a token of the relay, leave out --dead-letter-topic."
	}
	return "If a halted relay printed the token, run " + fault.Command("skip", e.token) + " instead."
}

// All returns all events: the dead ones, and then the parked ones, in their order.
func (t *Topics) All() (all []*Event) {
	for _, e := range t.Dead.Fold.Entries() {
		all = append(all, &Event{Where: InDeadLetters, Entry: e})
	}
	return append(all, t.Parked.Events()...)
}

// An otherRelay is the error of a token that names an event of another relay.
type otherRelay struct {
	token, name, relay, own string
	parked                  bool
}

func (e *otherRelay) Error() string {
	if e.own == "" {
		return fmt.Sprintf("event %s belongs to relay %s, and the configuration does not say which relay it is for", e.token, e.relay)
	}
	return fmt.Sprintf("event %s belongs to relay %s, but the configuration is for relay %s", e.token, e.relay, e.own)
}

// Misconfigured is true: the token or the configuration is wrong.
func (e *otherRelay) Misconfigured() bool { return true }

// Hint says how to select the event. A parked one is for the relay itself.
func (e *otherRelay) Hint() string {
	if e.parked {
		return "Use the configuration of relay " + e.name + ", because only walpost run with this name releases or drops the event. If this relay had the name before, set name: " + e.name +
			" again (and source.slot, if it was another one), and start walpost run."
	}
	return "Use the configuration of relay " + e.name + ". If that relay no longer exists, for example because name was changed, pass --relay=" + e.name + "."
}

// Select returns the events of the relay that the filter selects, in their order. A token that no event
// of the relay has is an error. Select tells how many other events there are of other relays.
func (t *Topics) Select(f *Filter) (selected []*Event, err error) {
	unknown, others := map[string]bool{}, map[string]int{}
	for _, token := range f.Tokens {
		unknown[token] = true
	}
	for _, e := range t.All() {
		delete(unknown, e.Token)
		switch {
		case !f.selects(e):
		case f.ofRelay(e, &t.Config):
			selected = append(selected, e)
		case len(f.Tokens) > 0:
			return nil, &otherRelay{e.Token, e.Name, e.Letter.Relay(), t.Name, e.Where == InParking}
		default:
			others[e.Letter.Relay()]++
		}
	}
	for _, relay := range slices.Sorted(maps.Keys(others)) {
		t.Say(fmt.Sprintf("%d events of relay %s are left out (--relay selects them)", others[relay], relay))
	}
	for _, token := range f.Tokens {
		if unknown[token] {
			topics := []string{t.Dead.Topic, t.Parked.Topic}
			if t.Consumers {
				topics = topics[:1]
			}
			return nil, &unknownToken{token, topics}
		}
	}
	return selected, nil
}

// History reads all that the topic says of an event, and the payload of its newest letter: the value
// of the record as it is in the topic, and the headers of the event.
func (t *Topics) History(ctx context.Context, e *Event) (steps []Step, value []byte, headers []cdc.Header, err error) {
	if e.Where == InParking {
		return t.Parked.history(ctx, e.Entry)
	}
	return t.Dead.history(ctx, e.Entry)
}

// dead are the events that are in the dead letter topic.
func dead(events []*Event) (entries []*deadletter.Entry) {
	for _, e := range events {
		if e.Where == InDeadLetters {
			entries = append(entries, e.Entry)
		}
	}
	return entries
}
