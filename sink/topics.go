package sink

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/walpost/walpost/cdc"
)

// TopicInfos asks brokers about topics, once each, and changes nothing. It is used by one goroutine at a time.
type TopicInfos struct {
	cl    *kgo.Client
	dials *dialHook
	known map[string]TopicInfo
	down  error // the brokers did not answer: nobody is asked again
}

// A TopicInfo is what decides where a record goes, and whether it is taken.
type TopicInfo struct {
	Partitions int32
	MaxBytes   int32 // max.message.bytes, or the brokers' usual one where they do not say
	Err        error // why that is not known
}

// listPatience is how long a question waits for the brokers.
const listPatience = 5 * time.Second

// AskTopics makes a TopicInfos. It does not connect.
func AskTopics(cfg Config) (*TopicInfos, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	dials := new(dialHook)
	cl, err := newAdmin(cfg.withDefaults(), dials)
	if err != nil {
		return nil, err
	}
	return &TopicInfos{cl: cl, dials: dials, known: map[string]TopicInfo{}}, nil
}

// Close frees the connections.
func (t *TopicInfos) Close() { t.cl.Close() }

// Of returns what the brokers say of a topic.
func (t *TopicInfos) Of(ctx context.Context, topic string) TopicInfo {
	info, ok := t.known[topic]
	if !ok {
		info = t.ask(ctx, topic)
		t.known[topic] = info
	}
	return info
}

func (t *TopicInfos) ask(ctx context.Context, topic string) (info TopicInfo) {
	if t.down != nil {
		return TopicInfo{Err: t.down}
	}
	ctx, cancel := context.WithTimeout(ctx, listPatience)
	defer cancel()
	meta, err := describeTopics(ctx, t.cl, topic)
	if err != nil {
		t.down = fmt.Errorf("the brokers cannot be asked: %w", err)
		if why := t.dials.last(); why != nil && !errors.Is(err, why) {
			t.down = fmt.Errorf("%w (%w)", t.down, why)
		}
		return TopicInfo{Err: t.down}
	}
	if info.Partitions, err = usable(&meta.Topics[0]); err != nil {
		return TopicInfo{Err: reason(topic, err)}
	}
	if info.MaxBytes, err = topicLimit(ctx, t.cl, topic); err != nil {
		info.MaxBytes = defaultLimit
	}
	return info
}

// PartitionOf is the partition of a record in a topic of n partitions: the one that it asks for, else murmur2 of its key as
// in Kafka's Java client. A record that has neither goes to any: -1.
func PartitionOf(rec *cdc.Record, n int32) int32 {
	switch {
	case rec.Partition >= 0:
		return rec.Partition
	case rec.Key == nil:
		return -1
	}
	p := kgo.StickyKeyPartitioner(nil).ForTopic(rec.Topic)
	return int32(p.Partition(&kgo.Record{Key: rec.Key}, int(n)))
}

// BatchBytes is the size of a batch with this record alone, at most: what is compared with max.message.bytes.
func BatchBytes(rec *cdc.Record) int {
	sl := newSlot()
	sl.fill(&topic{name: rec.Topic}, rec, cdc.Ticket{}, 0)
	return sl.bytes
}
