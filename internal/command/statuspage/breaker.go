package statuspage

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/walpost/walpost"
	"github.com/walpost/walpost/slot"
)

var (
	breakerIs = desc("walpost_breaker_state", "1 for the breaker's state, 0 for the others: armed, tripped (past monitor.retained_critical or monitor.breaker_forecast) or dropped (the slot is dropped).",
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
