package statuspage

import (
	"context"
	"sync"
	"time"

	"github.com/walpost/walpost"
)

const (
	historyEvery  = 2 * time.Second
	historyPoints = 150 // five minutes
)

// A point is how delivery went in one interval, for the status page. What cannot be told is null.
type point struct {
	At       float64  `json:"at"` // seconds, by this machine's clock
	Rate     float64  `json:"events_per_second"`
	P50      *float64 `json:"p50_seconds"`
	P99      *float64 `json:"p99_seconds"`
	Retained *int64   `json:"retained_bytes"`
}

// A history is the last minutes of a relay, so that a page that is opened now shows what was before.
type history struct {
	mu     sync.Mutex
	points []point
	before walpost.Status
	at     time.Time // of before
}

// run samples until ctx ends.
func (h *history) run(ctx context.Context, relay Relay) {
	tick := time.NewTicker(historyEvery)
	defer tick.Stop()
	for {
		h.sample(relay.Status(), time.Now())
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func (h *history) sample(s walpost.Status, now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if passed := now.Sub(h.at).Seconds(); !h.at.IsZero() && passed > 0 {
		p := point{
			At: float64(now.UnixMilli()) / 1000, Rate: float64(s.Events-min(s.Events, h.before.Events)) / passed,
			Retained: known(s.Slot.RetainedBytes, s.Slot.Known && s.Slot.Exists && s.Slot.RetainedBytes >= 0),
		}
		if within := s.Latency.Since(h.before.Latency); within.Count() > 0 {
			p50, p99 := within.Quantile(0.5), within.Quantile(0.99)
			p.P50, p.P99 = &p50, &p99
		}
		h.points = append(h.points, p)
		if over := len(h.points) - historyPoints; over > 0 {
			h.points = append(h.points[:0], h.points[over:]...)
		}
	}
	h.before, h.at = s, now
}

// list is a copy, oldest first.
func (h *history) list() []point {
	h.mu.Lock()
	defer h.mu.Unlock()
	return append([]point{}, h.points...)
}
