package sink

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/kafka"
)

// Kafka delivers records to Kafka: acknowledged by all in-sync replicas, idempotent, in the order of Send for each partition.
// Send, PassOver, TakeBack, Acks, Pending and Close belong to one goroutine; Wake, Stalled and Status may be called by any.
//
// A record that the brokers will not take now is kept and tried again for ever, and what is behind it in its partition waits;
// Stalled says why. A record that alone is refused for good (too large, invalid, no valid topic name) ends with an Ack that
// carries a *cdc.Refusal and the record, and the partition stays closed behind it: nothing that was sent to it later is delivered
// before PassOver. Other partitions go on.
//
// The client finds the brokers, connects and asks. The produce requests are the sink's own, because the client tells of a failure
// too late: it fails what it has buffered for a partition, takes the next record as if nothing had happened, and calls the
// promises of the failed ones later. So a later record of a key could be delivered before an earlier one. See partition for what
// keeps the order.
type Kafka struct {
	cfg Config
	log *slog.Logger

	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	wg     sync.WaitGroup // every goroutine of the sink
	link

	mu     sync.Mutex // guards everything below
	closed bool
	directory
	lanes map[int32]*lane
	pool  pool
	outbox
	hash   hash
	line   inquiry
	ids    ids
	plain  bool // nothing is compressed, because a broker does not know the compression
	probe  probe
	counts counts
	tx     *transactions // nil for at_least_once

	uploads uploads // has a lock of its own
}

// A link is the way to the brokers.
type link struct {
	cl         *kgo.Client // asks
	produces   *kgo.Client
	brokers    brokers
	dials      kafka.Dials
	answered   atomic.Bool // brokers have described a topic
	hooks      []kgo.HookProduceBatchWritten
	compressor kgo.Compressor // nil for none
	wire       time.Duration  // how long a request that had no answer may still be written; tests shorten it
}

// An outbox has what has ended, for Acks.
type outbox struct {
	acks, spare []cdc.Ack
	wake        chan struct{}
}

// usualWire is the client's own patience with a request, and some.
const usualWire = 2*answerWithin + 2*time.Second

// Open makes a sink of a valid configuration. It does not wait for the brokers: whatever is wrong with them shows in Stalled.
func Open(cfg Config) (*Kafka, error) {
	s := newKafka(cfg)
	for _, h := range cfg.Hooks {
		if h, ok := h.(kgo.HookProduceBatchWritten); ok {
			s.hooks = append(s.hooks, h)
		}
	}
	var err error
	if s.compressor, err = kgo.DefaultCompressor(cfg.Codec()); err != nil {
		return nil, fmt.Errorf("kafka.compression: %w", err)
	}
	for _, cl := range []**kgo.Client{&s.cl, &s.produces} {
		if *cl, err = cfg.NewClient(append([]kgo.Hook{&s.dials}, cfg.Hooks...)...); err != nil {
			return nil, err
		}
	}
	s.brokers = client{produces: s.produces, asks: s.cl}
	if cfg.TransactionalID != "" {
		s.tx = &transactions{s: s, coordinator: &txClient{cl: s.cl, id: cfg.TransactionalID}, id: cfg.TransactionalID, checkpoints: cfg.Checkpoints}
	}
	if cfg.Bury { // so that the topic is there before the first letter
		s.mu.Lock()
		s.ask(s.topicOf(cfg.DeadLetters, time.Now()))
		s.mu.Unlock()
	}
	return s, nil
}

// newKafka makes a sink without brokers.
func newKafka(cfg Config) *Kafka {
	s := &Kafka{
		cfg: cfg, log: cmp.Or(cfg.Logger, slog.Default()), link: link{wire: usualWire}, directory: directory{topics: map[string]*topic{}, keep: usualKeep},
		lanes: map[int32]*lane{}, outbox: outbox{wake: make(chan struct{}, 1)}, counts: counts{topics: map[string]*uint64{}},
		uploads: uploads{store: cfg.Store, open: map[string]*upload{}}, hash: hash{by: kgo.StickyKeyPartitioner(nil).ForTopic("")},
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	return s
}

// Send takes over the bytes of rec and delivers it. It never waits for a broker.
func (s *Kafka) Send(rec *cdc.Record, ticket cdc.Ticket) {
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	t := s.lastTopic
	if t == nil || t.name != rec.Topic {
		t = s.topicOf(rec.Topic, now)
		s.lastTopic = t
	}
	sl := s.pool.slot()
	sl.fill(rec, ticket)
	if s.tx != nil && !s.tx.takes(sl, now) {
		return
	}
	sl.t, sl.rec.Topic = t, t.name
	if rec.Claim != nil {
		s.Upload(rec.Claim, t.offer)
	}
	t.add(sl, now)
}

// end gives a slot's Ack and frees it. n is its partition. mu is held.
func (s *Kafka) end(sl *slot, n int32, err error, latency time.Duration) {
	a := cdc.Ack{Ticket: sl.ticket, Err: err, EventID: sl.rec.EventID, Topic: sl.t.name, Partition: n, Latency: latency}
	if err != nil {
		a.EventID, a.Record = strings.Clone(sl.rec.EventID), sl.record()
	} else if s.cfg.Observed {
		a.Record, a.Offset = sl.give(), sl.offset
	}
	sl.t.pending--
	if s.tx != nil && err != nil {
		if sl.own {
			s.tx.lose(err)
			return
		}
		s.tx.dropped(sl)
	}
	s.acks = append(s.acks, a)
	if len(s.acks) == 1 {
		poke(s.wake)
	}
	s.pool.free(sl)
}

// Acks appends what has ended since the last call to buf.
func (s *Kafka) Acks(buf []cdc.Ack) []cdc.Ack {
	s.mu.Lock()
	full := s.acks
	s.acks, s.spare = s.spare[:0], nil
	s.mu.Unlock()
	buf = append(buf, full...)
	clear(full)
	s.spare = full // Acks' goroutine only
	return buf
}

// Wake receives something when there is something for Acks.
func (s *Kafka) Wake() <-chan struct{} { return s.wake }

// poke puts a value into a channel of capacity one, unless one is in it.
func poke(wake chan<- struct{}) {
	select {
	case wake <- struct{}{}:
	default:
	}
}

// PassOver lets a partition go on behind the record that was refused with a: its caller has dealt with that record. What was sent to
// the partition since then is delivered, in order. What waits for the topic and what taken wants ends with cdc.ErrTakenBack. A
// partition that is not halted stays as it is.
func (s *Kafka) PassOver(a *cdc.Ack, taken func(key []byte, ticket *cdc.Ticket) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.topics[a.Topic]
	if t == nil || s.closed {
		return
	}
	p := t.parts[a.Partition]
	if p == nil && !t.halted || p != nil && p.state != halted {
		return
	}
	if taken != nil {
		t.takeBack(taken)
	}
	if p != nil {
		p.passOver()
		return
	}
	t.halted, t.reason, t.since = false, nil, time.Now()
	if t.queue.len() > 0 {
		s.ask(t)
	}
}

// TakeBack ends records that wait for a topic, and of which taken is true, with cdc.ErrTakenBack. A record that is sent again as it
// was isn't taken back. One that waits for another producer id is, although it may have been written.
func (s *Kafka) TakeBack(topic string, taken func(key []byte, ticket *cdc.Ticket) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t := s.topics[topic]; t != nil && !s.closed {
		t.takeBack(taken)
	}
}

// Close gives up what is not delivered, without an Ack, and frees everything. When ctx ends first, Close returns its error
// and the rest ends behind it. A request on the wire may still arrive.
func (s *Kafka) Close(ctx context.Context) error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true
	s.mu.Unlock()
	s.cancel()

	done := make(chan struct{})
	go func() {
		defer close(done)
		if s.tx != nil {
			s.tx.giveUp(ctx)
		}
		s.produces.Close()
		s.cl.Close()
		s.wg.Wait()
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("close the kafka client: %w", context.Cause(ctx))
	}
}
