// Package parking is the state of the topic of parked events: which keys are parked, and with which
// events. A key is parked because one of its events cannot be delivered. Then all its later events
// wait behind that event, until an operator has the key released or drops the events.
//
// The relay that holds the slot is the only writer of letters and results, because Kafka fences every
// other one. Commands write requests, which the relay carries out. So a Backlog is the same for the relay,
// which adds what the brokers have acknowledged, and for a command, which reads the topic.
//
// The package is pure: it knows neither clients nor clocks. The records are those of
// internal/deadletter. order.go has the argument for the order.
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

// A Position is where an event is in the stream. A row that was read from the table has the zero Position.
type Position struct {
	Timeline uint32
	Commit   cdc.Position // of the commit record of the event's transaction
	Row      int          // number of the event in the transaction, from 1
}

// Before reports whether p comes earlier in the stream of one system.
func (p Position) Before(o Position) bool {
	return cmp.Or(cmp.Compare(p.Timeline, o.Timeline), cmp.Compare(p.Commit, o.Commit), cmp.Compare(p.Row, o.Row)) < 0
}

// Unwritten is the Offset of an Entry whose letter is not in the topic yet.
const Unwritten = -1

// An Entry is a parked event, or one that was.
type Entry struct {
	Token string
	Key   Key
	Position
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

	Letter *deadletter.Letter // the newest one, without what it holds; nil unless the Backlog keeps letters
}

// A Backlog is what is parked of one relay. Records are added in the order of the topic, and adding one
// again changes nothing. A Backlog belongs to one goroutine.
type Backlog struct {
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

// A line is the open events of one key, in order. A Backlog has no empty line.
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

func (b *Backlog) needed(h hold) bool {
	return h.offset == h.entry.Offset && (h.entry.State == deadletter.Open || b.gone[h.entry.Token] == h.entry)
}

// New returns the Backlog of a relay, of a topic without records.
func New(name string) *Backlog {
	return &Backlog{name: name, lines: map[Key]*line{}, tokens: map[string]*Entry{}, tables: map[tableID]string{}, gone: map[string]*Entry{}}
}

// History returns a Backlog for a command: it keeps the newest letter of each entry, and closed gets
// each event that was released or dropped.
func History(name string, closed func(*Entry)) *Backlog {
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
func (b *Backlog) Add(it Item) {
	switch {
	case errors.Is(it.err, deadletter.ErrForeign):
		b.Foreign++
	case it.err != nil:
		b.Damaged++
		if b.Problem == nil {
			b.Problem = fmt.Errorf("offset %d: %w", it.Offset, it.err)
		}
	case it.Mark != nil && it.Mark.Name == b.name:
		b.mark(it.Mark, it.Offset)
	case it.Letter != nil && it.Letter.Name == b.name:
		b.letter(it)
	}
}

func (b *Backlog) letter(it Item) {
	letter := it.Letter
	e := b.tokens[letter.Token]
	switch {
	case b.gone[letter.Token] != nil:
		return
	case e == nil:
		e = b.insert(letter, it.Offset)
	case letter.Attempts < e.Attempts || letter.Attempts == e.Attempts && e.Offset != Unwritten:
		return
	case letter.Attempts > e.Attempts:
		e.Drop = 0 // the request was about an earlier letter
	}
	if e.Offset == Unwritten {
		b.expected--
		if e.First = letter.First; letter.Attempts == 1 {
			e.First = it.Offset
		}
	}
	e.Attempts, e.Offset, e.Size, e.Reason = letter.Attempts, it.Offset, it.size, letter.Reason
	b.hold(hold{it.Offset, e})
	b.enqueue(e.Key, b.lines[e.Key])
	if b.closed != nil {
		e.Letter = letter
	}
}

// Expect notes that the relay sends a letter. Its event is parked from now on.
func (b *Backlog) Expect(letter *deadletter.Letter) {
	if b.tokens[letter.Token] == nil {
		b.insert(letter, math.MaxInt64)
	}
}

// insert makes the entry of a letter, at its place in the line of its key.
func (b *Backlog) insert(letter *deadletter.Letter, offset int64) *Entry {
	first := offset
	if letter.Attempts > 1 {
		first = letter.First
	}
	table := b.Table(letter.SystemID, letter.TableID, letter.Table)
	if letter.TableID != 0 {
		b.tables[tableID{letter.SystemID, letter.TableID}] = table
	}
	e := &Entry{
		Token: letter.Token, Key: Key{table, string(letter.Key)}, Position: Position{letter.Timeline, letter.Commit, letter.Row}, SystemID: letter.SystemID, ID: letter.ID,
		Reason: letter.Reason, CommitTime: letter.CommitTime, Attempts: max(letter.Attempts, 1), First: first, Offset: Unwritten, State: deadletter.Open,
	}
	b.tokens[e.Token] = e
	b.expected++
	keyLine := b.lines[e.Key]
	if keyLine == nil {
		keyLine = &line{}
		b.lines[e.Key] = keyLine
	}
	at := len(keyLine.entries)
	for at > 0 && e.precedes(keyLine.entries[at-1]) {
		at--
	}
	keyLine.entries = slices.Insert(keyLine.entries, at, e)
	return e
}

// precedes reports whether e is before o although its newest letter comes later. The brokers can refuse
// a record when the letter of a later event is already written. Events whose places can't be compared,
// such as rows of the table, are in the order of their first letters.
func (e *Entry) precedes(o *Entry) bool {
	if e.Commit != 0 && o.Commit != 0 && e.SystemID == o.SystemID {
		return e.Before(o.Position)
	}
	return e.First < o.First
}

// Table is the name under which a Key has a table. A table that was renamed while something is parked
// keeps the name that it had, and a table that took the place of another one has its name.
func (b *Backlog) Table(system string, oid uint32, name string) string {
	if known, ok := b.tables[tableID{system, oid}]; ok && oid != 0 {
		return known
	}
	return name
}

func (b *Backlog) mark(m *deadletter.Mark, offset int64) {
	e := b.tokens[m.Token]
	switch m.State {
	case deadletter.Trimmed:
		b.Needed = max(b.Needed, m.Offset)
	case deadletter.Release:
		key := Key{m.Table, string(m.Key)}
		if e != nil {
			key = e.Key
		}
		if line := b.lines[key]; line != nil {
			line.asked = max(line.asked, offset)
			b.enqueue(key, line)
		}
	case deadletter.Drop:
		if e != nil && e.before(offset) && e.Drop == 0 {
			e.Drop, e.Why = offset, m.Why
			b.drops = append(b.drops, e)
		}
	case deadletter.Dropped:
		if e != nil && e.before(offset) {
			e.Why = m.Why
			b.remove(e.Key, func(o *Entry) bool { return o == e }, deadletter.Dropped)
			if b.closed == nil {
				b.gone[e.Token] = e
			}
		}
	case deadletter.Released:
		// Not all of them need be known: a reading can begin behind the letters of some.
		done := map[*Entry]bool{}
		for _, token := range m.Tokens {
			if e := b.tokens[token]; e != nil && e.before(offset) {
				done[e] = true
			}
		}
		for e := range done {
			if e.State == deadletter.Open {
				b.remove(e.Key, func(o *Entry) bool { return done[o] }, deadletter.Released)
			}
		}
	default: // of a dead letter topic
	}
}

// before reports whether the entry's newest letter is in the topic before offset. A mark that is read
// again says nothing about a letter that came after it.
func (e *Entry) before(offset int64) bool { return e.Offset != Unwritten && e.Offset < offset }

// remove closes entries of a key.
func (b *Backlog) remove(key Key, which func(*Entry) bool, state deadletter.State) {
	line := b.lines[key]
	line.entries = slices.DeleteFunc(line.entries, func(e *Entry) bool {
		if !which(e) {
			return false
		}
		e.State = state
		if e.Offset == Unwritten {
			b.expected--
		}
		delete(b.tokens, e.Token)
		if b.closed != nil {
			b.closed(e)
		}
		return true
	})
	if len(line.entries) > 0 {
		b.enqueue(key, line)
		return
	}
	delete(b.lines, key)
	if len(b.lines) == 0 {
		clear(b.tables)
	}
}

// enqueue has Next look at a key that is to be released.
func (b *Backlog) enqueue(key Key, line *line) {
	if !line.queued && line.releases(line.entries[0]) {
		line.queued = true
		b.queue = append(b.queue, key)
	}
}

// hold keeps a record in the topic.
func (b *Backlog) hold(h hold) {
	if len(b.holds) >= 1000 && len(b.holds) > 4*(len(b.tokens)+len(b.gone)) {
		b.holds = slices.DeleteFunc(b.holds, func(h hold) bool { return !b.needed(h) })
	}
	at := len(b.holds)
	for at > 0 && b.holds[at-1].offset > h.offset {
		at--
	}
	b.holds = slices.Insert(b.holds, at, h)
}

// Anchor is the first offset of the topic that is still needed. next is the offset up to which the
// topic was read.
func (b *Backlog) Anchor(next int64) int64 {
	for len(b.holds) > 0 && !b.needed(b.holds[0]) {
		b.holds = b.holds[1:]
	}
	if len(b.holds) > 0 {
		return min(next, b.holds[0].offset)
	}
	return next
}

// Forget forgets the dropped events that cannot come again, because passed is true of their place.
func (b *Backlog) Forget(passed func(*Entry) bool) {
	maps.DeleteFunc(b.gone, func(_ string, e *Entry) bool { return passed(e) })
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
func (b *Backlog) Empty() bool { return len(b.lines)+len(b.gone) == 0 }

// Knows reports whether Judge can say something else than Deliver. It allocates nothing.
func (b *Backlog) Knows(table string, key []byte) bool {
	return b.lines[Key{table, string(key)}] != nil || len(b.gone) > 0
}

// Judge says what an event of key gets. Every event of another system is behind what is parked, and
// so is every row that was read from the table.
func (b *Backlog) Judge(key Key, token, system string, at Position) Verdict {
	line := b.lines[key]
	switch {
	case b.tokens[token] != nil || b.gone[token] != nil:
		return Known
	case line == nil:
		return Deliver
	case at.Commit == 0:
		return Park
	}
	if first := line.entries[0]; first.Commit == 0 || first.SystemID != system || !at.Before(first.Position) {
		return Park
	}
	return Deliver
}

// Counts is how much is parked.
type Counts struct{ Keys, Events int }

// Written is how many open events have a letter in the topic.
func (b *Backlog) Written() (n int) { return len(b.tokens) - b.expected }

// Counts counts what is parked.
func (b *Backlog) Counts() Counts { return Counts{len(b.lines), len(b.tokens)} }

// Limit bounds what may be parked.
type Limit struct {
	// Maximum parked keys.
	Keys int `yaml:"keys" min:"1" max:"100000" example:"5000"`
	// Maximum parked events.
	Events int `yaml:"events" min:"1" max:"10000000" example:"500000"`
}

// Exceeds reports whether more than limit is parked.
func (b *Backlog) Exceeds(limit Limit) bool {
	return len(b.tokens) > limit.Events || len(b.lines) > limit.Keys
}

// Entry returns what is known of an open event, nil for nothing.
func (b *Backlog) Entry(token string) *Entry { return b.tokens[token] }

// IDs calls each with the id of every open event.
func (b *Backlog) IDs(each func(id string)) {
	for _, e := range b.tokens {
		each(e.ID)
	}
}

// Keys are the keys that are parked, in order.
func (b *Backlog) Keys() []Key {
	return slices.SortedFunc(maps.Keys(b.lines), func(a, b Key) int {
		return cmp.Or(cmp.Compare(a.Table, b.Table), cmp.Compare(a.Key, b.Key))
	})
}

// Entries are the open events of key, in the order of their delivery. The caller must not change them.
func (b *Backlog) Entries(key Key) []*Entry {
	if line := b.lines[key]; line != nil {
		return line.entries
	}
	return nil
}

// Releases reports whether the next event of key is to be delivered.
func (b *Backlog) Releases(key Key) bool {
	line := b.lines[key]
	return line != nil && line.releases(line.entries[0])
}
