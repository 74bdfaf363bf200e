package relay

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/walpost/walpost/checkpoint"
	"github.com/walpost/walpost/internal/failpoint"
	"github.com/walpost/walpost/internal/lib/backoff"
	"github.com/walpost/walpost/relay/internal/recent"
	"github.com/walpost/walpost/relay/internal/records"
)

const (
	saveEvery  = time.Second            // the least time between two records while acknowledgements arrive
	idleEvery  = 10 * time.Second       // the same while none arrive
	haltRetry  = 500 * time.Millisecond // after a failed write of a halt
	removeWait = 10 * time.Second       // after a failed removal
)

// saveAgain spaces out the writes of a record after a failed one.
var saveAgain = backoff.Backoff{Min: 500 * time.Millisecond, Max: 10 * time.Second}

// A checkpointer decides when a checkpoint is written, and knows which one is durable. Its methods
// and fields belong to the loop's goroutine. Another goroutine does the writing, one write at a
// time. So a slow store delays only the confirmations.
type checkpointer struct {
	*opener
	*tasks
	*board
	parker *parker

	epoch    uint64                // of this holder; 0 before the first session
	durable  *checkpoint.Record    // the newest durable record of this epoch; zero before the first session
	sent     uint64                // how many of the records sent by this process durable covers
	timeline uint32                // of the server, which may be promoted while a session streams from it
	looked   *checkpoint.Published // the newest look that found what is published unchanged; nil for none
	// accepted are the gaps that are accepted and not closed.
	accepted []checkpoint.Accepted
	busy     bool // a write has not ended yet
	frozen   bool // no record may speak of what is in flight, because its history may be over

	commits commits

	draft      checkpoint.Record // the record as it would be written now; see compose
	draftSends uint64            // how many of the records sent by this process draft covers
	timing

	halts queue[*checkpoint.Halt] // to write: walpost skip knows only stored tokens
	older queue[string]           // keys to remove
}

// timing says when a record is written.
type timing struct {
	active  bool            // something was acknowledged since the newest write of a record began
	last    time.Time       // when that write began
	retry   time.Time       // no write of a record before this time
	failure string          // of the newest write of a record; "" if it succeeded
	failing recent.FaultLog // writes of records
}

// A queue is what is written one by one, and not before a time.
type queue[T any] struct {
	all   []T
	after time.Time
}

func (q *queue[T]) add(more ...T) { q.all = append(q.all, more...) }

func (q *queue[T]) due(now time.Time) bool { return len(q.all) > 0 && !now.Before(q.after) }

// tried takes the outcome of writing the first one. It is tried again in a while if it failed.
func (q *queue[T]) tried(err error, again time.Duration) {
	if err != nil {
		q.after = time.Now().Add(again)
		return
	}
	q.all = q.all[1:]
}

// taken notes that a session holds the slot, with rec as its durable record. It freezes the
// checkpointer until the phase has resumed: what is in flight may be of another history than rec.
func (c *checkpointer) taken(rec *checkpoint.Record, older []string) {
	var known []string
	for _, a := range slices.Concat(c.durable.Accepted, rec.Accepted) {
		known = append(known, a.Token)
	}
	// A gap that this process accepted stays accepted, though no record has it yet.
	c.accepted = append(slices.Clip(rec.Accepted), checkpoint.StillOpen(c.accepted, known)...)
	c.epoch, c.durable, c.timeline, c.looked, c.frozen = rec.Epoch, rec, rec.Timeline, rec.Published, true
	c.older.add(older...)
}

// due begins the write that is due at now, if there is one. It removes old keys only if tidy.
func (c *checkpointer) due(now time.Time, p phase, tidy bool) {
	switch {
	case c.busy:
	case c.halts.due(now):
		c.saveHalt()
	case c.epoch == 0 || c.frozen || now.Before(c.retry):
	case c.commits.Committer != nil:
		if c.cuts(now, p) {
			c.cut(now)
		} else if tidy && c.older.due(now) {
			c.remove()
		}
	case c.ripe(now, p):
		c.save(now)
	case tidy && c.older.due(now):
		c.remove()
	}
}

// free reports whether nothing delays the next record at now.
func (c *checkpointer) free(now time.Time) bool {
	return !c.busy && c.epoch != 0 && !c.frozen && !now.Before(c.retry)
}

// close notes which accepted gaps a person has closed. The next start removes the requests.
func (c *checkpointer) close(tokens []string) {
	open := checkpoint.StillOpen(c.accepted, tokens)
	if len(open) < len(c.accepted) {
		c.log.Info("an accepted gap is closed", "open", len(open))
	}
	c.accepted = open
}

// compose makes draft the record of all that p has published safely. last says that reading is
// over.
func (c *checkpointer) compose(now time.Time, p phase, last bool) {
	c.draft = *c.durable
	c.draft.Epoch, c.draft.Timeline, c.draft.Published, c.draft.Accepted, c.draft.Time = c.epoch, c.timeline, c.looked, c.accepted, now.UTC()
	c.draftSends = p.describe(&c.draft, c.commits.Committer != nil || last && p.landed())
	if c.parker.known {
		c.draft.Parking = c.parker.anchor()
	}
}

// ahead reports whether draft has come further than the durable record.
func (c *checkpointer) ahead() bool {
	copied, copies := c.durable.Copy, c.draft.Copy
	was, is := c.durable.Next, c.draft.Next
	return c.draft.Position > c.durable.Position || copied != nil && (copies == nil || copies.Rows > copied.Rows) || is != nil && (was == nil || *was != *is)
}

// differs reports whether draft says something else than the durable record of the topic of parked
// events, of the gaps that are accepted, or of the timeline.
func (c *checkpointer) differs() bool {
	was, is := c.durable.Parking, c.draft.Parking
	return (was == nil) != (is == nil) || was != nil && *was != *is || len(c.draft.Accepted) != len(c.durable.Accepted) ||
		c.draft.Timeline != c.durable.Timeline
}

// ripe reports whether a record should be written at now, and leaves that record in draft.
func (c *checkpointer) ripe(now time.Time, p phase) bool {
	since := now.Sub(c.last)
	anchored := c.parker.anchored()
	if c.durable.Copy == nil && since < saveEvery && anchored { // the loop asks after every few events
		return false
	}
	c.compose(now, p, false)
	switch {
	case c.durable.Copy != nil && c.draft.Copy == nil: // the stream waits for this record
		return true
	case !anchored: // and so do letters
		return true
	case (c.ahead() || c.differs()) && (since >= idleEvery || c.active && since >= saveEvery):
		return true
	case len(c.draft.Accepted) != len(c.durable.Accepted) && since >= saveEvery:
		return true
	}
	// A changed publication leaves a gap that begins at the newest look. So the look is written
	// even when nothing else moves.
	return c.draft.Looked() > c.durable.Looked() && since >= idleEvery
}

// unsaved reports whether the durable record lacks something at the end of a run, and leaves the
// last record in draft.
func (c *checkpointer) unsaved(now time.Time, p phase) bool {
	if c.epoch == 0 || c.frozen {
		return false
	}
	if c.commits.Committer != nil { // the record would cover an event that halts, or a letter that is not written
		if _, _, lost := c.commits.Committed(); lost != nil || c.commits.refused || c.parker.sent > 0 {
			return false
		}
	}
	c.compose(now, p, true)
	return c.commits.Committer != nil && c.commits.Uncommitted().Records > 0 || c.ahead() || c.differs() ||
		c.looked != c.durable.Published && c.looked.Unpublished != ""
}

// drafted is a copy of draft that the phase doesn't change: it goes on counting in its own.
func (c *checkpointer) drafted() checkpoint.Record {
	rec := c.draft
	if rec.Copy != nil {
		rec.Copy = new(*rec.Copy)
	}
	return rec
}

// save begins a write of draft.
func (c *checkpointer) save(now time.Time) {
	if c.commits.Committer != nil {
		c.cut(now)
		return
	}
	rec, sent := c.drafted(), c.draftSends
	c.active, c.last = false, now
	c.write(rec.HolderKey(), rec.Encode(), func(err error) {
		switch {
		case rec.Epoch != c.epoch: // a later session took an epoch of its own, and its record counts
		case err != nil:
			c.failed(err)
		default:
			c.durable, c.sent = &rec, sent
			c.failure, c.retry = "", time.Time{}
			c.failing.Over(time.Now(), c.log).Info("the checkpoint can be written again")
		}
	})
}

// failed notes that a write of a record failed. The record may be durable nevertheless, so nothing
// is concluded from it.
func (c *checkpointer) failed(err error) {
	now := time.Now()
	c.failure, c.active = err.Error(), true
	c.retry = now.Add(saveAgain.Pause(c.failing.Times + 1))
	c.noteError(err, &c.failing)
	c.failing.Fault(now, c.log).Warn("checkpoint cannot be written: delivery goes on, nothing is confirmed", "err", err, slog.String(c.durable.Position.Log()))
}

// saveHalt begins a write of the first halt.
func (c *checkpointer) saveHalt() {
	halt := c.halts.all[0]
	c.write(halt.Key(), halt.Encode(), func(err error) {
		if c.halts.tried(err, haltRetry); err != nil {
			c.noteError(fmt.Errorf("write halt %s: %w", halt.Token, err), nil)
		}
	})
}

// remove begins the removal of one key.
func (c *checkpointer) remove() {
	// If it fails, an old record does no harm, because a higher epoch wins. The next start finds it too.
	c.write(c.older.all[0], nil, func(err error) { c.older.tried(err, removeWait) })
}

// write begins a write of value under key. ended is called by the loop when the write has ended.
func (c *checkpointer) write(key string, value []byte, ended func(error)) {
	c.busy = true
	c.beside(func() func() {
		failpoint.Hit(failpoint.Save)
		err := c.within(records.SaveLimit, func(ctx context.Context) error { return c.store.Save(ctx, key, value) })
		failpoint.Hit(failpoint.Saved)
		return func() {
			c.busy = false
			ended(err)
		}
	})
}
