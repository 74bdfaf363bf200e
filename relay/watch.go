package relay

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/checkpoint"
	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/relay/internal/recent"
	"github.com/walpost/walpost/relay/internal/records"
)

// A sighting is what one check of the source found.
type sighting struct {
	began time.Time
	found cdc.Identity
	err   error
}

// A monitor checks the source while a session reads it.
type monitor struct {
	*opener
	*tasks
	*link
	*board
	checkpointer *checkpointer

	sighted []sighting      // not judged yet, oldest first
	check   recent.FaultLog // the source cannot be checked
}

// watch checks the source at every interval, on a goroutine of its own. accepted says whether there are accepted gaps.
func (m *monitor) watch(accepted func() bool) {
	ticker := time.NewTicker(m.cfg.MonitorInterval)
	defer ticker.Stop()
	for {
		select {
		case <-m.background.Done():
			return
		case <-ticker.C:
		}
		k := sighting{began: time.Now()}
		ctx, cancel := context.WithTimeout(m.background, max(m.cfg.MonitorInterval, DefaultConfig().MonitorInterval))
		k.found, k.err = m.source.Check(ctx)
		cancel()
		closed := m.closed(m.background, accepted)
		m.report(func() {
			m.sighted = append(m.sighted, k)
			m.checkpointer.close(closed)
		})
	}
}

// closed reads which accepted gaps a person has closed. If the store cannot be read, they stay open.
func (m *monitor) closed(ctx context.Context, accepted func() bool) (tokens []string) {
	if !accepted() {
		return nil
	}
	stored, err := records.Newest(ctx, m.store, m.cfg.Name, "") // an attempt may be using the opener's token
	if err != nil {
		m.log.Warn("cannot read which accepted gaps are closed", "err", err)
		return nil
	}
	return stored.Closed
}

// judge takes what was found since the last call. p is the present phase.
func (m *monitor) judge(p phase) error {
	for len(m.sighted) > 0 {
		k := &m.sighted[0]
		m.sighted = m.sighted[1:]
		if err := m.checked(k, p); err != nil {
			return err
		}
	}
	return nil
}

// checked takes what one check found.
func (m *monitor) checked(k *sighting, p phase) error {
	c := m.checkpointer
	if k.began.Before(m.opened) {
		return nil // the session is newer
	}
	err := k.err
	switch elsewhere := k.found.Started != m.found.Started; {
	case fault.NeedsPerson(err) && elsewhere:
		// A failover or a restart ends the stream, and the next attempt judges the whole identity.
		err = fault.Retry(fmt.Errorf("%w, on a server other than the session's, or after a restart", err))
	case fault.NeedsPerson(err) && c.looked != nil:
		slot, from := &k.found.SlotFound, p.safe()
		if k.found.Unpublished != "" { // the next start refuses, even if all is put right by then
			from = c.looked.LSN.Position() // the slot still gives what was written before
			c.looked = c.looked.Broken(k.found.Unpublished)
		} else if slot.Exists && slot.Invalidation == "" { // such as a dropped column: the slot still gives everything
			break
		}
		err = fmt.Errorf("%w; events after %s may be missing", err, from)
	case err == nil && elsewhere && m.sess == nil: // the next session finds out
		return nil
	case err == nil && elsewhere:
		err = fault.Retry(errors.New("source.dsn leads to another server than the session's, or the server was restarted"))
	case err == nil:
		// A server that wasn't restarted has kept all that it sent. So what the session has read lies on the new timeline, too.
		c.timeline = max(c.timeline, k.found.Timeline)
		c.compose(m.now, p, false)
		if err = checkpoint.JudgePublished(&c.draft, k.found); err == nil {
			c.looked = checkpoint.Seen(k.found)
		}
	}
	switch {
	case err == nil:
		m.check.Over(m.now, m.log).Info("source can be checked again")
	case fault.NeedsPerson(err):
		return fmt.Errorf("check of the source: %w", err)
	default:
		m.noteError(err, &m.check)
		m.check.Fault(m.now, m.log).Warn("source cannot be checked", "err", err)
	}
	return nil
}
