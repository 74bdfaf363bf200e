package outbox

import (
	"testing"
	"time"
)

// An id grows although the clock stands still, goes back, or the fraction of a millisecond is full.
func TestIDsGrowWithoutTheClock(t *testing.T) {
	now := time.Now()
	last := newID(now)
	for i := range 10_000 {
		id := newID(now.Add(-time.Duration(i%3) * time.Millisecond))
		if id <= last || !uuid.MatchString(id) || id[14] != '7' {
			t.Fatalf("%s after %s", id, last)
		}
		last = id
	}
}
