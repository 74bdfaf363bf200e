package sink

import (
	"errors"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/kafka"
)

// A topic is what the sink knows of a topic, and the partitions that it sends to. All fields are guarded by Kafka.mu.
type topic struct {
	s    *Kafka
	name string

	id      [16]byte // zero if it is not told, as before Kafka 2.8
	leaders []int32  // of the partitions; -1 for none; empty while the topic is not known
	limit   int      // bytes of a batch
	most    int      // bytes of a batch, as far as refusals tell; 0 for not at all
	learned time.Time

	dead bool // forgotten by transactions.forget

	queue  queue // of records that have no partition yet, because the topic is not known
	parts  map[int32]*partition
	halted bool // it can never be known, and a record of it was refused

	gathers bool      // it was created again, and its partitions send nothing until their records are gathered
	silence time.Time // the latest of partitions that were gathered

	// Of records without a key: they stay in a partition until it has got stickBytes, as in the client's default.
	sticky int32
	stuck  int

	asking bool          // the brokers are asked about it, or will be
	pause  kafka.Backoff // before the next time
	reason error         // of the last time, nil if it is known now

	pending int       // records that have not ended
	since   time.Time // of the last acknowledgement, or of the first record after a pause
	count   *uint64   // of acknowledged records; nil before the first
}

const (
	stickBytes = 64 << 10
	refresh    = 5 * time.Minute // how long what is known of a topic counts: it may get more partitions

	refreshLimit = 5 * time.Second // the same for its limit, where a record is larger
)

func (s *Kafka) topicOf(name string, now time.Time) *topic {
	t := s.topics[name]
	if t == nil {
		if len(s.topics) >= max(s.keep.topics, s.crowd) && s.tx == nil { // a partition keeps its numbers as long as its producer id
			s.sweep(now)
		}
		t = &topic{s: s, name: name, parts: map[int32]*partition{}, since: now}
		s.topics[name] = t
	}
	return t
}

// add takes over a record.
func (t *topic) add(sl *slot, now time.Time) {
	if t.pending == 0 {
		t.since = now
	}
	t.pending++
	if len(t.leaders) == 0 || t.queue.len() > 0 {
		t.queue.push(sl)
		t.s.ask(t)
		return
	}
	if age := now.Sub(t.learned); age > refresh || sl.bytes > t.limit && age > refreshLimit { // the limit may have been raised
		t.s.ask(t)
	}
	t.assign(sl, now)
}

// assign puts a record into the queue of its partition.
func (t *topic) assign(sl *slot, now time.Time) {
	n := t.choose(sl)
	p := t.parts[n]
	if p == nil {
		p = &partition{t: t, n: n, since: now, producer: noID, renew: true, silence: t.silence}
		t.parts[n] = p
		if ids := &t.s.ids; ids.known && !now.Before(p.silence) && int(n) < len(t.leaders) && t.leaders[n] >= 0 {
			p.begin(ids.newest)
			p.state = sends
		} else {
			p.due = true
			t.s.ask(t)
		}
	} else if p.state == waits && int(n) >= len(t.leaders) { // since the last one was passed over
		p.due = true
		t.s.ask(t)
	}
	p.push(sl, now)
}

// choose is the partition of a record, as in Kafka's Java client.
func (t *topic) choose(sl *slot) int32 {
	if n := t.s.hash.partition(&sl.rec, len(t.leaders)); n >= 0 {
		return n
	}
	if t.stuck += sl.bytes; t.stuck > stickBytes || int(t.sticky) >= len(t.leaders) || t.load(t.sticky) < 0 {
		t.stuck = sl.bytes
		t.sticky = rand.Int32N(int32(len(t.leaders)))
		for range 10 { // the better one of two, unless each has its troubles
			other := rand.Int32N(int32(len(t.leaders)))
			mine, its := t.load(t.sticky), t.load(other)
			if mine < 0 || its >= 0 && its < mine {
				t.sticky = other
			}
			if t.load(t.sticky) >= 0 {
				break
			}
		}
	}
	return t.sticky
}

// load is how many bytes wait in a partition, -1 if it does not go on now.
func (t *topic) load(n int32) int {
	switch p := t.parts[n]; {
	case t.leaders[n] < 0 || p != nil && p.state != sends:
		return -1
	case p == nil:
		return 0
	default:
		return p.queue.bytes
	}
}

// learn takes what the brokers say of the topic. resume lets its partitions go on.
func (t *topic) learn(desc *kafka.Topic, now time.Time) error {
	told := desc.ID != [16]byte{}
	fewer := len(desc.Partitions) < len(t.leaders)
	switch again := t.id != [16]byte{} && told && desc.ID != t.id || fewer && (t.id == [16]byte{} || !told); {
	case len(t.leaders) == 0:
	case again && !t.gather():
		return reason(t.name, kerr.UnknownTopicID)
	case fewer && !again: // no topic gets fewer partitions
		return reason(t.name, errStale)
	}
	if !complete(desc.Partitions) {
		return reason(t.name, errStale)
	}
	if unanswered := desc.Refused != nil && !errors.As(desc.Refused, new(*kerr.Error)); !unanswered { // the lack of a right is a *kerr.Error
		if t.limit = min(int(desc.Limit()), mostBytes); desc.Refused == nil {
			t.most = 0
		} else if t.most > 0 {
			t.limit = min(t.limit, t.most)
		}
	} else if t.limit == 0 {
		return t.s.unreachable(desc.Refused)
	}
	t.gathers = false
	if told {
		t.id = desc.ID
	}
	t.learned, t.reason, t.pause = now, nil, 0
	leaders := slices.Repeat([]int32{-1}, len(desc.Partitions))
	for _, p := range desc.Partitions {
		n := p.Partition
		leaders[n] = p.Leader
		switch mine := t.parts[n]; {
		case mine == nil:
		case len(mine.flight) > 0: // the old leader has not answered
			leaders[n] = t.leaders[n]
		case mine.epoch != p.LeaderEpoch || int(n) >= len(t.leaders) || p.Leader != t.leaders[n]: // may not know the producer id
			mine.epoch, mine.proven = p.LeaderEpoch, false
			if mine.listed && p.Leader != t.leaders[n] { // the old leader's lane may wait for a broker that is gone
				t.s.lanes[t.leaders[n]].remove(mine)
			}
		}
	}
	t.leaders = leaders
	for sl := t.queue.peek(); sl != nil; sl = t.queue.peek() {
		t.queue.pop()
		t.assign(sl, now)
	}
	return nil
}

// complete reports whether each partition is described once.
func complete(partitions []kmsg.MetadataResponseTopicPartition) bool {
	seen := make([]bool, len(partitions))
	for _, p := range partitions {
		if p.Partition < 0 || int(p.Partition) >= len(seen) || seen[p.Partition] {
			return false
		}
		seen[p.Partition] = true
	}
	return true
}

// resume lets the partitions go on after learn.
func (t *topic) resume() {
	for _, p := range t.parts {
		if p.due {
			p.resume()
		}
		p.offer()
	}
}

// gather takes back what waits for the partitions of a topic that was created again, because it may have others now. false: not
// before each record on its way has ended, and each refused one was passed over. Until then nothing is sent, because it would be behind
// records that wait.
func (t *topic) gather() bool {
	t.gathers = true
	for _, p := range t.parts {
		if len(p.flight) > 0 || p.state == halted {
			return false
		}
	}
	for _, p := range t.parts {
		p.divide()
		t.queue.putBack(p.queue.remove(0, func(*slot) bool { return true }))
		if p.silence.After(t.silence) {
			t.silence = p.silence
		}
	}
	slices.SortFunc(t.queue.slots, func(a, b *slot) int { return int(int64(a.n - b.n)) })
	t.drop()
	t.leaders = nil
	return true
}

// drop forgets the partitions. Their sequence numbers would begin anew, so no partition may be told the same producer id again.
func (t *topic) drop() {
	t.parts = map[int32]*partition{}
	if t.s.tx != nil {
		t.s.tx.restart()
	}
	t.s.ids.known = false
}

func (t *topic) delivered(n int, now time.Time) {
	if t.count == nil {
		t.count = t.s.counts.of(t.name)
	}
	*t.count += uint64(n)
	t.since = now
}

// takeBack ends what waits and what taken wants, in order.
func (t *topic) takeBack(taken func(key []byte, ticket *cdc.Ticket) bool) {
	wants := func(sl *slot) bool { return taken(sl.rec.Key, &sl.ticket) }
	back := t.queue.remove(0, wants)
	for _, p := range t.parts {
		back = append(back, p.queue.remove(p.numbered, wants)...)
		if p.state != halted && p.open() == 0 {
			p.reason = nil
		}
	}
	slices.SortFunc(back, func(a, b *slot) int { return int(int64(a.n - b.n)) })
	for _, sl := range back {
		t.s.end(sl, -1, cdc.ErrTakenBack, 0)
	}
}

// A sink forgets topics that are not used any more: when it knows of many, and when most of those are idle. A topic that comes again
// is asked about as a new one is, so a changed limit, or a topic that was created again, is noticed as before.

// A directory is the topics that a sink knows.
type directory struct {
	topics    map[string]*topic
	lastTopic *topic // of Send
	keep      keep
	crowd     int // how many topics there must be before some are forgotten
}

// keep says when topics are forgotten. Tests make it smaller.
type keep struct {
	topics int           // which a sink has at least
	recent time.Duration // a topic that was used within this time is used still
}

var usualKeep = keep{topics: 1000, recent: time.Minute}

// sweep forgets the topics that are idle.
func (s *Kafka) sweep(now time.Time) {
	var idle []string
	for name, t := range s.topics {
		if t.pending == 0 && !t.asking && !t.halted && now.Sub(t.since) >= s.keep.recent && !t.anyBusy(now) {
			idle = append(idle, name)
		}
	}
	if 2*len(idle) >= len(s.topics) {
		for _, name := range idle {
			s.topics[name].drop()
			delete(s.topics, name)
		}
		s.lastTopic = nil
		s.wg.Go(func() { s.cl.PurgeTopicsFromClient(idle...) }) // it never produces by itself, so nothing is lost
	}
	s.crowd = 2 * len(s.topics) // else the topics that are used would be looked at once for each new one
}

// anyBusy reports whether a partition has something to remember: that it is halted, or that a request may still be written.
func (t *topic) anyBusy(now time.Time) bool {
	if now.Before(t.silence) {
		return true
	}
	for _, p := range t.parts {
		if p.state == halted || now.Before(p.silence) {
			return true
		}
	}
	return false
}
