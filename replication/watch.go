package replication

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/walpost/walpost/internal/fault"
)

const (
	// probeEvery is how often the watch looks whether the server is about to stop.
	probeEvery = 5 * time.Second
	// freshEvery is how many looks go by until one is by a fresh connection although the open one works: a server that
	// stops in "smart" mode serves the open one on, and waits for it.
	freshEvery = 6
	// probeWithin bounds a look. A look that takes longer says nothing.
	probeWithin = 3 * time.Second
	// shutdownGrace is what a server that stops gives, by our leave, to acknowledgements on their way.
	shutdownGrace = 2 * time.Second
)

// errGoingDown is why the watch, or the spin, ends a session.
var errGoingDown = errors.New("the server is shutting down")

// watch starts the goroutine that looks, beside the stream, whether the server is about to stop. A fast shutdown waits
// until everything that was sent is confirmed, and nothing in the stream tells us while we do not read.
func (s *Session) watch() {
	if s.cfg.probe == nil {
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	gone := make(chan struct{})
	w := &watch{sql: s.sql, fresh: s.cfg.probe}
	s.sql = nil // the watch's from now on
	go func() {
		defer close(gone)
		defer w.close()
		if err := w.run(ctx, s.suspect); err != nil {
			s.cfg.logger.Warn().Str("slot", s.cfg.slot).AnErr("err", err).Msg("the server is shutting down; closing the stream")
			err = fault.Retry(fmt.Errorf("stream of slot %s: %w: %w", s.cfg.slot, errGoingDown, err))
			s.ended.Store(&err)
			s.wire.kill()
		}
	}()
	s.unwatch = func() {
		cancel()
		<-gone
	}
}

// lookNow asks the watch for a look now.
func (s *Session) lookNow() {
	select {
	case s.suspect <- struct{}{}:
	default:
	}
}

// A watch looks whether a server is about to stop, by an open connection and by fresh ones.
type watch struct {
	sql   prober // nil when there is none any more
	fresh func(ctx context.Context) error
}

// run looks now and then until the server is about to stop, when it returns how that was seen, or until ctx ends: nil.
func (w *watch) run(ctx context.Context, now <-chan struct{}) error {
	ticks := time.NewTicker(probeEvery)
	defer ticks.Stop()
	for looks := 1; ; looks++ {
		suspicious := false
		select {
		case <-ctx.Done():
			return nil
		case <-now:
			suspicious = true
		case <-ticks.C:
		}
		if w.sql != nil && !suspicious && looks%freshEvery != 0 {
			if w.ping(ctx) == nil {
				continue
			}
			suspicious = true
		}
		err := w.try(ctx)
		if goingDown(err) && !suspicious {
			// Nothing else pointed to it: once more before it is believed.
			if !sleep(ctx, time.Second) {
				return nil
			}
			err = w.try(ctx)
		}
		if ctx.Err() != nil {
			return nil
		}
		if goingDown(err) {
			if !sleep(ctx, shutdownGrace) {
				return nil
			}
			return err
		}
	}
}

// ping tries the open connection, and gives it up when it is dead: one connection may be killed on a healthy server.
func (w *watch) ping(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, probeWithin)
	defer cancel()
	err := w.sql.Ping(ctx)
	if err != nil && ctx.Err() == nil {
		w.close()
	}
	return err
}

// try makes a fresh connection.
func (w *watch) try(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, probeWithin)
	defer cancel()
	return w.fresh(ctx)
}

func (w *watch) close() {
	if w.sql == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = w.sql.Close(ctx) // it holds nothing
	w.sql = nil
}

// sleep waits for d and says whether ctx let it.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
