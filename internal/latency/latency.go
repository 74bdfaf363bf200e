// Package latency counts how long events took.
package latency

import (
	"encoding/json"
	"time"
)

// Bounds are the upper bounds of the buckets, in seconds. Outages show above 10 s. There
// each bound, up to four hours, is at most twice the bound before it.
var Bounds = [...]float64{
	.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10,
	20, 30, 45, 60, 90, 120, 180, 300, 450, 600, 900, 1800, 3600, 7200, 14400,
}

// A Histogram counts durations. Counts[i] is the number of durations that are at or below
// Bounds[i] and above the bound before. The last count is of the durations above all bounds.
// The counts are not cumulative.
type Histogram struct {
	Counts [len(Bounds) + 1]uint64
	Sum    float64 // seconds
	Max    float64 // seconds, of the longest duration
}

// Add counts d.
func (h *Histogram) Add(d time.Duration) {
	s, i := d.Seconds(), 0
	for i < len(Bounds) && s > Bounds[i] {
		i++
	}
	h.Counts[i]++
	h.Sum += s
	h.Max = max(h.Max, s)
}

// Count is the number of durations.
func (h Histogram) Count() (n uint64) {
	for _, c := range h.Counts {
		n += c
	}
	return n
}

// MarshalJSON returns what a person wants to know of h.
func (h Histogram) MarshalJSON() ([]byte, error) {
	return json.Marshal(struct {
		Count uint64  `json:"count"`
		P50   float64 `json:"p50_seconds"`
		P99   float64 `json:"p99_seconds"`
	}{h.Count(), h.Quantile(0.5), h.Quantile(0.99)})
}

// Since returns the durations that came after an earlier look. Its Max stays the one of all
// durations, because a histogram does not tell which of them came later.
func (h Histogram) Since(before Histogram) Histogram {
	for i, n := range before.Counts {
		h.Counts[i] -= min(h.Counts[i], n)
	}
	h.Sum -= before.Sum
	return h
}

// Quantile returns the duration, in seconds, that a share q of the durations does not exceed. It is
// linear within a bucket and never above Max. It is 0 if there are no durations.
func (h Histogram) Quantile(q float64) float64 {
	rank := q * float64(h.Count())
	if rank == 0 {
		return 0
	}
	var below, lower float64
	for i, n := range h.Counts {
		upper := h.Max
		if i < len(Bounds) {
			upper = min(Bounds[i], h.Max)
		}
		if n := float64(n); n > 0 && below+n >= rank {
			return lower + (upper-lower)*(rank-below)/n
		}
		below, lower = below+float64(n), upper
	}
	return h.Max
}
