package relay

import (
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/fault"
)

// A txBroker is what the brokers have of the only transactional id of a world.
type txBroker struct {
	epoch    int // of the newest Fence, or of what ended a transaction
	open     []cdc.Record
	key      string // of the checkpoint record in the open transaction, "" for none
	value    []byte
	since    time.Time         // of the first record in open
	peeked   map[string][]byte // what was stored in front of the open record
	deciding bool              // the transaction will be committed, whoever asks

	lies bool // every other answer is lost
}

// abort gives up what is open.
func (b *txBroker) abort() { b.open, b.key, b.value = nil, "", nil }

// timeOut is what the brokers do with a transaction that is open for too long.
func (b *txBroker) timeOut() {
	if !b.deciding && (len(b.open) > 0 || b.key != "") {
		b.epoch++
		b.abort()
	}
}

// A fakeTx is a fakeSink whose records land when their transaction is committed. The world guards all fields.
type fakeTx struct {
	*fakeSink
	epoch   int // 0: Fence is due
	fenced  int // by Fence, before Begin
	number  int // of the open transaction
	ending  bool
	asked   bool // the commit
	left    int  // records of the open transaction that are not written
	later   int  // records of the next one
	held    []parcel
	sent    cdc.Uncommitted
	before  cdc.Uncommitted
	commits uint64
	lost    error
	idle    int // Commits in a row that did nothing, at the time idleAt
	idleAt  time.Time
}

var errTxLost = fault.Retry(errors.New("another producer has the transactional id"))

// takes counts a record, unless Fence is due.
func (s *fakeTx) takes(m *parcel) bool {
	if s.epoch == 0 {
		return false
	}
	if m.epoch, m.tx = s.epoch, s.number; s.ending {
		m.tx++
		s.later++
	} else {
		s.left++
	}
	s.sent.Add(cdc.Uncommitted{Records: 1, Bytes: m.rec.Size(), Since: time.Now()})
	return true
}

// write puts a record into the open transaction.
func (s *fakeTx) write(m *parcel) {
	b := s.p.w.tx
	if b.epoch != s.epoch {
		s.lose()
		return
	}
	if len(b.open) == 0 && b.key == "" {
		b.since = time.Now()
	}
	b.open, s.held = append(b.open, m.rec), append(s.held, *m)
	s.left--
	s.advance()
}

// dropped takes a record that ends without being written, as the one of sink.transactions does.
func (s *fakeTx) dropped(m *parcel) {
	out := cdc.Uncommitted{Records: -1, Bytes: -m.rec.Size()}
	switch {
	case m.epoch != s.epoch:
	case m.tx > s.number:
		s.later--
		s.sent.Add(out)
	case s.ending:
		s.before.Add(out)
		s.ending = false
		s.number++
		s.left, s.later = s.left-1+s.later, 0
		s.sent.Add(s.before)
	default:
		s.left--
		s.sent.Add(out)
	}
}

// forget begins anew with an epoch.
func (s *fakeTx) forget(epoch int) {
	s.mu.Lock()
	s.queues, s.passed, s.open, s.behind, s.acks = map[string]chan parcel{}, map[string]chan struct{}{}, map[string]int{}, map[string]error{}, nil
	s.mu.Unlock()
	s.epoch, s.ending, s.asked, s.left, s.later, s.held = epoch, false, false, 0, 0, nil
	s.number++
}

func (s *fakeTx) lose() {
	s.forget(0)
	s.lost = errTxLost
	s.poke()
}

func (s *fakeTx) Fence(ctx context.Context) error {
	w, b := s.p.w, s.p.w.tx
	for d := s.delay(look(w, &w.maxDelay)); ; d = 20 * time.Millisecond {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-after(d):
		}
		w.mu.Lock()
		if s.p.dead {
			w.mu.Unlock()
			return errNet
		}
		if !w.stalled && !s.p.frozen && !b.deciding {
			break
		}
		w.mu.Unlock()
	}
	b.epoch++
	b.abort()
	epoch := b.epoch
	w.mu.Unlock()
	time.Sleep(s.delay(look(w, &w.maxDelay)))
	w.mu.Lock()
	defer w.mu.Unlock()
	s.forget(0)
	s.fenced = epoch
	s.sent, s.before, s.lost = cdc.Uncommitted{}, cdc.Uncommitted{}, nil
	return nil
}

func (s *fakeTx) Begin() { s.p.w.do(func() { s.epoch, s.fenced = s.fenced, 0 }) }

func (s *fakeTx) Commit(key string, value []byte) uint64 {
	w := s.p.w
	w.mu.Lock()
	defer w.mu.Unlock()
	if s.p.dead {
		return 0
	}
	if s.epoch == 0 || s.ending || s.refusals() {
		if s.idle++; s.idleAt != time.Now() {
			s.idle, s.idleAt = 0, time.Now()
		}
		if s.idle > 10_000 {
			panic("relay: Commit is called again and again, and reports false")
		}
		return 0
	}
	if b := w.tx; b.epoch == s.epoch {
		if b.key == "" {
			b.peeked = maps.Clone(w.records)
			if len(b.open) == 0 {
				b.since = time.Now()
			}
		}
		b.key, b.value = key, value
	}
	s.ending, s.before, s.sent = true, s.sent, cdc.Uncommitted{}
	s.advance()
	return s.commits + 1
}

// refusals reports whether Acks has an error.
func (s *fakeTx) refusals() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, a := range s.acks {
		if a.Err != nil {
			return true
		}
	}
	return s.closed
}

// advance asks for the commit once everything is written.
func (s *fakeTx) advance() {
	if s.ending && s.left == 0 && !s.asked {
		s.asked = true
		epoch, late := s.epoch, [2]time.Duration{s.delay(s.p.w.maxDelay), s.delay(s.p.w.maxDelay)}
		go s.commit(epoch, late)
	}
}

// commit asks until there is an answer. The process may end meanwhile, with a request on the wire.
func (s *fakeTx) commit(epoch int, late [2]time.Duration) {
	w, b := s.p.w, s.p.w.tx
	time.Sleep(late[0])
	for {
		w.mu.Lock()
		switch {
		case s.epoch != epoch || s.p.dead && w.rng.IntN(2) == 0:
			w.mu.Unlock()
			return
		case b.epoch != epoch:
			s.lose()
			w.mu.Unlock()
			return
		case !w.stalled && !s.p.frozen && s.asked && b.key != "": // not answered before
			b.deciding = true
			w.mu.Unlock()
			time.Sleep(late[1])
			w.mu.Lock()
			for i := range b.open {
				w.land(&b.open[i])
			}
			key, value := b.key, b.value
			b.abort()
			b.deciding = false
			w.keep(s.p, key, value)
		}
		if s.epoch == epoch && b.key == "" && !w.stalled && !s.p.frozen && !(b.lies && w.rng.IntN(2) == 0) {
			s.committed()
			w.mu.Unlock()
			return
		}
		closed := s.isClosed()
		w.mu.Unlock()
		if closed {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
}

func (s *fakeTx) committed() {
	for _, m := range s.held {
		s.ack(m.rec.Topic, cdc.Ack{Ticket: m.ticket, Record: &m.rec, EventID: m.rec.EventID, Topic: m.rec.Topic, Latency: time.Since(m.rec.Committed)})
	}
	s.held, s.ending, s.asked = nil, false, false
	s.left, s.later, s.before = s.later, 0, cdc.Uncommitted{}
	s.number++
	s.commits++
	s.poke()
}

func (s *fakeTx) Committed() (n uint64, underWay bool, lost error) {
	s.p.w.mu.Lock()
	defer s.p.w.mu.Unlock()
	return s.commits, s.ending, s.lost
}

func (s *fakeTx) Uncommitted() cdc.Uncommitted {
	s.p.w.mu.Lock()
	defer s.p.w.mu.Unlock()
	return s.sent
}

// Close aborts what is open.
func (s *fakeTx) Close(ctx context.Context) error {
	err := s.fakeSink.Close(ctx)
	s.p.w.do(func() {
		if b := s.p.w.tx; b.epoch == s.epoch && !s.p.dead && !b.deciding {
			b.epoch++
			b.abort()
		}
	})
	return err
}

// settled waits until no checkpoint record is in an open transaction. The world is locked before and afterwards.
func (w *world) settled(ctx context.Context, p *proc) error {
	for w.tx != nil && (w.tx.key != "" || p.frozen) && ctx.Err() == nil && !p.dead {
		if time.Since(w.tx.since) > time.Minute {
			w.tx.timeOut()
		}
		w.mu.Unlock()
		time.Sleep(20 * time.Millisecond)
		w.mu.Lock()
	}
	return ctx.Err()
}

// peek is Store.Load in front of an open transaction.
func (s *fakeTx) peek(context.Context, string) (map[string][]byte, error) {
	w := s.p.w
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.storeDown || s.p.dead:
		return nil, errors.New("store cannot be reached")
	case w.tx.key != "":
		return maps.Clone(w.tx.peeked), nil
	}
	return maps.Clone(w.records), nil
}

// once reports whether an event may not arrive again.
func (w *world) once(r *row) bool {
	if r != nil && r.reread {
		return false
	}
	return w.clean || w.tx != nil && (r == nil || w.park == nil || w.park.tokens[r.id] == "")
}

// txTrouble is one thing that can happen to transactions, and to the process of r.
func (w *world) txTrouble(rng *rand.Rand, r *run) {
	if w.tx == nil {
		return
	}
	d := time.Duration(rng.Int64N(int64(5 * time.Second)))
	switch rng.IntN(3) {
	case 0:
		w.do(func() {
			w.tell("the transaction times out")
			w.tx.timeOut()
		})
	case 1:
		w.do(func() {
			w.tell("answers to commits are lost for %s", d)
			w.tx.lies = true
		})
		time.Sleep(d)
		w.do(func() { w.tx.lies = false })
	case 2: // and the server ends its session
		w.do(func() {
			w.tell("process %d freezes for %s", w.number(r.proc), d)
			if r.frozen = true; w.session != nil && w.session.p == r.proc {
				w.cutLocked(errNet)
			}
		})
		time.Sleep(d)
		w.do(func() { r.frozen = false })
	}
}

// TestSimulationOfEverythingExactlyOnce: whatever happens, each event arrives once, and in order.
func TestSimulationOfEverythingExactlyOnce(t *testing.T) {
	seedsOf(t, func(t *testing.T, seed uint64) { simulate(t, seed, false, &txBroker{}) })
}

// The same with snapshots and two processes, but for rows that were updated before a second reading, and those that recover publishes.
func TestSimulationOfCopiesAndTakeoversExactlyOnce(t *testing.T) {
	seedsOf(t, func(t *testing.T, seed uint64) { simulateFleet(t, seed, false, &txBroker{}) })
}

// The same with keys that are parked, but for the events that a release publishes.
func TestSimulationOfParkedKeysExactlyOnce(t *testing.T) {
	seedsOf(t, func(t *testing.T, seed uint64) { simulateParking(t, seed, &txBroker{}) })
}
