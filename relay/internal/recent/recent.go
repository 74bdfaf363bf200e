// Package recent keeps the newest events and errors of the relay, in bounded memory, for its status
// and its log.
package recent

import (
	"slices"
	"time"

	"github.com/walpost/walpost/internal/age"
	"github.com/walpost/walpost/internal/fault"
)

const (
	Topics       = 50 // topics whose newest events are kept
	PerTopic     = 5  // of each
	newestErrors = 5
)

// A Sent is an event that was acknowledged, without its payload.
type Sent struct {
	EventID string    `json:"id"`
	At      age.Since `json:"seconds_ago"` // of the acknowledgement
}

// A Trouble is an error of a session, of the delivery, a checkpoint write or a check, and what to do
// about it.
type Trouble struct {
	Text     string         `json:"text"`
	Hint     string         `json:"hint"`     // "" for none
	Commands []fault.Advice `json:"commands"` // that Hint may contain
	At       age.Since      `json:"seconds_ago"`
	Times    int            `json:"times"` // how often it came while it was one of the newest errors
	// Over is when the fault ended. It is zero as long as the fault lasts, and for a fault that ends the run.
	Over age.Since `json:"over_seconds_ago"`
	of   *FaultLog // the fault that lasts as long as of counts; nil for a fault that ends the run
}

// ListEvery is how often the newest events are copied for Status.
const ListEvery = time.Second

// Events holds the newest events by topic.
type Events struct {
	topics  map[string]*sents
	listed  time.Time
	changed bool // since listed
}

type sents struct {
	ring [PerTopic]sent
	n    int
}

// A sent is a Sent that owns the bytes of its id, and reuses them for a later event. The id of a
// record shares memory with the payload.
type sent struct {
	id []byte
	at time.Time
}

// Add takes an event that was acknowledged now.
func (r *Events) Add(topic, id string, now time.Time) {
	s := r.topics[topic]
	if s == nil {
		if r.topics == nil {
			r.topics = map[string]*sents{}
		}
		if len(r.topics) >= Topics {
			r.forgetOldest()
		}
		s = &sents{}
		r.topics[topic] = s
	}
	slot := &s.ring[s.n%PerTopic]
	slot.id, slot.at = append(slot.id[:0], id...), now
	s.n++
	r.changed = true
}

func (r *Events) forgetOldest() {
	oldest, at := "", time.Time{}
	for topic, s := range r.topics {
		if newest := s.ring[(s.n-1)%PerTopic].at; oldest == "" || newest.Before(at) {
			oldest, at = topic, newest
		}
	}
	delete(r.topics, oldest)
}

// Due reports whether there is something new to list. ending lists it at once.
func (r *Events) Due(now time.Time, ending bool) bool {
	return r.changed && (ending || now.Sub(r.listed) >= ListEvery)
}

// List copies the events, newest first.
func (r *Events) List(now time.Time) map[string][]Sent {
	r.listed, r.changed = now, false
	out := make(map[string][]Sent, len(r.topics))
	for topic, s := range r.topics {
		for i := 1; i <= min(s.n, PerTopic); i++ {
			e := &s.ring[(s.n-i)%PerTopic]
			out[topic] = append(out[topic], Sent{string(e.id), age.Since{Time: e.at}})
		}
	}
	return out
}

// An Outage is a time in which delivery waits. It is one trouble, although its reason may become
// known late, and may change.
type Outage string // the newest reason; "" if delivery goes on

// Waits puts err in front of the errors before, in place of the outage's former reason.
func (o *Outage) Waits(before []Trouble, err error, of *FaultLog, now time.Time) []Trouble {
	if Outage(err.Error()) == *o || *o != "" && !causeKnown(err) {
		return before
	}
	if i := troubleOf(before, string(*o)); i >= 0 {
		before = slices.Clone(before) // Status has given it away
		if before[i].Times--; before[i].Times == 0 {
			before = slices.Delete(before, i, i+1)
		}
	}
	*o = Outage(err.Error())
	return Troubled(before, err, of, now)
}

// Troubled puts err, which is a case of the fault of, in front of the errors before. If err is one
// of them already, it is counted.
func Troubled(before []Trouble, err error, of *FaultLog, now time.Time) []Trouble {
	t := Trouble{Text: err.Error(), Hint: fault.Hint(err), Commands: fault.Commands(err), At: age.Since{Time: now}, Times: 1, of: of}
	if i := troubleOf(before, t.Text); i >= 0 {
		if t.Times = before[i].Times; now.Sub(before[i].At.Time) > 100*time.Millisecond { // not one fault from two places
			t.Times++
		}
		before = slices.Delete(slices.Clone(before), i, i+1)
	}
	return append([]Trouble{t}, before[:min(len(before), newestErrors-1)]...)
}

// Past marks the errors whose fault is over.
func Past(all []Trouble, now time.Time) []Trouble {
	ended := func(t Trouble) bool { return t.of != nil && t.of.Times == 0 && t.Over.IsZero() }
	if !slices.ContainsFunc(all, ended) { // the loop asks after every few events
		return all
	}
	all = slices.Clone(all) // Status has given it away
	for i := range all {
		if ended(all[i]) {
			all[i].Over.Time = now
		}
	}
	return all
}

func troubleOf(all []Trouble, text string) int {
	return slices.IndexFunc(all, func(t Trouble) bool { return t.Text == text })
}
