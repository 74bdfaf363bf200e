package walpost

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/relay"
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

// breakerLooks is how many looks in a row must agree: one value may be the moment before a big confirm.
const breakerLooks = 3

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

// breaker returns what is to be called with every look at the slot; nil where the breaker is off.
func (r *Relay) breaker(loop *relay.Relay) func(SlotStatus) {
	if r.cfg.Monitor.Breaker == BreakerOff {
		return nil
	}
	b := &breaker{limits: r.cfg.Monitor}
	return func(s SlotStatus) {
		why := b.look(&s)
		if why == "" {
			return
		}
		log := r.cfg.Logger.Error().Str("slot", s.Slot).Str("reason", why)
		switch {
		case b.limits.Breaker != BreakerDrop:
			log.Msg("circuit breaker: the slot needs a person")
		case !helps(&s):
			log.Str("blocker", DescribeBlocker(s.Blocker)).Msg("circuit breaker: the slot is not dropped, because another one holds older WAL")
		default:
			log.Msg("circuit breaker: delivery stops, and the slot is dropped")
			loop.Halt(fault.Person(fmt.Errorf("circuit breaker: %s, so delivery was stopped to drop it", why),
				"the slot is dropped as soon as it is free, and what was written since is not in Kafka: walpost recover makes a new slot and publishes it from the table"),
				func() { r.dropSlot(s.Slot) })
		}
	}
}

// dropSlot drops the slot that the relay has left.
func (r *Relay) dropSlot(slot string) {
	ctx, cancel := context.WithTimeout(context.Background(), breakerDropFor)
	defer cancel()
	for {
		err := r.source.DropSlot(ctx)
		if err == nil {
			r.cfg.Logger.Error().Str("slot", slot).Msg("circuit breaker: the slot is dropped")
			return
		}
		if ctx.Err() != nil || !fault.Retryable(err) {
			r.cfg.Logger.Error().Err(errors.Join(err, context.Cause(ctx))).Str("slot", slot).Msg("circuit breaker: the slot cannot be dropped")
			return
		}
		select {
		case <-time.After(500 * time.Millisecond):
		case <-ctx.Done():
		}
	}
}
