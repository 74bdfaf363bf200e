// Package parking says what the topic of parked events says: which keys are parked, and with which
// events. A key is parked because one of its events cannot be delivered. Then all its later events
// wait behind that event, until a person has the key released or drops the events.
//
// The package is pure: it knows neither clients nor clocks. The records are those of
// internal/deadletter. docs/architecture.md has the argument for the order.
package parking

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
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

// An Entry is a parked event, or one that was.
type Entry struct {
	Token string
	Key   Key
	Place
	SystemID   string
	Reason     cdc.Reason
	CommitTime time.Time
	Attempts   int              // of the newest letter
	Offset     int64            // of the newest letter, which is the one to read
	Size       int              // of its record in bytes
	State      deadletter.State // Open, Released or Dropped
	Why        string           // of Dropped

	Letter *deadletter.Letter // the newest one, without what it holds; nil unless the Lot keeps letters
}

// A Lot is what the topic says of the events of one relay. Records are added in the order of the
// topic. A Lot belongs to one goroutine.
type Lot struct {
	// Foreign counts records that are not walpost's. Damaged counts those that are, and that cannot
	// be read; Problem is the first error.
	Foreign, Damaged int
	Problem          error

	name   string
	keep   bool
	opened deadletter.Writer // the newest holder; only its letters and marks count
	keys   map[Key]*line
	tokens map[string]*Entry // of all entries
	open   int               // entries
	closed int               // entries that are still remembered
	sent   int               // over all keys
}

// A line is the events of one key.
type line struct {
	entries []*Entry // in order; the closed ones too, until Forget
	open    int
	asked   bool // a person wants the key released
	// sent are the letters that the holder has sent, and not read back yet. No event that waits for
	// its letter is before low.
	sent map[sent]struct{}
	low  Place
}

type sent struct {
	token  string
	writer deadletter.Writer
}

// New returns the Lot of a relay, of a topic without records. If letters is set, it keeps the
// newest letter of each entry.
func New(name string, letters bool) *Lot {
	return &Lot{name: name, keep: letters, keys: map[Key]*line{}, tokens: map[string]*Entry{}}
}

// An Item is a record of the topic without the payload of a letter.
type Item struct {
	Letter *deadletter.Letter
	Mark   *deadletter.Mark
	key    Key
	offset int64
	size   int
	err    error
}

// Read makes an Item of a record. It keeps none of the record's bytes.
func Read(rec *kgo.Record) Item {
	l, m, err := deadletter.Decode(rec)
	it := Item{Letter: l, Mark: m, offset: rec.Offset, size: len(rec.Key) + len(rec.Value), err: err}
	switch {
	case l != nil:
		it.key = Key{l.Table, string(l.Key)}
		l.Record, l.Event, l.Key = nil, nil, []byte(it.key.Key)
	case m != nil:
		it.key = Key{m.Table, string(m.Key)}
		m.Key = nil
	}
	for i := range rec.Headers {
		it.size += len(rec.Headers[i].Key) + len(rec.Headers[i].Value)
	}
	return it
}

// Add takes the next record of the topic.
func (l *Lot) Add(it Item) {
	switch {
	case errors.Is(it.err, deadletter.ErrForeign):
		l.Foreign++
	case it.err != nil:
		l.Damaged++
		if l.Problem == nil {
			l.Problem = fmt.Errorf("offset %d: %w", it.offset, it.err)
		}
	case it.Mark != nil && it.Mark.Name == l.name:
		l.mark(it)
	case it.Letter != nil && it.Letter.Name == l.name:
		l.letter(it)
	}
}

// letter takes a letter. A letter of a former holder does not count: the holder wrote it when it
// had lost the slot, and the present holder reads the event again. A letter of an event that was
// released or dropped does not count either.
func (l *Lot) letter(it Item) {
	line, is := l.keys[it.key], it.Letter
	if line != nil {
		if id := (sent{is.Token, is.Writer}); has(line.sent, id) {
			delete(line.sent, id)
			l.sent--
		}
		defer l.tidy(it.key, line)
	}
	if is.Writer != l.opened {
		return
	}
	e := l.tokens[is.Token]
	switch {
	case e != nil && e.State != deadletter.Open:
		return
	case e != nil: // written again: by a crash, or because a release has failed
		if is.Attempts < e.Attempts {
			return
		}
		if is.Attempts > e.Attempts {
			line.asked = false
		}
	default:
		if line == nil {
			line = l.line(it.key)
		}
		e = &Entry{Token: is.Token, Key: it.key, Place: Place{is.Timeline, is.Commit, is.Row}, SystemID: is.SystemID, CommitTime: is.CommitTime, State: deadletter.Open}
		l.tokens[e.Token] = e
		at := len(line.entries)
		for at > 0 && e.precedes(line.entries[at-1]) {
			at--
		}
		line.entries = slices.Insert(line.entries, at, e)
		if line.open == 0 {
			// An event can be the first one and not bad only if the key was about to be released.
			line.asked = is.Reason == deadletter.Behind
		}
		line.open++
		l.open++
	}
	e.Attempts, e.Offset, e.Size, e.Reason = is.Attempts, it.offset, it.size, is.Reason
	if l.keep {
		e.Letter = is
	}
}

// precedes reports whether e is before o in the stream although its letter comes later. The brokers
// can refuse a record when the letter of a later event is already written.
func (e *Entry) precedes(o *Entry) bool {
	return e.Commit != 0 && o.Commit != 0 && e.SystemID == o.SystemID && e.Before(o.Place)
}

func (l *Lot) mark(it Item) {
	m := it.Mark
	line := l.keys[it.key]
	switch m.State {
	case deadletter.Opened:
		if m.Writer.Epoch > l.opened.Epoch {
			l.opened = m.Writer
		}
		return
	case deadletter.Asked:
		if line != nil && line.open > 0 {
			line.asked = true
		}
		return
	case deadletter.Dropped:
		if e := l.tokens[m.Token]; e != nil && line != nil {
			l.close(line, e, m)
		}
	case deadletter.Released:
		e := l.tokens[m.Token]
		if e == nil || line == nil || m.Writer != l.opened {
			return
		}
		for _, before := range line.entries {
			if l.close(line, before, m); before == e {
				break
			}
		}
	default: // of a dead letter topic
	}
	if line != nil {
		l.tidy(it.key, line)
	}
}

func (l *Lot) close(line *line, e *Entry, m *deadletter.Mark) {
	if e.State != deadletter.Open {
		return
	}
	e.State, e.Why = m.State, m.Why
	line.open--
	l.open--
	l.closed++
	line.asked = line.asked && line.open > 0
}

func (l *Lot) line(key Key) *line {
	is := l.keys[key]
	if is == nil {
		is = &line{}
		l.keys[key] = is
	}
	return is
}

// tidy forgets a key of which nothing is known any more.
func (l *Lot) tidy(key Key, line *line) {
	if len(line.entries)+len(line.sent) == 0 {
		delete(l.keys, key)
	}
}

func has[K comparable](m map[K]struct{}, k K) bool {
	_, ok := m[k]
	return ok
}

// Opened is the newest holder that said that it begins to write. Letters of other holders do not
// count.
func (l *Lot) Opened() deadletter.Writer { return l.opened }

// Expect notes that the holder sends the letter of an event. The key is parked from now on, even
// before the letter is read back.
func (l *Lot) Expect(key Key, token string, w deadletter.Writer, at Place) {
	line, id := l.line(key), sent{token, w}
	if has(line.sent, id) {
		return
	}
	if len(line.sent) == 0 {
		line.sent, line.low = map[sent]struct{}{}, at
	}
	if at.Before(line.low) {
		line.low = at
	}
	line.sent[id] = struct{}{}
	l.sent++
}

// A Verdict says what an event gets.
type Verdict uint8

// The verdicts.
const (
	Deliver Verdict = iota // its key is not parked, or the event is before all that is parked
	Known                  // it is parked already, or was released or dropped: nothing is left to do
	Park
)

// Knows reports whether Judge can say something else than Deliver. It allocates nothing.
func (l *Lot) Knows(table string, key []byte) bool { return l.keys[Key{table, string(key)}] != nil }

// Empty reports whether the Lot knows no key.
func (l *Lot) Empty() bool { return len(l.keys) == 0 }

// Judge says what an event of key gets. Every event of another system is behind what is parked, and
// so is every row that was read from the table.
func (l *Lot) Judge(key Key, token, system string, at Place) Verdict {
	line := l.keys[key]
	switch {
	case line == nil:
		return Deliver
	case l.tokens[token] != nil:
		return Known
	case line.open+len(line.sent) == 0:
		return Deliver
	case at.Commit == 0:
		return Park
	}
	first := line.first()
	if first != nil && (first.Commit == 0 || first.SystemID != system || !at.Before(first.Place)) {
		return Park
	}
	if len(line.sent) > 0 && !at.Before(line.low) {
		return Park
	}
	return Deliver
}

// first is the first open entry, nil if there is none.
func (l *line) first() *Entry {
	if i := slices.IndexFunc(l.entries, func(e *Entry) bool { return e.State == deadletter.Open }); i >= 0 {
		return l.entries[i]
	}
	return nil
}

// Counts is how much is parked.
type Counts struct {
	Keys, Events int
	Oldest       time.Time // commit time of the oldest event; zero for none
}

// Counts counts what is parked, with the letters that are not read back yet.
func (l *Lot) Counts() (c Counts) {
	c.Events = l.open + l.sent
	for _, line := range l.keys {
		if line.open+len(line.sent) > 0 {
			c.Keys++
		}
		if e := line.first(); e != nil && (c.Oldest.IsZero() || e.CommitTime.Before(c.Oldest)) {
			c.Oldest = e.CommitTime
		}
	}
	return c
}

// Limit bounds what may be parked.
type Limit struct {
	Keys   int `yaml:"keys"`
	Events int `yaml:"events"`
}

// Over reports whether one more event of key would be too many. For the zero Key, which is never
// parked, it reports whether the first event of any key would be.
func (l *Lot) Over(key Key, limit Limit) bool {
	return l.open+l.sent >= limit.Events || l.Left(key) == 0 && len(l.keys) >= limit.Keys && l.Counts().Keys >= limit.Keys
}

// Forget forgets the released and dropped events that ok names, because they cannot come again. It
// keeps those that are behind an open entry of their key, because a mark can refer to them.
func (l *Lot) Forget(ok func(*Entry) bool) {
	if l.closed == 0 {
		return
	}
	for key, line := range l.keys {
		n := 0
		for n < len(line.entries) && line.entries[n].State != deadletter.Open && ok(line.entries[n]) {
			delete(l.tokens, line.entries[n].Token)
			n++
		}
		line.entries = slices.Delete(line.entries, 0, n)
		l.closed -= n
		l.tidy(key, line)
	}
}

// Entry returns what is known of an event, nil for nothing.
func (l *Lot) Entry(token string) *Entry { return l.tokens[token] }

// Keys are the keys that are parked, or that were and are not forgotten, in order.
func (l *Lot) Keys() []Key {
	return slices.SortedFunc(maps.Keys(l.keys), func(a, b Key) int {
		return cmp.Or(cmp.Compare(a.Table, b.Table), cmp.Compare(a.Key, b.Key))
	})
}

// Entries are the events of key, in the order of their delivery, with those that were released or
// dropped. The caller must not change them.
func (l *Lot) Entries(key Key) []*Entry {
	if line := l.keys[key]; line != nil {
		return line.entries
	}
	return nil
}

// Left is how many events of a key are parked, with the letters that are not read back yet.
func (l *Lot) Left(key Key) int {
	if line := l.keys[key]; line != nil {
		return line.open + len(line.sent)
	}
	return 0
}

// Asked reports whether a person wants key released.
func (l *Lot) Asked(key Key) bool {
	line := l.keys[key]
	return line != nil && line.asked
}
