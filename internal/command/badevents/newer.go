package badevents

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/deadletter"
	"github.com/walpost/walpost/internal/kafka"
	"github.com/walpost/walpost/sink"
)

// keySearch has the keys of events by the topic that the events go to.
type keySearch struct {
	topics map[string]map[string]*searched
	all    int
}

// A searched is one key of one topic.
type searched struct {
	since     time.Time // commit time of the first event of the key
	partition int32     // that the event asks for, or -1
	ids       map[string]bool
	offsets   map[int64]bool // of the messages of consumers, which may have their ids in another header
}

func (k *keySearch) add(rec *cdc.Record, e *deadletter.Entry) {
	if rec.Key == nil {
		return
	}
	if k.topics == nil {
		k.topics = map[string]map[string]*searched{}
	}
	keys := k.topics[rec.Topic]
	if keys == nil {
		keys = map[string]*searched{}
		k.topics[rec.Topic] = keys
	}
	s := keys[string(rec.Key)]
	if s == nil {
		s = &searched{since: e.CommitTime, partition: rec.Partition, ids: map[string]bool{}, offsets: map[int64]bool{}}
		keys[string(rec.Key)] = s
		k.all++
	}
	if e.CommitTime.Before(s.since) {
		s.since = e.CommitTime
	}
	s.ids[e.ID] = true
	if e.Group != "" && rec.Topic == e.Topic {
		s.offsets[e.Letter.Offset] = true
	}
}

// newer counts the keys with a record that is not older than the first event of the key. It reads the
// partitions of these keys from that time on, for at most limit.
func (t *Topics) newer(ctx context.Context, k *keySearch, limit time.Duration) (Keys, error) {
	found := Keys{All: k.all, Whole: true}
	bounded, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	read := int64(0)
	for name, keys := range k.topics {
		topic, err := kafka.DescribeTopic(bounded, t.client, name)
		if err == nil {
			err = topic.Err
		}
		if errors.Is(err, kerr.UnknownTopicOrPartition) || errors.Is(err, kerr.InvalidTopicException) {
			continue // so it has no records
		}
		byPartition := map[int32]map[string]*searched{}
		for key, s := range keys {
			if err != nil {
				break
			}
			p := sink.PartitionOf(&cdc.Record{Topic: name, Key: []byte(key), Partition: s.partition}, int32(len(topic.Partitions)))
			if byPartition[p] == nil {
				byPartition[p] = map[string]*searched{}
			}
			byPartition[p][key] = s
		}
		for p, wanted := range byPartition {
			if int(p) >= len(topic.Partitions) {
				continue
			}
			n := len(wanted)
			err = errors.Join(err, t.search(bounded, name, p, wanted, &read))
			found.Newer += n - len(wanted)
		}
		switch {
		case ctx.Err() != nil:
			return found, context.Cause(ctx)
		case bounded.Err() != nil:
			found.Whole = false
			return found, nil
		case err != nil && kafka.Denied(err):
			found.Whole = false
			t.Say(fmt.Sprintf("topic %s cannot be read, so it is unknown whether its keys have newer records (%v)", name, err))
		case err != nil:
			return found, fmt.Errorf("read topic %s: %w", name, err)
		}
	}
	return found, nil
}

// search removes the keys from wanted that have newer records in a partition.
func (t *Topics) search(ctx context.Context, topic string, partition int32, wanted map[string]*searched, read *int64) error {
	var since time.Time
	for _, s := range wanted {
		if since.IsZero() || s.since.Before(since) {
			since = s.since
		}
	}
	r := kafka.Reader{Client: t.client, Topic: topic, Partition: partition, Since: since, Stable: true}
	r.Each = func(rec *kgo.Record) error {
		*read++
		t.Progress("looking for newer records of the keys", *read, 0)
		s := wanted[string(rec.Key)]
		if rec.Key == nil || s == nil || s.offsets[rec.Offset] || rec.Timestamp.Before(s.since.Truncate(time.Millisecond)) {
			return nil
		}
		for _, h := range rec.Headers {
			if h.Key == "id" && s.ids[string(h.Value)] {
				return nil // the event itself: a retry that was interrupted
			}
		}
		if delete(wanted, string(rec.Key)); len(wanted) == 0 {
			return errEnough
		}
		return nil
	}
	if err := r.ToEnd(ctx); !errors.Is(err, errEnough) {
		return err
	}
	return nil
}
