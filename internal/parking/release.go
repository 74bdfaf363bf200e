package parking

import (
	"slices"
	"time"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/deadletter"
)

// Bounds is how much may be released at one time.
type Bounds struct{ Events, Bytes int }

// scan is how many keys Next looks at, so that keys that cannot go on cost little.
const scan = 250

// Next picks the events to deliver next: of keys that are not busy, the first open events, in order. Of a
// key, it takes none from the first event on that is not to be released or not ready. The keys take turns.
func (b *Backlog) Next(busy func(Key) bool, ready func(*Entry) bool, most Bounds) map[Key][]*Entry {
	out := map[Key][]*Entry{}
	events, bytes := 0, 0
	for range min(scan, len(b.queue)) {
		if events >= most.Events || bytes >= most.Bytes {
			break
		}
		key := b.queue[0]
		b.queue = b.queue[1:]
		line := b.lines[key]
		if line == nil || !line.releases(line.entries[0]) {
			if line != nil {
				line.queued = false
			}
			continue
		}
		b.queue = append(b.queue, key)
		if busy(key) {
			continue
		}
		n := 0
		for n < len(line.entries) && events < most.Events && (events == 0 || bytes < most.Bytes) {
			e := line.entries[n]
			if e.Offset == Unwritten || e.Drop != 0 || !line.releases(e) || !ready(e) {
				break
			}
			n, events, bytes = n+1, events+1, bytes+e.Size
		}
		if n > 0 {
			out[key] = slices.Clone(line.entries[:n])
		}
	}
	return out
}

// ToDrop returns up to n open events whose drop was asked for and that are of no busy key.
func (b *Backlog) ToDrop(busy func(Key) bool, n int) (found []*Entry) {
	b.drops = slices.DeleteFunc(b.drops, func(e *Entry) bool { return e.State != deadletter.Open || e.Drop == 0 })
	for _, e := range b.drops {
		if len(found) < n && e.Offset != Unwritten && !busy(e.Key) {
			found = append(found, e)
		}
	}
	return found
}

// mark makes the record of a mark that is about the events of k.
func (k Key) mark(topic, name string, m deadletter.Mark) *cdc.Record {
	m.Name, m.Table = name, k.Table
	return m.Encode(topic, []byte(k.Key), 0) // a relay reads no other partition
}

// ReleasedMark says that events of one key are delivered. Token is that of the last one.
func ReleasedMark(topic, name string, events []*Entry, now time.Time) *cdc.Record {
	m := deadletter.Mark{State: deadletter.Released, Time: now}
	for _, e := range events {
		m.Tokens = append(m.Tokens, e.Token)
		m.Token = e.Token
	}
	return events[0].Key.mark(topic, name, m)
}

// DroppedMark says that an event was given up, because of its Why.
func DroppedMark(topic, name string, e *Entry, now time.Time) *cdc.Record {
	return e.Key.mark(topic, name, deadletter.Mark{State: deadletter.Dropped, Token: e.Token, Why: e.Why, Time: now})
}

// TrimmedMark says that the relay needs nothing before offset.
func TrimmedMark(topic, name string, offset int64, now time.Time) *cdc.Record {
	return Key{}.mark(topic, name, deadletter.Mark{State: deadletter.Trimmed, Offset: offset, Time: now})
}

// ReleaseRequest asks the relay to deliver what is parked of the key of e, an open event.
func ReleaseRequest(topic, name string, e *Entry, now time.Time) *cdc.Record {
	return e.Key.mark(topic, name, deadletter.Mark{State: deadletter.Release, Token: e.Token, Time: now})
}

// DropRequest asks the relay to give up an open event, because of why.
func DropRequest(topic, name string, e *Entry, why string, now time.Time) *cdc.Record {
	return e.Key.mark(topic, name, deadletter.Mark{State: deadletter.Drop, Token: e.Token, Why: why, Time: now})
}
