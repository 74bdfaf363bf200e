package walpost

import (
	"testing"
	"time"

	"github.com/walpost/walpost/slot"
)

func TestAHaltLastsLongEnoughForTheBreaker(t *testing.T) {
	for _, c := range []struct {
		breaker    string
		long, want time.Duration
	}{
		{slot.BreakerOff, 0, 0},
		{slot.BreakerOff, time.Second, time.Second},
		{slot.BreakerDrop, 0, 8 * time.Second},
		{slot.BreakerAlert, time.Second, 8 * time.Second},
		{slot.BreakerDrop, time.Minute, time.Minute},
		{slot.BreakerDrop, time.Duration(Forever), time.Duration(Forever)},
	} {
		cfg := Config{HaltLinger: Linger(c.long), Monitor: slot.Config{Breaker: c.breaker, Interval: 2 * time.Second}}
		if got := cfg.linger(); got != c.want {
			t.Errorf("%s, halt_linger %s: %s, want %s", c.breaker, c.long, got, c.want)
		}
	}
}
