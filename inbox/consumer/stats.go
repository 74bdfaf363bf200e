package consumer

import (
	"cmp"
	"log/slog"
	"slices"
	"sync"
	"time"
)

// Stats is what a Consumer has done since its start, and what it does now.
type Stats struct {
	// These only grow.
	Handled   uint64 // messages that the handler accepted
	Failed    uint64 // attempts that failed and count
	Uncounted uint64 // attempts that failed and do not count
	Retried   uint64 // messages that were given to the handler again
	Split     uint64 // batches that failed and were handled one by one
	Dead      uint64 // messages that are in the dead letter topic
	Missed    uint64 // offsets that Kafka removed before they were read

	Joined      bool // the Consumer is a member of its group, even if it has no partitions
	InFlight    int  // calls of the handler that run
	DeadWaiting int  // messages that wait for the dead letter topic
	Partitions  []PartitionStats
}

// PartitionStats describes one partition that this member owns.
type PartitionStats struct {
	Topic     string
	Partition int32
	Committed int64         // the committed offset; -1 if it is not known
	Lag       int64         // offsets from the first unfinished message to the end, of which a transaction takes one; -1 if it is not known
	Buffered  int           // messages received but not finished, or waiting for an earlier one that isn't
	Paused    bool          // its share of the buffer is used up
	Closing   bool          // no new messages are handled, because the partition moves to another member or the Consumer stops
	Oldest    time.Duration // since the oldest unfinished message was received; 0 if there is none
}

// Stats returns the current numbers. The partitions are sorted.
func (c *Consumer) Stats() Stats {
	now := time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.total
	s.Joined, s.InFlight = c.joined, c.s.running-c.outage.pausing
	for at, p := range c.s.partitions {
		ps := PartitionStats{Topic: at.topic, Partition: at.partition, Committed: p.committed, Buffered: len(p.pending), Paused: p.paused, Closing: p.closing, Lag: -1}
		at := max(p.committed, p.position.Offset)
		if len(p.pending) > 0 {
			at = p.pending[0].offset
			ps.Oldest = now.Sub(p.pending[0].received)
		}
		if at >= 0 && p.end >= 0 {
			ps.Lag = max(0, p.end-at)
		}
		s.Partitions = append(s.Partitions, ps)
		for _, it := range p.pending {
			if it.verdict != nil && !it.done {
				s.DeadWaiting++
			}
		}
	}
	slices.SortFunc(s.Partitions, func(a, b PartitionStats) int {
		return cmp.Or(cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.Partition, b.Partition))
	})
	return s
}

// Ready reports whether the Consumer is working: it has joined its group and knows its partitions,
// possibly none if the group has more members than partitions. If none of its topics exists yet, it
// is ready as soon as the brokers answer. Ready is false before that, while the Consumer has fallen
// out of its group, and once Run's ctx has ended. Use it for a readiness probe.
func (c *Consumer) Ready() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return (c.joined || c.waiting) && !c.stopping
}

func retries(w *work) (n int) {
	for _, it := range w.items {
		if it.failures.All > 0 || it.alone {
			n++
		}
	}
	return n
}

// complaints makes few log lines of a fault that repeats: at most one each minute, and one at the end.
type complaints struct {
	log *slog.Logger

	mu  sync.Mutex
	all map[string]*complaint
}

type complaint struct {
	text   string
	logged time.Time
	times  int  // since the last recovery
	open   bool // logged since the last recovery
}

const complainInterval = time.Minute

func (c *complaints) about(what, text string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.all == nil {
		c.all = map[string]*complaint{}
	}
	if c.all[what] == nil {
		c.all[what] = &complaint{text: text}
	}
	o := c.all[what]
	if o.times++; time.Since(o.logged) >= complainInterval {
		o.logged, o.open = time.Now(), true
		c.log.Error(text, append(args, "times", o.times)...)
	}
}

func (c *complaints) over(what string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if o := c.all[what]; o != nil && o.times > 0 {
		if o.open {
			c.log.Info("recovered: "+o.text, "times", o.times)
		}
		o.times, o.open = 0, false
	}
}
