package statelog

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/kafka"
)

// A transaction has at most this much, unless a single record is larger.
const (
	batchRecords = 1000
	batchBytes   = 4 << 20
)

// A writer writes what was appended since one Open, one transaction after another. The records of a transaction are one batch of the
// partition. Without a transactional id it writes one record after another, so that it knows which one the brokers refuse.
type writer struct {
	l      *Log
	cl     *kgo.Client // which commits nothing any more once it's closed
	limit  int         // bytes of a batch
	next   int64       // the least offset that the next record can have; run only
	ctx    context.Context
	cancel context.CancelFunc
	work   chan struct{} // there's something in queue, or the log closes; capacity 1
	done   chan struct{} // closed when run has ended
	proven bool          // a transaction of this writer was seen to be committed; run only

	// Guarded by Log.mu.
	queue []cdc.Pending // appended and not ended
	since time.Time     // when the transaction under way began; zero for none
}

// newWriter makes the writer of one Open. limit is the topic's max.message.bytes.
func (l *Log) newWriter(limit int) (*writer, error) {
	opts := append(l.Options(),
		kgo.RequiredAcks(kgo.AllISRAcks()),
		kgo.ManualFlushing(), // so that the records of a transaction are one batch
		kgo.ProducerBatchCompression(l.Codec, kgo.NoCompression()),
		// Any size: the writer keeps its batches below the topic's limit, and the brokers judge a single record above it, because
		// their limit is one of compressed batches.
		kgo.ProducerBatchMaxBytes(kafka.MaxRequest-kafka.LeastLimit),
		kgo.BrokerMaxWriteBytes(kafka.MaxRequest),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.WithHooks(append([]kgo.Hook{&l.dials}, l.Hooks...)...),
	)
	if l.TransactionalID != "" {
		opts = append(opts, kgo.TransactionalID(l.TransactionalID), kgo.TransactionTimeout(l.timeout))
	}
	cl, err := kgo.NewClient(opts...)
	if err != nil {
		return nil, fmt.Errorf("kafka client: %w", err)
	}
	w := &writer{l: l, cl: cl, limit: min(limit, batchBytes), work: make(chan struct{}, 1), done: make(chan struct{})}
	w.ctx, w.cancel = context.WithCancel(context.Background())
	return w, nil
}

// stop ends the writer, and has what it hasn't written in Unwritten.
func (l *Log) stop() {
	l.mu.Lock()
	w := l.writer
	l.mu.Unlock()
	if w == nil {
		return
	}
	w.cancel()
	w.cl.Close()
	<-w.done
	l.mu.Lock()
	l.abandon(w, errUnopened)
	l.mu.Unlock()
}

// abandon moves what w hasn't written to Unwritten. mu is held.
func (l *Log) abandon(w *writer, why error) {
	l.unwritten = append(l.unwritten, w.queue...)
	w.queue = nil
	l.broken = cmp.Or(l.broken, why)
	if l.writer == w {
		l.writer = nil
	}
}

// Append takes over rec and writes it behind everything that was appended before. It never waits for the brokers. What is
// appended while the log is broken, or while Unwritten has something, goes to Unwritten.
func (l *Log) Append(rec *cdc.Record, ticket cdc.Ticket) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if rec.Claim != nil {
		l.Upload(rec.Claim, l.look)
	}
	if w := l.writer; w != nil && l.broken == nil && len(l.unwritten) == 0 {
		w.queue = append(w.queue, cdc.Pending{Record: rec, Ticket: ticket})
		poke(w.work)
		return
	}
	l.unwritten = append(l.unwritten, cdc.Pending{Record: rec, Ticket: ticket})
}

// look has the writer look at the queue.
func (l *Log) look() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.writer != nil {
		poke(l.writer.work)
	}
}

// Appends appends to buf what has ended since the last call, in the order of Append. Each record ends once, unless Unwritten
// returns it.
func (l *Log) Appends(buf []cdc.Appended) []cdc.Appended {
	l.mu.Lock()
	defer l.mu.Unlock()
	buf = append(buf, l.ended...)
	clear(l.ended)
	l.ended = l.ended[:0]
	return buf
}

// Unwritten returns what was appended and hasn't ended, in the order of Append, and forgets it. Some of it may be committed. A
// caller finds that out by reading up to the end that the topic has after the next Open, and then appends the rest again.
func (l *Log) Unwritten() []cdc.Pending {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := l.unwritten
	l.unwritten = nil
	return all
}

var errOffset = errors.New("the brokers acknowledged a record at an offset that was used before: the topic was created again, or they do not know the offset")

// commitPatience is how long the records of a committed transaction may be unreadable. The brokers write the marker after they have
// answered.
const commitPatience = 5 * time.Second

var errNotCommitted = errors.New("the client reported a commit, but the records aren't in the topic")

// run writes until the log breaks, or until it is closed or fenced again.
func (w *writer) run() {
	defer close(w.done)
	most := batchRecords // of a transaction
	if w.l.TransactionalID == "" {
		most = 1
	}
	for n := most; ; {
		batch := w.take(n)
		if batch == nil {
			return
		}
		ended, err := w.transact(batch)
		switch {
		case err == nil:
			w.end(ended)
			n = min(2*n, most)
		case kafka.Refusal(err) != "" && len(batch) == 1:
			why := &cdc.Refusal{Reason: kafka.Refusal(err), Topic: w.l.Topic, Err: kafka.Reason(w.l.Topic, err)}
			w.end([]cdc.Appended{{Ticket: batch[0].Ticket, Record: batch[0].Record, Err: why}})
		case kafka.Refusal(err) != "": // the brokers refuse the batch; which of its records is to blame shows when it's alone
			n = len(batch) / 2
		default:
			w.fail(fmt.Errorf("append %d records: %w", len(batch), err))
			return
		}
	}
}

// take waits until there's something to write, and returns it without taking it from the queue. It returns nil when the log is
// closed or fenced again.
func (w *writer) take(n int) []cdc.Pending {
	for {
		w.l.mu.Lock()
		if w.l.closed || w.ctx.Err() != nil {
			w.l.mu.Unlock()
			return nil
		}
		size, batch := 0, []cdc.Pending(nil)
		for _, a := range w.queue[:min(n, len(w.queue))] {
			if size += batchSize(a.Record); size > w.limit && batch != nil || a.Record.Waits() {
				break
			}
			batch = append(batch, a)
		}
		if batch != nil {
			w.since = time.Now()
		}
		w.l.mu.Unlock()
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
func (w *writer) end(ended []cdc.Appended) {
	w.l.mu.Lock()
	defer w.l.mu.Unlock()
	w.queue = slices.Delete(w.queue, 0, len(ended))
	w.since = time.Time{}
	w.l.found = nil
	w.l.ended = append(w.l.ended, ended...)
	poke(w.l.wake)
}

// fail breaks the log. The client is closed before anybody hears of it, because what it still does must not be committed.
func (w *writer) fail(err error) {
	w.cl.Close()
	w.l.mu.Lock()
	defer w.l.mu.Unlock()
	w.l.abandon(w, w.l.fail(err))
	poke(w.l.wake)
}

// transact writes a batch in one transaction. If the error is a refusal of the batch, the transaction is aborted, and the next one may
// begin. After any other error its outcome is unknown.
func (w *writer) transact(batch []cdc.Pending) ([]cdc.Appended, error) {
	fences := w.l.TransactionalID != ""
	if fences {
		if err := w.cl.BeginTransaction(); err != nil {
			return nil, err
		}
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
		case kafka.Refusal(err) == "" || !fences:
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
	if w.l.beforeCommit != nil {
		w.l.beforeCommit()
	}
	if fences {
		if err := w.cl.EndTransaction(w.ctx, kgo.TryCommit); err != nil {
			return nil, fmt.Errorf("commit: %w", err)
		}
		if !w.proven {
			if err := w.prove(records[len(records)-1].Offset); err != nil {
				return nil, err
			}
			w.proven = true
		}
	}
	now, ended := time.Now(), make([]cdc.Appended, len(batch))
	for i, a := range batch {
		ended[i] = cdc.Appended{Ticket: a.Ticket, Record: a.Record, Offset: records[i].Offset, Latency: max(0, now.Sub(a.Record.Committed))}
	}
	return ended, nil
}

// prove reads a record of the writer's first transaction. A new client stores the partitions of a topic after it has buffered the
// records that wait for them. If those are acknowledged before that, EndTransaction takes the transaction for empty: it sends nothing,
// or with KIP-890 an abort, and returns no error (seen with franz-go 1.22.2 on a busy machine; 1.22.3 has the same code). Later
// transactions can't meet this.
func (w *writer) prove(offset int64) error {
	w.l.mu.Lock()
	cl := w.l.asks // open until run has ended
	w.l.mu.Unlock()
	found := false
	r := kafka.Reader{Client: cl, Topic: w.l.Topic, From: offset, Whole: true, Patience: commitPatience}
	r.Each = func(rec *kgo.Record) error {
		found = found || rec.Offset == offset
		return nil
	}
	switch err := r.ToEnd(w.ctx); {
	case kafka.Denied(err):
		return w.l.unreadable(err)
	case err != nil:
		return fmt.Errorf("read what was committed: %w", err)
	case !found:
		return errNotCommitted
	}
	return nil
}

// batchSize is what a record adds to a batch, or what a batch with this record alone has, at most.
func batchSize(rec *cdc.Record) int {
	n := rec.Size() + 96 + 10*len(rec.Headers)
	if rec.Claim != nil { // its payload goes elsewhere
		n -= rec.Claim.Size
	}
	return n
}

func (w *writer) record(rec *cdc.Record) kgo.Record {
	r := kgo.Record{Topic: w.l.Topic, Key: rec.Key, Value: rec.Value, Timestamp: rec.Time}
	for _, h := range rec.Headers {
		r.Headers = append(r.Headers, kgo.RecordHeader{Key: h.Key, Value: h.Value})
	}
	return r
}
