// Package ledger compares committed events with the records that arrived, for the demo, the
// end-to-end tests and the benchmark. It shares no code with the relay, so it cannot have the relay's errors: a test that
// compared what arrived with what a router or tracker expects would agree with a wrong one.
//
// The invariants are the promises of walpost: no event is lost or invented, the first occurrences
// of a key are in commit order, duplicates come as contiguous re-runs with identical bytes, and a
// key is on one partition.
package ledger

import (
	"fmt"
	"hash/maphash"
	"strings"
	"sync"
)

// A Ledger gets events from Commit, in any order, and records from Observe, in the order of each
// partition. Check compares them. Several goroutines may call its methods.
type Ledger struct {
	// Wire allows that what a killed process had on the wire is written into the re-run of its successor. The re-run must
	// repeat it in its place.
	Wire bool

	mu        sync.Mutex
	committed map[string]entry
	seen      map[string]sighting
	missing   int // committed and not seen
	parts     map[partition]*run
	keys      map[topicKey]int32
	seed      maphash.Seed
	rep       Report
}

type (
	entry     struct{ key, n int64 }
	partition struct {
		topic string
		id    int32
	}
	topicKey struct {
		topic string
		key   string
	}
	sighting struct {
		index int // among the first occurrences of its partition
		sum   uint64
		part  partition
	}
	run struct {
		first []string        // event ids, in order of first occurrence
		next  int             // index that a contiguous run expects next
		late  map[string]bool // with Wire: events that came in a re-run, and must come again in it
	}
)

// A Record is a record that an independent consumer received.
type Record struct {
	Topic     string
	Partition int32
	ID        string // the event id
	Key       string
	Bytes     [][]byte // everything that must be equal in a duplicate: key, value, headers, timestamp
}

// A Report counts the violations, and has the first ones as sentences.
type Report struct {
	Committed, Arrived int // events committed; records seen, duplicates included
	Duplicates         int
	Lost               int // committed, never arrived
	Invented           int // arrived, never committed
	Disordered         int // a first occurrence before an earlier event of its key
	Scattered          int // a duplicate that is not part of a contiguous re-run
	Changed            int // a duplicate with other bytes
	Moved              int // a key on two partitions
	Late               int // with Wire: came into the re-run of a successor. No violation.
	Examples           []string
}

// OK reports whether there are no violations. Duplicates are allowed.
func (r *Report) OK() bool {
	return r.Lost+r.Invented+r.Disordered+r.Scattered+r.Changed+r.Moved == 0
}

func (r *Report) String() string {
	s := fmt.Sprintf("%d committed, %d arrived: %d lost, %d invented, %d out of order, %d duplicates (%d scattered, %d changed), %d keys moved",
		r.Committed, r.Arrived, r.Lost, r.Invented, r.Disordered, r.Duplicates, r.Scattered, r.Changed, r.Moved)
	if len(r.Examples) > 0 {
		s += "\n  " + strings.Join(r.Examples, "\n  ")
	}
	return s
}

func (r *Report) note(count *int, format string, args ...any) {
	*count++
	if len(r.Examples) < 12 {
		r.Examples = append(r.Examples, fmt.Sprintf(format, args...))
	}
}

// New returns an empty ledger.
func New() *Ledger {
	l := &Ledger{seed: maphash.MakeSeed()}
	l.Reset()
	return l
}

// Reset removes all entries.
func (l *Ledger) Reset() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.committed, l.seen, l.parts, l.keys = map[string]entry{}, map[string]sighting{}, map[partition]*run{}, map[topicKey]int32{}
	l.missing, l.rep = 0, Report{}
}

// Commit enters a committed event: its id, its key, and its number n among the events of that key,
// from 1 without gaps.
func (l *Ledger) Commit(id, key string, n int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, again := l.committed[id]; !again {
		if _, ok := l.seen[id]; !ok {
			l.missing++
		}
	}
	l.committed[id] = entry{key: l.hash([]byte(key)), n: n}
}

func (l *Ledger) hash(b []byte) int64 { return int64(maphash.Bytes(l.seed, b)) }

// Observe enters the next record of a partition. Its Commit may come later.
func (l *Ledger) Observe(r Record) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.rep.Arrived++
	var h maphash.Hash
	h.SetSeed(l.seed)
	for _, b := range r.Bytes {
		fmt.Fprintf(&h, "%d:%t:", len(b), b == nil)
		h.Write(b) //nolint:errcheck // a hash never fails
	}
	sum := h.Sum64()
	p := partition{r.Topic, r.Partition}
	ru := l.parts[p]
	if ru == nil {
		ru = &run{late: map[string]bool{}}
		l.parts[p] = ru
	}
	tk := topicKey{r.Topic, r.Key}
	if at, ok := l.keys[tk]; !ok {
		l.keys[tk] = r.Partition
	} else if at != r.Partition {
		l.rep.note(&l.rep.Moved, "key %q of %s is on partition %d and on %d", r.Key, r.Topic, at, r.Partition)
	}
	old, dup := l.seen[r.ID]
	if !dup {
		late := l.Wire && ru.next != len(ru.first)
		if late {
			ru.late[r.ID] = true
			l.rep.Late++
		} else if ru.next != len(ru.first) {
			l.rep.note(&l.rep.Scattered, "new event %s on %s/%d in the middle of a re-run: %d of %d replayed", r.ID, r.Topic, r.Partition, ru.next, len(ru.first))
		}
		l.seen[r.ID] = sighting{index: len(ru.first), sum: sum, part: p}
		if _, ok := l.committed[r.ID]; ok {
			l.missing--
		}
		ru.first = append(ru.first, r.ID)
		if !late {
			ru.next = len(ru.first)
		}
		return
	}
	l.rep.Duplicates++
	if old.sum != sum || old.part != p {
		l.rep.note(&l.rep.Changed, "duplicate of %s differs from its first occurrence", r.ID)
	}
	if old.index > ru.next && l.Wire {
		ru.late[r.ID] = true
		l.rep.Late++
		return
	}
	delete(ru.late, r.ID)
	if old.index > ru.next {
		l.rep.note(&l.rep.Scattered, "duplicate of %s on %s/%d skips %d events", r.ID, r.Topic, r.Partition, old.index-ru.next)
	}
	ru.next = old.index + 1
}

// Arrived is the number of records, and how many of them are duplicates.
func (l *Ledger) Arrived() (records, duplicates int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.rep.Arrived, l.rep.Duplicates
}

// Seen is how many of the events have arrived.
func (l *Ledger) Seen(ids ...string) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, id := range ids {
		if _, ok := l.seen[id]; ok {
			n++
		}
	}
	return n
}

// Missing is the number of committed events that have not arrived.
func (l *Ledger) Missing() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.missing
}

// Check compares everything that was entered.
func (l *Ledger) Check() Report {
	l.mu.Lock()
	defer l.mu.Unlock()
	rep := l.rep
	rep.Examples = append([]string(nil), rep.Examples...)
	rep.Committed = len(l.committed)
	for id, e := range l.committed {
		if _, ok := l.seen[id]; !ok {
			rep.note(&rep.Lost, "event %s (number %d of its key) never arrived", id, e.n)
		}
	}
	for p, ru := range l.parts {
		for id := range ru.late {
			rep.note(&rep.Scattered, "event %s came into a re-run of %s/%d, which did not repeat it", id, p.topic, p.id)
		}
		last := map[int64]int64{}
		for _, id := range ru.first {
			e, ok := l.committed[id]
			if !ok {
				rep.note(&rep.Invented, "event %s on %s/%d was never committed", id, p.topic, p.id)
				continue
			}
			if e.n <= last[e.key] {
				rep.note(&rep.Disordered, "event %s on %s/%d is number %d of its key and comes after number %d", id, p.topic, p.id, e.n, last[e.key])
			} else {
				last[e.key] = e.n
			}
		}
	}
	return rep
}
