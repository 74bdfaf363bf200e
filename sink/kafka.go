package sink

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/kafka"
)

// Kafka delivers records to Kafka: acknowledged by all in-sync replicas, idempotent, in the order of Send for each topic
// and key. Send, PassOver, Acks and Close belong to one goroutine; Wake, Stalled and Status may be called by any.
//
// A record that the brokers will not take now is kept and tried again for ever, and what is behind it in its topic waits;
// Stalled says why. A record that alone is refused for good (too large, invalid, no valid topic name) ends with an Ack that
// carries a *cdc.Refusal and the record, and the topic stays closed behind it: nothing that was sent to it later is delivered before
// PassOver. Other topics go on.
type Kafka struct {
	cfg Config
	log zerolog.Logger

	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	wg     sync.WaitGroup // every goroutine of the sink
	adm    *kgo.Client    // for questions and topic creation; never produces
	wake   chan struct{}
	dials  kafka.Dials
	role   role // of the goroutine that calls Send
	// handing is the number of the record that Send is about to hand to a client, 0 for none: see abandon.
	handing   atomic.Uint64
	stuckWait stuckWait // with a stall that has no reason, see stuck.go; tests shorten it

	limits sync.Map // topic -> int32: max.message.bytes, read by the clients under their locks

	// mu guards everything below, and the fields of topics and slots that say so. Nothing calls a client while it holds
	// mu, because the clients call fence and behindFence under their own locks.
	mu     sync.Mutex
	closed bool
	next   [kinds]*client // where topics go that start now; nil until first needed
	topics map[string]*topic
	seq    uint64 // of Send
	free   *slot
	acks   []cdc.Ack
	spare  []cdc.Ack
	probe  probe
	line   []*topic // to be asked about, see line.go
	asking bool     // askAll runs

	keep      keep
	gen       int                 // of the clients, see generation.go
	names     map[string]struct{} // topics of this generation
	crowd     int                 // how many of them there must be before the next generation can be due
	delivered map[string]*uint64  // acknowledged records by topic

	abandoned uint64 // times that a topic was taken from a client that was stuck with it
	lastTopic *topic // of Send
}

// role is a goroutine that hands records over to a client.
type role struct {
	buffered atomic.Uint64 // number of the newest record that the client put into a partition's buffer
}

// A slot carries one record through a client. It is used again after its promise.
type slot struct {
	rec       kgo.Record
	ctx       slotContext
	promise   func(*kgo.Record, error) // done, bound once
	t         *topic
	role      *role // who hands it over
	n         uint64
	ticket    cdc.Ticket
	committed time.Time
	eventID   string
	partition int32 // that the record asked for; the client overwrites the record's own
	bytes     int   // of a batch with this record alone
	err       error // of the last attempt; mu
	prev      *slot // at the client, in the order of handing over; mu
	next      *slot // there, or in the free list; mu
}

// Open makes a sink of a valid configuration. It does not wait for the brokers: whatever is wrong with them shows in Stalled.
func Open(cfg Config) (*Kafka, error) {
	s := &Kafka{
		cfg: cfg, log: cfg.Logger, wake: make(chan struct{}, 1), topics: map[string]*topic{}, stuckWait: usualStuckWait,
		keep: usualKeep, names: map[string]struct{}{}, delivered: map[string]*uint64{},
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	var err error
	if s.adm, err = cfg.NewClient(&s.dials); err != nil {
		return nil, err
	}
	if s.next[ordinary], err = s.newClient(ordinary, 0); err != nil {
		s.adm.Close()
		return nil, err
	}
	if cfg.Bury { // so that the topic is there before the first letter
		s.mu.Lock()
		s.shut(s.topicOf(cfg.DeadLetters))
		s.mu.Unlock()
	}
	return s, nil
}

// Send takes over the bytes of rec and delivers it. It never waits for a broker.
func (s *Kafka) Send(rec *cdc.Record, ticket cdc.Ticket) {
	now := time.Now()
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return
	}
	t := s.lastTopic
	if t == nil || t.name != rec.Topic {
		t = s.topicOf(rec.Topic)
		s.lastTopic = t
	}
	sl := s.free
	if sl != nil {
		s.free, sl.next = sl.next, nil
	} else {
		sl = newSlot()
	}
	s.seq++
	n := s.seq
	sl.fill(t, rec, ticket, n)
	if t.pending == 0 {
		t.since = now
	}
	t.pending++
	if t.gate != open || !t.fits(sl) {
		t.queue.push(sl)
		s.shut(t)
		s.mu.Unlock()
		return
	}
	t.leaves(sl)
	c := t.through
	s.handing.Store(n)
	s.mu.Unlock()

	s.handOver(c, sl, n, &s.role)
	s.handing.Store(0)
}

// A recycled slot's number cannot be mistaken. In the sink a *slot* is the struct that carries one record
// through the Kafka client. A slot is used again as soon as its record is acknowledged. This can happen before
// the call that handed the record over returns. The caller then asks whether the client put the record into a
// partition's buffer, by comparing the number that the hook stored with the record's number (Kafka.handOver).
//
// The caller keeps the number in a variable. It must not read the field of the slot, because the slot may
// already carry another record. Send gives each record a new number. Each caller has its own role, and only the
// caller's own records write to it. So an equal number means that this record was buffered. A tender can send
// the same record twice with the same number. After a failed attempt, it sends no later record before it has the
// result of the retry.

// handOver gives a slot to the client. Afterwards the slot belongs to its promise, which may have run already. false: it did
// not get into a partition's buffer, because the client refused it at once or does not know the topic yet (fence.go).
func (s *Kafka) handOver(c *client, sl *slot, n uint64, r *role) bool {
	t := sl.t
	sl.role = r
	sl.rec.Context = &sl.ctx
	sl.rec.Partition = sl.partition
	// TryProduce differs from Produce in that it fails a record where Produce would block.
	c.TryProduce(context.Background(), &sl.rec, sl.promise)
	if r.buffered.Load() == n {
		return true
	}
	s.mu.Lock()
	s.shut(t)
	s.mu.Unlock()
	return false
}

func newSlot() *slot {
	sl := new(slot)
	sl.ctx = slotContext{context.Background(), sl}
	sl.promise = sl.done
	return sl
}

func (sl *slot) fill(t *topic, rec *cdc.Record, ticket cdc.Ticket, n uint64) {
	h := sl.rec.Headers[:0]
	for i := range rec.Headers {
		h = append(h, kgo.RecordHeader{Key: rec.Headers[i].Key, Value: rec.Headers[i].Value})
	}
	sl.rec = kgo.Record{Topic: t.name, Key: rec.Key, Value: rec.Value, Headers: h, Timestamp: rec.Time}
	sl.t, sl.n, sl.ticket, sl.committed, sl.eventID, sl.partition = t, n, ticket, rec.Committed, rec.EventID, max(-1, rec.Partition)
	sl.err = nil
	sl.bytes = room + len(rec.Key) + len(rec.Value)
	for i := range h {
		sl.bytes += 10 + len(h[i].Key) + len(h[i].Value) // two lengths of at most five bytes
	}
}

// record is what fill was given.
func (sl *slot) record() *cdc.Record {
	rec := &cdc.Record{
		Topic: sl.t.name, Partition: sl.partition, Key: sl.rec.Key, Value: sl.rec.Value, Time: sl.rec.Timestamp,
		Committed: sl.committed, EventID: strings.Clone(sl.eventID),
	}
	for _, h := range sl.rec.Headers {
		rec.Headers = append(rec.Headers, cdc.Header{Key: h.Key, Value: h.Value})
	}
	return rec
}

// BatchBytes is the size of a batch with this record alone, at most. The broker compares it with max.message.bytes.
func BatchBytes(rec *cdc.Record) int {
	sl := newSlot()
	sl.fill(&topic{name: rec.Topic}, rec, cdc.Ticket{}, 0)
	return sl.bytes
}

// CompressedBytes is BatchBytes for a record that is compressed with a codec of kafka.compression.
func CompressedBytes(rec *cdc.Record, codec string) (int, error) {
	plain := slices.Concat(rec.Key, rec.Value)
	for _, h := range rec.Headers {
		plain = slices.Concat(plain, []byte(h.Key), h.Value)
	}
	c, err := kgo.DefaultCompressor(codecs[codec], kgo.NoCompression())
	if err != nil || c == nil { // nil compresses nothing
		return BatchBytes(rec), err
	}
	packed, _ := c.Compress(new(bytes.Buffer), plain)
	return BatchBytes(rec) - max(0, len(plain)-len(packed)), nil
}

// done is the promise of a record. The client calls its promises one after another.
func (sl *slot) done(_ *kgo.Record, err error) {
	t := sl.t
	s := t.s
	var now time.Time
	if err == nil {
		now = time.Now()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	oldest := t.oldest == sl
	t.returns(sl)
	if t.flight == 0 && t.gate != open {
		t.signal()
	}
	if s.closed {
		return
	}
	if err != nil {
		sl.err = err
		t.failed = append(t.failed, sl)
		s.shut(t)
		return
	}
	if oldest { // a partition that nothing comes from is not hidden by those that go on
		t.since = now
	}
	if t.delivered == nil {
		t.delivered = s.count(t.name)
	}
	*t.delivered++
	s.end(sl, nil, max(0, now.Sub(sl.committed)))
}

// end gives a slot's Ack and frees it. mu is held.
func (s *Kafka) end(sl *slot, err error, latency time.Duration) {
	a := cdc.Ack{Ticket: sl.ticket, Err: err, EventID: sl.eventID, Topic: sl.t.name, Latency: latency}
	if err != nil {
		a.EventID, a.Record = strings.Clone(sl.eventID), sl.record()
	}
	sl.t.pending--
	s.acks = append(s.acks, a)
	if len(s.acks) == 1 {
		poke(s.wake)
	}
	h := sl.rec.Headers
	clear(h) // a free slot must not keep a payload alive
	sl.rec, sl.t, sl.eventID = kgo.Record{Headers: h[:0]}, nil, ""
	sl.next, s.free = s.free, sl
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

// Close gives up what is not delivered, without an Ack, and frees everything. When ctx ends first, Close returns its error
// and the rest ends behind it. A request on the wire may still arrive.
func (s *Kafka) Close(ctx context.Context) error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true
	clients := map[*client]bool{}
	for k := range kinds {
		clients[s.next[k]] = true
		for _, t := range s.topics {
			clients[t.cl[k]] = true
		}
	}
	s.mu.Unlock()
	s.cancel()

	done := make(chan struct{})
	go func() {
		defer close(done)
		for c := range clients {
			if c != nil {
				c.Close()
			}
		}
		s.adm.Close()
		s.wg.Wait()
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("close the kafka client: %w", context.Cause(ctx))
	}
}

// Status counts since Open.
type Status struct {
	// Delivered has the acknowledged records by topic. Topics beyond the first 200 are counted together, as OtherTopics.
	Delivered map[string]uint64
	Pending   int // records sent and not ended
	// Abandoned is how often a topic was taken from a Kafka client that got no answers although the
	// brokers were healthy. Each time, events may have been delivered twice.
	Abandoned uint64
}

// Status returns a copy of the counters.
func (s *Kafka) Status() Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := Status{Delivered: make(map[string]uint64, len(s.delivered)), Abandoned: s.abandoned}
	for name, n := range s.delivered {
		st.Delivered[name] = *n
	}
	for _, t := range s.topics {
		st.Pending += t.pending
	}
	return st
}

var errClosed = errors.New("the sink is closed")
