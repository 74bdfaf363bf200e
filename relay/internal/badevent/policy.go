package badevent

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/checkpoint"
	"github.com/walpost/walpost/internal/age"
	"github.com/walpost/walpost/internal/deadletter"
	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/internal/parking"
)

// The policies say what becomes of a bad event.
const (
	PolicyHalt       = "halt"        // the relay halts at the event
	PolicyDeadLetter = "dead_letter" // the event goes to the dead letter topic, and the relay goes on
	PolicyParkKey    = "park_key"    // the event and all later ones of its key go to the topic of parked events
)

// Policies has the policy of each reason, and under "default" that of the other reasons. Without one
// the policy is to halt.
type Policies map[string]string

// DefaultPolicy is the key of the policy for all other reasons.
const DefaultPolicy = "default"

// UnmarshalText reads one word, which is the policy for every reason.
func (p *Policies) UnmarshalText(text []byte) error {
	*p = Policies{DefaultPolicy: string(text)}
	return nil
}

// of returns the policy of a reason.
func (p Policies) of(reason cdc.Reason) string {
	return cmp.Or(p[string(reason)], p[DefaultPolicy], PolicyHalt)
}

// Bury reports whether any bad event goes to the dead letter topic.
func (p Policies) Bury() bool { return p.uses(PolicyDeadLetter) }

// Park reports whether any bad event has its key parked.
func (p Policies) Park() bool { return p.uses(PolicyParkKey) }

func (p Policies) uses(policy string) bool {
	return slices.Contains(slices.Collect(maps.Values(p)), policy)
}

// Poison says what becomes of bad events. The zero value halts at each.
type Poison struct {
	Policies Policies
	Topic    string // of dead letters
	Version  string // of walpost, for the letters

	ParkingTopic string
	ParkLimit    parking.Limit
	Tables       []string // whose rows the relay delivers
}

// Others is what relays of other names have parked of the rows of a relay.
func (p *Poison) Others(name string, found *cdc.Identity) *parking.Others {
	return &parking.Others{Name: name, SystemID: found.SystemID, Database: found.Database, Tables: p.Tables}
}

// Buries reports whether a bad event goes to the dead letter topic. A letter that is refused
// itself does not.
func (p *Poison) Buries(reason cdc.Reason, topic string) bool {
	return p.policy(reason, topic) == PolicyDeadLetter
}

// Parks reports whether a bad event has its key parked. A letter that is refused itself has not.
func (p *Poison) Parks(reason cdc.Reason, topic string) bool {
	return p.policy(reason, topic) == PolicyParkKey
}

// policy is the policy of a bad event. topic is the one that refused it, if there is one.
func (p *Poison) policy(reason cdc.Reason, topic string) string {
	if reason == "" || topic != "" && (topic == p.Topic || topic == p.ParkingTopic) {
		return PolicyHalt
	}
	return p.Policies.of(reason)
}

// IsTopic reports whether a topic is the dead letter topic. What it refuses is a letter.
func (p *Poison) IsTopic(topic string) bool { return topic != "" && topic == p.Topic }

// A DeadLetter is an event that was sent to the dead letter topic.
type DeadLetter struct {
	Token   string     `json:"token"`
	EventID string     `json:"event_id"`
	Table   string     `json:"table"`
	Reason  cdc.Reason `json:"reason"`
	Topic   string     `json:"topic"` // the topic that the event was meant for, "" if it is not known
	Text    string     `json:"error"`
	At      age.Since  `json:"seconds_ago"`
}

// Newest is how many of the newest dead letters Status has.
const Newest = 10

// NewestFirst returns before with one more letter in front, without the oldest one if there are too
// many. It keeps before as it is.
func NewestFirst(before []DeadLetter, letter *deadletter.Letter, now time.Time) []DeadLetter {
	newest := DeadLetter{
		Token: letter.Token, EventID: strings.Clone(letter.ID), Table: letter.Table, Reason: letter.Reason, Topic: letter.Topic, Text: letter.Error, At: age.Since{Time: now},
	}
	return append([]DeadLetter{newest}, before[:min(len(before), Newest-1)]...)
}

// Fields are the event in a log line, as keys and values.
func (d *DeadLetter) Fields() []any {
	return []any{"token", d.Token, "id", d.EventID, "table", d.Table, "reason", string(d.Reason), "topic", cmp.Or(d.Topic, "unknown"), "err", d.Text}
}

// Halted returns the error of a start at a position behind which an event halted a relay, if the event
// would halt this one again. names are those of the events of the source. skips are the requests to pass
// over such events.
func (p *Poison) Halted(names *Names, halts, skips map[string]*checkpoint.Halt, start cdc.Position) error {
	for _, h := range checkpoint.ByPlace(halts) {
		letter, asked := p.IsTopic(h.Topic), skips[h.Token]
		if letter && asked != nil && !asked.Discard && asked.Time.Before(h.Time) {
			asked = nil // the halt is at the letter that the request made
		}
		reason := cmp.Or(h.Reason, cdc.Unroutable)
		if names.Readable(h) && h.Commit >= start && asked == nil && !p.Buries(reason, h.Topic) && (h.Keyless || !p.Parks(reason, h.Topic)) {
			bad := &Event{Table: tableOf(h), Commit: h.Commit, Token: h.Token, Letter: letter}
			return fault.Person(fmt.Errorf("%s halted the relay: %s", h.Event(), h.Error), bad.Hint(), bad.Commands()...)
		}
	}
	return nil
}

// tableOf is as much of the table of a halt as its advice needs. It is nil if the halt does not name the table.
func tableOf(h *checkpoint.Halt) *cdc.Relation {
	messages := cdc.Messages("")
	switch {
	case h.Table == "":
		return nil
	case strings.HasPrefix(h.Table, messages.Name):
		return messages
	}
	schema, name, _ := strings.Cut(h.Table, ".")
	return &cdc.Relation{Schema: schema, Name: name}
}
