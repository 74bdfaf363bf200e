package relay

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/checkpoint"
	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/relay/internal/records"
)

// With delivery.guarantee exactly_once, the records and the checkpoint record that covers them become visible together: see Committer. The
// checkpointer composes the record as if all that was sent were delivered already, and the phase goes on meanwhile. A session begins with
// Fence, while it holds the slot, and behind the newest record. So whatever became of the transaction before, a restart and a lost session
// find the same: everything up to that record is delivered, once, and nothing behind it.
//
// Nothing is committed while it is open what becomes of an event before: while a refused record has neither a letter nor a place among the
// parked events, or while a letter is not durable. Where the relay halts because of a refused record, the open transaction is aborted.

// A Committer is a Sink that makes what it delivers visible by transactions. A record's Ack comes when its transaction is committed.
type Committer interface {
	Sink

	// Fence makes this process the only one that commits. What another process has begun is aborted; what it has committed can be read when
	// Fence returns. What was sent before and is not committed is forgotten, without an Ack. It may be called beside the loop. What is sent
	// before Begin is dropped, and nothing is committed.
	Fence(ctx context.Context) error

	// Begin says that the loop knows of the Fence.
	Begin()

	// Commit ends the transaction of what was sent since the newest Commit, with a record of the checkpoint. What is sent afterwards belongs
	// to the next one. It returns what Committed will be once it has taken effect, and 0 if nothing can be committed now. A Commit has no
	// effect if a record of it ends with an Ack that has an error.
	Commit(key string, value []byte) (n uint64)

	// Committed is how many Commits have taken effect, and whether one is under way. The Acks of the former are there before. The error says
	// why no other one will take effect before Fence.
	Committed() (n uint64, underWay bool, lost error)

	// Uncommitted is what was sent since the newest Commit.
	Uncommitted() cdc.Uncommitted
}

// Sparse events wait for nothing. While the source has more at once, a transaction gathers records for commitEvery, and during a long backlog
// for a part of the time that it has lasted, up to commitMost: each commit keeps the next records waiting.
const (
	commitEvery = 50 * time.Millisecond
	commitPart  = 8
	commitMost  = 300 * time.Millisecond
)

// commitParts is how many transactions the window holds, at least.
const commitParts = 4

// commits is what the checkpointer knows of transactions.
type commits struct {
	Committer                    // nil for at_least_once
	cutting   *checkpoint.Record // of the Commit under way, nil for none
	cutSends  uint64             // how many of the records sent by this process cutting covers
	number    uint64             // of Committer.Committed, once cutting has taken effect
	ended     uint64             // Commits that have taken effect
	begun     uint64             // the same when the session began
	waits     cdc.Uncommitted    // as of the newest look
	more      bool               // the source has another event at once
	since     time.Time          // since when it has
	refused   bool               // an event halts the relay that was sent before
}

// writing reports whether a write of a record has not ended.
func (c *checkpointer) writing() bool { return c.busy || c.commits.cutting != nil }

// commitless reports whether nothing can be committed without another session: the sink has forgotten what was in flight, or letters cannot be
// written.
func (c *checkpointer) commitless() bool {
	return c.commits.Committer != nil && (c.frozen || c.parker.sent > 0 && c.parker.writing() == 0)
}

// uncovered reports whether something was sent that no Commit covers.
func (c *checkpointer) uncovered(sent uint64) bool {
	k := &c.commits
	if k.Committer != nil && k.waits.Records == 0 && sent > max(k.cutSends, c.sent) { // or these are letters
		k.waits = k.Uncommitted()
	}
	return k.waits.Records > 0
}

// cuts reports whether the transaction should end now, and leaves its record in draft.
func (c *checkpointer) cuts(now time.Time, p phase) bool {
	k := &c.commits
	if k.waits = k.Uncommitted(); k.cutting != nil || k.refused || c.parker.sent > 0 {
		return false
	}
	if k.waits.Records == 0 {
		return c.ripe(now, p)
	}
	window := c.cfg.Window
	if k.more && k.waits.Records < window.Events/commitParts && int64(k.waits.Bytes) < int64(window.Bytes)/commitParts && now.Sub(k.waits.Since) < k.gathers(now) {
		return false
	}
	c.compose(now, p, false)
	return true
}

// gathers is how long a transaction gathers records.
func (k *commits) gathers(now time.Time) time.Duration {
	return min(max(now.Sub(k.since)/commitPart, commitEvery), commitMost)
}

// has notes whether the source has another event at once.
func (k *commits) has(more bool, now time.Time) {
	if more && !k.more {
		k.since = now
	}
	k.more = more
}

// overdue reports whether the phase should read no more until the transaction has ended.
func (c *checkpointer) overdue() bool {
	k := &c.commits
	return k.Committer != nil && c.parker.sent > 0 && (k.waits.Records > 0 && c.now.Sub(k.waits.Since) > commitEvery || c.now.Sub(c.last) > saveEvery)
}

// cut commits draft.
func (c *checkpointer) cut(now time.Time) {
	rec := c.drafted()
	n := c.commits.Commit(rec.HolderKey(), rec.Encode())
	if n == 0 {
		c.retry = now.Add(busyWait)
		return
	}
	c.active, c.last = false, now
	c.commits.cutting, c.commits.number, c.commits.cutSends = &rec, n, c.draftSends
}

// committed takes how many Commits have taken effect.
func (c *checkpointer) committed(n uint64) {
	k := &c.commits
	k.ended = n
	if k.cutting == nil || n < k.number {
		return
	}
	if k.cutting.Epoch == c.epoch {
		c.durable, c.sent = k.cutting, k.cutSends
		c.failure, c.retry = "", time.Time{}
	}
	k.cutting = nil
}

// collect takes what the sink has ended, and what it has committed.
func (l *loop) collect() error {
	c := l.checkpointer
	if c.commits.Committer == nil {
		return l.take()
	}
	n, underWay, lost := c.commits.Committed() // before their Acks
	err := l.take()
	if c.committed(n); !underWay { // it was withdrawn, because of an event that it covers
		c.commits.cutting = nil
	}
	if lost == nil || l.sess == nil || l.ending() || err != nil {
		return err
	}
	if c.commits.ended == c.commits.begun { // the next session may meet the same
		l.moved, l.opened = false, l.now
	}
	return l.lose(fault.Retry(lost))
}

// A superseded is why a process ends whose transactions another process has fenced.
type superseded struct {
	fault.ForPerson
	by  *checkpoint.Record
	err error
}

func (s *superseded) Error() string {
	return fmt.Sprintf("another process has taken over: holder %s wrote epoch %d at %s: %v", s.by.Holder, s.by.Epoch, s.by.Time.Format(time.RFC3339), s.err)
}

func (s *superseded) Unwrap() error { return s.err }

// Hint says what to do.
func (s *superseded) Hint() string {
	return "Nothing is lost and nothing is repeated. Start this process again: it waits for the slot, and takes over when the other one ends."
}

// superseded returns an error if this process can't commit any more because of the one that wrote rec.
func (r *opener) superseded(rec *checkpoint.Record) error {
	if r.committer == nil || rec == nil || rec.Holder == r.holder {
		return nil
	}
	if _, _, lost := r.committer.Committed(); lost != nil {
		return &superseded{by: rec, err: lost}
	}
	return nil
}

// startUnfenced starts a's session. While it waits for the slot, the sink may learn that the process which holds it has fenced this one.
func (r *opener) startUnfenced(ctx context.Context, a *attempt) error {
	if r.committer == nil {
		return a.sess.Start(ctx, a.start)
	}
	peeked := r.peeked
	waiting, cancel := context.WithCancelCause(ctx)
	var watch sync.WaitGroup
	watch.Go(func() {
		for {
			select {
			case <-time.After(supersedes):
			case <-waiting.Done():
				return
			}
			if _, _, lost := r.committer.Committed(); lost == nil {
				continue
			}
			stored, err := r.first(waiting)
			if err == nil {
				err = r.superseded(stored.Rec)
			}
			if errors.As(err, new(*superseded)) {
				cancel(err)
			}
		}
	})
	err := a.sess.Start(waiting, a.start)
	cancel(nil)
	if err == nil { // a store that is slow may keep the watch
		safe := min(a.sess.Identity().SlotFound.Confirmed, a.start)
		err = alive(ctx, a.sess, safe, func(context.Context) error { watch.Wait(); return nil })
	} else {
		watch.Wait()
	}
	r.peeked = r.peeked || peeked
	if s := (*superseded)(nil); err != nil && errors.As(context.Cause(waiting), &s) {
		return s
	}
	return err
}

// begin has the sink take what the session of a gives.
func (c *checkpointer) begin() {
	k := &c.commits
	k.cutting, k.begun = nil, k.ended
	k.Begin()
}

// supersedes is how often a process that waits for the slot looks whether it is fenced. After that long, the other one has written its first
// record, usually.
const supersedes = 2 * time.Second

// first is newest before Fence. A transaction that a process has left behind is open until Fence or its timeout, so its end is not waited
// for: the record is read again behind Fence, and before a person is asked for.
func (r *opener) first(ctx context.Context) (checkpoint.Stored, error) {
	if stored := r.unexpected; stored != nil && r.committer != nil {
		r.unexpected = nil
		return *stored, nil
	}
	recovers := r.cfg.Copying != nil && r.cfg.Copying.Origin == checkpoint.OriginRecover // asks a person about what it reads
	if r.peeked = false; r.cfg.Peek != nil && !r.certain && !recovers {
		if stored, err := records.Newest(ctx, r.cfg.Peek, r.cfg.Name, r.loss); err == nil && stored.Rec != nil && !stored.Rec.Intended() { // else a slot is made
			r.peeked = true
			return stored, nil
		}
	}
	return r.newest(ctx)
}
