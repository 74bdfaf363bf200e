package sink

import (
	"context"
	"errors"
	"strings"

	"github.com/twmb/franz-go/pkg/kgo"
)

// The fence closes the gap between the moment at which the client fails what is buffered for a partition and the moment at
// which the sink hears of it.
//
// The client fails a partition's buffered records under the partition's lock, and calls their promises later, on another
// goroutine. A Send in between would hand it a later record of the same key, for a partition that is empty and healthy
// again: it would be delivered while the one before it was not. No option of the client prevents that, but three things it
// does under that very lock do, together:
//
//   - it logs that a batch failed, or that a partition cannot be loaded, with topic, partition and error, before it fails
//     the records: clientLog then raises the fence of the partition;
//   - it calls OnProduceRecordPartitioned after it has buffered a record and before any drain can see it: fenceHook then
//     replaces the context of a record that comes behind a fence by one that has ended;
//   - the drain fails a first batch that was never written when its first record's context has ended.
//
// So a record was buffered either before the failure, and failed with the others, or behind the fence, and is failed
// unwritten. Such a record was never in a request, so the client's rule about contexts (a produce on the wire cannot be
// taken back) is not touched: no other record ever has a context that can end. The record behind a fence is the first in its
// partition's buffer, as the failure has emptied it.
//
// What fails without the partition's lock:
//
//   - a topic that the client cannot load: the record fails inside Produce, on the goroutine that calls it, and the hook is
//     not called; handOver sees that and closes the gate before the next record;
//   - a topic that is not loaded yet: never more than one record is handed over before the first one is acknowledged;
//   - a producer id refused for good: all later records fail too, until the client is replaced with nothing in flight;
//   - a purged or re-created topic: its buffers stay dead.
//
// The fence falls when nothing of the topic is in flight any more.
//
// The client's documentation promises none of the three things, and it promises nothing that would do instead. The only documented notice of
// a failure is the promise (or OnProduceRecordUnbuffered just before it), and it comes too late. The only documented way to hold
// back a record that is in the client is its context. A context whose Done waits for the promises of earlier records would need no log.
// But it would block under the client's locks, so it needs more of the client's inside, and a change there would stop delivery.
// ManualFlushing and Flush wait for every record of the client, so nothing would be sent while a request is on its way.
//
// So TestFenceKeepsTheOrderWhenARecordOvertakesAFailure pins the three things, and .ci/client runs it with the client's newest release.

// failing reads the client's log: it says of which partition a line reports an error. A line that reports one without
// failing records costs a short pause of its topic, nothing else.
func failing(kvs []any) (topic string, partition int32, ok bool) {
	var hasTopic, hasPartition, hasErr bool
	for i := 0; i+1 < len(kvs); i += 2 {
		switch k, _ := kvs[i].(string); k {
		case "topic":
			topic, hasTopic = kvs[i+1].(string)
		case "partition":
			partition, hasPartition = kvs[i+1].(int32)
		case "err":
			_, hasErr = kvs[i+1].(error)
		case "will_fail":
			if will, _ := kvs[i+1].(bool); !will {
				return "", 0, false
			}
		}
	}
	return topic, partition, hasTopic && hasPartition && hasErr
}

// slotContext is the context of every record: one that never ends, and leads from the record to its slot.
type slotContext struct {
	context.Context
	slot *slot
}

type fenceHook struct{}

// OnProduceRecordPartitioned is called by the client under the partition's lock, for each record that it has buffered.
func (fenceHook) OnProduceRecordPartitioned(r *kgo.Record, _ int32) {
	c, ok := r.Context.(*slotContext)
	if !ok {
		return
	}
	c.slot.role.buffered.Store(c.slot.n)
	if t := c.slot.t; t.fenced.Load() && t.s.behindFence(t, r.Partition) {
		r.Context = canceled
	}
}

// fence is called under a partition's lock in the client; so nothing may call the client while it holds s.mu.
func (s *Kafka) fence(c *client, topic string, partition int32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.topics[topic]
	if t == nil || t.through != c {
		return
	}
	t.fences[partition] = struct{}{}
	t.fenced.Store(true)
	s.shut(t)
}

func (s *Kafka) behindFence(t *topic, partition int32) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, ok := t.fences[partition]
	return ok
}

// loadFailed says whether a producer id could not be loaded this time, which the client tries again by itself. The
// client does not export that error.
func loadFailed(err error) bool {
	return strings.HasPrefix(err.Error(), "unable to initialize a producer ID due to request failures") ||
		errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}
