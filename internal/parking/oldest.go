package parking

import (
	"slices"
	"time"
)

// Parked is what is parked of one key.
type Parked struct {
	Key    Key
	Events int
	First  Entry // the event that the others wait for
}

// Oldest returns up to n keys that are parked. The key that waits for the oldest event comes first.
func (b *Backlog) Oldest(n int) (oldest []Parked) {
	for key, line := range b.lines {
		first := line.entries[0]
		at, _ := slices.BinarySearchFunc(oldest, first, func(p Parked, e *Entry) int { return p.First.CommitTime.Compare(e.CommitTime) })
		if at == n {
			continue
		}
		oldest = slices.Insert(oldest, at, Parked{Key: key, Events: len(line.entries), First: *first})
		oldest = oldest[:min(n, len(oldest))]
	}
	return oldest
}

// Since is the commit time of the event that has waited longest, zero if nothing is parked.
func Since(oldest []Parked) (since time.Time) {
	if len(oldest) > 0 {
		since = oldest[0].First.CommitTime
	}
	return since
}
