package sink

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/failpoint"
	"github.com/walpost/walpost/internal/kafka"
	"github.com/walpost/walpost/internal/wait"
)

// transactions make what is sent between two Commits, and the checkpoint record of the second, visible together (KIP-98): delivery.guarantee
// exactly_once. One transaction is open at a time. What is sent after Commit waits until it has ended.
//
// The partitions keep the order as ever. What differs: a written record ends only with its transaction. Where a partition needs another
// producer id, the transaction is aborted, and all its records are sent again under the next epoch. And what a process left behind can't
// arrive later, because the next epoch has fenced it.
//
// All fields below state are guarded by Kafka.mu.
type transactions struct {
	s           *Kafka
	coordinator coordinator
	id          string
	checkpoints string // topic
	warned      bool   // of the brokers' release; Fence only

	state     txState
	began     uint64 // states; a late answer of the coordinator is of a former one
	latest    bool   // transaction.version 2
	least     uint64
	number    uint64          // of the open transaction; slots of a later one wait, and those below least are forgotten
	ending    bool            // Commit was called, so Send adds to the next transaction
	record    *cdc.Record     // of the checkpoint, until it is sent; nil for none
	open      int             // records of the open transaction that are not written
	later     int             // records of the next one
	sent      cdc.Uncommitted // since the newest Commit
	before    cdc.Uncommitted // what the newest Commit covers
	held      []written
	heldSince time.Time               // of the first one
	joined    map[topicPartition]bool // of the open transaction; unless latest
	toJoin    []topicPartition
	joins     bool // a goroutine joins them

	commits uint64
	lost    error
	failing error // of the newest attempt of what the state waits for, nil for none
	since   time.Time
}

type txState uint8

const (
	unfenced   txState = iota // until Begin
	sending                   // partitions send
	committing                // everything is written, and the coordinator commits
	resting                   // the brokers write the markers
	aborting                  // a partition needs another producer id, and others have requests on their way
	renewing                  // the coordinator aborts, and gives another producer id
)

// A written record waits for the end of its transaction.
type written struct {
	sl *slot
	p  *partition
}

// commitAgain is the pause before another attempt of the coordinator: it may still be busy with the transaction before.
const commitAgain = 3 * time.Millisecond

// Fence makes this process the only one that commits under the transactional id. What another process has begun is aborted. What the sink
// holds, and what was not committed, is forgotten, without an Ack. Nothing is taken before Begin.
func (s *Kafka) Fence(ctx context.Context) error {
	tx := s.tx
	var pause kafka.Backoff
	has, err := tx.coordinator.features(ctx)
	latest := has.Transaction >= 2
	id := noID
	for err == nil {
		if id, err = tx.coordinator.initialize(ctx, noID); err == nil {
			id, err = tx.endHanging(ctx, id, latest)
		}
		if err == nil || kafka.Denied(err) || errors.As(err, new(*lostTransaction)) || ctx.Err() != nil {
			break
		}
		s.mu.Lock()
		tx.failing = err
		s.mu.Unlock()
		if err = nil; !pause.Sleep(ctx) {
			err = context.Cause(ctx)
		}
	}
	if err != nil {
		return fmt.Errorf("initialize transactional id %s: %w", tx.id, s.unreachable(err))
	}
	if has.LeavesTransactionsOpen() && !tx.warned {
		tx.warned = true
		s.log.Warn(kafka.LeavesTransactionsOpen)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forget()
	tx.begin(unfenced)
	tx.latest, tx.lost = latest, nil
	tx.number += 2
	tx.least = tx.number
	tx.record = nil
	tx.ending, tx.open, tx.later, tx.held, tx.sent, tx.before = false, 0, 0, nil, cdc.Uncommitted{}, cdc.Uncommitted{}
	tx.joined, tx.toJoin = map[topicPartition]bool{}, nil
	s.ids = ids{newest: id, known: true}
	return nil
}

// Begin takes records again behind a Fence. What is sent before is dropped: its sender does not know yet that all was forgotten.
func (s *Kafka) Begin() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.tx.lost == nil && s.ids.known {
		s.tx.begin(sending)
	}
}

// forget drops what is sent and not committed. The partitions begin anew, so that a late answer finds none. mu is held.
func (s *Kafka) forget() {
	for _, t := range s.topics {
		t.dead, t.queue = true, queue{}
	}
	for _, l := range s.lanes {
		l.ready = nil
	}
	s.topics, s.lastTopic, s.acks = map[string]*topic{}, nil, s.acks[:0]
	s.line.topics, s.line.missing = nil, nil
}

// Commit ends the open transaction with a checkpoint record. It returns what Committed will be once it has taken effect. It returns 0, and
// does nothing, if nothing can be committed now: an earlier Commit has not ended, Fence or Begin is due, or Acks has an error.
func (s *Kafka) Commit(key string, value []byte) (n uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	tx := s.tx
	unread := func(a cdc.Ack) bool { return a.Err != nil } // the record may cover it
	if tx.ending || tx.state == unfenced || s.closed || slices.ContainsFunc(s.acks, unread) {
		return 0
	}
	tx.ending, tx.before, tx.sent = true, tx.sent, cdc.Uncommitted{}
	tx.record = &cdc.Record{Topic: tx.checkpoints, Key: []byte(key), Value: value, Partition: 0}
	tx.advance()
	return tx.commits + 1
}

// Committed is how many Commits have taken effect, whether one is under way, and why no other one will take effect until Fence; nil while all
// is well. A Commit of which a record is refused or taken back takes no effect.
func (s *Kafka) Committed() (n uint64, underWay bool, lost error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.tx.commits, s.tx.ending, s.tx.lost
}

// Uncommitted is what was sent since the newest Commit. It is called often, and sees to it that a transaction that waits, for a topic for
// example, is begun again before the brokers give it up.
func (s *Kafka) Uncommitted() cdc.Uncommitted {
	s.mu.Lock()
	defer s.mu.Unlock()
	if tx := s.tx; tx.state == sending && len(tx.held) > 0 && time.Since(tx.heldSince) > transactionTimeout*3/4 {
		tx.restart()
	}
	return s.tx.sent
}

// takes reports whether a record can be sent, and counts it.
func (tx *transactions) takes(sl *slot, now time.Time) bool {
	if tx.state == unfenced {
		return false
	}
	if sl.tx = tx.number; tx.ending {
		sl.tx++
		tx.later++
	} else {
		tx.open++
	}
	tx.sent.Add(cdc.Uncommitted{Records: 1, Bytes: sl.bytes, Since: now})
	return true
}

// passes reports whether a slot may be sent now.
func (tx *transactions) passes(sl *slot) bool { return tx.state == sending && sl.tx <= tx.number }

// dropped takes a record that ends without being written. A Commit that would cover it is withdrawn, and a later one covers what
// becomes of it.
func (tx *transactions) dropped(sl *slot) {
	switch {
	case sl.tx < tx.least:
		return
	case sl.tx > tx.number:
		tx.later--
		tx.sent.Add(cdc.Uncommitted{Records: -1, Bytes: -sl.bytes})
		return
	}
	tx.open--
	if tx.ending {
		tx.before.Add(cdc.Uncommitted{Records: -1, Bytes: -sl.bytes})
		tx.ending, tx.record = false, nil
		tx.number++
		tx.open, tx.later = tx.open+tx.later, 0
		tx.sent.Add(tx.before)
		tx.offer()
	} else {
		tx.sent.Add(cdc.Uncommitted{Records: -1, Bytes: -sl.bytes})
	}
}

// wrote takes the slots of a batch that is written.
func (tx *transactions) wrote(b *batch) {
	if len(tx.held) == 0 {
		tx.heldSince = time.Now()
	}
	for _, sl := range b.slots {
		if sl.tx >= tx.least {
			tx.held = append(tx.held, written{sl, b.p})
			tx.open--
		}
	}
	tx.advance()
}

// advance sends the record of the checkpoint once everything else is written, so that the readers of its topic, which other relays may
// share, wait for a moment only. Then it has the transaction committed.
func (tx *transactions) advance() {
	switch {
	case !tx.ending || tx.open > 0 || tx.state != sending:
	case tx.record != nil:
		now, sl := time.Now(), tx.s.pool.slot()
		sl.fill(tx.record, cdc.Ticket{})
		sl.tx, sl.own, tx.record = tx.number, true, nil
		tx.open++
		sl.t = tx.s.topicOf(tx.checkpoints, now)
		sl.t.add(sl, now)
	default:
		tx.begin(committing)
		began, id := tx.began, tx.s.ids.newest
		tx.s.wg.Go(func() { tx.commit(began, id) })
	}
}

func (tx *transactions) begin(state txState) {
	tx.state, tx.failing, tx.since = state, nil, time.Now()
	tx.began++
}

// commit has the coordinator commit. A request that is repeated has the same outcome.
func (tx *transactions) commit(began uint64, id producerID) {
	finish := func(ctx context.Context) (producerID, error) { return tx.coordinator.finish(ctx, id, true, tx.latest) }
	failpoint.Hit(failpoint.Save)
	tx.ask(began, finish, func(next producerID, doubt bool) {
		failpoint.Hit(failpoint.Saved)
		// A late request must not commit the next transaction, and a topic that was created again begins with new numbers.
		renew := !tx.latest && (doubt || !tx.s.ids.known)
		if tx.committed(next); renew {
			tx.renew()
		}
	})
}

// ask asks the coordinator until it has answered, while the state lasts that is the began-th. got takes the answer, and whether an attempt before may still be carried
// out. mu is held then.
func (tx *transactions) ask(began uint64, attempt func(context.Context) (producerID, error), got func(id producerID, doubt bool)) {
	s, doubt, pause := tx.s, false, kafka.Backoff(0)
	for {
		ctx, cancel := context.WithTimeout(s.ctx, kafka.ProbeLimit)
		id, err := attempt(ctx)
		cancel()
		if tx.answered(began, id, err, &doubt, got) || !again(s.ctx, err, &pause) {
			return
		}
	}
}

// answered takes an answer of the coordinator. It reports whether that is the last one.
func (tx *transactions) answered(began uint64, id producerID, err error, doubt *bool, got func(producerID, bool)) bool {
	tx.s.mu.Lock()
	defer tx.s.mu.Unlock()
	switch {
	case tx.s.closed || tx.began != began:
	case err == nil:
		got(id, *doubt)
	case over(err):
		tx.lose(err)
	default:
		*doubt = *doubt || unknownEnd(err)
		tx.failing = err
		return false
	}
	return true
}

// again waits before another attempt: for a moment if the coordinator is busy with the transaction before.
func again(ctx context.Context, err error, pause *kafka.Backoff) bool {
	if isOne(err, kerr.ConcurrentTransactions) {
		return wait.For(ctx, commitAgain)
	}
	return pause.Sleep(ctx)
}

// committed ends the records of the transaction. mu is held.
func (tx *transactions) committed(next producerID) {
	s, now := tx.s, time.Now()
	for _, w := range tx.held {
		t := w.sl.t
		if w.sl.own {
			t.pending--
			s.pool.free(w.sl)
			continue
		}
		t.delivered(1, now)
		s.end(w.sl, w.p.n, nil, max(0, now.Sub(w.sl.rec.Committed)))
	}
	clear(tx.held)
	tx.held, tx.ending = tx.held[:0], false
	tx.number++
	tx.open, tx.later, tx.before = tx.later, 0, cdc.Uncommitted{}
	tx.joined = map[topicPartition]bool{}
	tx.commits++
	poke(s.wake)
	tx.begin(resting)
	tx.use(next)
	time.AfterFunc(restAfter, tx.wake)
}

// restAfter is how long nothing is sent behind a commit. The brokers write the markers of a transaction after they have answered. Until then, a
// leader that is asked to begin the next one waits for 20 ms (add.partitions.to.txn.retry.backoff.ms): at 1,000 events/s, the median delay was
// 39 ms without this rest, 11 ms with it, and 18 ms with 6 ms.
const restAfter = 2 * time.Millisecond

// wake goes on behind a commit.
func (tx *transactions) wake() {
	s := tx.s
	s.mu.Lock()
	defer s.mu.Unlock()
	if tx.state != resting || s.closed {
		return
	}
	if tx.begin(sending); !s.ids.known { // a topic was created again
		tx.restart()
		return
	}
	tx.offer()
	tx.advance()
}

// use gives all partitions a producer id. mu is held.
func (tx *transactions) use(id producerID) {
	ids := &tx.s.ids
	changed := id != ids.newest
	if ids.newest, ids.known = id, true; !changed {
		return
	}
	for _, t := range tx.s.topics {
		for _, p := range t.parts {
			proven := p.proven && p.producer.id == id.id // a leader that knows the id takes the first number of an epoch first
			p.begin(id)
			p.proven, p.numbered = proven, 0
		}
	}
}

// offer has the lanes look at what waited for the transaction. mu is held.
func (tx *transactions) offer() {
	for _, t := range tx.s.topics {
		for _, p := range t.parts {
			p.offer()
		}
	}
}

// restart aborts the transaction, because a partition needs another producer id. mu is held.
func (tx *transactions) restart() {
	if tx.state == sending {
		tx.begin(aborting)
		tx.s.ids.known = false
	}
	tx.settle()
}

// settle goes on with an abort when nothing is on its way any more. mu is held.
func (tx *transactions) settle() {
	if tx.state != aborting {
		return
	}
	for _, t := range tx.s.topics {
		for _, p := range t.parts {
			if p.out > 0 {
				return
			}
		}
	}
	tx.renew()
}

// renew has the coordinator abort what is open, and give another producer id. mu is held.
func (tx *transactions) renew() {
	tx.begin(renewing)
	began, prev := tx.began, tx.s.ids.newest
	initialize := func(ctx context.Context) (producerID, error) { return tx.coordinator.initialize(ctx, prev) }
	tx.s.wg.Go(func() { tx.ask(began, initialize, func(id producerID, _ bool) { tx.resume(id) }) })
}

// resume sends the records of an aborted transaction again. mu is held.
func (tx *transactions) resume(id producerID) {
	for _, t := range tx.s.topics {
		for _, p := range t.parts {
			p.divide()
		}
	}
	again := map[*partition][]*slot{}
	lost := map[*topic][]*slot{} // of a topic that was created again
	for _, w := range tx.held {
		if t := w.sl.t; t.parts[w.p.n] == w.p {
			again[w.p] = append(again[w.p], w.sl)
		} else {
			lost[t] = append(lost[t], w.sl)
		}
	}
	for p, slots := range again {
		p.queue.putBack(slots)
	}
	for t, slots := range lost {
		t.queue.putBack(slots)
		if !t.gather() { // with what its new partitions have taken since
			t.id[0]++ // learn takes it for created again, until the refused record was passed over
		}
		tx.s.ask(t)
	}
	tx.open += len(tx.held)
	clear(tx.held)
	tx.held, tx.joined = tx.held[:0], map[topicPartition]bool{}
	tx.begin(sending)
	tx.use(id)
	tx.offer()
	tx.advance()
}

// lose gives up until Fence. mu is held.
func (tx *transactions) lose(err error) {
	tx.begin(unfenced)
	tx.ending = false
	tx.lost = &lostTransaction{id: tx.id, err: err}
	tx.s.forget()
	poke(tx.s.wake)
}
