// Package relay holds the loop. The loop pulls events from a Source, has a Router make records of
// them, and hands the records to a Sink. It confirms to the source what is acknowledged, once a
// checkpoint of it is durable.
//
// The package exists to keep this order: nothing is confirmed before it is checkpointed, and
// nothing is checkpointed before the sink has acknowledged it. A Keeper is different: the table says
// what is delivered, so the source finishes a row once it is acknowledged, without a checkpoint. The
// strategy cursor writes nothing to the table: its position is only in the checkpoint.
//
// One goroutine owns the session. Whatever else takes time runs beside it, one of each kind at a
// time: opening a session, writing a checkpoint, checking the source, reading the table.
//
// It isn't an API yet: anything in it may change with any release. The API is the root package, outbox and inbox.
package relay

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/walpost/walpost/internal/age"
	"github.com/walpost/walpost/internal/size"
)

// Config says how a Relay behaves. Start from DefaultConfig.
type Config struct {
	// Name is the key of the checkpoint. Two relays that share a store must not share a name. A
	// name holds no slash.
	Name   string
	Window Window

	// ShutdownGrace is how long a stop waits for acknowledgements.
	ShutdownGrace time.Duration
	// HaltLinger is how long Run goes on after a halt before it returns the cause. 0 returns at
	// once; below zero Run goes on until its context ends.
	HaltLinger time.Duration
	// MonitorInterval is the time between two calls of Source.Check.
	MonitorInterval time.Duration

	// AcceptGap is the token of the one gap that may be stepped over. A refusal printed the token.
	AcceptGap string
	// Create makes a missing slot if no checkpoint knows of a slot.
	Create bool
	// Copying publishes rows of the table ahead of the stream; nil publishes none.
	Copying *Copying
	// Poison says what becomes of events that cannot be delivered.
	Poison Poison
	// Parking is the topic Poison.ParkingTopic. Without it no key is parked.
	Parking ParkingLog
	// Committer is the sink, if it makes records visible by transactions: delivery.guarantee exactly_once. Otherwise it is nil.
	Committer Committer
	// Peek is Store.Load without a wait for open transactions. It may give an older record. It belongs to Committer.
	Peek Look
	// SkipSnapshot says that a person wants no snapshot, not even the rest of one that has begun.
	SkipSnapshot bool

	// Observer is told of each event that is delivered, or that cannot be. It may be nil. The sink's Acks must
	// have their records.
	Observer Observer

	// Logger is written to at edges only. By default it is slog.Default().
	Logger *slog.Logger
}

// Window bounds what may be in flight. Each bound may be exceeded by one record.
type Window struct {
	// Maximum events in flight.
	Events int `yaml:"events" min:"1" max:"10000000" example:"20000"`
	// Maximum bytes in flight.
	Bytes size.Bytes `yaml:"bytes" min:"1KiB" max:"64GiB" example:"128MiB"`
}

// DefaultConfig has every default. The name has none.
func DefaultConfig() Config {
	return Config{Window: Window{Events: 50_000, Bytes: 64 << 20}, ShutdownGrace: 20 * time.Second, MonitorInterval: 10 * time.Second}
}

// A Relay delivers one source to one sink. Run is called once. Status may be called by any
// goroutine at any time.
type Relay struct {
	*opener
	router Router
	sink   Sink

	halts chan *halting
	asks  chan func(*loop) // the loop answers between two looks at the clock

	mu    sync.Mutex
	shown Status // the loop replaces it
}

// New returns a Relay that has not begun. The relay takes over sink, and Run closes it.
func New(cfg Config, source Source, router Router, sink Sink, store Store) *Relay {
	o := newOpener(cfg, source, store)
	o.committer = cfg.Committer
	return &Relay{
		opener: o, router: router, sink: sink, halts: make(chan *halting, 1), asks: make(chan func(*loop)),
		shown: Status{State: Starting, Since: age.Since{Time: time.Now()}, Reason: "starting", Holder: o.holder, Sessions: map[string]uint64{}},
	}
}

// Status returns a copy of the relay's state. While the loop works, the copy is at most a quarter
// of a second old. The caller must not change its maps and slices.
func (r *Relay) Status() Status {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.shown
}

// show makes st what Status returns.
func (r *Relay) show(st *Status) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if st.State != r.shown.State {
		st.Since.Time = st.Turned
	}
	r.shown = *st
}

// Run delivers events until ctx ends, or until a fault that retrying can't fix. It waits while a
// fault may go away by itself: while Kafka or the checkpoint store is down, a source restarts, or
// the slot is in use.
//
// When ctx ends, Run takes no more events and waits up to ShutdownGrace for acknowledgements. Then
// it writes the last checkpoint, confirms it, frees the slot and returns nil. Events that are still
// unacknowledged are delivered again after the next start, and the log says how many there are.
//
// Run returns a fault that needs an operator (package fault) after HaltLinger, and Status shows the
// fault until then. Run returns other errors once what is acknowledged is checkpointed.
func (r *Relay) Run(ctx context.Context) error {
	l := newLoop(r)
	defer l.shutdown.end()
	defer l.bound(ctx, l.background)()
	r.log.Info("started", "name", r.cfg.Name, "holder", r.holder, "window_events", r.cfg.Window.Events, "window_bytes", int64(r.cfg.Window.Bytes))
	return l.shutdown.run(ctx, l.deliver(ctx))
}
