package deadletter

import (
	"cmp"
	"errors"
	"fmt"
	"hash/maphash"
	"slices"
	"time"
	"unique"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/walpost/walpost/cdc"
)

// A State is what became of a letter.
type State string

// The states.
const (
	Open    State = "open"
	Retried State = "retried" // delivered by a retry
	Dropped State = "dropped" // given up by a person

	Released State = "released" // of a parked event: delivered by its relay
)

// What a Mark in the topic of parked events can say beside Released and Dropped. The relay that holds
// the slot writes all of them but the requests, which the commands write and the relay carries out.
const (
	Release State = "release" // a request: deliver what is parked of the key
	Drop    State = "drop"    // a request: give up the event of the token
	Trimmed State = "trimmed" // the relay needs nothing before Mark.Offset, and may delete it
)

// The states of a Mark that speaks of a command, and of no letter: its token names the command.
const (
	Began State = "began" // the command is about to change the topic: every other command must stop
	Ended State = "ended"
)

// marks are the states that a Mark can have.
var marks = []State{Retried, Dropped, Released, Release, Drop, Trimmed, Began, Ended}

// An Entry is what a topic says of one event. It has the newest letter of the event, without what
// the letter holds.
type Entry struct {
	Letter // Record and Event are nil
	State  State
	Why    string // of Dropped
	Size   int    // of the newest letter in bytes, without its headers

	// First is the first letter since the event went bad. Newest is the one to read. RecordKey is the
	// key of its record, for a mark.
	First, Newest Place
	RecordKey     []byte

	unmarked []Place // in the topic of consumers: of each partition, the newest letter that no mark is for
}

// Marks are the records of a mark of the event. They are for the letters that the Fold has read, and for no later one: a consumer can
// write that one while a command works.
//
// The letters of consumers can be in several partitions: a message may have no key, and the topic can get more partitions. Each of
// these partitions gets a mark, because nothing orders the records of two.
func (e *Entry) Marks(topic string, m Mark) (records []*cdc.Record) {
	if len(e.unmarked) == 0 {
		return []*cdc.Record{m.Encode(topic, e.RecordKey, e.Newest.Partition)}
	}
	for _, at := range e.unmarked {
		m.Offset = at.Offset + 1
		records = append(records, m.Encode(topic, e.RecordKey, at.Partition))
	}
	return records
}

// closedBy takes a mark from a partition. It reports whether it closes the event.
func (e *Entry) closedBy(m *Mark, partition int32) bool {
	e.unmarked = slices.DeleteFunc(e.unmarked, func(at Place) bool {
		return at.Partition == partition && (m.Offset == 0 || at.Offset < m.Offset)
	})
	return len(e.unmarked) == 0
}

// A Place is where a record is in the topic.
type Place struct {
	Partition int32
	Offset    int64
}

// A Fold is the state of a dead letter topic. The records of a partition are added in order;
// those of different partitions in any order. The zero Fold has seen nothing.
type Fold struct {
	// Foreign counts records that are not walpost's. Damaged counts those that are, and that cannot
	// be read; Problem is the first error.
	Foreign, Damaged int
	Problem          error

	// Working are the commands that said that they began to change the topic, and not that they ended.
	// Newest is the last one that began, whether it ended or not.
	Working []string
	Newest  string

	byToken  map[string]*Entry
	closed   *closedTokens // nil for a Fold that keeps closed events
	consumed bool          // the letters are those of consumers
}

// NewOpenFold returns a Fold that keeps open events only, for a reader that runs for months.
func NewOpenFold() Fold { return Fold{closed: &closedTokens{seed: maphash.MakeSeed()}} }

// NewConsumedFold returns a Fold of the dead letter topic of consumers.
func NewConsumedFold() Fold { return Fold{consumed: true} }

// Decode reads a record of the topic.
func (f *Fold) Decode(rec *kgo.Record) (*Letter, *Mark, error) {
	if f.consumed {
		return decodeConsumed(rec)
	}
	return Decode(rec)
}

// Add takes the next record of a partition. It keeps none of the record's bytes but the key.
//
// A letter behind a letter of the same token is the same event once more: the relay wrote it again
// after a crash, or a retry failed. See letter for one behind a mark.
func (f *Fold) Add(rec *kgo.Record) {
	l, m, err := f.Decode(rec)
	switch {
	case errors.Is(err, ErrForeign):
		f.Foreign++
	case err != nil:
		f.Damaged++
		f.Problem = cmp.Or(f.Problem, fmt.Errorf("partition %d, offset %d: %w", rec.Partition, rec.Offset, err))
	case m != nil && m.State == Began:
		f.Working, f.Newest = append(f.Working, m.Token), m.Token
	case m != nil && m.State == Ended:
		f.Working = slices.DeleteFunc(f.Working, func(token string) bool { return token == m.Token })
	case m != nil:
		if e := f.byToken[m.Token]; e != nil && e.State == Open && e.closedBy(m, rec.Partition) {
			e.State, e.Why = m.State, m.Why
			if f.closed != nil {
				f.closed.add(m.Token)
				delete(f.byToken, m.Token)
			}
		}
	default:
		f.letter(l, rec)
	}
}

// letter takes a letter. Behind a mark, the letter of an event of the stream is a repetition and opens
// nothing: after a crash, the relay reads again what no checkpoint has passed, and a retry that a newer
// one has overtaken can still write a refusal. The same is true of a refusal of a row that was read from
// the table, but that row can be read again and go bad again, which is its first attempt.
//
// The letter of a consumer opens the event again, because a group whose offsets were reset has failed once more. After a crash of
// the consumer it's a repetition, and then a retry sends the message a second time.
func (f *Fold) letter(l *Letter, rec *kgo.Record) {
	e, at := f.byToken[l.Token], Place{rec.Partition, rec.Offset}
	if e == nil || e.State != Open {
		if (e != nil || f.closed.has(l.Token)) && (l.Commit != 0 || l.Attempts > 1) && !f.consumed {
			return
		}
		e = &Entry{State: Open, First: at}
		if f.byToken == nil {
			f.byToken = map[string]*Entry{}
		}
		f.byToken[l.Token] = e
	}
	if f.consumed {
		e.unmarked = append(slices.DeleteFunc(e.unmarked, func(p Place) bool { return p.Partition == at.Partition }), at)
	}
	if l.Attempts >= e.Attempts || f.consumed {
		e.Letter, e.Newest, e.RecordKey = *l, at, slices.Clone(rec.Key)
		e.Record, e.Event, e.Stack, e.Key = nil, nil, "", slices.Clone(l.Key)
		e.Size = len(rec.Key) + len(rec.Value)
		for _, text := range []*string{&e.Error, &e.Table, &e.Topic, &e.Version, &e.Name, &e.Database, &e.Group} {
			*text = unique.Make(*text).Value() // thousands of letters have the same
		}
	}
}

// Entry returns what the topic says of an event; nil if it has no letter of the event.
func (f *Fold) Entry(token string) *Entry { return f.byToken[token] }

// Entries returns all events, partition by partition. In a partition they are in the order of their
// commits, so those of one key are in their order. The offsets alone do not tell it: the brokers can
// refuse a record after the letter of a later row is written.
//
// The position of the commit decides, unless the times are far apart: then the positions can be those
// of two servers.
//
// Those of consumers are in the order of their messages.
func (f *Fold) Entries() []*Entry {
	all := make([]*Entry, 0, len(f.byToken))
	for _, e := range f.byToken {
		all = append(all, e)
	}
	if f.consumed {
		slices.SortFunc(all, func(a, b *Entry) int {
			return cmp.Or(cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.Partition, b.Partition), cmp.Compare(a.Letter.Offset, b.Letter.Offset),
				cmp.Compare(a.First.Partition, b.First.Partition), cmp.Compare(a.First.Offset, b.First.Offset))
		})
		return all
	}
	slices.SortFunc(all, func(a, b *Entry) int {
		return cmp.Or(cmp.Compare(a.First.Partition, b.First.Partition), a.CommitTime.Compare(b.CommitTime),
			cmp.Compare(a.Commit, b.Commit), cmp.Compare(a.Row, b.Row), cmp.Compare(a.First.Offset, b.First.Offset))
	})
	for i := range all {
		for j := i; j > 0 && all[j].precedes(all[j-1]); j-- {
			all[j], all[j-1] = all[j-1], all[j]
		}
	}
	return all
}

// disorder is more than the time by which a commit can seem older than one before it. Postgres takes
// the time of a commit a moment before it writes the commit.
const disorder = time.Minute

// precedes reports whether e comes before o in the stream although its time is not earlier.
func (e *Entry) precedes(o *Entry) bool {
	return e.Commit != 0 && o.Commit != 0 && e.Commit.IsNumber() == o.Commit.IsNumber() && e.First.Partition == o.First.Partition &&
		cmp.Or(cmp.Compare(e.Commit, o.Commit), cmp.Compare(e.Row, o.Row)) < 0 && e.CommitTime.Sub(o.CommitTime) < disorder
}

// closedKept bounds the tokens that closedTokens holds, in about 2 MB of memory. A crash repeats events
// that were in flight, and delivery.window.events is 50,000 by default. An event is forgotten too early
// only if 65,536 others are closed after it while no checkpoint passes it. Then it counts as open until
// the next start: cleanup keeps its row for longer, and nothing is lost.
const closedKept = 131_072

// closedTokens has the newest tokens of closed events, as hashes. That an open event has the hash of
// one of them is improbable: 1 in 10¹⁴. The nil closedTokens has none.
type closedTokens struct {
	seed         maphash.Seed
	newer, older map[uint64]struct{} // each with at most half of closedKept
}

func (c *closedTokens) add(token string) {
	if len(c.newer) >= closedKept/2 {
		c.newer, c.older = nil, c.newer
	}
	if c.newer == nil {
		c.newer = map[uint64]struct{}{}
	}
	c.newer[maphash.String(c.seed, token)] = struct{}{}
}

func (c *closedTokens) has(token string) bool {
	if c == nil {
		return false
	}
	hash := maphash.String(c.seed, token)
	_, newer := c.newer[hash]
	_, older := c.older[hash]
	return newer || older
}
