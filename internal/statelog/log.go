// Package statelog keeps walpost's own state. A Log is one partition of a topic that one process appends to and that is read to its
// end. A KafkaStore folds a Log to the newest value of each key: checkpoints, halts, and requests to skip events. A FileStore keeps
// the same in one file. Package parking folds the Log of parked events.
package statelog

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
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

// Config is how a Log is reached, read and written.
type Config struct {
	kafka.Config

	Topic    string
	Settings Settings // of the topic, if it's created
	// TransactionalID makes this process the only writer. A Log without it has as many writers as there are processes.
	TransactionalID string
	Codec           kgo.CompressionCodec
	// Upload stores the payload of a claim, as sink.Kafka does. It is needed if a record has a claim.
	Upload func(c *cdc.Claim, wake func())
	Logger *slog.Logger // slog.Default() by default
	Hooks  []kgo.Hook   // of the client that produces
}

// A Log writes and reads partition 0 of a topic: see relay.ParkingLog. One goroutine calls Open, Append, Appends, Unwritten
// and Close. Any goroutine may call Read, Trim, Broken, Stalled and Wake.
//
// With a transactional id, Kafka sees to it that there's one writer. Open initialises the id, and from then on the brokers refuse
// whatever an earlier producer of that id sends, and abort its open transaction. So an acknowledged append needs no second look: it
// was committed by the producer that was the newest one then. The producer commits one transaction after another.
//
// After any error that it can't explain by one record, the producer gives up, and the log is broken until the next Open. It never
// resumes by itself: the client would initialise its id once more, and nobody would have read what another process wrote in between.
type Log struct {
	Config

	timeout  time.Duration // of a transaction, after which the brokers abort it; shorter in tests
	patience time.Duration // of Open, and of a Read or a Trim that comes no further: kafka.ReadPatience; shorter in tests
	wake     chan struct{}
	dials    kafka.Dials

	beforeCommit func() // nil but in tests: is called between the last record of a transaction and its commit

	wg sync.WaitGroup // the searches of Stalled

	reading sync.Mutex // held by Read and Trim

	mu        sync.Mutex // guards what follows, and the fields of the writer that say so
	closed    bool
	asks      *kgo.Client // asks and reads, never produces; nil until needed
	there     bool        // the newest Open has found the topic
	topic     [16]byte    // its id; zero before Kafka 2.8
	writer    *writer
	broken    error
	ended     []cdc.Appended
	unwritten []cdc.Pending
	warned    bool // of the topic's settings, or that Trim lacks a privilege

	probing bool
	probed  time.Time // when the newest search ended
	found   error     // by it; nil once an append has ended
}

// transactionTimeout is how long a transaction may take. After this time the brokers abort it, so the transaction of a process
// that died holds up the readers of the topic no longer.
const transactionTimeout = 30 * time.Second

// New returns a Log. It doesn't wait for the brokers. Nothing is written before the first Open.
func New(cfg Config) *Log {
	cfg.Logger = cmp.Or(cfg.Logger, slog.Default())
	return &Log{Config: cfg, timeout: transactionTimeout, patience: kafka.ReadPatience, wake: make(chan struct{}, 1)}
}

var (
	errClosed     = errors.New("the log is closed")
	errUnopened   = errors.New("this process has not opened the topic, so it may not write to it")
	errNoProducer = errors.New("the brokers give no producer id: they support no transactions")
)

// Open makes this process a writer of the topic. With a transactional id it's the only writer: Open initialises the id, which aborts
// the open transaction of an earlier writer and makes its appends fail from then on. Without one, a writer that isn't broken goes on
// if the topic is still the same. Start and End are as of a moment after that.
//
// The topic is created if it's missing and create is set. Without create, a missing topic is no error: Missing is set then, and
// nothing can be appended.
//
// What was appended before and hasn't ended goes to Unwritten. An error that waiting doesn't cure needs an operator, and all others
// can be tried again. After an error the log stays broken.
func (l *Log) Open(ctx context.Context, create bool) (cdc.LogState, error) {
	ctx, cancel := context.WithTimeout(ctx, l.patience)
	defer cancel()
	fences := l.TransactionalID != ""
	if fences {
		l.stop()
	}
	t, err := l.find(ctx, create)
	if err == nil && !fences && !l.writes(t) {
		l.stop()
	}
	var w *writer
	var now kafka.Reader
	if err == nil && t != nil {
		if !l.writes(t) {
			w, err = l.fence(ctx, t)
		}
		if err == nil {
			now = kafka.Reader{Client: l.asks, Topic: l.Topic, Patience: l.patience, From: math.MaxInt64} // it only looks
			err = now.ToEnd(ctx)
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if err == nil && l.closed {
		err = errClosed
	}
	if err != nil {
		if w != nil {
			w.cl.Close()
		}
		err = l.fail(l.dials.Explain(err))
		if l.writer == nil {
			l.broken = err
		}
		return cdc.LogState{}, err
	}
	if t != nil && w == nil && l.writer == nil { // the writer has broken in the meantime
		return cdc.LogState{}, l.broken
	}
	if was := l.topic; t != nil && was != [16]byte{} && was != now.TopicID() {
		l.Logger.Warn("the topic was deleted and created again, so what it had is lost", "topic", l.Topic)
	}
	l.there, l.topic, l.broken = t != nil, now.TopicID(), nil
	if t == nil {
		return cdc.LogState{Missing: true}, nil
	}
	if w != nil {
		w.next = now.End
		l.writer = w
		go w.run()
	}
	return stateOf(&now, now.End), nil
}

// writes reports whether there's a writer of the topic that can go on.
func (l *Log) writes(t *kafka.Topic) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return t != nil && l.writer != nil && l.broken == nil && l.topic == t.ID
}

// fence makes the writer of a topic.
func (l *Log) fence(ctx context.Context, t *kafka.Topic) (*writer, error) {
	fences := l.TransactionalID != ""
	if may, known := t.Allows(kmsg.ACLOperationWrite); fences && known && !may {
		return nil, kerr.TopicAuthorizationFailed
	}
	w, err := l.newWriter(int(t.Limit()))
	if err != nil || !fences {
		return w, err
	}
	switch producer, _, err := w.cl.ProducerID(ctx); {
	case err != nil:
		return w, fmt.Errorf("initialise transactional id %q: %w", l.TransactionalID, err)
	case producer < 0: // what the client says if the brokers don't know the request
		return w, errNoProducer
	}
	return w, nil
}

// stateOf is what a reader has found.
func stateOf(r *kafka.Reader, next int64) cdc.LogState {
	s := cdc.LogState{Start: r.Start, End: r.End, Next: next}
	if id := r.TopicID(); id != [16]byte{} {
		s.ID = hex.EncodeToString(id[:])
	}
	return s
}

// client returns the client that asks and reads.
func (l *Log) client() (*kgo.Client, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil, errClosed
	}
	if l.asks != nil {
		return l.asks, nil
	}
	cl, err := l.NewClient(&l.dials)
	if err == nil {
		l.asks = cl
	}
	return cl, err
}

var asked = []string{"max.message.bytes", "cleanup.policy"}

// find returns the topic, which is created if it's missing and create is set. Otherwise a missing topic is nil.
func (l *Log) find(ctx context.Context, create bool) (*kafka.Topic, error) {
	cl, err := l.client()
	if err != nil {
		return nil, err
	}
	t, err := kafka.DescribeTopic(ctx, cl, l.Topic, asked...)
	if err != nil {
		return nil, err
	}
	switch missing := errors.Is(t.Err, kerr.UnknownTopicOrPartition); {
	case missing && !create:
		return nil, nil //nolint:nilnil // as the comment has it
	case missing:
		if t, err = l.create(ctx, cl); err != nil {
			return nil, err
		}
	case t.Err != nil:
		return nil, t.Err
	}
	switch p := t.Settings["cleanup.policy"]; {
	case len(l.Settings) == 0 || l.Settings[0]["cleanup.policy"] != "compact":
	case DeletesCheckpoints(p):
		l.warn(nil, "the topic has cleanup.policy="+p+": checkpoints may be deleted; set cleanup.policy=compact")
	case len(t.Partitions) > 1:
		l.warn(nil, fmt.Sprintf("the topic has %d partitions, of which walpost uses only partition 0", len(t.Partitions)))
	}
	return t, nil
}

// create makes the topic, and waits until it has a leader.
func (l *Log) create(ctx context.Context, cl *kgo.Client) (*kafka.Topic, error) {
	_, refused, err := l.Settings.Create(ctx, cl, l.Topic, false)
	if err != nil {
		return nil, fmt.Errorf("create: %w", err)
	}
	l.Logger.Info("topic created", "topic", l.Topic)
	if refused != nil {
		l.Logger.Warn("the brokers refuse walpost's settings of the topic, so it has settings of theirs: walpost check says what follows",
			"err", refused, "topic", l.Topic)
	}
	for pause := kafka.Backoff(0); ; {
		t, err := kafka.DescribeTopic(ctx, cl, l.Topic, asked...)
		if err == nil {
			if err = t.Err; err == nil && t.Partitions[0].Leader >= 0 {
				return t, nil
			}
		}
		if !pause.Sleep(ctx) {
			return nil, fmt.Errorf("wait for the new topic: %w", errors.Join(context.Cause(ctx), err))
		}
	}
}

func (l *Log) warn(err error, what string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.warned {
		l.Logger.Warn(what, "err", err, "topic", l.Topic)
	}
	l.warned = true
}

// Wake receives a value when there's something for Appends, and when the log has broken.
func (l *Log) Wake() <-chan struct{} { return l.wake }

// Broken says why nothing more is committed until the next Open: another process has fenced this one, or the outcome of an
// append is unknown. It is nil while all is well.
func (l *Log) Broken() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.broken == nil && l.writer == nil && len(l.unwritten) > 0 {
		return l.fail(errUnopened)
	}
	return l.broken
}

// Stalled says what the appends wait for, or nil while they go on. It's cheap: it starts a search for the reason now and then, and
// until the reason is found it reports how long nothing was committed.
func (l *Log) Stalled() error {
	if err := l.Broken(); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	w := l.writer
	if w == nil || l.closed || w.since.IsZero() || now.Sub(w.since) < kafka.StallAfter {
		l.found = nil
		return nil
	}
	if !l.probing && now.Sub(l.probed) > kafka.ProbeEvery && l.asks != nil {
		l.probing = true
		l.wg.Go(func() { l.search(l.asks) })
	}
	if l.found != nil {
		return l.found
	}
	if err := l.dials.Last(); err != nil {
		return fmt.Errorf("topic %s: %w", l.Topic, err)
	}
	return kafka.Silence{Topic: l.Topic, Since: now.Sub(w.since)}
}

// search asks the brokers what keeps a transaction from ending.
func (l *Log) search(cl *kgo.Client) {
	ctx, cancel := context.WithTimeout(context.Background(), kafka.ProbeLimit)
	defer cancel()
	t, why := kafka.DescribeTopic(ctx, cl, l.Topic, "min.insync.replicas")
	if why == nil {
		why = t.Unwritable()
	} else {
		why = l.dials.Explain(fmt.Errorf("brokers %v: %w", l.Brokers, why))
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.probing, l.probed, l.found = false, time.Now(), why
}

// Close waits until the transaction that's under way has ended, and frees everything. Nothing else is written. When ctx ends
// first, Close returns its error, and the brokers abort the transaction later, unless its commit has reached them.
func (l *Log) Close(ctx context.Context) error {
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return nil
	}
	l.closed = true
	w, asks := l.writer, l.asks
	if w != nil {
		poke(w.work)
	}
	l.mu.Unlock()
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
		l.wg.Wait()
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
	return fmt.Errorf("close the log: %w", context.Cause(ctx))
}

// fail explains an error, and says what it needs.
func (l *Log) fail(err error) error {
	switch topic := l.Topic; {
	case fault.NeedsPerson(err), fault.Retryable(err): // said already
		return err
	case errors.Is(err, errNoProducer):
		return fault.Person(fmt.Errorf("topic %s: %w", topic, err),
			"Parking keys needs transactions, which Kafka has since 0.11. Set another policy than park_key in delivery.on_poison.")
	case errors.Is(err, kafka.ErrGone):
		return fault.Person(fmt.Errorf("topic %s: %w", topic, err),
			"Events that were parked in the topic may be lost: walpost verify names those that are in no topic, and walpost replay delivers them from the table.")
	case errors.Is(err, kafka.ErrOpen):
		err = fmt.Errorf("topic %s: another producer's transaction holds up its readers until it ends or times out: %w", topic, err)
	case errors.Is(err, kerr.ProducerFenced), errors.Is(err, kerr.InvalidProducerEpoch):
		err = fmt.Errorf("topic %s: another process uses the transactional id %q, or a transaction took longer than %s: %w", topic, l.TransactionalID, l.timeout, err)
	case errors.Is(err, kerr.TransactionalIDAuthorizationFailed):
		err = fmt.Errorf("topic %s: not authorized to use the transactional id %q (grant Write and Describe on it): %w", topic, l.TransactionalID, err)
	case errors.Is(err, kerr.UnknownTopicOrPartition):
		err = fmt.Errorf("topic %s does not exist: %w", topic, err)
	default:
		err = kafka.Reason(topic, err)
	}
	return fault.Retry(err)
}

func poke(wake chan<- struct{}) {
	select {
	case wake <- struct{}{}:
	default:
	}
}
