package parking

import (
	"cmp"
	"slices"
	"time"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/deadletter"
)

// Bounds is how much may be released at one time.
type Bounds struct{ Events, Bytes int }

// Next picks the events to deliver next: of each key that a person wants released and that is not
// busy, some of its first open events, in order. Of a key, it takes none from the first event on
// that is not ready. The events of all keys together lie close to each other in the topic.
func (l *Lot) Next(busy func(Key) bool, ready func(*Entry) bool, most Bounds) map[Key][]*Entry {
	out := map[Key][]*Entry{}
	var all []*Entry
	for key, line := range l.keys {
		if !line.asked || busy(key) {
			continue
		}
		for _, e := range line.entries {
			if e.State != deadletter.Open {
				continue
			}
			if !ready(e) || len(out[key]) == most.Events {
				break
			}
			out[key] = append(out[key], e)
		}
		all = append(all, out[key]...)
	}
	if len(all) == 0 {
		return nil
	}
	slices.SortFunc(all, func(a, b *Entry) int { return cmp.Compare(a.Offset, b.Offset) })
	n, bytes := 0, 0
	for n < len(all) && n < most.Events && (n == 0 || bytes+all[n].Size <= most.Bytes) {
		bytes += all[n].Size
		n++
	}
	end := all[n-1].Offset
	for key, es := range out {
		last := len(es) - 1
		for last >= 0 && es[last].Offset > end { // what is before the last one comes along: the order of a key is not always that of the topic
			last--
		}
		if out[key] = es[:last+1]; last < 0 {
			delete(out, key)
		}
	}
	return out
}

// mark makes the record of a mark that is about the events of k.
func (k Key) mark(topic, name string, m deadletter.Mark) *cdc.Record {
	m.Name, m.Table = name, k.Table
	return m.Encode(topic, []byte(k.Key), -1)
}

// OpenedMark is the record with which a holder of the slot begins to write.
func OpenedMark(topic, name string, w deadletter.Writer, now time.Time) *cdc.Record {
	return Key{}.mark(topic, name, deadletter.Mark{State: deadletter.Opened, Writer: w, Time: now})
}

// ReleasedMark says that the open events of key are delivered, up to and including that of token.
func ReleasedMark(topic, name string, w deadletter.Writer, key Key, token string, now time.Time) *cdc.Record {
	return key.mark(topic, name, deadletter.Mark{State: deadletter.Released, Writer: w, Token: token, Time: now})
}

// Request asks the holder of the slot to deliver what is parked of key.
func Request(topic, name string, key Key, now time.Time) *cdc.Record {
	return key.mark(topic, name, deadletter.Mark{State: deadletter.Asked, Time: now})
}

// DroppedMark gives up a parked event, because of why.
func DroppedMark(topic, name string, e *Entry, why string, now time.Time) *cdc.Record {
	return e.Key.mark(topic, name, deadletter.Mark{State: deadletter.Dropped, Token: e.Token, Why: why, Time: now})
}
