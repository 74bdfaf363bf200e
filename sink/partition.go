package sink

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/internal/kafka"
)

// A partition keeps the order of its records by the rules of Kafka's protocol alone. Its leader writes the batches of one producer
// id in the order of their sequence numbers: it refuses a batch while the one before it is missing, and it acknowledges a
// batch that it has already without writing it once more. So several batches may be on their way at a time, and:
//
//  1. when one fails, nothing more is sent until each batch on its way has its answer;
//  2. the batch that failed, and those behind it, are sent again as they are, with the same numbers, as often as it takes. Whether
//     the leader wrote one of them before makes no difference, also where it has acknowledged it;
//  3. only where the leader refused a batch for its content, so that its numbers are free, the records are divided into other
//     batches: half as many in each, until a record is refused that was sent by itself. That one ends with a *cdc.Refusal, and
//     the partition is halted until PassOver;
//  4. where the leader does not know the numbers any more, or where a refused batch may have been written in an earlier attempt, the
//     partition goes on with another producer id, beginning with the first record that was not acknowledged. Then records may be
//     delivered twice, in order, as after a crash;
//  5. a number that was ever sent never stands for another record. So the partition also takes another producer id where a record is
//     refused and dropped, and a record that has its number stays: TakeBack leaves it;
//  6. another producer id begins only when no request under the old one can arrive any more.
//
// Whether an attempt may have written something is decided by what the leader answered: see unwritten. The leader looks at size and time of
// a batch before it looks whether it has the batch, so a refusal says nothing of earlier attempts.
//
// A leader accepts any number from a producer id that it knows nothing of. So the first batch under a producer id goes alone, and also the
// first one after a pause, because a leader forgets an id that is not used, and after an error.
//
// All fields are guarded by Kafka.mu.
type partition struct {
	t     *topic
	n     int32
	state state

	queue  queue    // has not been sent, or was divided again
	again  []*batch // has failed, or was sent behind one that has: before the queue
	flight []*batch // was sent: from the oldest one that is not acknowledged
	out    int      // of flight: on their way

	producer producerID
	renew    bool  // the producer id must not be used any more
	seq      int32 // of the next record

	numbered int // so many records at the head of the queue have numbers that were sent

	proven  bool      // a batch may be sent before the one in front of it is acknowledged
	width   int       // the most records of a batch while a refused one is looked for; 0 for any number
	epoch   int32     // of the leader
	silence time.Time // until then, a request that had no answer may still be written
	pause   kafka.Backoff
	listed  bool // its lane looks at it next
	due     bool // goes on once the brokers have told of the topic

	since  time.Time // of the last acknowledgement, or of the first record after a pause
	reason error     // of the last failure
}

type state uint8

const (
	waits    state = iota // for the brokers: see line.go
	sends                 // its lane sends what is in the queue
	settling              // a batch has failed, and others are on their way
	halted                // behind a refused record, until PassOver
)

const (
	maxFlight = 5 // a leader remembers so many batches, for those that are sent again
	fullWidth = 256
	pauseOfID = time.Minute // leaders remember a producer id much longer, see producer.id.expiration.ms
)

// open is how many records have not ended.
func (p *partition) open() int {
	n := p.queue.len()
	for _, list := range [][]*batch{p.again, p.flight} {
		for _, b := range list {
			n += len(b.slots)
		}
	}
	return n
}

func (p *partition) push(sl *slot, now time.Time) {
	if p.queue.len() == 0 && len(p.flight)+len(p.again) == 0 {
		if now.Sub(p.since) > pauseOfID {
			p.proven = false
		}
		p.since = now
	}
	p.queue.push(sl)
	p.offer()
}

// sendable reports whether a batch can be sent now.
func (p *partition) sendable() bool {
	if p.state != sends || p.t.gathers || p.t.dead || len(p.again) == 0 && p.queue.len() == 0 {
		return false
	}
	first := p.first()
	if tx := p.t.s.tx; tx != nil && !tx.passes(first) || first.rec.Waits() {
		return false
	}
	return len(p.flight) == 0 || len(p.flight) < maxFlight && p.proven && p.width == 0
}

// first is the record to send next.
func (p *partition) first() *slot {
	if len(p.again) > 0 {
		return p.again[0].slots[0]
	}
	return p.queue.peek()
}

// offer has the lane of the leader look at the partition, if there is something to send.
func (p *partition) offer() {
	switch {
	case !p.sendable():
		return
	case p.t.leaders[p.n] < 0:
		p.wait(reason(p.t.name, kerr.LeaderNotAvailable))
		return
	case p.t.s.tx != nil && !p.t.s.tx.has(p):
		return
	case !p.listed:
		p.listed = true
		p.t.s.laneOf(p.t.leaders[p.n]).add(p)
	}
	if l := p.t.s.lanes[p.t.leaders[p.n]]; l != nil && p.isFull() {
		poke(l.full)
	}
}

// isFull reports whether waiting makes the next batch no larger.
func (p *partition) isFull() bool { return len(p.again) > 0 || p.queue.bytes >= p.t.limit }

// suspect reports whether the next batch is a record that is sent by itself because the leader may refuse it.
func (p *partition) suspect() bool {
	if len(p.again) > 0 {
		return p.again[0].trial
	}
	return p.width == 1
}

// next is the batch to send.
func (p *partition) next() *batch {
	var b *batch
	if len(p.again) > 0 {
		b = p.again[0]
		p.again = slices.Delete(p.again, 0, 1)
	} else {
		b = p.t.s.pool.batch()
		total := 0
		for sl := p.queue.peek(); sl != nil; sl = p.queue.peek() {
			total = bytesOf(total, sl)
			if n := len(b.slots); n > 0 && (total > p.t.limit || n == p.width || p.t.s.tx != nil && !p.t.s.tx.passes(sl) || sl.rec.Waits()) {
				break
			}
			b.slots = append(b.slots, sl)
			p.queue.pop()
		}
		p.numbered = max(0, p.numbered-len(b.slots))
		b.p, b.producer, b.seq = p, p.producer, p.seq
		p.seq = nextSeq(p.seq, len(b.slots))
		b.trial = p.width == 1
	}
	b.out, b.head, b.topic = true, len(p.flight) == 0, p.t.id
	if tx := p.t.s.tx; tx != nil {
		b.tx, b.latest = true, tx.latest
	}
	p.out++
	p.flight = append(p.flight, b)
	return b
}

// nextBytes is the size of the batch to send, at most.
func (p *partition) nextBytes() int {
	if len(p.again) > 0 {
		return p.again[0].bytes()
	}
	first := p.queue.peek().bytes
	return max(first, min(p.t.limit, p.queue.bytes))
}

// answered takes the outcome of a batch.
func (p *partition) answered(b *batch, err error, now time.Time) {
	if p.t.dead {
		return
	}
	if errors.Is(err, kerr.DuplicateSequenceNumber) {
		err, b.offset = nil, -1 // an earlier attempt wrote it
	}
	b.out, b.err = false, err
	p.out--
	if err == nil {
		p.since, b.lost = now, true // if it is held behind a failed one, and its numbers are given up with those
	} else {
		b.lost = b.lost || !unwritten(err)
		if none, ok := errors.AsType[noAnswer](err); ok && none.sent {
			p.silence = now.Add(p.t.s.wire)
		}
		if p.state == sends {
			p.state = settling
		}
	}
	for len(p.flight) > 0 && !p.flight[0].out && p.flight[0].err == nil {
		p.delivered(p.flight[0], now)
		p.flight = slices.Delete(p.flight, 0, 1)
	}
	if p.state == settling && p.out == 0 {
		p.settle()
	}
	if p.t.s.tx != nil {
		p.t.s.tx.settle()
	}
	p.offer()
}

func (p *partition) delivered(b *batch, now time.Time) {
	for i, sl := range b.slots {
		if sl.offset = b.offset; b.offset >= 0 {
			sl.offset += int64(i)
		}
	}
	if tx := p.t.s.tx; tx != nil {
		tx.wrote(b)
	} else {
		p.t.delivered(len(b.slots), now)
		for _, sl := range b.slots {
			p.t.s.end(sl, p.n, nil, max(0, now.Sub(sl.rec.Committed)))
		}
	}
	p.t.s.pool.put(b)
	p.reason, p.pause = nil, 0
	if p.state != sends {
		return
	}
	p.proven = true
	if p.width *= 2; p.width > fullWidth {
		p.width = 0
	}
}

// settle decides what becomes of the batches that failed. Nothing is on its way.
func (p *partition) settle() {
	p.again, p.flight = append(slices.Clone(p.flight), p.again...), p.flight[:0]
	first := p.again[0]
	n, trial, err, size := len(first.slots), first.trial, first.err, first.metrics
	if n > 1 && refusal(err) == cdc.TooLarge {
		p.t.most = max(kafka.LeastLimit, first.bytes()/2) // in case the brokers do not tell the limit
	}
	p.proven = false
	switch {
	case errors.Is(err, kerr.OutOfOrderSequenceNumber) && !first.head: // it came before the one in front of it
		p.state = sends
	case errors.Is(err, kerr.ConcurrentTransactions): // the brokers still end the transaction before
		p.pauseFor(commitAgain)
	case forgotten(err):
		p.renumber()
		p.wait(p.t.why(err))
	case refusal(err) != "":
		if trial || slices.ContainsFunc(p.again, func(b *batch) bool { return b.lost }) { // the numbers of what is dropped are spent
			p.renumber()
		} else {
			p.seq = first.seq
			p.divide()
		}
		p.width = max(1, n/2)
		switch {
		case trial:
			p.refuse(fmt.Errorf("%w (uncompressed_bytes=%d, compressed_bytes=%d)", err, size.UncompressedBytes, size.CompressedBytes))
		case p.renew || refusal(err) == cdc.TooLarge: // the limit may be another one now
			p.wait(p.t.why(err))
		default:
			p.state = sends
		}
	default:
		p.wait(p.t.why(err))
	}
}

// why is the error of an attempt as readiness shows it.
func (t *topic) why(err error) error {
	if none, ok := errors.AsType[noAnswer](err); ok {
		return t.s.unreachable(none.error)
	}
	return reason(t.name, err)
}

// divide puts the records of failed batches back into the queue.
func (p *partition) divide() {
	var slots []*slot
	for _, b := range p.again {
		slots = append(slots, b.slots...)
		p.t.s.pool.put(b)
	}
	p.again = nil
	p.queue.putBack(slots)
	p.numbered += len(slots)
}

// renumber gives up the producer id.
func (p *partition) renumber() {
	s := p.t.s
	if s.tx != nil {
		p.divide()
		p.renew, p.numbered = true, 0
		s.tx.restart()
		return
	}
	if i := slices.IndexFunc(p.again, func(b *batch) bool { return b.lost }); i >= 0 {
		s.counts.abandoned++
		s.log.Warn("whether earlier events were written cannot be known: trying again under a new producer id; events may be delivered twice",
			"topic", p.t.name, "partition", p.n, "err", p.again[0].err)
	}
	p.divide()
	p.renew, p.numbered = true, 0
}

// begin has the partition go on with the sink's newest producer id.
func (p *partition) begin(id producerID) {
	p.producer, p.renew, p.seq, p.proven, p.silence = id, false, 0, false, time.Time{}
}

// pauseFor has the partition send again after a moment.
func (p *partition) pauseFor(d time.Duration) {
	p.state = waits
	time.AfterFunc(d, func() {
		s := p.t.s
		s.mu.Lock()
		defer s.mu.Unlock()
		if p.state == waits && !p.due && !s.closed {
			p.state = sends
			p.offer()
		}
	})
}

// wait says why the partition waits, and has the brokers asked about its topic after a pause.
func (p *partition) wait(why error) {
	p.state, p.reason = waits, why
	pause := p.pause.Next()
	if p.renew && p.t.s.tx == nil {
		pause = max(pause, time.Until(p.silence))
	}
	s := p.t.s
	time.AfterFunc(pause, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		p.due = true
		s.ask(p.t)
	})
}

// resume goes on after the brokers have told of the topic.
func (p *partition) resume() {
	p.due = false
	switch {
	case p.state != waits: // it went on before its pause was over
		return
	case int(p.n) >= len(p.t.leaders):
		if p.state = waits; p.queue.len() > 0 {
			p.refuse(fmt.Errorf("partition %d of %d: %w", p.n, len(p.t.leaders), errPartition))
		} else {
			p.due = true // the topic may get the partition
		}
		return
	case p.t.leaders[p.n] < 0:
		p.wait(reason(p.t.name, kerr.LeaderNotAvailable))
		return
	case p.renew && p.t.s.tx == nil && time.Now().Before(p.silence):
		p.wait(p.reason)
		return
	case p.renew:
		switch ids := &p.t.s.ids; {
		case ids.known && ids.newest != p.producer:
			p.begin(ids.newest)
		case ids.err != nil:
			p.wait(reason(p.t.name, ids.err))
			return
		default: // it was given up meanwhile
			p.wait(p.reason)
			return
		}
	}
	p.state = sends
	p.offer()
}

// refuse ends the first record, and halts the partition. Nothing is on its way.
func (p *partition) refuse(err error) {
	sl := p.queue.peek()
	p.queue.pop()
	p.state = halted
	p.reason = p.t.refuse(sl, p.n, err)
}

// passOver lets the partition go on.
func (p *partition) passOver() {
	if p.state != halted {
		return
	}
	p.reason, p.since, p.width = nil, time.Now(), 1
	p.state = sends
	if p.renew || int(p.n) >= len(p.t.leaders) {
		p.state, p.due = waits, true
		p.t.s.ask(p.t)
	}
	p.offer()
}

// refuse ends a record with a refusal, and returns why what is behind it does not go on.
func (t *topic) refuse(sl *slot, n int32, err error) error {
	if errors.Is(err, kerr.InvalidTimestamp) {
		err = fault.WithHint(err, timestampHint())
	}
	err = &cdc.Refusal{Reason: refusal(err), Topic: t.name, Err: err}
	where := "topic " + t.name
	if n >= 0 {
		where = fmt.Sprintf("partition %d of topic %s", n, t.name)
	}
	why := fmt.Errorf("%s is halted after event %s: %w", where, sl.record().EventID, err)
	t.s.end(sl, n, err, 0) // the acknowledgement names the event and the topic
	return why
}
