package relay

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/checkpoint"
	"github.com/walpost/walpost/internal/fault"
)

// OriginHeader is the header of every record that comes from the table and not from the WAL.
const OriginHeader = "walpost.origin"

// A copying is the publishing of rows of the table while the session holds the slot and nobody reads it. The rows are counted by a
// tracker of their own, each as a transaction that ends at its number: what is safe is how many of them, from the first, are acknowledged.
//
// The rows are read by a goroutine: one that is waited for, as while the server sorts them, must not hold up the signs of life. All
// fields belong to the loop.
type copying struct {
	a      *attempt
	spec   checkpoint.Copy // with all that is acknowledged
	rows   chan copied     // nil while nothing is read
	cancel context.CancelFunc

	taken cdc.Position // rows
	sent  uint64       // records that they gave
	ahead []ahead      // the rows taken that are not acknowledged, oldest first
	done  bool         // the last row is taken

	savedRows uint64 // of spec, in the newest durable record
	over      bool   // a record that asks for no copy is durable
}

// An ahead is a row that was taken, or the end of a table.
type ahead struct {
	n    cdc.Position
	mark checkpoint.Mark
	end  bool // of mark's table
}

// copied is what the reader hands over: a row that nobody else refers to, the end of a table (ev nil), the end of all tables (an empty mark
// too), or why it stopped.
type copied struct {
	ev   *cdc.Event
	mark checkpoint.Mark
	err  error
}

// installCopy is install where rows of the table are to be published, or were until now.
func (l *loop) installCopy(ctx context.Context, a *attempt) error {
	if err := l.confirm(); err != nil { // the first sign of life of this session's own
		return err
	}
	// What is in flight is waited for, however long: to send it again would be to publish it twice. Where the record is not this process's own,
	// what the former copy had finished must not be written under the new epoch: the slot may be another one, whose stream has less.
	l.checkpointer.frozen = l.copy == nil || !a.own
	for l.inFlight() > 0 && ctx.Err() == nil && l.sess != nil {
		if err := l.settle(ctx.Done(), l.now.Add(time.Minute)); err != nil {
			return err
		}
	}
	if ctx.Err() != nil || l.sess == nil {
		return nil
	}
	was := l.copy
	l.copy = nil
	if a.rec.Copy == nil { // the write that ended the copy was durable after all, or another process made it
		l.begin(a)
		if was != nil && was.spec.Origin == checkpoint.OriginRecover {
			return errCopied
		}
		return l.installed(a)
	}
	c := &copying{a: a, spec: *a.rec.Copy}
	if was != nil && a.own { // this process knows better than the record how far it came
		c.spec, c.done = was.spec, was.done
		c.spec.Slot = true
	}
	l.tracker = checkpoint.New(0) // nobody waits for a ticket of the former one
	l.marks, l.checkpointer.durableSent = marks{}, 0
	l.progress = progress{}
	l.received = a.rec.LSN
	l.fresh, l.dropNext, l.checkpointer.frozen = false, false, false
	l.copy, c.savedRows = c, a.rec.Copy.Rows
	l.log.Info().Str("origin", c.spec.Origin).Uint64("published", c.spec.Rows).Str("lsn", a.rec.LSN.String()).
		Msg("publishing rows of the table, ahead of the stream")
	return l.installed(a)
}

// copyRows publishes rows until all are published, the session is lost, ctx ends, or something cannot go on.
func (l *loop) copyRows(ctx context.Context) error {
	c := l.copy
	if !c.done {
		c.start(l)
	}
	defer c.stop()
	timer := time.NewTicker(idleWait / 2)
	defer timer.Stop()
	for n := 0; l.sess != nil; n++ {
		if c.over {
			return l.copied()
		}
		var rows <-chan copied
		if !c.done && !l.full() {
			rows = c.rows
		}
		ready := true
		select {
		case r := <-rows:
			if err := l.copyRow(r); err != nil {
				return err
			}
		default:
			ready = false
		}
		if !ready {
			select {
			case r := <-rows:
				if err := l.copyRow(r); err != nil {
					return err
				}
			case <-l.sink.Wake():
			case s := <-l.saves:
				l.checkpointer.result(l, s)
			case <-ctx.Done():
				return nil
			case <-timer.C:
			}
		}
		if ready && n%maxBatch != 0 {
			continue
		}
		if err := l.tick(time.Now()); err != nil {
			return err
		}
		if ctx.Err() != nil {
			return nil
		}
	}
	return nil
}

// copyRow takes what the reader handed over.
func (l *loop) copyRow(r copied) error {
	c := l.copy
	switch {
	case r.err != nil && fault.Retryable(r.err):
		return l.lose(r.err)
	case r.err != nil:
		return r.err
	case r.ev == nil && r.mark.Table == "":
		c.done = true
		return nil
	case r.ev == nil:
		return l.counted(ahead{mark: r.mark, end: true}, nil, nil)
	}
	l.sawEvent, l.moved = true, true
	l.rec.EventID = ""
	ok, err := l.router.Route(r.ev, &l.rec)
	if err != nil {
		return l.unroutable(r.ev, 0, int(c.taken)+1, err)
	}
	if !ok {
		return l.counted(ahead{mark: r.mark}, nil, nil)
	}
	return l.counted(ahead{mark: r.mark}, &l.rec, r.ev.Row.Relation)
}

// counted gives a the next number, as a transaction with one record of a row of table, or with none where rec is nil.
func (l *loop) counted(a ahead, rec *cdc.Record, table *cdc.Relation) error {
	c := l.copy
	c.taken++
	a.n = c.taken
	c.ahead = append(c.ahead, a)
	l.tracker.Begin(l.now) // as old as its sending: it is late on nobody's account
	if rec != nil {
		rec.Headers = append(rec.Headers, cdc.Header{Key: OriginHeader, Value: []byte(c.spec.Origin)})
		ticket := l.tracker.Add(rec.Size())
		ticket.Row, ticket.Table = uint32(c.taken), table
		ticket.Tx |= l.gen << genShift
		c.sent++
		l.sink.Send(rec, ticket)
		*rec = cdc.Record{} // the sink's now
	}
	return l.tracker.Commit(c.taken)
}

// advance takes over what is acknowledged.
func (c *copying) advance(safe cdc.Position) {
	n := 0
	for n < len(c.ahead) && c.ahead[n].n <= safe {
		if a := &c.ahead[n]; a.end {
			c.spec.Finish(a.mark.Table)
		} else {
			c.spec.Advance(a.mark)
		}
		n++
	}
	c.ahead = c.ahead[:copy(c.ahead, c.ahead[n:])]
}

// acknowledged says that nothing is left to read or to wait for.
func (c *copying) acknowledged() bool { return c.done && len(c.ahead) == 0 }

// record is what a checkpoint says of the copy now: nil once there is nothing left of it.
func (c *copying) record() *checkpoint.Copy {
	if c.acknowledged() {
		return nil
	}
	spec := c.spec
	return &spec
}

// copied goes on to the stream.
func (l *loop) copied() error {
	c := l.copy
	l.log.Info().Str("origin", c.spec.Origin).Uint64("rows", c.spec.Rows).Msg("the rows of the table are published")
	l.copy = nil
	l.begin(c.a)
	if c.spec.Origin == checkpoint.OriginRecover {
		return errCopied
	}
	l.progress.reconnected()
	l.setState(Streaming, "")
	return nil
}

// start begins to read.
func (c *copying) start(l *loop) {
	ctx, cancel := context.WithCancel(l.background)
	c.cancel, c.rows = cancel, make(chan copied)
	tables, sess, spec, out := l.cfg.Copying.Tables, l.sess, c.spec, c.rows
	l.wg.Go(func() {
		err := read(ctx, tables, sess, spec, out)
		if errors.Is(err, context.Canceled) && ctx.Err() != nil {
			return
		}
		select {
		case out <- copied{err: err}:
		case <-ctx.Done():
		}
	})
}

// stop ends the reading. The reader's goroutine ends soon.
func (c *copying) stop() {
	if c.cancel != nil {
		c.cancel()
		c.cancel, c.rows = nil, nil
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
			ev = owned(ev)
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

// owned is a copy of a row: the reader goes on to the next one while the loop still works on this one.
func owned(ev *cdc.Event) *cdc.Event {
	size := 0
	for _, v := range ev.Row.Values {
		size += len(v.Bytes)
	}
	buf := make([]byte, 0, size)
	c := *ev
	c.Row.Values = make([]cdc.Value, len(ev.Row.Values))
	for i, v := range ev.Row.Values {
		if v.Bytes != nil {
			at := len(buf)
			buf = append(buf, v.Bytes...)
			v.Bytes = buf[at:len(buf):len(buf)]
		}
		c.Row.Values[i] = v
	}
	return &c
}
