package sink

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/walpost/walpost/cdc"
)

// A transaction has at most this much, unless a single record is larger.
const (
	batchRecords = 1000
	batchBytes   = 4 << 20
)

// A parkingWriter writes what was appended since one Fence, one transaction after another. The records of a transaction are one
// batch of the partition.
type parkingWriter struct {
	p      *ParkingLog
	cl     *kgo.Client // which commits nothing any more once it's closed
	limit  int         // bytes of a batch
	next   int64       // the least offset that the next record can have; run only
	ctx    context.Context
	cancel context.CancelFunc
	work   chan struct{} // there's something in queue, or the log closes; capacity 1
	done   chan struct{} // closed when run has ended

	// Guarded by ParkingLog.mu.
	queue []cdc.Pending // appended and not ended
	since time.Time     // when the transaction under way began; zero for none
}

var errOffset = errors.New("the brokers acknowledged a record at an offset that was used before: the topic was created again, or they do not know the offset")

// run writes until the log breaks, or until it is closed or fenced again.
func (w *parkingWriter) run() {
	defer close(w.done)
	n := batchRecords // of the next transaction, at most
	for {
		batch := w.take(n)
		if batch == nil {
			return
		}
		ended, err := w.transact(batch)
		switch {
		case err == nil:
			w.end(ended)
			n = min(2*n, batchRecords)
		case refusal(err) != "" && len(batch) == 1:
			why := &cdc.Refusal{Reason: refusal(err), Topic: w.p.cfg.Parking, Err: reason(w.p.cfg.Parking, err)}
			w.end([]cdc.Appended{{Ticket: batch[0].Ticket, Record: batch[0].Record, Err: why}})
		case refusal(err) != "": // the brokers refuse the batch; which of its records is to blame shows when it's alone
			n = len(batch) / 2
		default:
			w.give(fmt.Errorf("append %d records: %w", len(batch), err))
			return
		}
	}
}

// take waits until there's something to write, and returns it without taking it from the queue. It returns nil when the log is
// closed or fenced again.
func (w *parkingWriter) take(n int) []cdc.Pending {
	for {
		w.p.mu.Lock()
		if w.p.closed || w.ctx.Err() != nil {
			w.p.mu.Unlock()
			return nil
		}
		size, batch := 0, []cdc.Pending(nil)
		for _, a := range w.queue[:min(n, len(w.queue))] {
			if size += BatchBytes(a.Record); size > w.limit && batch != nil {
				break
			}
			batch = append(batch, a)
		}
		if batch != nil {
			w.since = time.Now()
		}
		w.p.mu.Unlock()
		if batch != nil {
			return batch
		}
		select {
		case <-w.work:
		case <-w.ctx.Done():
		}
	}
}

// end posts the end of the first records of the queue.
func (w *parkingWriter) end(ended []cdc.Appended) {
	w.p.mu.Lock()
	defer w.p.mu.Unlock()
	w.queue = slices.Delete(w.queue, 0, len(ended))
	w.since = time.Time{}
	w.p.probe.found = nil
	w.p.ended = append(w.p.ended, ended...)
	poke(w.p.wake)
}

// give breaks the log. The client is closed before anybody hears of it, because what it still does must not be committed.
func (w *parkingWriter) give(err error) {
	w.cl.Close()
	w.p.mu.Lock()
	defer w.p.mu.Unlock()
	w.p.give(w, w.p.fail(err))
	poke(w.p.wake)
}

// transact writes a batch in one transaction. If the error is a refusal of the batch, the transaction is aborted, and the next one may
// begin. After any other error its outcome is unknown.
func (w *parkingWriter) transact(batch []cdc.Pending) ([]cdc.Appended, error) {
	if err := w.cl.BeginTransaction(); err != nil {
		return nil, err
	}
	records, errs := make([]kgo.Record, len(batch)), make([]error, len(batch))
	for i, a := range batch {
		records[i] = w.record(a.Record)
		w.cl.Produce(context.Background(), &records[i], func(_ *kgo.Record, err error) { errs[i] = err })
	}
	if err := w.cl.Flush(w.ctx); err != nil { // all promises have run, or the writer stops
		return nil, err
	}
	for _, err := range errs {
		switch {
		case err == nil:
		case refusal(err) == "":
			return nil, err
		default:
			if failed := w.cl.EndTransaction(w.ctx, kgo.TryAbort); failed != nil {
				return nil, fmt.Errorf("abort: %w", failed)
			}
			return nil, err
		}
	}
	for i := range records {
		if records[i].Offset < w.next {
			return nil, fmt.Errorf("%w (offset %d, but it must be at least %d)", errOffset, records[i].Offset, w.next)
		}
		w.next = records[i].Offset + 1
	}
	if w.p.beforeCommit != nil {
		w.p.beforeCommit()
	}
	if err := w.cl.EndTransaction(w.ctx, kgo.TryCommit); err != nil {
		return nil, fmt.Errorf("commit: %w", err)
	}
	now, ended := time.Now(), make([]cdc.Appended, len(batch))
	for i, a := range batch {
		ended[i] = cdc.Appended{Ticket: a.Ticket, Record: a.Record, Offset: records[i].Offset, Latency: max(0, now.Sub(a.Record.Committed))}
	}
	return ended, nil
}

func (w *parkingWriter) record(rec *cdc.Record) kgo.Record {
	r := kgo.Record{Topic: w.p.cfg.Parking, Key: rec.Key, Value: rec.Value, Timestamp: rec.Time}
	for _, h := range rec.Headers {
		r.Headers = append(r.Headers, kgo.RecordHeader{Key: h.Key, Value: h.Value})
	}
	return r
}
