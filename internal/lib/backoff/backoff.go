// Package backoff is the one way in walpost to space out attempts: the pauses double, and they have jitter.
package backoff

import (
	"math/rand/v2"
	"time"
)

// A Backoff doubles the pause with each failure in a row, from Min to Max. A Min above Max counts as Max. A Backoff has no
// state: the caller counts the failures, and starts counting again after a success.
type Backoff struct {
	Min, Max time.Duration
}

// Pause is the pause after so many failures, from 1. Chance takes away up to a half, so that those who failed together don't
// try again together.
func (b Backoff) Pause(failures int) time.Duration {
	d := b.Limit(failures)
	return d - rand.N(d/2+1)
}

// Limit is the most that Pause returns. Use it where there's nothing to spread.
func (b Backoff) Limit(failures int) time.Duration {
	d := min(b.Min, b.Max)
	for ; failures > 1 && d < b.Max; failures-- {
		if d > b.Max/2 {
			return b.Max
		}
		d *= 2
	}
	return d
}
