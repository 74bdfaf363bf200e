package walpost

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/walpost/walpost/replication"
)

func TestTheBreakerTripsOnceAfterThreeLooks(t *testing.T) {
	b := &breaker{limits: MonitorConfig{RetainedCritical: 100, BreakerForecast: time.Hour}}
	look := func(retained int64, exhaustion float64, change ...func(*SlotStatus)) string {
		s := &SlotStatus{Known: true, Exhaustion: exhaustion, Health: replication.Health{Slot: "s", Exists: true, RetainedBytes: retained, WALStatus: "extended"}}
		for _, c := range change {
			c(s)
		}
		return b.look(s)
	}
	never := math.Inf(1)
	for i, c := range []struct {
		retained   int64
		exhaustion float64
		want       string
	}{
		{99, never, ""}, {100, never, ""}, {100, never, ""}, {99, never, ""}, // one good look begins anew
		{100, never, ""}, {100, never, ""}, {100, never, "holds 100 B"}, {100, never, ""}, {1000, 0, ""}, // once
		{99, 3600, ""}, // well again
		{0, 3599, ""}, {0, 3599, ""}, {0, 3599, "exhausted in 59m59s"}, {0, 1, ""},
	} {
		if got := look(c.retained, c.exhaustion); (c.want == "") != (got == "") || !strings.Contains(got, c.want) {
			t.Errorf("look %d: %q, want %q", i, got, c.want)
		}
	}
	for name, change := range map[string]func(*SlotStatus){
		"not known": func(s *SlotStatus) { s.Known = false },
		"gone":      func(s *SlotStatus) { s.Exists = false },
		"lost":      func(s *SlotStatus) { s.WALStatus = "lost" },
		"invalid":   func(s *SlotStatus) { s.Invalidation = "wal_removed" },
	} {
		look(0, never)
		for range 5 {
			if got := look(1000, 0, change); got != "" {
				t.Errorf("a slot that is %s trips it: %s", name, got)
			}
		}
	}
	b.limits.BreakerForecast = 0
	for range 5 {
		if got := look(0, 0); got != "" {
			t.Errorf("tripped by a forecast that nobody asked for: %s", got)
		}
	}
}
