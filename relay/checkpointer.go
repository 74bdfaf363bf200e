package relay

import (
	"context"
	"fmt"
	"time"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/checkpoint"
)

const (
	saveLimit  = time.Minute            // for one write of a checkpoint
	saveRetry  = 500 * time.Millisecond // after the first failed write; doubles up to saveSlow
	saveSlow   = 10 * time.Second
	removeWait = 10 * time.Second // after a failed removal
)

// exclusive lets one goroutine at a time into a Store, which is all that a Store must stand.
type exclusive struct {
	store Store
	free  chan struct{} // holds one token while nobody is in
}

func newExclusive(store Store) *exclusive {
	e := &exclusive{store: store, free: make(chan struct{}, 1)}
	e.free <- struct{}{}
	return e
}

func (e *exclusive) enter(ctx context.Context) error {
	select {
	case <-e.free:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (e *exclusive) Load(ctx context.Context, name string) (map[string][]byte, error) {
	if err := e.enter(ctx); err != nil {
		return nil, err
	}
	defer func() { e.free <- struct{}{} }()
	return e.store.Load(ctx, name)
}

func (e *exclusive) Save(ctx context.Context, key string, value []byte) error {
	if err := e.enter(ctx); err != nil {
		return err
	}
	defer func() { e.free <- struct{}{} }()
	return e.store.Save(ctx, key, value)
}

// saved is how one write ended.
type saved struct {
	rec     *checkpoint.Record // nil: a removal, or a halt
	sent    uint64             // records sent that rec says are delivered
	removed string
	halt    *checkpoint.Halt
	err     error
}

// A checkpointer decides when which checkpoint is written, and knows what is durable. Loop only; the writing itself is done by one goroutine
// at a time, so that a slow store holds up nothing but the confirmations.
type checkpointer struct {
	epoch   uint64           // of this holder; 0 before the first session
	durable cdc.Position     // of the newest record known to be durable in this epoch: what may be confirmed
	next    *checkpoint.Next // of that record
	looked  cdc.Position     // of the look at what is published in that record
	broken  bool             // that record says that rows were kept out of the stream
	// durableSent is how many of the records sent by this process durable covers.
	durableSent uint64
	busy        bool
	frozen      bool // what is in flight is of a history that is over: no checkpoint of it

	active bool      // something was acknowledged since the newest write began
	last   time.Time // when it began
	fails  int       // in a row
	retry  time.Time // not before
	err    error     // of the newest write

	older    []string  // keys to remove
	removeAt time.Time // not before

	halts  []*checkpoint.Halt // to write: without them walpost skip does not know their tokens
	haltAt time.Time          // not before
}

// taken notes that a session holds the slot with rec as its record.
func (c *checkpointer) taken(rec *checkpoint.Record, older []string) {
	c.epoch, c.durable, c.next, c.looked, c.frozen = rec.Epoch, rec.LSN, rec.Next, rec.Looked(), false
	c.older = append(c.older, older...)
}

// due begins a write where one is due.
func (c *checkpointer) due(l *loop) {
	if c.busy {
		return
	}
	if len(c.halts) > 0 && !l.now.Before(c.haltAt) {
		c.saveHalt(l)
		return
	}
	if c.epoch == 0 || c.frozen || l.tracker == nil {
		return
	}
	if l.now.Before(c.retry) {
		return
	}
	every := l.cfg.IdleCheckpointEvery
	if c.active {
		every = min(every, l.cfg.CheckpointEvery)
	}
	if l.copy != nil {
		if cp := l.copy; !cp.over && (cp.acknowledged() || cp.spec.Rows > cp.savedRows && l.now.Sub(c.last) >= every) {
			c.save(l, nil)
		}
		return
	}
	// A newer look makes the gap shorter that a changed publication leaves. While nothing is safe, as in an outage, only the look moves.
	looked := l.looked != nil && l.looked.LSN > c.looked && l.now.Sub(c.last) >= l.cfg.IdleCheckpointEvery
	if l.tracker.Safe() > c.durable && l.now.Sub(c.last) >= every || looked {
		c.save(l, l.progress.left(l.tracker.Safe(), false))
		return
	}
	if len(c.older) > 0 && !l.now.Before(c.removeAt) && !l.stopping {
		c.remove(l)
	}
}

// record is a record of all that is safe, but for what is delivered in part.
func (l *loop) record() *checkpoint.Record {
	rec := &checkpoint.Record{
		Name: l.cfg.Name, Epoch: l.checkpointer.epoch, SystemID: l.found.SystemID, Timeline: l.found.Timeline, Slot: l.found.Slot,
		Database: l.found.Database, LSN: l.tracker.Safe(), Published: l.looked, CommitTime: l.commitTime,
		RunID: l.runID, Holder: l.cfg.Holder, Time: l.now.UTC(),
	}
	if l.copy != nil { // the tracker counts rows then
		rec.LSN = l.checkpointer.durable
	}
	return rec
}

// save begins a write of all that is safe.
func (c *checkpointer) save(l *loop, next *checkpoint.Next) {
	rec := l.record()
	rec.Next = next
	sent := uint64(0)
	if l.copy != nil {
		rec.Next, rec.Copy, sent = nil, l.copy.record(), l.copy.sent-uint64(l.inFlight())
	} else if when := l.tracker.SafeTime(); !when.IsZero() {
		l.commitTime = when
	}
	rec.CommitTime = l.commitTime
	c.active, c.last = false, l.now
	value := rec.Encode()
	c.busy = true
	if l.copy == nil {
		l.marks.drop(rec.LSN)
		sent = l.marks.safe()
	}
	l.wg.Go(func() {
		ctx, cancel := context.WithTimeout(l.background, saveLimit)
		defer cancel()
		l.saves <- saved{rec: rec, sent: sent, err: l.store.Save(ctx, rec.HolderKey(), value)}
	})
}

// saveHalt begins a write of the first halt.
func (c *checkpointer) saveHalt(l *loop) {
	halt := c.halts[0]
	c.busy = true
	l.wg.Go(func() {
		ctx, cancel := context.WithTimeout(l.background, saveLimit)
		defer cancel()
		l.saves <- saved{halt: halt, err: l.store.Save(ctx, halt.Key(), halt.Encode())}
	})
}

// remove begins the removal of one record that is of no use any more.
func (c *checkpointer) remove(l *loop) {
	key := c.older[0]
	c.busy = true
	l.wg.Go(func() {
		ctx, cancel := context.WithTimeout(l.background, saveLimit)
		defer cancel()
		l.saves <- saved{removed: key, err: l.store.Save(ctx, key, nil)}
	})
}

// result takes how a write ended.
func (c *checkpointer) result(l *loop, s saved) {
	c.busy = false
	switch {
	case s.halt != nil && s.err == nil:
		c.halts = c.halts[1:]
	case s.halt != nil:
		c.haltAt = l.now.Add(saveRetry)
		l.noteError(fmt.Errorf("write halt %s: %w", s.halt.Token, s.err))
	case s.rec == nil && s.err == nil:
		c.older = c.older[1:]
	case s.rec == nil:
		// It does no harm where it is: a higher epoch wins. The next start finds it too.
		c.removeAt = l.now.Add(removeWait)
	case s.rec.Epoch != c.epoch:
		// A session was taken meanwhile with an epoch of its own; what this write did counts for nothing any more.
	case s.err != nil:
		c.failed(l, s.err)
	default:
		c.durable, c.next, c.looked, c.durableSent = s.rec.LSN, s.rec.Next, s.rec.Looked(), s.sent
		c.broken = s.rec.Published != nil && s.rec.Published.Unpublished != ""
		if cp := l.copy; cp != nil {
			if cp.over = s.rec.Copy == nil; !cp.over {
				cp.savedRows = s.rec.Copy.Rows
			}
		}
		c.fails, c.err, c.retry = 0, nil, time.Time{}
		l.storing.over(time.Now(), func(n int, since time.Duration) {
			l.log.Info().Int("times", n).Dur("for", since).Msg("checkpoint written again")
		})
	}
}

// failed notes a write that failed. The record may be durable all the same; nothing is confirmed by it.
func (c *checkpointer) failed(l *loop, err error) {
	c.err, c.active = err, true
	c.retry = l.now.Add(min(saveSlow, saveRetry<<min(c.fails, 8)))
	c.fails++
	l.noteError(err)
	l.storing.fault(time.Now(), func(n int, since time.Duration) {
		l.log.Warn().Err(err).Int("times", n).Dur("for", since).Str("lsn", c.durable.String()).
			Msg("checkpoint cannot be written: delivery goes on, nothing is confirmed")
	})
}
