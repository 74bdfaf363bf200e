package replication

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/internal/wait"
)

const (
	// probeEvery is how often the detector asks whether the server is about to stop.
	probeEvery = 5 * time.Second
	// freshEvery is how many probes pass before one uses a fresh connection although the open one works. A server that
	// stops in "smart" mode goes on serving the open connection, and waits for it.
	freshEvery = 6
	// probeWithin bounds a probe. A probe that takes longer says nothing.
	probeWithin = 3 * time.Second
	// shutdownGrace is how long a session whose server stops still takes acknowledgements.
	shutdownGrace = 2 * time.Second
)

// errGoingDown is why the detector, or a spin of keepalives, ends a session.
var errGoingDown = errors.New("the server is shutting down")

// detectShutdown starts the goroutine that finds out, beside the stream, whether the server is about to stop. A fast shutdown
// waits until everything that was sent is confirmed, and the stream does not tell us while we do not read.
func (s *Session) detectShutdown() {
	if s.cfg.probe == nil {
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	gone := make(chan struct{})
	d := &shutdownDetector{sql: s.sql, fresh: s.cfg.probe}
	s.sql = nil // the detector's from now on
	go func() {
		defer close(gone)
		defer d.close()
		if err := d.run(ctx, s.suspect); err != nil {
			s.cfg.logger.Warn("the server is shutting down; closing the stream", "slot", s.cfg.slot, "err", err)
			err = fault.Retry(fmt.Errorf("stream of slot %s: %w: %w", s.cfg.slot, errGoingDown, err))
			s.ended.Store(&err)
			s.wire.kill()
		}
	}()
	s.stopDetector = func() {
		cancel()
		<-gone
	}
}

// probeNow asks the detector for a probe now.
func (s *Session) probeNow() {
	select {
	case s.suspect <- struct{}{}:
	default:
	}
}

// A shutdownDetector finds out whether a server is about to stop, by an open connection and by fresh ones.
type shutdownDetector struct {
	sql   prober // nil when there is none any more
	fresh func(ctx context.Context) error
}

// run probes the server until the server is about to stop, and returns the error that shows it. It returns nil if ctx ends first.
func (d *shutdownDetector) run(ctx context.Context, now <-chan struct{}) error {
	ticks := time.NewTicker(probeEvery)
	defer ticks.Stop()
	for probes := 1; ; probes++ {
		suspicious := false
		select {
		case <-ctx.Done():
			return nil
		case <-now:
			suspicious = true
		case <-ticks.C:
		}
		if d.sql != nil && !suspicious && probes%freshEvery != 0 {
			if d.ping(ctx) == nil {
				continue
			}
			suspicious = true
		}
		err := d.try(ctx)
		if goingDown(err) && !suspicious {
			// Nothing else points to a shutdown, so a second probe must agree.
			if !wait.For(ctx, time.Second) {
				return nil
			}
			err = d.try(ctx)
		}
		if ctx.Err() != nil {
			return nil
		}
		if goingDown(err) {
			if !wait.For(ctx, shutdownGrace) {
				return nil
			}
			return err
		}
	}
}

// ping tries the open connection, and closes it if it is dead: a healthy server can lose one connection.
func (d *shutdownDetector) ping(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, probeWithin)
	defer cancel()
	err := d.sql.Ping(ctx)
	if err != nil && ctx.Err() == nil {
		d.close()
	}
	return err
}

// try makes a fresh connection.
func (d *shutdownDetector) try(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, probeWithin)
	defer cancel()
	return d.fresh(ctx)
}

func (d *shutdownDetector) close() {
	if d.sql == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = d.sql.Close(ctx) // it holds nothing
	d.sql = nil
}
