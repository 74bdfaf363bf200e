package relay

import (
	"context"
	"fmt"
	"time"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/checkpoint"
)

// SnapshotPatience is how long a reading of the tables holds its snapshot of the database while no
// record can be sent, for example because Kafka is down. The snapshot keeps VACUUM from its work in the
// whole database. Then the reading ends, and another one goes on behind it.
const SnapshotPatience = 5 * time.Minute

// A RowFeed feeds one publication of rows of the tables: a snapshot, a recover or a replay. Its Copy
// says which rows, and where the publication resumes. The feed reads the tables only while there is room for their rows, and
// numbers what it hands over, from 1. The caller counts each number as a transaction, and says up to
// which one everything is acknowledged.
//
// A goroutine reads the rows, because the server may have to sort them first. Everything else belongs to
// the goroutine that publishes.
type RowFeed struct {
	Copy checkpoint.Copy // with all that is acknowledged

	// Open begins to read the rows of a Copy that are not published yet. The reading goroutine calls it.
	Open func(ctx context.Context, c checkpoint.Copy) (Rows, error)
	// Patience is how long the snapshot is held without room, and Freed is called when it is over.
	Patience time.Duration
	Freed    func()

	taken   uint64            // the newest number
	unacked []checkpoint.Mark // of the newest numbers; Nth is 0 for the end of a table
	ended   bool              // the end of all tables is taken

	reader *reader         // nil if the tables are not read now
	freed  <-chan struct{} // closed when the reader before it has freed its snapshot; nil for none
	since  time.Time       // since when there is no room; zero if there is some
}

// A reader hands over rows until it is stopped.
type reader struct {
	rows  chan FedRow
	stop  context.CancelFunc
	freed chan struct{} // closed when it holds no snapshot any more
}

// A FedRow is what a RowFeed hands over: a row that nobody else refers to, the end of a table (no
// Event), the end of all tables (an empty Mark too), or why the reader stopped.
type FedRow struct {
	Event *cdc.Event
	Mark  checkpoint.Mark
	Err   error
}

// Last reports whether it is the end of all tables.
func (r *FedRow) Last() bool { return r.Event == nil && r.Mark.Table == "" && r.Err == nil }

// Without its snapshot, a copy reads the tables as they are now, and leaves out what the stream will give. A
// lost session leads to the same second reading. It begins behind the last row that was taken. The rows before
// it are in the sink, which keeps their order, and in RowFeed.unacked until they are acknowledged. The record of
// the checkpoint has only what is acknowledged.

// Rows is where the next row comes from, nil while none can be taken. It begins to read when there is
// room for a row, and frees the snapshot when there was none for long. Reading ends with ctx. spawn runs
// the reading goroutine.
func (f *RowFeed) Rows(ctx context.Context, now time.Time, room bool, spawn func(read func())) <-chan FedRow {
	switch {
	case f.ended:
		return nil
	case room:
		f.since = time.Time{}
		if f.reader == nil {
			f.start(ctx, spawn)
		}
		return f.reader.rows
	case f.since.IsZero():
		f.since = now
	}
	if f.reader != nil && now.Sub(f.since) >= f.Patience {
		if behind := f.behind(); behind.Resumes() {
			f.Free()
			f.Freed()
		}
	}
	return nil
}

// behind is the Copy with all rows that were taken. They are in flight, and the sink keeps them until
// they are acknowledged, so another reading in this process need not give them again.
func (f *RowFeed) behind() checkpoint.Copy {
	c := f.Copy
	c.Pass(f.unacked)
	return c
}

// start begins to read behind the last row that was taken, once the reader before has ended.
func (f *RowFeed) start(ctx context.Context, spawn func(func())) {
	open, c, before := f.Open, f.behind(), f.freed
	ctx, stop := context.WithCancel(ctx)
	r := &reader{rows: make(chan FedRow), stop: stop, freed: make(chan struct{})}
	f.reader = r
	spawn(func() {
		defer close(r.freed)
		if before != nil {
			<-before
		}
		err := r.read(ctx, open, c)
		select {
		case r.rows <- FedRow{Err: err}:
		case <-ctx.Done():
		}
	})
}

// Take gives what was handed over the next number. The end of all tables has none.
func (f *RowFeed) Take(r *FedRow) cdc.Position {
	if f.ended = r.Last(); !f.ended {
		f.taken++
		f.unacked = append(f.unacked, r.Mark)
	}
	return cdc.Numbered(f.taken)
}

// Taken is the newest number, and Unacked how many of the numbers are not acknowledged.
func (f *RowFeed) Taken() uint64 { return f.taken }
func (f *RowFeed) Unacked() int  { return len(f.unacked) }

// Complete reports whether everything was handed over, and is acknowledged.
func (f *RowFeed) Complete() bool { return f.ended && len(f.unacked) == 0 }

// Acknowledge notes that everything up to a number is acknowledged. It reports whether that is new.
func (f *RowFeed) Acknowledge(upTo cdc.Position) bool {
	acked := int(upTo.Number()) - (int(f.taken) - len(f.unacked))
	f.Copy.Pass(f.unacked[:acked])
	f.unacked = append(f.unacked[:0], f.unacked[acked:]...)
	return acked > 0
}

// Forget forgets what is not acknowledged, and returns the newest number that is.
func (f *RowFeed) Forget() (acked cdc.Position) {
	f.taken -= uint64(len(f.unacked))
	f.unacked, f.ended = nil, false
	return cdc.Numbered(f.taken)
}

// Free stops the reader, and so frees its snapshot. What it has read and not handed over is read again.
func (f *RowFeed) Free() {
	if f.reader != nil {
		f.reader.stop()
		f.freed, f.reader = f.reader.freed, nil
	}
}

// Close is Free, and waits until the snapshot is freed.
func (f *RowFeed) Close() {
	if f.Free(); f.freed != nil {
		<-f.freed
	}
}

// read hands over all rows, and the end of each table.
func (r *reader) read(ctx context.Context, open func(context.Context, checkpoint.Copy) (Rows, error), c checkpoint.Copy) error {
	rows, err := open(ctx, c)
	if err != nil {
		return fmt.Errorf("read the table: %w", err)
	}
	defer rows.Close()
	for {
		ev, mark, err := rows.Next(ctx)
		if err != nil {
			return fmt.Errorf("read the table: %w", err)
		}
		next := FedRow{Event: ev, Mark: mark}
		if next.Last() {
			return nil
		}
		if ev != nil {
			next.Event = ev.Clone() // the reader goes on while the row is published
		}
		select {
		case r.rows <- next:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
