package relay

import (
	"context"
	"fmt"
	"time"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/checkpoint"
	"github.com/walpost/walpost/internal/fault"
)

// A sighting is what the monitor found.
type sighting struct {
	began time.Time
	found cdc.Identity
	err   error
}

// watch asks the source at every interval whether what the stream rests on is still there. It is not one of the loop's methods: it runs beside it.
func (r *Relay) watch(ctx context.Context, sightings chan<- sighting) {
	ticker := time.NewTicker(r.cfg.MonitorInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		k := sighting{began: time.Now()}
		limited, cancel := context.WithTimeout(ctx, max(r.cfg.MonitorInterval, defaultMonitor))
		k.found, k.err = r.source.Check(limited)
		cancel()
		select {
		case <-ctx.Done():
			return
		case sightings <- k:
		}
	}
}

// checked takes what the monitor found.
func (l *loop) checked(k sighting) error {
	if k.began.Before(l.opened) {
		return nil // the session looked later
	}
	err := k.err
	switch elsewhere := k.found.Started != l.found.Started; {
	case fault.NeedsPerson(err) && elsewhere:
		// A failover or a restart ends the stream, and opening anew judges with the whole identity in hand.
		err = fault.Retry(fmt.Errorf("%w, on another server than the session's, or after its restart", err))
	case fault.NeedsPerson(err) && l.looked != nil:
		err = fmt.Errorf("%w; events after %s may be missing", err, l.looked.LSN)
		if k.found.Unpublished != "" { // the last record says so: the next start refuses, also where all is put right by then
			l.looked = l.looked.Broken(k.found.Unpublished)
		}
	case err == nil && !elsewhere:
		if err = checkpoint.JudgePublished(l.record(), k.found); err == nil {
			l.looked = checkpoint.Seen(k.found)
		}
	}
	switch {
	case err == nil:
		l.check.over(l.now, func(n int, since time.Duration) {
			l.log.Info().Int("times", n).Dur("for", since).Msg("source can be checked again")
		})
	case fault.NeedsPerson(err):
		return fmt.Errorf("check of the source: %w", err)
	default:
		l.noteError(err)
		l.check.fault(l.now, func(n int, since time.Duration) {
			l.log.Warn().Err(err).Int("times", n).Dur("for", since).Msg("source cannot be checked")
		})
	}
	return nil
}
