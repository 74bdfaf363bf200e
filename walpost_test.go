package walpost

import (
	"testing"
	"time"

	"github.com/walpost/walpost/relay"
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

// A slot that is about to be lost is the state of a relay that is well otherwise. It makes no relay unready.
func TestTheStateHasTheDangerOfTheSlot(t *testing.T) {
	for _, c := range []struct {
		state    relay.State
		reason   string
		severity slot.Severity
		want     relay.State
		why      string
	}{
		{relay.Streaming, "", slot.OK, relay.Streaming, ""},
		{relay.Streaming, "", slot.Warning, relay.Streaming, ""},
		{relay.Streaming, "", slot.Critical, relay.SlotAtRisk, "the slot holds 12.0 GiB"},
		{relay.CopyingRows, "publishing rows", slot.Critical, relay.SlotAtRisk, "the slot holds 12.0 GiB; publishing rows"},
		{relay.Stalled, "delivery waits", slot.Critical, relay.Stalled, "delivery waits"},
		{relay.Halted, "the slot is lost", slot.Critical, relay.Halted, "the slot is lost"},
	} {
		s := Status{Status: relay.Status{State: c.state, Reason: c.reason, Ready: c.state == relay.Streaming}}
		s.Slot.Severity, s.Slot.Reasons = c.severity, []string{"the slot holds 12.0 GiB"}
		if s.judge(); s.State != c.want || s.Reason != c.why || s.Ready != (c.state == relay.Streaming) {
			t.Errorf("%s with a slot that is %s: %s, %q, ready %v", c.state, c.severity, s.State, s.Reason, s.Ready)
		}
	}
}
