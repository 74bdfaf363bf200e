package relay

import (
	"context"
	"fmt"
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
// nobody reads the stream. The flight counts each row as a transaction that ends at the row's
// number. So the safe position of its tracker is a number of rows.
//
// A goroutine reads the rows, because the server may have to sort them first, and the loop must
// give signs of life. All fields belong to the loop.
type copying struct {
	*loop
	spec checkpoint.Copy // with all that is acknowledged

	taken cdc.Position      // rows and ends of tables
	ahead []checkpoint.Mark // those without acknowledgement, oldest first; Nth is 0 for an end
	done  bool              // the last row is taken

	reader *reader         // nil if the tables are not read now
	freed  <-chan struct{} // closed when the reader before it has freed its snapshot; nil for none
	since  time.Time       // since when no row could be taken; zero if one could
}

// A reader hands over rows until it is stopped.
type reader struct {
	rows  chan copied
	stop  context.CancelFunc
	freed chan struct{} // closed when it holds no snapshot any more
}

// SnapshotPatience is how long a reading of the tables holds its snapshot of the database while no
// record can be sent, for example because Kafka is down. The snapshot keeps VACUUM from its work in the
// whole database. Then the reading ends, and another one goes on behind it.
const SnapshotPatience = 5 * time.Minute

// copied is what the reader hands over: a row that nobody else refers to, the end of a table (ev
// nil), the end of all tables (an empty mark too), or why the reader stopped.
type copied struct {
	ev   *cdc.Event
	mark checkpoint.Mark
	err  error
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
		if was.spec.Origin == checkpoint.OriginRecover {
			return errCopied
		}
		return nil
	}
	c := &copying{loop: l, spec: *a.Rec.Copy}
	if was != nil {
		c.freed = was.freed
	}
	if was != nil && a.own { // this process knows better than the record how far the copy came
		c.spec, c.done = was.spec, was.done
		c.spec.Slot = true
	}
	l.fly(0)
	l.st.Received = a.Rec.LSN
	l.phase = c
	l.log.Info().Str("origin", c.spec.Origin).Uint64("published", c.spec.Rows).Str(l.found.At(a.Rec.LSN)).
		Msg("publishing rows of the table, ahead of the stream")
	return nil
}

func (c *copying) resume(ctx context.Context, a *attempt, _ string) error {
	return c.resumeCopy(ctx, a, c)
}

func (c *copying) run(ctx context.Context) error {
	defer c.free()
	for n := 0; c.sess != nil; n++ {
		if c.checkpointer.durable.Copy == nil {
			return c.over()
		}
		if err := c.parker.reopen(ctx); err != nil || ctx.Err() != nil || c.sess == nil {
			return err
		}
		rows := c.rows()
		var r copied
		ok, idle := false, false
		select {
		case r, ok = <-rows:
		default:
			idle = true
			r, ok = c.waitOr(rows, ctx.Done(), time.Time{})
		}
		if ok {
			if err := c.take(r); err != nil {
				return err
			}
		}
		if !idle && n%maxBatch != 0 {
			continue
		}
		if err := c.tick(time.Now()); err != nil {
			return err
		}
		if ctx.Err() != nil {
			return nil
		}
	}
	return nil
}

// take handles what the reader handed over.
func (c *copying) take(r copied) error {
	switch {
	case r.err != nil && fault.Passing(r.err, c.worked):
		return c.lose(r.err)
	case r.err != nil:
		return r.err
	}
	c.worked = true
	switch {
	case r.ev == nil && r.mark.Table == "":
		c.done = true
		return nil
	case r.ev == nil:
		return c.count(r.mark, nil, parking.Known)
	}
	c.sawEvent, c.moved = true, true
	ok, err := c.route(r.ev)
	switch {
	case err != nil:
	case !ok:
		return c.count(r.mark, nil, parking.Known)
	default:
		c.rec.Headers = append(c.rec.Headers, cdc.Header{Key: OriginHeader, Value: []byte(c.spec.Origin)})
	}
	verdict, err := c.setAside(r.ev, err, 0, int(c.taken)+1)
	switch {
	case err != nil:
		return err
	}
	return c.count(r.mark, r.ev, verdict)
}

// count gives m the next number, as a transaction of its own, and sends the record that was made of
// ev, unless the verdict is that the event is known.
func (c *copying) count(m checkpoint.Mark, ev *cdc.Event, verdict parking.Verdict) error {
	c.taken++
	c.ahead = append(c.ahead, m)
	c.flight.Tracker.Begin(c.now) // a row counts as new when it is sent
	if verdict != parking.Known {
		c.send(c.taken-1, 0, int(c.taken), ev.Row.Relation, verdict)
	}
	return c.flight.Tracker.Commit(c.taken)
}

func (c *copying) advance() {
	c.flight.Drop()
	acked := int(c.flight.Tracker.Safe()) - (int(c.taken) - len(c.ahead))
	c.spec.Pass(c.ahead[:acked])
	c.ahead = append(c.ahead[:0], c.ahead[acked:]...)
}

// safe is where the slot stands: nothing of the stream is read yet.
func (c *copying) safe() cdc.Position { return c.checkpointer.durable.LSN }

func (c *copying) describe(rec *checkpoint.Record, _ bool) uint64 {
	rec.Copy = &c.spec
	if c.done && len(c.ahead) == 0 { // nothing is left to read or to wait for
		rec.Copy = nil
	}
	return c.flight.Drop()
}

func (c *copying) about() (State, string) {
	return CopyingRows, fmt.Sprintf("publishing rows of the table (%s): %d so far; the stream follows them", c.spec.Origin, c.spec.Rows)
}

// over goes on to the stream, once a record that asks for no copy is durable.
func (c *copying) over() error {
	c.log.Info().Str("origin", c.spec.Origin).Uint64("rows", c.spec.Rows).Msg("the rows of the table are published")
	c.phase = c.newStreaming(c.checkpointer.durable.Next)
	if c.spec.Origin == checkpoint.OriginRecover {
		return errCopied
	}
	c.setState(c.phase.about())
	return nil
}

// rows is where the next row comes from, nil while none can be taken. It begins to read when a row can
// be taken, and frees the snapshot when none could be for long.
func (c *copying) rows() <-chan copied {
	if c.done {
		return nil
	}
	if c.full() || c.parker.pauses() || len(c.ahead) > c.cfg.Window.Events {
		if c.since.IsZero() {
			c.since = c.now
		}
		if c.reader == nil || c.now.Sub(c.since) < SnapshotPatience {
			return nil
		}
		if behind := c.behind(); behind.Resumes() {
			c.free()
			c.log.Info().Dur("waited", SnapshotPatience).Msg("the snapshot of the tables is freed, because no record can be sent: walpost reads the other rows later, as they are then")
		}
		return nil
	}
	c.since = time.Time{}
	if c.reader == nil {
		c.start()
	}
	return c.reader.rows
}

// behind is the copy with all rows that were taken. They are in flight, and the sink keeps them until
// they are acknowledged, so another reading in this process need not give them again.
func (c *copying) behind() checkpoint.Copy {
	spec := c.spec
	spec.Pass(c.ahead)
	return spec
}

// start begins to read behind the last row that was taken, once the reader before has ended.
func (c *copying) start() {
	tables, sess, spec, before := c.cfg.Copying.Tables, c.sess, c.behind(), c.freed
	ctx, stop := context.WithCancel(c.background)
	r := &reader{rows: make(chan copied), stop: stop, freed: make(chan struct{})}
	c.reader = r
	c.wg.Go(func() {
		defer close(r.freed)
		if before != nil {
			<-before
		}
		err := read(ctx, tables, sess, spec, r.rows)
		select {
		case r.rows <- copied{err: err}:
		case <-ctx.Done():
		}
	})
}

// free stops the reader, and so frees its snapshot. What it has read and not handed over is read again.
func (c *copying) free() {
	if c.reader != nil {
		c.reader.stop()
		c.freed, c.reader = c.reader.freed, nil
	}
}

// read hands over all rows, and the end of each table.
func read(ctx context.Context, tables Tables, sess Session, spec checkpoint.Copy, out chan<- copied) error {
	rows, err := tables.Rows(ctx, sess, spec)
	if err != nil {
		return fmt.Errorf("read the table: %w", err)
	}
	defer rows.Close()
	for {
		ev, mark, err := rows.Next(ctx)
		if err != nil {
			return fmt.Errorf("read the table: %w", err)
		}
		switch {
		case ev != nil:
			ev = ev.Clone() // the reader goes on while the loop still works on the row
		case mark.Table == "":
			return nil
		}
		select {
		case out <- copied{ev: ev, mark: mark}:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
