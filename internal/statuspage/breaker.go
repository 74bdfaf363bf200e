package statuspage

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/walpost/walpost"
	"github.com/walpost/walpost/slot"
)

var (
	breakerIs = desc("walpost_breaker_state", "1 for the state of the circuit breaker, 0 for the others: armed, tripped (the slot is beyond monitor.retained_critical or monitor.breaker_forecast) or dropped (the breaker has dropped the slot); absent without monitor.breaker.",
		"slot", "database", "state")

	breakerStates = []slot.BreakerState{slot.BreakerArmed, slot.BreakerTripped, slot.BreakerDropped}
)

// collectBreaker sends the circuit breaker's state. It goes on where nobody can look at the slot: it is not the slot's.
func collectBreaker(s *walpost.Status, gauge func(*prometheus.Desc, float64, ...string)) {
	if s.Breaker == nil {
		return
	}
	for _, state := range breakerStates {
		gauge(breakerIs, flag(s.Breaker.State == state), s.Slot.Slot, s.Slot.Database, string(state))
	}
}

// breakerView is the circuit breaker in /api/status.
type breakerView struct {
	Action string  `json:"action"` // monitor.breaker
	State  string  `json:"state"`  // armed, tripped, dropped
	Reason string  `json:"reason"` // why not armed
	Since  float64 `json:"since_seconds"`
}

func breakerViewOf(s *slot.BreakerStatus, now time.Time) *breakerView {
	if s == nil {
		return nil
	}
	return &breakerView{s.Action, string(s.State), s.Reason, max(0, now.Sub(s.Since).Seconds())}
}
