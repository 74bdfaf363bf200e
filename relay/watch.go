package relay

import (
	"context"
	"fmt"
	"time"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/checkpoint"
	"github.com/walpost/walpost/internal/fault"
)

// A sighting is what one check of the source found.
type sighting struct {
	began time.Time
	found cdc.Identity
	err   error
}

// watch checks the source at every interval, on a goroutine of its own.
func (l *loop) watch() {
	ticker := time.NewTicker(l.cfg.MonitorInterval)
	defer ticker.Stop()
	for {
		select {
		case <-l.background.Done():
			return
		case <-ticker.C:
		}
		k := sighting{began: time.Now()}
		ctx, cancel := context.WithTimeout(l.background, max(l.cfg.MonitorInterval, DefaultConfig().MonitorInterval))
		k.found, k.err = l.source.Check(ctx)
		closed := l.closed(ctx)
		cancel()
		l.report(func() {
			l.sighted = append(l.sighted, k)
			l.checkpointer.close(closed)
		})
	}
}

// closed reads which accepted gaps a person has closed. If the store cannot be read, they stay open.
func (l *loop) closed(ctx context.Context) (tokens []string) {
	if len(l.Status().Accepted) == 0 {
		return nil
	}
	stored, err := l.newest(ctx)
	if err != nil {
		return nil
	}
	return stored.Closed
}

// checked takes what the monitor found.
func (l *loop) checked(k *sighting) error {
	c := &l.checkpointer
	if k.began.Before(l.opened) {
		return nil // the session is newer
	}
	err := k.err
	switch elsewhere := k.found.Started != l.found.Started; {
	case fault.NeedsPerson(err) && elsewhere:
		// A failover or a restart ends the stream, and the next attempt judges the whole identity.
		err = fault.Retry(fmt.Errorf("%w, on a server other than the session's, or after a restart", err))
	case fault.NeedsPerson(err) && c.looked != nil:
		from := l.phase.safe()
		if k.found.Unpublished != "" { // the next start refuses, even if all is put right by then
			from = c.looked.LSN // the slot still gives what was written before
			c.looked = c.looked.Broken(k.found.Unpublished)
		}
		err = fmt.Errorf("%w; events after %s may be missing", err, from)
	case err == nil && !elsewhere:
		c.compose(l.now, l.phase, false)
		if err = checkpoint.JudgePublished(&c.draft, k.found); err == nil {
			c.looked = checkpoint.Seen(k.found)
		}
	}
	switch {
	case err == nil:
		l.check.Over(l.now, l.log.Info()).Msg("source can be checked again")
	case fault.NeedsPerson(err):
		return fmt.Errorf("check of the source: %w", err)
	default:
		l.noteError(err, &l.check)
		l.check.Fault(l.now, l.log.Warn()).Err(err).Msg("source cannot be checked")
	}
	return nil
}
