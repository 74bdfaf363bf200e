package relay

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/checkpoint"
)

// A fakeSink delivers each key's records in order, after some time, and acknowledges them later, in any order.
type fakeSink struct {
	p      *proc
	mu     sync.Mutex
	rng    *rand.Rand
	queues map[string]chan parcel
	acks   []cdc.Ack
	wake   chan struct{}
	stop   chan struct{}
	wg     sync.WaitGroup
	closed bool
	sends  int
	open   map[string]int           // records that have not ended, by key: a key of the fake is what a topic is to Kafka
	behind map[string]error         // why nothing more of a key is delivered
	passed map[string]chan struct{} // PassOver was called
	tx     *fakeTx                  // nil for at_least_once
}

type parcel struct {
	rec    cdc.Record
	ticket cdc.Ticket

	epoch, tx int // of its transaction
}

func newFakeSink(p *proc, seed uint64) *fakeSink {
	return &fakeSink{p: p, rng: rand.New(rand.NewPCG(seed, 2)), queues: map[string]chan parcel{}, open: map[string]int{}, behind: map[string]error{}, passed: map[string]chan struct{}{}, wake: make(chan struct{}, 1), stop: make(chan struct{})}
}

func (s *fakeSink) Send(rec *cdc.Record, ticket cdc.Ticket) {
	s.p.w.mu.Lock()
	defer s.p.w.mu.Unlock()
	m := parcel{rec: *rec, ticket: ticket}
	if s.tx != nil && !s.tx.takes(&m) {
		return
	}
	s.p.w.judgeSent(s.p, rec)
	s.p.w.judgeContiguous(s.p, rec)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sends++
	q := s.queues[rec.Topic]
	if q == nil {
		q = make(chan parcel, 1<<10)
		passed := make(chan struct{}, 1)
		s.queues[rec.Topic], s.passed[rec.Topic] = q, passed
		s.wg.Go(func() { s.deliver(q, passed) })
	}
	s.open[rec.Topic]++
	q <- m
}

func (s *fakeSink) Pending(each func(topic string, records int, why error, closed bool)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, n := range s.open {
		if n > 0 {
			each(key, n, cmp.Or(s.behind[key], errors.New("slow")), s.behind[key] != nil)
		}
	}
}

func (s *fakeSink) sent() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sends
}

func (s *fakeSink) delay(limit time.Duration) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return time.Duration(s.rng.Int64N(int64(limit) + 1))
}

// after is time.After for a d that can be 0. With the race detector, two goroutines of a bubble crash Go 1.26 when both receive from a timer
// that has come due without a goroutine waiting: they run it with the one race context of the bubble's timers, at once.
func after(d time.Duration) <-chan time.Time {
	if d > 0 {
		return time.After(d)
	}
	due := make(chan time.Time, 1)
	due <- time.Now()
	return due
}

// sleep says whether the sink is still open afterwards.
func (s *fakeSink) sleep(d time.Duration) bool {
	select {
	case <-s.stop:
		return false
	case <-after(d):
		return true
	}
}

func (s *fakeSink) deliver(q chan parcel, passed chan struct{}) {
	w := s.p.w
	for {
		var m parcel
		select {
		case <-s.stop:
			return
		case m = <-q:
		}
		if look(w, &w.missing) == m.rec.Topic {
			s.mu.Lock()
			for n := len(q); ; n-- { // back to the head of the queue
				q <- m
				if n == 0 {
					break
				}
				m = <-q
			}
			s.mu.Unlock()
			if !s.sleep(50 * time.Millisecond) {
				return
			}
			continue
		}
		w.mu.Lock()
		limit := w.maxDelay
		w.mu.Unlock()
		if !s.sleep(s.delay(limit)) {
			return
		}
		refused := false
		for {
			w.mu.Lock()
			stalled, dead := w.stalled || w.noLetters && m.rec.Topic == deadTopic || w.hold != "" && w.hold == m.rec.EventID, s.p.dead
			pause := 50 * time.Millisecond
			if s.tx != nil {
				dead = dead || m.epoch != s.tx.epoch
				if !stalled && m.tx > s.tx.number {
					stalled, pause = true, 5*time.Millisecond
				}
			}
			poison := m.rec.Topic != deadTopic && (w.poison[m.rec.EventID] || w.cursed[m.rec.EventID])
			if m.rec.Topic == deadTopic {
				poison = w.lettersTooLarge
			}
			if poison && !stalled && !dead {
				w.bad[m.rec.EventID] = w.bury
			}
			if dead {
				w.mu.Unlock()
				return
			}
			if !stalled {
				switch {
				case poison:
					if s.tx != nil {
						s.tx.dropped(&m)
					}
					err := &cdc.Refusal{Reason: cdc.TooLarge, Topic: m.rec.Topic, Err: errors.New("record too large")}
					s.ack(m.rec.Topic, cdc.Ack{Ticket: m.ticket, Err: err, Record: &m.rec, EventID: m.rec.EventID, Topic: m.rec.Topic})
				case s.tx != nil:
					s.tx.write(&m)
				default:
					w.land(&m.rec)
				}
				w.mu.Unlock()
				if poison {
					select {
					case <-s.stop:
						return
					case <-passed: // nothing behind it before
					}
				}
				refused = poison
				break
			}
			w.mu.Unlock()
			if !s.sleep(pause) {
				return
			}
		}
		if refused || s.tx != nil {
			continue
		}
		late := s.delay(limit)
		s.wg.Go(func() {
			if s.sleep(late) {
				s.ack(m.rec.Topic, cdc.Ack{Ticket: m.ticket, Record: &m.rec, EventID: m.rec.EventID, Topic: m.rec.Topic, Latency: time.Since(m.rec.Committed)})
			}
		})
	}
}

// land is the arrival of a record at the broker.
func (w *world) land(rec *cdc.Record) {
	if rec.Topic == deadTopic {
		w.landLetter(rec)
		return
	}
	key, index := string(rec.Key), -1
	if len(rec.Value) == 8 {
		index = indexIn(rec.Value)
	}
	before := w.landed[key]
	if r := w.byID[rec.EventID]; r != nil && w.count[rec.EventID] == 0 {
		if top := w.top[key]; top != nil && top.index > index && w.count[top.id] > 0 && !w.mayLag(r) {
			w.fail("key %s: record %d (%s) arrived behind record %d (%s)", key, index, r.id, top.index, top.id)
		} else {
			w.top[key] = r
		}
		for i := index - 1; i >= 0; i-- {
			earlier := w.byKey[key][i]
			if w.count[earlier.id] > 0 {
				break
			}
			if !w.mayLag(earlier) {
				w.fail("key %s: record %d (%s) arrived before record %d (%s)", key, index, r.id, earlier.index, earlier.id)
				break
			}
		}
	}
	w.landed[key] = append(before, index)
	w.count[rec.EventID]++
	w.arrivals++
	r := w.byID[rec.EventID]
	if r != nil && w.tx != nil && slices.ContainsFunc(rec.Headers, func(h cdc.Header) bool { return h.Key == OriginHeader && string(h.Value) == checkpoint.OriginRecover }) {
		r.reread = true
	}
	if w.count[rec.EventID] > 1 && w.once(r) {
		w.fail("event %s of key %s arrived %d times", rec.EventID, key, w.count[rec.EventID])
	}
	if at, ok := w.times[rec.EventID]; ok && !rec.Time.Equal(at) && !(w.parks && rec.Time.Equal(at.Truncate(time.Millisecond))) {
		w.fail("event %s: time %s, not %s", rec.EventID, rec.Time, at)
	}
}

func (s *fakeSink) ack(key string, a cdc.Ack) {
	s.mu.Lock()
	s.acks = append(s.acks, a)
	s.open[key]--
	if a.Err != nil {
		s.behind[key] = a.Err
	}
	s.mu.Unlock()
	s.poke()
}

func (s *fakeSink) poke() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

func (s *fakeSink) isClosed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closed
}

func (s *fakeSink) Acks(buf []cdc.Ack) []cdc.Ack {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rng.Shuffle(len(s.acks), func(i, j int) { s.acks[i], s.acks[j] = s.acks[j], s.acks[i] })
	buf = append(buf, s.acks...)
	s.acks = s.acks[:0]
	return buf
}

func (s *fakeSink) PassOver(a *cdc.Ack, taken func(key []byte, ticket *cdc.Ticket) bool) {
	topic := a.Topic
	s.p.w.mu.Lock()
	defer s.p.w.mu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.behind[topic] != nil {
		s.takeBack(topic, taken) // its deliverer waits for passed
		s.behind[topic] = nil
		s.passed[topic] <- struct{}{}
	}
}

func (s *fakeSink) TakeBack(topic string, taken func(key []byte, ticket *cdc.Ticket) bool) {
	s.p.w.mu.Lock()
	defer s.p.w.mu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.takeBack(topic, taken)
}

func (s *fakeSink) takeBack(topic string, taken func(key []byte, ticket *cdc.Ticket) bool) {
	q := s.queues[topic]
	var rest []parcel
	for {
		select {
		case m := <-q:
			if taken == nil || !taken(m.rec.Key, &m.ticket) {
				rest = append(rest, m)
				continue
			}
			if s.tx != nil {
				s.tx.dropped(&m)
			}
			s.open[topic]--
			s.acks = append(s.acks, cdc.Ack{Ticket: m.ticket, Err: cdc.ErrTakenBack, Record: &m.rec, EventID: m.rec.EventID, Topic: topic})
			s.poke()
			continue
		default:
		}
		break
	}
	for _, m := range rest {
		q <- m
	}
}

func (s *fakeSink) Wake() <-chan struct{} { return s.wake }

// silence is a stall without a known cause.
type silence struct{}

func (silence) Error() string    { return "no acknowledgement" }
func (silence) CauseKnown() bool { return false }

func (s *fakeSink) Stalled() error {
	if s.isClosed() { // sink.Kafka waits for nothing either, once it is closed
		return nil
	}
	s.p.w.mu.Lock()
	defer s.p.w.mu.Unlock()
	if s.p.w.stalled && s.p.w.silent {
		return silence{}
	}
	if s.p.w.stalled {
		return errors.New("brokers cannot be reached")
	}
	return nil
}

func (s *fakeSink) Close(ctx context.Context) error {
	s.mu.Lock()
	if !s.closed {
		s.closed = true
		close(s.stop)
	}
	s.mu.Unlock()
	s.wg.Wait()
	return nil
}

type fakeStore struct {
	p     *proc
	mu    sync.Mutex
	in    bool
	saves int    // guarded by the world
	loads int    // since late was set; guarded by the world, as late is
	late  func() // a given-up Save, which arrives right before the second Load; nil for none
}

func (s *fakeStore) enter(ctx context.Context) error {
	s.mu.Lock()
	if s.in {
		s.p.w.fail("two goroutines in the store")
	}
	s.in = true
	s.mu.Unlock()
	w := s.p.w
	w.mu.Lock()
	d := time.Duration(w.rng.Int64N(int64(w.storeMax) + 1))
	for w.storeHang && ctx.Err() == nil {
		w.mu.Unlock()
		select {
		case <-ctx.Done():
		case <-time.After(20 * time.Millisecond):
		}
		w.mu.Lock()
	}
	w.mu.Unlock()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-after(d):
		return nil
	}
}

func (s *fakeStore) leave() {
	s.mu.Lock()
	s.in = false
	s.mu.Unlock()
}

func (s *fakeStore) Load(ctx context.Context, name string) (map[string][]byte, error) {
	defer s.leave()
	if err := s.enter(ctx); err != nil {
		return nil, err
	}
	w := s.p.w
	w.mu.Lock()
	defer w.mu.Unlock()
	if d := w.slowLoad; d > 0 {
		w.mu.Unlock()
		time.Sleep(d)
		w.mu.Lock()
	}
	if err := w.settled(ctx, s.p); err != nil {
		return nil, err
	}
	if s.loads++; s.late != nil && s.loads == 2 {
		s.late()
		s.late = nil
	}
	if w.storeDown || s.p.dead {
		return nil, errors.New("store cannot be reached")
	}
	if w.storeLost && len(w.records) == 0 {
		return nil, lostRecords{errors.New("records were deleted")}
	}
	return maps.Clone(w.records), nil
}

type lostRecords struct{ error }

func (lostRecords) GapToken() string  { return "t-lost" }
func (lostRecords) NeedsPerson() bool { return true }

func (s *fakeStore) Save(ctx context.Context, key string, value []byte) error {
	defer s.leave()
	if err := s.enter(ctx); err != nil {
		return err
	}
	w := s.p.w
	w.mu.Lock()
	defer w.mu.Unlock()
	for s.p.frozen && ctx.Err() == nil {
		w.mu.Unlock()
		time.Sleep(20 * time.Millisecond)
		w.mu.Lock()
	}
	if w.storeDown || s.p.dead || ctx.Err() != nil {
		return errors.New("store cannot be reached")
	}
	if s.p.stuck == key {
		s.p.inStuck = true
		w.mu.Unlock()
		<-ctx.Done()
		w.mu.Lock()
		s.p.stuck = ""
		return ctx.Err()
	}
	if s.p.late == key {
		s.p.late, s.loads, s.late = "", 0, func() { w.keep(s.p, key, value) }
		return errors.New("write: not acknowledged")
	}
	s.saves++
	if nth := s.saves; w.storeLate && w.rng.IntN(3) == 0 {
		// As a produce that is on the wire when its caller gives up. A later one of the same process comes behind it.
		d := time.Duration(w.rng.Int64N(int64(3 * time.Second)))
		go func() {
			time.Sleep(d)
			w.mu.Lock()
			defer w.mu.Unlock()
			if s.saves == nth && !w.storeDown {
				w.keep(s.p, key, value)
			}
		}()
		return errors.New("write: not acknowledged")
	}
	w.keep(s.p, key, value)
	if s.p.lies == key {
		s.p.lies = ""
		return errors.New("request timed out")
	}
	if w.storeLie && w.rng.IntN(2) == 0 {
		return errors.New("request timed out")
	}
	return nil
}

// keep makes a record durable.
func (w *world) keep(p *proc, key string, value []byte) {
	w.saves++
	if value == nil {
		delete(w.records, key)
		if w.newest() == nil {
			w.fail("the last record was removed, %s", key)
		}
		return
	}
	w.judgeWriter(p, key, value)
	w.records[key] = value
	w.judgeRecord(key, value)
}

// judgeRecord holds a record that becomes durable against what has arrived.
func (w *world) judgeRecord(key string, value []byte) {
	if strings.Count(key, "/") > 1 { // a halt
		return
	}
	rec, err := checkpoint.Decode(key, value)
	if err != nil {
		w.fail("record: %v", err)
		return
	}
	if w.gapsOK {
		return
	}
	if rec.Copy != nil {
		if w.tabled {
			w.judgeTables(rec)
		} else {
			w.judgeCopy(rec)
		}
		return
	}
	if rec.Position < w.made {
		return // of the slot before, which is lost
	}
	if w.tx != nil && rec.Timeline != w.id.Timeline {
		return // its commit was under way at a failover, and the next start judges it by the history
	}
	got, _, _ := w.delivered()
	if rec.Position > got {
		w.fail("checkpoint %s above what is delivered, %s", rec.Position, got)
	}
	if n := rec.Next; n != nil {
		for _, t := range w.log {
			if t.begin != n.Commit {
				continue
			}
			rows := 0
			for _, r := range t.rows {
				if r.routed && rows < n.Rows {
					rows++
					if !w.done(r) || rows == n.Rows && r.id != n.LastEventID {
						w.fail("checkpoint says that %d records of %s are delivered up to %s; %s arrived %d times", n.Rows, t.begin, n.LastEventID, r.id, w.count[r.id])
					}
				}
			}
			if rows != n.Rows {
				w.fail("checkpoint says that %d records of %s are delivered, it has %d", n.Rows, t.begin, rows)
			}
		}
	}
}
