// Package relay holds the loop: it pulls events from a Source, has a Router make records of them, hands them to a Sink and
// confirms to the source what is acknowledged, after a checkpoint of it is durable.
//
// The order of things is the package's whole purpose: nothing is confirmed that is not checkpointed, nothing is
// checkpointed that is not acknowledged, and nothing is acknowledged by anybody but the sink. One goroutine owns the
// session; whatever else takes time (opening a session, writing a checkpoint, checking the source) runs beside it, one of
// each at a time, and reports through a channel.
package relay

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	mrand "math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"
)

// Config says how a Relay behaves. Zero values take the default named at the field.
type Config struct {
	// Name is the key of the checkpoint: two relays of one store must not share it, nor must it hold a slash.
	Name string
	// Holder names this process in its checkpoint records and their keys: no other process has this name, nor has it a slash. Default: 16
	// random hexadecimal digits.
	Holder string

	Window Window

	// ShutdownGrace is how long a stop waits for outstanding acknowledgements. Default 20 s; below zero: not at all.
	ShutdownGrace time.Duration
	// HaltLinger is how long Run goes on, halted, before it returns what halted it. 0: not at all; below zero: until its context ends.
	HaltLinger time.Duration
	// CheckpointEvery is the least time between two checkpoints while events are delivered. Default 1 s.
	CheckpointEvery time.Duration
	// IdleCheckpointEvery is the same while only the source's position moves. Default 10 s.
	IdleCheckpointEvery time.Duration
	// MonitorInterval is how often Source.Check is called. Default 10 s.
	MonitorInterval time.Duration

	// AcceptGap is the token of the one gap that may be stepped over, as a refusal printed it.
	AcceptGap string
	// Create makes a missing slot, where no checkpoint knows of one.
	Create bool
	// Copying publishes rows of the table ahead of the stream; nil where that is not wanted.
	Copying *Copying
	// SkipSnapshot says that a person wants none, also where one was begun and is not finished.
	SkipSnapshot bool

	Backoff Backoff
	Logger  zerolog.Logger
}

// Window bounds what may be in flight. Both bounds are soft by one record.
type Window struct {
	Events int   // default 50,000; also bounds the transactions that are not yet safe
	Bytes  int64 // default 64 MiB, counted by cdc.Record.Size
}

// Backoff is the wait between two attempts to open a session: it doubles from Min to Max, less up to a half by chance. The first
// attempt after a session that worked is made at once.
type Backoff struct {
	Min, Max time.Duration  // default 100 ms and 30 s
	Rand     func() float64 // in [0, 1); default math/rand
}

const (
	defaultGrace    = 20 * time.Second
	defaultEvents   = 50_000
	defaultBytes    = 64 << 20
	defaultMonitor  = 10 * time.Second
	defaultSave     = time.Second
	defaultIdleSave = 10 * time.Second
	defaultBackoff  = 100 * time.Millisecond
	maxBackoff      = 30 * time.Second
)

// withDefaults fills in what is not set, and says what is wrong with the rest: field, bound and value, all at once.
func (c Config) withDefaults() (Config, error) {
	var wrong []error
	if c.Name == "" || strings.Contains(c.Name, "/") {
		wrong = append(wrong, fmt.Errorf("name: must not be empty nor hold a slash (got %q)", c.Name))
	}
	if strings.Contains(c.Holder, "/") {
		wrong = append(wrong, fmt.Errorf("holder: must hold no slash (got %q)", c.Holder))
	}
	if c.Window.Events < 0 {
		wrong = append(wrong, fmt.Errorf("delivery.window.events: must be at least 1 (got %d)", c.Window.Events))
	}
	if c.Window.Bytes < 0 {
		wrong = append(wrong, fmt.Errorf("delivery.window.bytes: must be at least 1 (got %d)", c.Window.Bytes))
	}
	for _, d := range []struct {
		field string
		v     *time.Duration
		def   time.Duration
	}{
		{"checkpoint every", &c.CheckpointEvery, defaultSave},
		{"checkpoint every, idle", &c.IdleCheckpointEvery, defaultIdleSave},
		{"monitor.interval", &c.MonitorInterval, defaultMonitor},
		{"backoff min", &c.Backoff.Min, defaultBackoff},
		{"backoff max", &c.Backoff.Max, maxBackoff},
	} {
		if *d.v < 0 {
			wrong = append(wrong, fmt.Errorf("%s: must be above 0 (got %s)", d.field, *d.v))
		}
		if *d.v == 0 {
			*d.v = d.def
		}
	}
	if c.Backoff.Max < c.Backoff.Min {
		wrong = append(wrong, fmt.Errorf("backoff max: must be at least min, %s (got %s)", c.Backoff.Min, c.Backoff.Max))
	}
	if c.Window.Events == 0 {
		c.Window.Events = defaultEvents
	}
	if c.Window.Bytes == 0 {
		c.Window.Bytes = defaultBytes
	}
	if c.ShutdownGrace == 0 {
		c.ShutdownGrace = defaultGrace
	}
	c.ShutdownGrace = max(c.ShutdownGrace, 0)
	if c.Backoff.Rand == nil {
		c.Backoff.Rand = mrand.Float64
	}
	if c.Holder == "" {
		var b [8]byte
		rand.Read(b[:]) // never fails, crypto/rand says
		c.Holder = hex.EncodeToString(b[:])
	}
	return c, errors.Join(wrong...)
}

// A Relay delivers one source to one sink. Run is called once; Status by any goroutine, at any time.
type Relay struct {
	cfg    Config
	source Source
	router Router
	sink   Sink
	store  *exclusive
	log    zerolog.Logger

	halts   chan *halting
	foreign int    // slots that were found without a checkpoint, in a row; of the attempts, one at a time
	loss    string // token of the lost records without which this attempt goes on; of the attempts, one at a time

	mu    sync.Mutex
	shown Status // loop.publish replaces it
}

// New returns a Relay that has not begun. The error names every wrong field of cfg. The relay takes over sink: Run closes it.
func New(cfg Config, source Source, router Router, sink Sink, store Store) (*Relay, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	return &Relay{
		cfg: cfg, source: source, router: router, sink: sink, store: newExclusive(store), log: cfg.Logger,
		halts: make(chan *halting, 1),
		shown: Status{
			State: Starting, Since: time.Now(), Reason: "starting", Holder: cfg.Holder,
			Sessions: map[string]uint64{},
		},
	}, nil
}

// Status returns a copy of the relay's state. While the loop works it is at most a quarter of a second old.
func (r *Relay) Status() Status {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.shown
}

// Run delivers until ctx ends or a fault that no retry can help. It waits out whatever may go away by itself: Kafka, the
// checkpoint store, a source that restarts or whose slot is in use.
//
// When ctx ends, Run takes no more events, waits up to ShutdownGrace for acknowledgements, writes the last checkpoint, confirms it,
// frees the slot and returns nil, also where something is left over: that comes again at the next start, and the log
// says how much. A fault that needs a person (package fault) is returned after HaltLinger; until then Status says so. Other
// errors are returned once what is acknowledged is checkpointed.
func (r *Relay) Run(ctx context.Context) error {
	l := newLoop(r)
	defer l.end()
	defer l.bound(ctx)()
	r.log.Info().Str("name", r.cfg.Name).Str("holder", r.cfg.Holder).Int("window_events", r.cfg.Window.Events).
		Int64("window_bytes", r.cfg.Window.Bytes).Msg("started")
	err := l.deliver(ctx)
	if err == nil || errors.Is(err, errCopied) {
		return l.stop()
	}
	if errors.Is(err, ErrNoGap) || errors.Is(err, ErrDeclined) {
		l.finish()
		return err
	}
	return l.fail(ctx, err)
}
