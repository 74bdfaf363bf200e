package parking

import "slices"

// Parked is what is parked of one key.
type Parked struct {
	Key    Key
	Events int
	First  Entry // the event that the others wait for
}

// Oldest returns up to n keys that are parked. The key that waits for the oldest event comes first.
func (l *Lot) Oldest(n int) (oldest []Parked) {
	for key, line := range l.keys {
		first := line.first()
		if first == nil {
			continue
		}
		at, _ := slices.BinarySearchFunc(oldest, first, func(p Parked, e *Entry) int { return p.First.CommitTime.Compare(e.CommitTime) })
		oldest = slices.Insert(oldest, at, Parked{Key: key, Events: line.open + len(line.sent), First: *first})
		oldest = oldest[:min(n, len(oldest))]
	}
	return oldest
}
