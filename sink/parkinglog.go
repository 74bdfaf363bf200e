package sink

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/internal/kafka"
)

// A ParkingLog writes and reads the parking topic: see relay.ParkingLog. One goroutine calls Fence, Append, Appends, Unwritten
// and Close. Any goroutine may call Read, Trim, Broken, Stalled and Wake.
//
// Kafka sees to it that the topic has one writer for each transactional id. Fence initialises the id, and from then on the
// brokers refuse whatever an earlier producer of that id sends, and abort its open transaction. So an acknowledged append needs
// no second look: it was committed by the producer that was the newest one then.
//
// The producer of a ParkingLog commits one transaction after another. After any error that it can't explain by one record, it
// gives up, and the log is broken until the next Fence. It never resumes by itself: the client would initialise its id once
// more, and nobody would have read what another process wrote in between.
type ParkingLog struct {
	cfg      Config
	id       string        // the transactional id
	timeout  time.Duration // of a transaction, after which the brokers abort it; shorter in tests
	patience time.Duration // of Fence, and of a Read or a Trim that comes no further: kafka.ReadPatience; shorter in tests
	wake     chan struct{}
	dials    kafka.Dials

	beforeCommit func() // nil but in tests: is called between the last record of a transaction and its commit

	wg sync.WaitGroup // the searches of Stalled

	reading sync.Mutex // held by Read and Trim

	mu        sync.Mutex // guards what follows, and the fields of the writer that say so
	closed    bool
	asks      *kgo.Client // asks and reads, never produces; nil until needed
	topic     [16]byte    // id of the topic, as of the newest Fence, or else as of the first reading; zero before Kafka 2.8
	writer    *parkingWriter
	broken    error
	ended     []cdc.Appended
	unwritten []cdc.Pending
	probe     probe
	warned    bool // that Trim lacks a privilege
}

// transactionTimeout is how long a transaction may take. After this time the brokers abort it, so the transaction of a process
// that died holds up the readers of the topic no longer.
const transactionTimeout = 30 * time.Second

// NewParkingLog returns a ParkingLog of cfg.Parking. It doesn't wait for the brokers. Nothing is written before the first Fence.
func NewParkingLog(cfg Config, transactionalID string) *ParkingLog {
	return &ParkingLog{cfg: cfg, id: transactionalID, timeout: transactionTimeout, patience: kafka.ReadPatience, wake: make(chan struct{}, 1)}
}

var (
	errPartitions = errors.New("the topic has more than one partition, so it does not keep the order of the parked events")
	errEnough     = errors.New("enough") // ends a reading because its caller has read enough
	errUnfenced   = errors.New("this process has not fenced the parking topic, so it may not write to it")
	errNoProducer = errors.New("the brokers give no producer id: they support no transactions")
)

// Fence makes this process the only writer of the topic. It initialises the transactional id, which aborts the open transaction
// of an earlier writer and makes its appends fail from then on. Start and End are as of a moment after that.
//
// The topic is created if it's missing and create is set. Without create, a missing topic is no error: Missing is set then, and
// nothing can be appended.
//
// What was appended before and hasn't ended goes to Unwritten. An error that waiting doesn't cure needs an operator, and all others
// can be tried again. After an error the log stays broken.
func (p *ParkingLog) Fence(ctx context.Context, create bool) (cdc.LogState, error) {
	p.stop()
	state, w, err := p.fence(ctx, create)
	p.mu.Lock()
	defer p.mu.Unlock()
	if err == nil && p.closed {
		err = errClosed
	}
	if err != nil {
		p.broken = p.fail(err)
		if w != nil {
			w.cl.Close()
		}
		return cdc.LogState{}, p.broken
	}
	p.broken = nil
	if p.writer = w; w != nil {
		go w.run()
	}
	return state, nil
}

// fence is Fence without its effects on p, except that it remembers the id of the topic.
func (p *ParkingLog) fence(ctx context.Context, create bool) (state cdc.LogState, w *parkingWriter, err error) {
	ctx, cancel := context.WithTimeout(ctx, p.patience)
	defer cancel()
	cl, err := p.client()
	if err != nil {
		return state, nil, err
	}
	t, err := p.describe(ctx, cl, create)
	switch {
	case err != nil:
		return state, nil, p.dials.Explain(err)
	case t == nil:
		p.mu.Lock()
		p.topic = [16]byte{}
		p.mu.Unlock()
		return cdc.LogState{Missing: true}, nil, nil
	case len(t.Partitions) > 1:
		return state, nil, errPartitions
	}
	if may, known := t.Allows(kmsg.ACLOperationWrite); known && !may {
		return state, nil, kerr.TopicAuthorizationFailed
	}
	if w, err = p.newWriter(int(t.Limit())); err != nil {
		return state, nil, err
	}
	switch producer, _, err := w.cl.ProducerID(ctx); {
	case err != nil:
		return state, w, p.dials.Explain(fmt.Errorf("initialise transactional id %q: %w", p.id, err))
	case producer < 0: // what the client says if the brokers don't know the request
		return state, w, errNoProducer
	}
	state, id, err := p.look(ctx, cl)
	if err != nil {
		return state, w, err
	}
	p.mu.Lock()
	p.topic = id
	p.mu.Unlock()
	w.next = state.End
	return state, w, nil
}

// look asks for the present state of a topic that exists.
func (p *ParkingLog) look(ctx context.Context, cl *kgo.Client) (state cdc.LogState, id [16]byte, err error) {
	r := kafka.Reader{Client: cl, Topic: p.cfg.Parking, Patience: p.patience, From: math.MaxInt64} // it only looks
	if err := r.ToEnd(ctx); err != nil {
		return state, id, p.dials.Explain(err)
	}
	if r.Partitions > 1 {
		return state, id, errPartitions
	}
	return cdc.LogState{ID: topicID(r.TopicID()), Start: r.Start, End: r.End}, r.TopicID(), nil
}

// State is what Fence would return, without any effect.
func (p *ParkingLog) State(ctx context.Context) (state cdc.LogState, err error) {
	ctx, cancel := context.WithTimeout(ctx, p.patience)
	defer cancel()
	cl, err := p.client()
	if err != nil {
		return state, p.fail(err)
	}
	t, err := p.describe(ctx, cl, false)
	switch {
	case err != nil:
		return state, p.fail(p.dials.Explain(err))
	case t == nil:
		return cdc.LogState{Missing: true}, nil
	}
	if state, _, err = p.look(ctx, cl); err != nil {
		err = p.fail(err)
	}
	return state, err
}

// topicID is the topic id of a cdc.Anchor.
func topicID(id [16]byte) string {
	if id == [16]byte{} {
		return ""
	}
	return hex.EncodeToString(id[:])
}

// client returns the client that asks and reads.
func (p *ParkingLog) client() (*kgo.Client, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, errClosed
	}
	if p.asks != nil {
		return p.asks, nil
	}
	cl, err := p.cfg.NewClient(&p.dials)
	if err == nil {
		p.asks = cl
	}
	return cl, err
}

// describe returns the topic, which is created if it's missing and create is set. Otherwise a missing topic is nil.
func (p *ParkingLog) describe(ctx context.Context, cl *kgo.Client, create bool) (*kafka.Topic, error) {
	t, err := kafka.DescribeTopic(ctx, cl, p.cfg.Parking, "max.message.bytes")
	if err != nil {
		return nil, err
	}
	switch missing := errors.Is(t.Err, kerr.UnknownTopicOrPartition); {
	case !missing:
		return t, t.Err
	case !create:
		return nil, nil //nolint:nilnil // as the comment has it
	}
	if _, _, err := CreateLetterTopic(ctx, cl, p.cfg.Parking, false); err != nil {
		return nil, fmt.Errorf("create: %w", err)
	}
	p.cfg.Logger.Info().Str("topic", p.cfg.Parking).Msg("topic created")
	return appear(ctx, cl, p.cfg.Parking, "max.message.bytes")
}

// stop ends the writer, and has what it hasn't written in Unwritten.
func (p *ParkingLog) stop() {
	p.mu.Lock()
	w := p.writer
	p.mu.Unlock()
	if w == nil {
		return
	}
	w.cancel()
	w.cl.Close()
	<-w.done
	p.mu.Lock()
	p.give(w, errUnfenced)
	p.mu.Unlock()
}

// give moves what w hasn't written to Unwritten. mu is held.
func (p *ParkingLog) give(w *parkingWriter, why error) {
	p.unwritten = append(p.unwritten, w.queue...)
	w.queue = nil
	p.broken = cmp.Or(p.broken, why)
	if p.writer == w {
		p.writer = nil
	}
}

// Append takes over rec and writes it behind everything that was appended before. It never waits for the brokers. What is
// appended while the log is broken, or while Unwritten has something, goes to Unwritten.
func (p *ParkingLog) Append(rec *cdc.Record, ticket cdc.Ticket) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if w := p.writer; w != nil && p.broken == nil && len(p.unwritten) == 0 {
		w.queue = append(w.queue, cdc.Pending{Record: rec, Ticket: ticket})
		poke(w.work)
		return
	}
	p.unwritten = append(p.unwritten, cdc.Pending{Record: rec, Ticket: ticket})
}

// Appends appends to buf what has ended since the last call, in the order of Append. Each record ends once, unless Unwritten
// returns it.
func (p *ParkingLog) Appends(buf []cdc.Appended) []cdc.Appended {
	p.mu.Lock()
	defer p.mu.Unlock()
	buf = append(buf, p.ended...)
	clear(p.ended)
	p.ended = p.ended[:0]
	return buf
}

// Unwritten returns what was appended and hasn't ended, in the order of Append, and forgets it. Some of it may be committed. A
// caller finds that out by reading up to the end that the topic has after the next Fence, and then appends the rest again.
func (p *ParkingLog) Unwritten() []cdc.Pending {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := p.unwritten
	p.unwritten = nil
	return all
}

// Wake receives a value when there's something for Appends, and when the log has broken.
func (p *ParkingLog) Wake() <-chan struct{} { return p.wake }

// Broken says why nothing more is committed until the next Fence: another process has fenced this one, or the outcome of a
// transaction is unknown. It is nil while all is well.
func (p *ParkingLog) Broken() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.broken == nil && p.writer == nil && len(p.unwritten) > 0 {
		return p.fail(errUnfenced)
	}
	return p.broken
}

// Stalled says what the appends wait for, or nil while they go on. It's cheap: it starts a search for the reason, not more
// often than every probeEvery, and until the reason is found it reports how long nothing was committed.
func (p *ParkingLog) Stalled() error {
	if err := p.Broken(); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	w := p.writer
	if w == nil || p.closed || w.since.IsZero() || now.Sub(w.since) < stallAfter {
		p.probe.found = nil
		return nil
	}
	if !p.probe.running && now.Sub(p.probe.at) > probeEvery && p.asks != nil {
		p.probe.running = true
		p.wg.Add(1)
		go p.search(p.asks)
	}
	if err := p.probe.found[p.cfg.Parking]; err != nil {
		return err
	}
	if err := p.dials.Last(); err != nil {
		return fmt.Errorf("topic %s: %w", p.cfg.Parking, err)
	}
	return silence{p.cfg.Parking, now.Sub(w.since)}
}

// search asks the brokers what keeps a transaction from ending.
func (p *ParkingLog) search(cl *kgo.Client) {
	defer p.wg.Done()
	ctx, cancel := context.WithTimeout(context.Background(), askTimeout)
	defer cancel()
	t, why := kafka.DescribeTopic(ctx, cl, p.cfg.Parking, "min.insync.replicas")
	if why == nil {
		why = examine(t)
	} else {
		why = p.dials.Explain(fmt.Errorf("brokers %v: %w", p.cfg.Brokers, why))
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.probe = probe{at: time.Now(), found: map[string]error{p.cfg.Parking: why}}
}

// Close waits until the transaction that's under way has ended, and frees everything. Nothing else is written. When ctx ends
// first, Close returns its error, and the brokers abort the transaction later, unless its commit has reached them.
func (p *ParkingLog) Close(ctx context.Context) error {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return nil
	}
	p.closed = true
	w, asks := p.writer, p.asks
	if w != nil {
		poke(w.work)
	}
	p.mu.Unlock()
	done := make(chan struct{})
	go func() {
		defer close(done)
		if w != nil {
			<-w.done
			w.cl.Close()
		}
		if asks != nil {
			asks.Close()
		}
		p.wg.Wait()
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
	}
	if w != nil {
		w.cancel()
		go w.cl.Close() // which ends what the writer waits for
	}
	return fmt.Errorf("close the parking log: %w", context.Cause(ctx))
}

// fail explains an error, and says what it needs.
func (p *ParkingLog) fail(err error) error {
	switch topic := p.cfg.Parking; {
	case fault.NeedsPerson(err), fault.Retryable(err): // said already
		return err
	case errors.Is(err, errPartitions):
		return fault.Person(fmt.Errorf("topic %s: %w", topic, err),
			"Name a topic with one partition, or one that does not exist, in delivery.parking_topic. If keys are parked, release them first.")
	case errors.Is(err, errNoProducer):
		return fault.Person(fmt.Errorf("topic %s: %w", topic, err),
			"Parking keys needs transactions, which Kafka has since 0.11. Set another policy than park_key in delivery.on_poison.")
	case errors.Is(err, kafka.ErrGone):
		return fault.Person(fmt.Errorf("topic %s: %w", topic, err),
			"Events that were parked in the topic may be lost: walpost verify names those that are in no topic, and walpost replay delivers them from the table.")
	case errors.Is(err, kafka.ErrOpen):
		err = fmt.Errorf("topic %s: another producer's transaction holds up its readers until it ends or times out: %w", topic, err)
	case errors.Is(err, kerr.ProducerFenced), errors.Is(err, kerr.InvalidProducerEpoch):
		err = fmt.Errorf("topic %s: another process uses the transactional id %q, or a transaction took longer than %s: %w", topic, p.id, p.timeout, err)
	case errors.Is(err, kerr.TransactionalIDAuthorizationFailed):
		err = fmt.Errorf("topic %s: not authorized to use the transactional id %q (grant Write and Describe on it): %w", topic, p.id, err)
	case errors.Is(err, kerr.UnknownTopicOrPartition):
		err = fmt.Errorf("topic %s does not exist: %w", topic, err)
	default:
		err = reason(topic, err)
	}
	return fault.Retry(err)
}

// newWriter makes the writer of one Fence. limit is the topic's max.message.bytes.
func (p *ParkingLog) newWriter(limit int) (*parkingWriter, error) {
	w := &parkingWriter{p: p, limit: min(limit, batchBytes), work: make(chan struct{}, 1), done: make(chan struct{})}
	var err error
	w.cl, err = kgo.NewClient(append(p.cfg.Options(),
		kgo.TransactionalID(p.id),
		kgo.TransactionTimeout(p.timeout),
		kgo.RequiredAcks(kgo.AllISRAcks()),
		kgo.ManualFlushing(), // so that the records of a transaction are one batch
		kgo.ProducerBatchCompression(codecs[p.cfg.Compression], kgo.NoCompression()),
		// Any size: the writer keeps its batches below the topic's limit, and the brokers judge a single record above it, because
		// their limit is one of compressed batches.
		kgo.ProducerBatchMaxBytes(kafka.MaxRequest-kafka.LeastLimit),
		kgo.BrokerMaxWriteBytes(kafka.MaxRequest),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.WithHooks(append([]kgo.Hook{&p.dials}, p.cfg.Hooks...)...),
	)...)
	if err != nil {
		return nil, fmt.Errorf("kafka client: %w", err)
	}
	w.ctx, w.cancel = context.WithCancel(context.Background())
	return w, nil
}
