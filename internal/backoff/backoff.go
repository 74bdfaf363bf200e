// Package backoff spaces out the attempts of whoever tries again.
package backoff

import (
	"math/rand/v2"
	"time"
)

// A Backoff doubles the pause with each failure, from Min to Max. It has no state: who tries again counts the failures,
// and begins anew by beginning to count anew.
type Backoff struct {
	Min, Max time.Duration
}

// Pause is the pause after so many failures in a row, from 1. Chance takes away up to a half, so that those who failed
// together don't try again together.
func (b Backoff) Pause(failures int) time.Duration {
	d := b.Limit(failures)
	return d - rand.N(d/2+1)
}

// Limit is the most that Pause returns.
func (b Backoff) Limit(failures int) time.Duration {
	d := b.Min
	for ; failures > 1 && d < b.Max; failures-- {
		if d > b.Max/2 {
			return b.Max
		}
		d *= 2
	}
	return d
}
