package sink

import (
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/walpost/walpost/cdc"
)

// Status counts since Open.
type Status struct {
	// Delivered has the acknowledged records by topic. Topics beyond the first 200 are counted together, as OtherTopics.
	Delivered map[string]uint64
	// Abandoned is how often a partition gave up its producer id although an earlier answer was lost. Each time, events may have
	// been delivered twice.
	Abandoned uint64
}

// Status returns a copy of the counters.
func (s *Kafka) Status() Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := Status{Delivered: make(map[string]uint64, len(s.counts.topics)), Abandoned: s.counts.abandoned}
	for name, n := range s.counts.topics {
		st.Delivered[name] = *n
	}
	return st
}

const (
	// MaxTopicSeries is how many topics Status tells apart: the first ones that something was delivered to.
	MaxTopicSeries = 200
	// OtherTopics stands in Status for all topics beyond MaxTopicSeries.
	OtherTopics = "other"
)

// counts is what Status tells.
type counts struct {
	topics    map[string]*uint64 // acknowledged records
	abandoned uint64
}

// of is where the records of a topic are counted. Only so many topics are told apart, because each is a series of a metric.
func (c *counts) of(topic string) *uint64 {
	n := c.topics[topic]
	if n == nil {
		if len(c.topics) >= MaxTopicSeries {
			topic = OtherTopics
		}
		if n = c.topics[topic]; n == nil {
			n = new(uint64)
			c.topics[topic] = n
		}
	}
	return n
}

// A hash finds the partition of a key.
type hash struct {
	by  kgo.TopicPartitioner
	rec kgo.Record // by's argument
}

// partition is the partition of a record in a topic of n partitions: the one that the record asks for, or else murmur2 of its key as
// in Kafka's Java client. A record that has neither goes to any partition: -1.
func (h *hash) partition(rec *cdc.Record, n int) int32 {
	switch {
	case rec.Partition >= 0:
		return rec.Partition
	case rec.Key == nil:
		return -1
	}
	h.rec.Key = rec.Key
	p := h.by.Partition(&h.rec, n)
	h.rec.Key = nil
	return int32(p)
}

// PartitionOf is the partition of a record in a topic of n partitions, -1 for any.
func PartitionOf(rec *cdc.Record, n int32) int32 {
	h := hash{by: kgo.StickyKeyPartitioner(nil).ForTopic(rec.Topic)}
	return h.partition(rec, int(n))
}

// A pool keeps slots and batches for their next use.
type pool struct {
	slots   *slot
	batches []*batch
	seq     uint64 // of Send
}

func (o *pool) slot() *slot {
	sl := o.slots
	if sl != nil {
		o.slots, sl.next = sl.next, nil
	} else {
		sl = new(slot)
	}
	o.seq++
	sl.n = o.seq
	return sl
}

// free takes a slot that has ended. It must not keep a payload alive.
func (o *pool) free(sl *slot) {
	h := sl.rec.Headers
	clear(h)
	sl.rec, sl.t, sl.tx, sl.own = cdc.Record{Headers: h[:0]}, nil, 0, false
	sl.next, o.slots = o.slots, sl
}

func (o *pool) batch() *batch {
	n := len(o.batches)
	if n == 0 {
		return new(batch)
	}
	b := o.batches[n-1]
	o.batches = o.batches[:n-1]
	return b
}

const keptBatches = 32

func (o *pool) put(b *batch) {
	clear(b.slots)
	if len(o.batches) < keptBatches {
		o.batches = append(o.batches, b)
	}
	wire := b.wire[:0]
	if cap(wire) > keptBytes {
		wire = nil
	}
	*b = batch{slots: b.slots[:0], wire: wire}
}
