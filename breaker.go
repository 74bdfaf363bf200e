package walpost

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/replication"
)

// What MonitorConfig.Breaker may be.
const (
	BreakerOff   = "none"
	BreakerAlert = "alert"
	// BreakerDrop stops the relay and drops its slot: a database that runs out of disk is worse than a stream that has to be
	// recovered. The checkpoint keeps where delivery ended, a new start is refused, and walpost recover publishes what is missing.
	BreakerDrop = "stop_and_drop_slot"
)

// A BreakerState is what the circuit breaker has come to.
type BreakerState string

// The states of the breaker. It is armed again once the slot is well, unless it has begun to drop the slot.
const (
	BreakerArmed   BreakerState = "armed"   // the slot is within its limits, or not beyond them for long
	BreakerTripped BreakerState = "tripped" // beyond them; the slot is there, because that is configured, or because dropping it would not help or failed
	BreakerDropped BreakerState = "dropped" // the slot was dropped
)

// A BreakerStatus is a copy of the breaker's state.
type BreakerStatus struct {
	Action string // what is configured: BreakerAlert or BreakerDrop
	State  BreakerState
	Reason string    // why it is not armed
	Since  time.Time // when it came to State
}

// breakerLooks is how many looks in a row must agree: one value may be the moment before a big confirm.
const breakerLooks = 3

// linger is how long a halted relay stays. With a breaker that is long enough for its looks: else a relay that halts, ends and is started again
// would fill the disk without ever tripping the breaker.
func (c *Config) linger() time.Duration {
	long := time.Duration(c.HaltLinger)
	if long >= 0 && c.Monitor.Breaker != BreakerOff {
		long = max(long, (breakerLooks+1)*c.Monitor.Interval)
	}
	return long
}

// breakerDropFor is how long the slot is tried to be dropped once the relay has left it. Somebody else who reads it keeps it.
const breakerDropFor = 30 * time.Second

// A breaker counts looks at the slot that are beyond what the user allows. It is pure.
type breaker struct {
	limits  MonitorConfig
	looks   int
	tripped bool
}

// look returns why the breaker trips now, "" when it does not. It trips once until the slot is well again.
func (b *breaker) look(s *SlotStatus) string {
	why := ""
	retained := Size(s.RetainedBytes)
	switch {
	case !s.Known || !s.Exists || s.Invalidation != "" || s.WALStatus == "lost": // there is nothing to be saved
	case retained >= b.limits.RetainedCritical:
		why = fmt.Sprintf("slot %s holds %s of WAL (monitor.retained_critical is %v)", s.Slot, retained.Roughly(), b.limits.RetainedCritical)
	case b.limits.BreakerForecast > 0 && s.Exhaustion < b.limits.BreakerForecast.Seconds():
		why = fmt.Sprintf("slot %s is exhausted in %s at this rate (monitor.breaker_forecast is %v)", s.Slot,
			time.Duration(s.Exhaustion*float64(time.Second)).Round(time.Second), b.limits.BreakerForecast)
	}
	if why == "" {
		b.looks, b.tripped = 0, false
		return ""
	}
	if b.looks++; b.looks < breakerLooks || b.tripped {
		return ""
	}
	b.tripped = true
	return why
}

// helps says whether dropping the slot would free WAL: not while another slot holds older WAL.
func helps(s *SlotStatus) bool {
	return s.Blocker == nil || s.Blocker.Kind != replication.BlockedBySlot
}

// breaker returns what is to be called with every look at the slot, by one goroutine; nil where the breaker is off. halt is relay.Relay's Halt.
func (r *Relay) breaker(halt func(err error, freed func())) func(SlotStatus) {
	if r.cfg.Monitor.Breaker == BreakerOff {
		return nil
	}
	b := &breaker{limits: r.cfg.Monitor}
	dropping := false // from here on the state is dropSlot's
	kept := false     // it was said that dropping the slot would not help
	r.breakerCame(BreakerArmed, "")
	return func(s SlotStatus) {
		why := b.look(&s)
		switch {
		case dropping:
			return
		case why == "" && !b.tripped:
			kept = false
			r.breakerCame(BreakerArmed, "")
			return
		case why == "":
			return
		}
		log := r.cfg.Logger.Error().Str("slot", s.Slot).Str("reason", why)
		switch {
		case b.limits.Breaker != BreakerDrop:
			r.breakerCame(BreakerTripped, why)
			log.Msg("circuit breaker: the slot needs a person")
		case !helps(&s):
			other := DescribeBlocker(s.Blocker)
			r.breakerCame(BreakerTripped, why+"; it is not dropped, because another one holds older WAL: "+other)
			if !kept {
				log.Str("blocker", other).Msg("circuit breaker: the slot is not dropped, because another one holds older WAL")
			}
			kept, b.tripped = true, false // the next look may find the other one gone
		default:
			dropping = true
			r.breakerCame(BreakerTripped, why)
			log.Msg("circuit breaker: delivery stops, and the slot is dropped")
			halt(fault.Person(fmt.Errorf("circuit breaker: %s, so delivery was stopped to drop it", why),
				"The slot is dropped as soon as it is free. Remove what made it grow, then run walpost recover: it shows the gap, makes a new slot, and publishes from the table exactly what is missing."),
				func() { r.dropSlot(s.Slot, why) })
		}
	}
}

// breakerCame keeps the breaker's state for Status.
func (r *Relay) breakerCame(to BreakerState, why string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	since := time.Now()
	if was := r.tripped; was != nil && was.State == to {
		since = was.Since
	}
	r.tripped = &BreakerStatus{Action: r.cfg.Monitor.Breaker, State: to, Reason: why, Since: since}
}

// dropSlot drops the slot that the relay has left.
func (r *Relay) dropSlot(slot, why string) {
	ctx, cancel := context.WithTimeout(context.Background(), breakerDropFor)
	defer cancel()
	for {
		err := r.source.DropSlot(ctx)
		if err == nil {
			r.breakerCame(BreakerDropped, why)
			r.cfg.Logger.Error().Str("slot", slot).Msg("circuit breaker: the slot is dropped")
			return
		}
		if ctx.Err() != nil || !fault.Retryable(err) {
			r.breakerCame(BreakerTripped, fmt.Sprintf("%s; it cannot be dropped: %v", why, err))
			r.cfg.Logger.Error().Err(errors.Join(err, context.Cause(ctx))).Str("slot", slot).Msg("circuit breaker: the slot cannot be dropped")
			return
		}
		select {
		case <-time.After(500 * time.Millisecond):
		case <-ctx.Done():
		}
	}
}
