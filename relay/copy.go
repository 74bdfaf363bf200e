package relay

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/checkpoint"
	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/internal/parking"
	"github.com/walpost/walpost/relay/internal/release"
)

// OriginHeader is a header of every record that does not come from the WAL.
const OriginHeader = release.OriginHeader

// The origins of records that a person had sent. They come behind newer records of their key.
const (
	OriginReplay     = "replay"
	OriginDeadLetter = release.Origin
)

// Late reports whether records of an origin have no place in the order of their key.
func Late(origin string) bool { return origin == OriginReplay || origin == OriginDeadLetter }

// copying is the phase that publishes rows of the table. Meanwhile the session holds the slot, and
// nobody reads the stream. The flight counts each number of the feed as a transaction that ends there.
type copying struct {
	parts
	l    *loop
	feed *RowFeed
}

// resumeCopy goes on with a session whose record asks for a copy, or did so until now. was is the
// former copy, nil for none.
func (l *loop) resumeCopy(ctx context.Context, a *attempt, was *copying) error {
	if err := l.confirm(); err != nil { // the first sign of life on this session
		return err
	}
	// The wait for what is in flight has no limit, because sending it again would publish it twice.
	// If the record is not this process's own, the slot may be another one, whose stream has less.
	// Then what the former copy finished must not be written under the new epoch.
	l.checkpointer.frozen = was == nil || !a.own
	err := l.settle(ctx, time.Time{}, func() bool { return l.landed() || l.sess == nil })
	if err != nil || ctx.Err() != nil || l.sess == nil {
		return err
	}
	if a.Rec.Copy == nil { // the write that ended the copy was durable after all, or another process made it
		l.phase = l.newStreaming(l.checkpointer.durable.Next)
		if was.feed.Copy.Origin == checkpoint.OriginRecover {
			return errCopied
		}
		return nil
	}
	feed := &RowFeed{Copy: *a.Rec.Copy, Patience: SnapshotPatience}
	feed.Open = func(ctx context.Context, c checkpoint.Copy) (Rows, error) {
		return l.cfg.Copying.Tables.Rows(ctx, a.sess, c)
	}
	feed.Freed = func() {
		l.log.Info("the snapshot of the tables is freed, because no record can be sent: walpost reads the other rows later, as they are then", "waited", SnapshotPatience)
	}
	if was != nil {
		feed.freed = was.feed.freed
	}
	if was != nil && a.own { // this process knows better than the record how far the copy came
		feed.Copy, feed.ended = was.feed.Copy, was.feed.ended
		feed.Copy.Slot = true
	}
	l.startFlight(0)
	l.st.Received = a.Rec.Position
	l.phase = &copying{parts: l.parts, l: l, feed: feed}
	l.log.Info("publishing rows of the table, ahead of the stream", "origin", feed.Copy.Origin, "published", feed.Copy.Rows, slog.String(a.Rec.Position.Log()))
	return nil
}

func (c *copying) resume(ctx context.Context, a *attempt, _ string) error {
	return c.l.resumeCopy(ctx, a, c)
}

func (c *copying) run(ctx context.Context) error {
	defer c.feed.Free()
	for n := 0; c.sess != nil; n++ {
		if c.checkpointer.durable.Copy == nil {
			return c.over()
		}
		if err := c.l.parker.reopen(ctx); err != nil || ctx.Err() != nil || c.sess == nil {
			return err
		}
		rows := c.rows()
		var r FedRow
		ok, idle := false, false
		select {
		case r, ok = <-rows:
		default:
			idle = true
			r, ok = c.l.waitOr(rows, ctx.Done(), time.Time{})
		}
		if ok {
			if err := c.take(ctx, &r); err != nil {
				return unlessUnread(err)
			}
		}
		if !idle && n%maxBatch != 0 {
			continue
		}
		c.checkpointer.commits.has(!idle, time.Now())
		if err := c.l.tick(time.Now()); err != nil {
			return err
		}
		if ctx.Err() != nil {
			return nil
		}
	}
	return nil
}

// take handles what the reader handed over.
func (c *copying) take(ctx context.Context, r *FedRow) error {
	switch {
	case r.Err != nil && fault.Passing(r.Err, c.worked):
		return c.l.lose(r.Err)
	case r.Err != nil:
		return r.Err
	}
	c.worked = true
	switch {
	case r.Last():
		c.feed.Take(r)
		return nil
	case r.Event == nil:
		return c.count(r, parking.Known)
	}
	c.sawEvent, c.moved = true, true
	ok, err := c.l.route(ctx, r.Event)
	if _, is := errors.AsType[*unread](err); is {
		return err
	}
	switch {
	case err != nil:
	case !ok:
		return c.count(r, parking.Known)
	default:
		c.rec.Headers = append(c.rec.Headers, cdc.Header{Key: OriginHeader, Value: []byte(c.feed.Copy.Origin)})
	}
	verdict, err := c.l.setAside(r.Event, err, 0, int(c.feed.Taken())+1)
	if err != nil {
		return err
	}
	return c.count(r, verdict)
}

// count counts r as a transaction of its own, and sends the record that was made of its event, unless
// the verdict is that the event is known.
func (c *copying) count(r *FedRow, verdict parking.Verdict) error {
	number := c.feed.Take(r)
	c.flight.Tracker.Begin(c.now) // a row counts as new when it is sent
	if verdict != parking.Known {
		c.l.send(number-1, 0, int(c.feed.Taken()), r.Event.Row.Relation, verdict)
	}
	return c.flight.Tracker.Commit(number)
}

func (c *copying) forget() {
	c.l.startFlight(c.feed.Forget())
}

func (c *copying) advance() {
	c.flight.Drop()
	c.feed.Acknowledge(c.flight.Tracker.Safe())
	if c.awaits != nil { // the loop takes no rows, so this frees the snapshot in the end
		c.feed.Rows(c.background, c.now, false, c.wg.Go)
	}
}

// safe is where the slot stands: nothing of the stream is read yet.
func (c *copying) safe() cdc.Position { return c.checkpointer.durable.Position }

func (c *copying) describe(rec *checkpoint.Record, all bool) uint64 {
	rec.Position, rec.Copy = c.safe(), &c.feed.Copy
	switch {
	case all && !c.feed.ended:
		rec.Copy = new(c.feed.behind())
	case all || c.feed.Complete():
		rec.Copy = nil
	}
	if all {
		return c.flight.Sent
	}
	return c.flight.Drop()
}

func (c *copying) about() (trigger, string) {
	return copies, fmt.Sprintf("publishing rows of the table (%s): %d so far; the stream follows them", c.feed.Copy.Origin, c.feed.Copy.Rows)
}

// over goes on to the stream, once a record that asks for no copy is durable.
func (c *copying) over() error {
	c.log.Info("the rows of the table are published", "origin", c.feed.Copy.Origin, "rows", c.feed.Copy.Rows)
	c.l.phase = c.l.newStreaming(c.checkpointer.durable.Next)
	if c.feed.Copy.Origin == checkpoint.OriginRecover {
		return errCopied
	}
	c.l.to(c.l.phase.about())
	return nil
}

// rows is where the next row comes from, nil while none can be taken.
func (c *copying) rows() <-chan FedRow {
	room := !c.l.full() && !c.checkpointer.overdue() && !c.l.parker.pauses() && c.feed.Unacked() <= c.cfg.Window.Events
	return c.feed.Rows(c.background, c.now, room, c.wg.Go)
}
