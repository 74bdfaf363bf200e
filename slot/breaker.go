package slot

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/walpost/walpost/internal/age"
	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/internal/size"
	"github.com/walpost/walpost/internal/wait"
)

// The values of Config.Breaker.
const (
	BreakerOff   = "none"
	BreakerAlert = "alert"
	// BreakerDrop stops the relay and drops its slot: a database that runs out of disk is worse than a stream that has
	// to be recovered. The checkpoint keeps where delivery ended, a new start is refused, and walpost recover publishes
	// what is missing.
	BreakerDrop = "stop_and_drop_slot"
)

// A BreakerState is the state of a Breaker.
type BreakerState string

// The states. A breaker is armed again when the slot is within its limits, unless the breaker has
// begun to drop the slot.
const (
	BreakerArmed   BreakerState = "armed"   // the slot is within its limits, or not beyond them for long
	BreakerTripped BreakerState = "tripped" // beyond them, and the slot is still there: by configuration, or dropping it failed or would not help
	BreakerDropped BreakerState = "dropped" // the slot was dropped
)

// A BreakerStatus is a copy of a Breaker's state.
type BreakerStatus struct {
	Action string       `json:"action"` // Config.Breaker: BreakerAlert or BreakerDrop
	State  BreakerState `json:"state"`
	Reason string       `json:"reason"`        // why State is not BreakerArmed
	Since  age.Since    `json:"since_seconds"` // when the breaker came to State
}

const (
	// tripAfter is how many reads in a row must agree: one value may be the moment before a big confirm.
	tripAfter = 3
	// dropWithin bounds the attempts to drop the slot once the relay has left it. The slot stays if somebody else reads it.
	dropWithin = 30 * time.Second
)

// TripsWithin is how long after a start the breaker trips at the latest, 0 if it is off. A relay that halts and is started
// again sooner than that would fill the disk without ever tripping it.
func (c *Config) TripsWithin() time.Duration {
	if c.Breaker == BreakerOff {
		return 0
	}
	return (tripAfter + 1) * c.Interval
}

// A Breaker protects the database's disk: it trips when the slot is beyond what the user allows. Observe is called by one
// goroutine at a time, Status by any.
type Breaker struct {
	action string // BreakerAlert or BreakerDrop

	halt func(err error, freed func())
	drop func(ctx context.Context) error
	log  *slog.Logger

	trip     trip
	dropping bool // dropSlot owns the status from now on
	kept     bool // the log has said that dropping the slot would not help

	mu     sync.Mutex
	status BreakerStatus
}

// NewBreaker returns an armed Breaker. halt ends delivery with an error, and calls freed when nobody reads the slot any more.
// drop drops the slot. A nil log is slog.Default().
func NewBreaker(action string, halt func(err error, freed func()), drop func(ctx context.Context) error, log *slog.Logger) *Breaker {
	b := &Breaker{action: action, halt: halt, drop: drop, log: cmp.Or(log, slog.Default())}
	b.set(BreakerArmed, "")
	return b
}

// Status returns a copy of the state.
func (b *Breaker) Status() BreakerStatus {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.status
}

func (b *Breaker) set(state BreakerState, reason string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	since := b.status.Since
	if b.status.State != state {
		since.Time = time.Now()
	}
	b.status = BreakerStatus{Action: b.action, State: state, Reason: reason, Since: since}
}

// Observe judges one read of the slot by the limits, and trips if it must.
func (b *Breaker) Observe(s Status, limits Config) {
	if b.dropping {
		return
	}
	reason := b.trip.add(&s, limits)
	if reason == "" {
		if !b.trip.tripped {
			b.kept = false
			b.set(BreakerArmed, "")
		}
		return
	}
	log := b.log.With("slot", s.Slot, "reason", reason)
	switch {
	case b.action != BreakerDrop:
		b.set(BreakerTripped, reason)
		log.Error("circuit breaker: the slot is kept, and an operator must fix the cause of its growth (see walpost status)")
	case s.Oldest > 0 && s.Oldest < s.Restart: // dropping this slot would free no WAL
		other := "see pg_replication_slots"
		if s.Blocker != nil && s.Blocker.Kind == BlockedBySlot {
			other = s.Blocker.String()
		}
		b.set(BreakerTripped, reason+"; it is not dropped, because another slot holds older WAL: "+other)
		if !b.kept {
			log.Error("circuit breaker: the slot is not dropped, because another slot holds older WAL", "blocker", other)
		}
		b.kept, b.trip.tripped = true, false // the other slot may be gone at the next read
	default:
		b.dropping = true
		b.set(BreakerTripped, reason)
		log.Error("circuit breaker: delivery stops, and walpost will try to drop the slot")
		b.halt(fault.Person(fmt.Errorf("circuit breaker: %s, so the delivery was stopped to drop the slot", reason),
			"walpost tries to drop the slot when the relay has left it, and walpost status shows whether the slot still exists. Remove the cause of its growth. "+fault.Recover(limits.Tableless),
			fault.RecoverCommands(limits.Tableless)...),
			func() { b.dropSlot(s.Slot, reason) })
	}
}

// dropSlot drops the slot that the relay has left.
func (b *Breaker) dropSlot(slot, reason string) {
	ctx, cancel := context.WithTimeout(context.Background(), dropWithin)
	defer cancel()
	for tried := false; ; tried = true {
		err := b.drop(ctx)
		if err == nil {
			b.set(BreakerDropped, reason)
			b.log.Error("circuit breaker: the slot is dropped", "slot", slot)
			return
		}
		if ctx.Err() != nil || !fault.Passing(err, true) {
			b.set(BreakerTripped, fmt.Sprintf("%s; it cannot be dropped: %v", reason, err))
			b.log.Error("circuit breaker: the slot cannot be dropped", "err", errors.Join(err, context.Cause(ctx)), "slot", slot)
			return
		}
		if !tried {
			b.log.Warn("circuit breaker: the slot is not dropped yet, trying again", "err", err, "slot", slot, "within", dropWithin)
		}
		wait.For(ctx, 500*time.Millisecond)
	}
}

// A trip counts the reads in a row in which the slot is beyond its limits.
type trip struct {
	reads   int
	tripped bool
}

// add returns why the breaker trips now, "" if it does not. It trips once until the slot is well again.
func (t *trip) add(s *Status, limits Config) string {
	reason := ""
	retained := size.Bytes(s.RetainedBytes)
	switch {
	case !s.Known || !s.Exists || s.lost(): // there is nothing to save
	case retained >= limits.RetainedCritical:
		reason = fmt.Sprintf("slot %s holds %s of WAL (monitor.retained_critical is %v)", s.Slot, retained.Roughly(), limits.RetainedCritical)
	case limits.BreakerForecast > 0 && s.DiskFull < limits.BreakerForecast.Seconds():
		reason = fmt.Sprintf("the WAL held by slots will reach monitor.wal_disk_size in %s at this rate (monitor.breaker_forecast is %v)", rounded(s.DiskFull), limits.BreakerForecast)
	}
	if reason == "" {
		t.reads, t.tripped = 0, false
		return ""
	}
	if t.reads++; t.reads < tripAfter || t.tripped {
		return ""
	}
	t.tripped = true
	return reason
}
