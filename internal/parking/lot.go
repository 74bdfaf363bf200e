// Package parking is the state of the topic of parked events: which keys are parked, and with which
// events. A key is parked because one of its events cannot be delivered. Then all its later events
// wait behind that event, until an operator has the key released or drops the events.
//
// The relay that holds the slot is the only writer of letters and results, because Kafka fences every
// other one. Commands write requests, which the relay carries out. So a Lot is the same for the relay,
// which adds what the brokers have acknowledged, and for a command, which reads the topic.
//
// The package is pure: it knows neither clients nor clocks. The records are those of
// internal/deadletter. docs/architecture.md has the argument for the order.
package parking

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/deadletter"
)

// A Key is the key of events in one table, over all topics.
type Key struct{ Table, Key string }

func (k Key) String() string { return fmt.Sprintf("%q of %s", k.Key, k.Table) }

// A Place is where an event is in the stream. A row that was read from the table has the zero Place.
type Place struct {
	Timeline uint32
	Commit   cdc.Position // of the commit record of the event's transaction
	Row      int          // number of the event in the transaction, from 1
}

// Before reports whether p comes earlier in the stream of one system.
func (p Place) Before(o Place) bool {
	return cmp.Or(cmp.Compare(p.Timeline, o.Timeline), cmp.Compare(p.Commit, o.Commit), cmp.Compare(p.Row, o.Row)) < 0
}

// Unwritten is the Offset of an Entry whose letter is not in the topic yet.
const Unwritten = -1

// An Entry is a parked event, or one that was.
type Entry struct {
	Token string
	Key   Key
	Place
	SystemID   string
	ID         string // of the event
	Reason     cdc.Reason
	CommitTime time.Time
	Attempts   int              // of the newest letter
	First      int64            // offset of the first letter
	Offset     int64            // of the newest letter, which is the one to read; or Unwritten
	Size       int              // of its record in bytes
	State      deadletter.State // Open, Released or Dropped
	Why        string           // of Dropped

	// Drop is the offset of a request to drop the event, with its reason in Why; 0 for none.
	Drop int64

	Letter *deadletter.Letter // the newest one, without what it holds; nil unless the Lot keeps letters
}

// A Lot is what is parked of one relay. Records are added in the order of the topic, and adding one
// again changes nothing. A Lot belongs to one goroutine.
type Lot struct {
	// Foreign counts records that are not walpost's. Damaged counts those that are, and that cannot
	// be read; Problem is the first error.
	Foreign, Damaged int
	Problem          error

	// Needed is what the newest Trimmed mark says: the relay needs nothing before that offset.
	Needed int64

	name   string
	closed func(*Entry) // gets every entry that is closed; nil for the relay
	lines  map[Key]*line
	tokens map[string]*Entry  // of the open entries
	tables map[tableID]string // under which name a Key has a table, while something is parked
	queue  []Key              // to be released, and some that are not any more
	drops  []*Entry           // whose drop was asked for, and some that are closed
	gone   map[string]*Entry  // dropped events that a crash can still repeat
	holds  []hold             // what must stay in the topic, in the order of the offsets

	expected int // open entries without a letter in the topic
}

// tableID is a table whatever its name is.
type tableID struct {
	system string
	oid    uint32
}

// A line is the open events of one key, in order. A Lot has no empty line.
type line struct {
	entries []*Entry
	asked   int64 // offset of the newest request to release the key
	queued  bool
}

// releases reports whether an event is to be delivered: it is not bad itself, or an operator asked for
// it after its newest letter.
func (l *line) releases(e *Entry) bool { return e.Reason == deadletter.Behind || e.before(l.asked) }

// A hold keeps the letter of an event in the topic. Requests come behind the letters that they are about.
type hold struct {
	offset int64
	entry  *Entry
}

func (l *Lot) needed(h hold) bool {
	return h.offset == h.entry.Offset && (h.entry.State == deadletter.Open || l.gone[h.entry.Token] == h.entry)
}

// New returns the Lot of a relay, of a topic without records.
func New(name string) *Lot {
	return &Lot{name: name, lines: map[Key]*line{}, tokens: map[string]*Entry{}, tables: map[tableID]string{}, gone: map[string]*Entry{}}
}

// History returns a Lot for a command: it keeps the newest letter of each entry, and closed gets
// each event that was released or dropped.
func History(name string, closed func(*Entry)) *Lot {
	l := New(name)
	l.closed = closed
	return l
}

// An Item is a record of the topic without the payload of a letter.
type Item struct {
	Letter *deadletter.Letter
	Mark   *deadletter.Mark
	Offset int64
	size   int
	err    error
}

// IsRequest reports whether a command wrote the record.
func (it *Item) IsRequest() bool {
	return it.Mark != nil && (it.Mark.State == deadletter.Release || it.Mark.State == deadletter.Drop)
}

// Read makes an Item of a record. It keeps none of the record's bytes.
func Read(rec *kgo.Record) Item {
	l, m, err := deadletter.Decode(rec)
	it := Item{Letter: l, Mark: m, Offset: rec.Offset, size: len(rec.Key) + len(rec.Value), err: err}
	switch {
	case l != nil:
		l.Record, l.Event, l.Key = nil, nil, slices.Clone(l.Key)
	case m != nil:
		m.Key = slices.Clone(m.Key)
	}
	for i := range rec.Headers {
		it.size += len(rec.Headers[i].Key) + len(rec.Headers[i].Value)
	}
	return it
}

// Owns reports whether a relay wrote a record of the topic, or a command wrote it for the relay.
func Owns(name string, rec *kgo.Record) bool {
	l, m, err := deadletter.Decode(rec)
	return err == nil && (l != nil && l.Name == name || m != nil && m.Name == name)
}

// Written is the Item of a record that the brokers have at offset.
func Written(rec *cdc.Record, offset int64) Item {
	stored := kgo.Record{Key: rec.Key, Value: rec.Value, Offset: offset}
	for _, h := range rec.Headers {
		stored.Headers = append(stored.Headers, kgo.RecordHeader{Key: h.Key, Value: h.Value})
	}
	return Read(&stored)
}

// Add takes the next record of the topic, or one that was added before.
func (l *Lot) Add(it Item) {
	switch {
	case errors.Is(it.err, deadletter.ErrForeign):
		l.Foreign++
	case it.err != nil:
		l.Damaged++
		if l.Problem == nil {
			l.Problem = fmt.Errorf("offset %d: %w", it.Offset, it.err)
		}
	case it.Mark != nil && it.Mark.Name == l.name:
		l.mark(it.Mark, it.Offset)
	case it.Letter != nil && it.Letter.Name == l.name:
		l.letter(it)
	}
}

func (l *Lot) letter(it Item) {
	is := it.Letter
	e := l.tokens[is.Token]
	switch {
	case l.gone[is.Token] != nil:
		return
	case e == nil:
		e = l.insert(is, it.Offset)
	case is.Attempts < e.Attempts || is.Attempts == e.Attempts && e.Offset != Unwritten:
		return
	case is.Attempts > e.Attempts:
		e.Drop = 0 // the request was about an earlier letter
	}
	if e.Offset == Unwritten {
		l.expected--
		if e.First = is.First; is.Attempts == 1 {
			e.First = it.Offset
		}
	}
	e.Attempts, e.Offset, e.Size, e.Reason = is.Attempts, it.Offset, it.size, is.Reason
	l.hold(hold{it.Offset, e})
	l.enqueue(e.Key, l.lines[e.Key])
	if l.closed != nil {
		e.Letter = is
	}
}

// Expect notes that the relay sends a letter. Its event is parked from now on.
func (l *Lot) Expect(letter *deadletter.Letter) {
	if l.tokens[letter.Token] == nil {
		l.insert(letter, math.MaxInt64)
	}
}

// insert makes the entry of a letter, at its place in the line of its key.
func (l *Lot) insert(is *deadletter.Letter, offset int64) *Entry {
	first := offset
	if is.Attempts > 1 {
		first = is.First
	}
	table := l.Table(is.SystemID, is.TableID, is.Table)
	if is.TableID != 0 {
		l.tables[tableID{is.SystemID, is.TableID}] = table
	}
	e := &Entry{
		Token: is.Token, Key: Key{table, string(is.Key)}, Place: Place{is.Timeline, is.Commit, is.Row}, SystemID: is.SystemID, ID: is.ID,
		Reason: is.Reason, CommitTime: is.CommitTime, Attempts: max(is.Attempts, 1), First: first, Offset: Unwritten, State: deadletter.Open,
	}
	l.tokens[e.Token] = e
	l.expected++
	of := l.lines[e.Key]
	if of == nil {
		of = &line{}
		l.lines[e.Key] = of
	}
	at := len(of.entries)
	for at > 0 && e.precedes(of.entries[at-1]) {
		at--
	}
	of.entries = slices.Insert(of.entries, at, e)
	return e
}

// precedes reports whether e is before o although its newest letter comes later. The brokers can refuse
// a record when the letter of a later event is already written. Events whose places can't be compared,
// such as rows of the table, are in the order of their first letters.
func (e *Entry) precedes(o *Entry) bool {
	if e.Commit != 0 && o.Commit != 0 && e.SystemID == o.SystemID {
		return e.Before(o.Place)
	}
	return e.First < o.First
}

// Table is the name under which a Key has a table. A table that was renamed while something is parked
// keeps the name that it had, and a table that took the place of another one has its name.
func (l *Lot) Table(system string, oid uint32, name string) string {
	if known, ok := l.tables[tableID{system, oid}]; ok && oid != 0 {
		return known
	}
	return name
}

func (l *Lot) mark(m *deadletter.Mark, offset int64) {
	e := l.tokens[m.Token]
	switch m.State {
	case deadletter.Trimmed:
		l.Needed = max(l.Needed, m.Offset)
	case deadletter.Release:
		key := Key{m.Table, string(m.Key)}
		if e != nil {
			key = e.Key
		}
		if line := l.lines[key]; line != nil {
			line.asked = max(line.asked, offset)
			l.enqueue(key, line)
		}
	case deadletter.Drop:
		if e != nil && e.before(offset) && e.Drop == 0 {
			e.Drop, e.Why = offset, m.Why
			l.drops = append(l.drops, e)
		}
	case deadletter.Dropped:
		if e != nil && e.before(offset) {
			e.Why = m.Why
			l.remove(e.Key, func(o *Entry) bool { return o == e }, deadletter.Dropped)
			if l.closed == nil {
				l.gone[e.Token] = e
			}
		}
	case deadletter.Released:
		// Not all of them need be known: a reading can begin behind the letters of some.
		done := map[*Entry]bool{}
		for _, token := range m.Tokens {
			if e := l.tokens[token]; e != nil && e.before(offset) {
				done[e] = true
			}
		}
		for e := range done {
			if e.State == deadletter.Open {
				l.remove(e.Key, func(o *Entry) bool { return done[o] }, deadletter.Released)
			}
		}
	default: // of a dead letter topic
	}
}

// before reports whether the entry's newest letter is in the topic before offset. A mark that is read
// again says nothing about a letter that came after it.
func (e *Entry) before(offset int64) bool { return e.Offset != Unwritten && e.Offset < offset }

// remove closes entries of a key.
func (l *Lot) remove(key Key, which func(*Entry) bool, state deadletter.State) {
	line := l.lines[key]
	line.entries = slices.DeleteFunc(line.entries, func(e *Entry) bool {
		if !which(e) {
			return false
		}
		e.State = state
		if e.Offset == Unwritten {
			l.expected--
		}
		delete(l.tokens, e.Token)
		if l.closed != nil {
			l.closed(e)
		}
		return true
	})
	if len(line.entries) > 0 {
		l.enqueue(key, line)
		return
	}
	delete(l.lines, key)
	if len(l.lines) == 0 {
		clear(l.tables)
	}
}

// enqueue has Next look at a key that is to be released.
func (l *Lot) enqueue(key Key, line *line) {
	if !line.queued && line.releases(line.entries[0]) {
		line.queued = true
		l.queue = append(l.queue, key)
	}
}

// hold keeps a record in the topic.
func (l *Lot) hold(h hold) {
	if len(l.holds) >= 1000 && len(l.holds) > 4*(len(l.tokens)+len(l.gone)) {
		l.holds = slices.DeleteFunc(l.holds, func(h hold) bool { return !l.needed(h) })
	}
	at := len(l.holds)
	for at > 0 && l.holds[at-1].offset > h.offset {
		at--
	}
	l.holds = slices.Insert(l.holds, at, h)
}

// Anchor is the first offset of the topic that is still needed. next is the offset up to which the
// topic was read.
func (l *Lot) Anchor(next int64) int64 {
	for len(l.holds) > 0 && !l.needed(l.holds[0]) {
		l.holds = l.holds[1:]
	}
	if len(l.holds) > 0 {
		return min(next, l.holds[0].offset)
	}
	return next
}

// Forget forgets the dropped events that cannot come again, because passed is true of their place.
func (l *Lot) Forget(passed func(*Entry) bool) {
	maps.DeleteFunc(l.gone, func(_ string, e *Entry) bool { return passed(e) })
}

// A Verdict says what an event gets.
type Verdict uint8

// The verdicts.
const (
	Deliver Verdict = iota // its key is not parked, or the event is before all that is parked
	Known                  // it is parked already, or was dropped: nothing is left to do
	Park
)

// Empty reports whether every event is to be delivered.
func (l *Lot) Empty() bool { return len(l.lines)+len(l.gone) == 0 }

// Knows reports whether Judge can say something else than Deliver. It allocates nothing.
func (l *Lot) Knows(table string, key []byte) bool {
	return l.lines[Key{table, string(key)}] != nil || len(l.gone) > 0
}

// Judge says what an event of key gets. Every event of another system is behind what is parked, and
// so is every row that was read from the table.
func (l *Lot) Judge(key Key, token, system string, at Place) Verdict {
	line := l.lines[key]
	switch {
	case l.tokens[token] != nil || l.gone[token] != nil:
		return Known
	case line == nil:
		return Deliver
	case at.Commit == 0:
		return Park
	}
	if first := line.entries[0]; first.Commit == 0 || first.SystemID != system || !at.Before(first.Place) {
		return Park
	}
	return Deliver
}

// Counts is how much is parked.
type Counts struct{ Keys, Events int }

// Written is how many open events have a letter in the topic.
func (l *Lot) Written() (n int) { return len(l.tokens) - l.expected }

// Counts counts what is parked.
func (l *Lot) Counts() Counts { return Counts{len(l.lines), len(l.tokens)} }

// Limit bounds what may be parked.
type Limit struct {
	Keys   int `yaml:"keys"`
	Events int `yaml:"events"`
}

// Exceeds reports whether more than limit is parked.
func (l *Lot) Exceeds(limit Limit) bool {
	return len(l.tokens) > limit.Events || len(l.lines) > limit.Keys
}

// Entry returns what is known of an open event, nil for nothing.
func (l *Lot) Entry(token string) *Entry { return l.tokens[token] }

// IDs calls each with the id of every open event.
func (l *Lot) IDs(each func(id string)) {
	for _, e := range l.tokens {
		each(e.ID)
	}
}

// Keys are the keys that are parked, in order.
func (l *Lot) Keys() []Key {
	return slices.SortedFunc(maps.Keys(l.lines), func(a, b Key) int {
		return cmp.Or(cmp.Compare(a.Table, b.Table), cmp.Compare(a.Key, b.Key))
	})
}

// Entries are the open events of key, in the order of their delivery. The caller must not change them.
func (l *Lot) Entries(key Key) []*Entry {
	if line := l.lines[key]; line != nil {
		return line.entries
	}
	return nil
}

// Releases reports whether the next event of key is to be delivered.
func (l *Lot) Releases(key Key) bool {
	line := l.lines[key]
	return line != nil && line.releases(line.entries[0])
}
