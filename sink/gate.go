package sink

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/internal/kafka"
)

// The gate of a topic is what keeps the order where the client alone does not: after a refusal the client fails everything
// it has buffered for the partition and takes the next record as if nothing had happened.
//
// While the gate is open, Send hands records straight to the client. It shuts at the first error, at a raised fence
// (fence.go), and for a record that needs care (too large for a batch, or for a partition that is not there). Behind a shut
// gate records queue in the order of Send, and one goroutine tends the topic until it is open again:
//
//  1. wait until nothing is in flight there;
//  2. know the topic: it exists (or is created), its partitions, its max.message.bytes;
//  3. hand over the first record alone, then, while all goes well, two, four, ... of what failed and what waits;
//  4. a group that is refused for its content is halved until a record is refused alone: that one is poison, the gate stays
//     shut until PassOver. Every other error is waited out with backoff, beginning with a single record again;
//  5. when nothing waits any more, open.
//
// A topic starts with its gate shut, so its first record goes alone, after step 2.
type topic struct {
	s    *Kafka
	name string
	wake chan struct{} // tells the tender that nothing is in flight, capacity 1
	role role          // the tender's

	// The tender's own; while there is none, they wait for the next.
	size  int           // of the next group
	known bool          // no need to ask the brokers about the topic
	asked bool          // they were asked, and nothing was handed over since
	pause kafka.Backoff // before the next attempt

	fenced atomic.Bool // there are fences

	// Guarded by Kafka.mu.
	gate       gate
	cl         [kinds]*client // each nil until it is first needed
	through    *client        // of cl, the one that was given the topic's newest records; nil before the first
	partitions int32
	limit      int
	fences     map[int32]struct{}
	flight     int // slots at the client
	failed     []*slot
	redo       []*slot // have failed, in order: before the queue
	queue      queue
	pending    int   // slots that have not ended
	oldest     *slot // at the client; the newest is the last of the list
	newest     *slot
	since      time.Time // of the last acknowledgement of the oldest, or of the first record after a pause
	reason     error     // why the tender waits, nil while it does not
	stuck      stuck
	delivered  *uint64 // of Kafka.delivered; nil before the first
}

type gate uint8

const (
	idle   gate = iota // a new topic, nobody tends it
	open               // Send produces
	tended             // the tender produces
	halted             // behind poison, until PassOver
)

const (
	fullGroup = 256 // a group of this size that went well ends the care
	chunk     = 1024
)

// topicOf is called with mu held.
func (s *Kafka) topicOf(name string) *topic {
	t := s.topics[name]
	if t == nil {
		t = &topic{s: s, name: name, wake: make(chan struct{}, 1), fences: map[int32]struct{}{}}
		s.topics[name] = t
	}
	return t
}

// fits says whether a record can be handed over together with others. mu is held.
func (t *topic) fits(sl *slot) bool { return sl.bytes <= t.limit && sl.partition < t.partitions }

// shut closes the gate and lets a goroutine tend it. mu is held.
func (s *Kafka) shut(t *topic) {
	if s.closed || t.gate == tended || t.gate == halted {
		return
	}
	t.gate = tended
	t.size, t.known, t.asked, t.pause = 1, s.isKnown(t), false, 0
	s.wg.Add(1)
	go s.tend(t)
}

func (t *topic) signal() { poke(t.wake) }

// poke puts a value into a channel of capacity one, unless one is in it.
func poke(wake chan<- struct{}) {
	select {
	case wake <- struct{}{}:
	default:
	}
}

// tend is steps 1 to 5. It ends when the gate is open, and wherever the topic has to wait for the brokers or for the next attempt:
// line.go starts it again.
func (s *Kafka) tend(t *topic) {
	defer s.wg.Done()
	driven := 0 // records of the last group
	wait := func(why error) {
		t.size, t.known = 1, false
		s.later(t, why)
	}
	for s.settle(t) {
		switch err := s.regroup(t); {
		case err == nil && driven > 0:
			t.pause = 0
			s.blame(t, nil)
			if t.size *= 2; t.size > fullGroup {
				if s.stream(t) {
					return
				}
				t.size = fullGroup
				driven = 0
				continue // settle: something failed, the next record needs care, or the client is left
			}
		case err == nil, errors.Is(err, context.Canceled): // Canceled: an unwritten record behind a fence
		case refusal(err) != "" && driven == 1:
			s.poison(t, err)
			return
		case refusal(err) != "":
			t.size, t.known = max(1, driven/2), t.known && refusal(err) != cdc.TooLarge
		default:
			s.repair(t, err)
			wait(reason(t.name, err))
			return
		}
		driven = 0
		if !t.known || s.outdated(t) {
			s.ask(t)
			return
		}
		group, alone := s.take(t, t.size)
		switch {
		case len(group) == 0:
			if s.reopen(t) {
				return
			}
		case alone && !t.asked: // the topic may have changed
			s.putBack(t, group)
			t.known = false
		case alone:
			t.asked, t.size, driven = false, 1, 1
			if err := s.driveAlone(t, group[0]); err != nil && refusal(err) != "" {
				s.poison(t, err)
				return
			} else if err != nil {
				wait(err)
				return
			}
		default:
			t.asked, driven = false, s.drive(t, group, ordinary)
		}
	}
}

// settle waits until nothing of the topic is in flight, and drops its fences. false: the sink closes.
func (s *Kafka) settle(t *topic) bool {
	for {
		s.mu.Lock()
		if s.closed {
			s.mu.Unlock()
			return false
		}
		stuck := t.stuck.found
		if t.flight == 0 && !stuck {
			clear(t.fences)
			t.fenced.Store(false)
			s.mu.Unlock()
			return true
		}
		s.mu.Unlock()
		if stuck {
			s.abandon(t)
			continue
		}
		select {
		case <-t.wake:
		case <-s.ctx.Done():
			return false
		}
	}
}

// regroup puts what failed back in front, in order, and returns the error of the first.
func (s *Kafka) regroup(t *topic) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(t.failed) == 0 {
		return nil
	}
	t.redo = append(t.redo, t.failed...)
	clear(t.failed)
	t.failed = t.failed[:0]
	slices.SortFunc(t.redo, func(a, b *slot) int { return int(int64(a.n - b.n)) })
	var first error // context.Canceled counts only if there is no other
	for _, sl := range t.redo {
		if sl.err != nil && (first == nil || errors.Is(first, context.Canceled)) { // nil: taken and put back, or never handed over
			first = sl.err
		}
		sl.err = nil
	}
	return first
}

// take removes up to n records from the front of what waits. One that does not fit comes by itself: alone.
func (s *Kafka) take(t *topic, n int) (group []*slot, alone bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return t.take(n)
}

// take is Kafka.take with mu held.
func (t *topic) take(n int) (group []*slot, alone bool) {
	for len(group) < n {
		var sl *slot
		if len(t.redo) > 0 {
			sl = t.redo[0]
		} else if sl = t.queue.peek(); sl == nil {
			break
		}
		fits := t.fits(sl)
		if !fits && len(group) > 0 {
			break
		}
		if len(t.redo) > 0 {
			t.redo = t.redo[1:]
		} else {
			t.queue.pop()
		}
		group = append(group, sl)
		if !fits {
			return group, true
		}
	}
	return group, false
}

func (s *Kafka) putBack(t *topic, group []*slot) {
	s.mu.Lock()
	t.redo = append(slices.Clone(group), t.redo...)
	s.mu.Unlock()
}

// drive hands a group over to the topic's client of a kind, and returns how many it has handed over: it stops behind a
// record that was refused at once and behind a fence.
func (s *Kafka) drive(t *topic, group []*slot, k kind) int {
	s.mu.Lock()
	through := t.cl[k]
	t.through = through
	for _, sl := range group {
		t.leaves(sl)
	}
	s.mu.Unlock()
	for i, sl := range group {
		if s.handOver(through, sl, sl.n, &t.role) && !t.fenced.Load() {
			continue
		}
		rest := group[i+1:]
		s.mu.Lock()
		for _, sl := range rest {
			t.returns(sl)
		}
		t.redo = append(slices.Clone(rest), t.redo...)
		s.mu.Unlock()
		return i + 1
	}
	return len(group)
}

// driveAlone hands over a record that does not fit: through a client without a limit of its own, so that the broker is the
// judge. (The limit is of a compressed batch, so a record may be larger than it and be accepted.)
func (s *Kafka) driveAlone(t *topic, sl *slot) error {
	s.mu.Lock()
	partitions, first := t.partitions, t.cl[large] == nil
	s.mu.Unlock()
	keep := func(err error) error {
		s.putBack(t, []*slot{sl})
		return err
	}
	if sl.partition >= partitions {
		return keep(fmt.Errorf("partition %d of %d: %w", sl.partition, partitions, errPartition))
	}
	if sl.bytes > kafka.MaxRequest-kafka.LeastLimit {
		return keep(fmt.Errorf("%w (%d bytes, more than fit into a request of %d bytes)", kerr.MessageTooLarge, sl.bytes, kafka.MaxRequest))
	}
	if first {
		if err := s.fresh(t, large); err != nil {
			return keep(err)
		}
	}
	s.drive(t, []*slot{sl}, large)
	return nil
}

// stream hands over all that waits without waiting for the answers, and opens the gate behind the last one. false: something
// failed, or the next record does not fit.
func (s *Kafka) stream(t *topic) bool {
	for {
		s.mu.Lock()
		trouble := s.closed || len(t.failed) > 0 || t.fenced.Load() || t.stuck.found || !s.isKnown(t)
		s.mu.Unlock()
		if trouble {
			return false
		}
		group, alone := s.take(t, chunk)
		switch {
		case alone:
			s.putBack(t, group)
			return false
		case len(group) == 0:
			if s.reopen(t) {
				return true
			}
		default:
			if s.drive(t, group, ordinary) < len(group) {
				return false
			}
		}
	}
}

// reopen opens the gate when nothing waits behind it.
func (s *Kafka) reopen(t *topic) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || len(t.failed) > 0 || len(t.redo) > 0 || t.queue.peek() != nil || t.fenced.Load() || t.stuck.found || !s.isKnown(t) {
		return false
	}
	t.gate, t.redo, t.through = open, nil, t.cl[ordinary]
	t.reason, t.stuck.times = nil, 0
	return true
}

// poison ends the first record that waits, with err, and leaves the gate shut. It is called by the topic's tender, which ends, or in
// its place. Nothing of the topic is in flight.
func (s *Kafka) poison(t *topic, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	group, _ := t.take(1)
	if len(group) == 0 { // nothing was sent since PassOver: the next Send has the topic looked at again
		t.gate, t.reason = idle, nil
		return
	}
	t.gate = halted
	sl := group[0]
	if errors.Is(err, kerr.InvalidTimestamp) {
		err = fault.WithHint(err, timestampHint())
	}
	err = &cdc.Refusal{Reason: refusal(err), Topic: t.name, Err: err}
	t.reason = fmt.Errorf("topic %s is halted after event %s: %w", t.name, sl.eventID, err)
	s.end(sl, err, 0) // the acknowledgement names the event and the topic
}

// PassOver lets a topic go on behind the record that was refused: its caller has dealt with that record. What was sent to the topic
// since then is delivered, in order, but what taken wants: that ends with cdc.ErrTakenBack. A topic that is not halted stays as it is.
func (s *Kafka) PassOver(topic string, taken func(key []byte, ticket *cdc.Ticket) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t := s.topics[topic]; t != nil && t.gate == halted {
		if taken != nil {
			s.takeBack(t, taken)
		}
		t.gate, t.reason, t.since = idle, nil, time.Now()
		s.shut(t) // with its gate idle the topic is like a new one
	}
}

// TakeBack ends records that wait for a topic, and of which taken is true, with cdc.ErrTakenBack. A record that a client already has
// is not taken back.
func (s *Kafka) TakeBack(topic string, taken func(key []byte, ticket *cdc.Ticket) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t := s.topics[topic]; t != nil {
		s.takeBack(t, taken)
	}
}

// takeBack ends the records that wait and that taken wants, in order. mu is held.
func (s *Kafka) takeBack(t *topic, taken func(key []byte, ticket *cdc.Ticket) bool) {
	var back []*slot
	wants := func(sl *slot) bool {
		if !taken(sl.rec.Key, &sl.ticket) {
			return false
		}
		back = append(back, sl)
		return true
	}
	t.redo = slices.DeleteFunc(t.redo, wants)
	q := &t.queue
	q.slots, q.head = slices.DeleteFunc(q.slots[q.head:], wants), 0
	for _, sl := range back {
		s.end(sl, cdc.ErrTakenBack, 0)
	}
}

// isKnown says whether the topic has a client of the present generation that works with what the brokers said of the topic. mu is held.
func (s *Kafka) isKnown(t *topic) bool {
	c := t.cl[ordinary]
	return c != nil && c.gen == s.gen && t.partitions > 0
}

func (s *Kafka) outdated(t *topic) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.isKnown(t)
}

func (s *Kafka) blame(t *topic, why error) {
	s.mu.Lock()
	t.reason = why
	s.mu.Unlock()
}

// queue is a first-in first-out list of slots that does not hold on to what has left it.
type queue struct {
	slots []*slot
	head  int
}

func (q *queue) push(sl *slot) { q.slots = append(q.slots, sl) }

func (q *queue) peek() *slot {
	if q.head == len(q.slots) {
		return nil
	}
	return q.slots[q.head]
}

func (q *queue) pop() {
	q.slots[q.head] = nil
	q.head++
	switch {
	case q.head == len(q.slots):
		q.slots, q.head = q.slots[:0], 0
	case q.head > 1024 && q.head > len(q.slots)/2:
		n := copy(q.slots, q.slots[q.head:])
		clear(q.slots[n:])
		q.slots, q.head = q.slots[:n], 0
	}
}
