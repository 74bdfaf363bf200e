//go:build linux || darwin

package walposttest

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/inbox"
)

// Events waits until the relay has delivered every event that is committed now, and returns all
// messages of a topic, as a consumer gets them. Their order is that of the topic's partition. So the
// result is empty if nothing has been written. Their Group is "walposttest".
func (w *World) Events(topic string) []inbox.Message {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), patience)
	defer cancel()
	if err := w.deliver(ctx); err != nil {
		w.t.Fatal("walposttest: ", err)
	}
	messages, err := w.read(ctx, topic)
	if err != nil {
		w.t.Fatalf("walposttest: read the topic %s: %v", topic, err)
	}
	return messages
}

// Consumed waits until the relay has delivered every event that is committed now, and a consumer group
// has committed the offsets of all messages of the topics: then its handlers have had their effects.
// Events that the handlers write meanwhile are not waited for. A consumer commits every
// Config.CommitInterval, which is a second by default.
func (w *World) Consumed(group string, topics ...string) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), patience)
	defer cancel()
	err := w.deliver(ctx)
	if err == nil {
		ends := map[string][]*kfake.PartitionInfo{}
		for _, topic := range topics {
			ends[topic] = w.broker.PartitionInfos(topic)
		}
		err = w.await(ctx, func() error { return consumed(w.broker.GroupInfo(group), group, ends) })
	}
	if err != nil {
		w.t.Fatal("walposttest: ", err)
	}
}

// consumed returns an error that says what the group has not committed.
func consumed(info *kfake.GroupInfo, group string, ends map[string][]*kfake.PartitionInfo) error {
	var left []string
	for topic, partitions := range ends {
		for _, p := range partitions {
			committed := int64(0)
			if info != nil {
				committed = info.Commits[topic][p.Partition].Offset
			}
			if committed < p.LastStableOffset {
				left = append(left, fmt.Sprintf("%s/%d at %d of %d", topic, p.Partition, committed, p.LastStableOffset))
			}
		}
	}
	if len(left) == 0 {
		return nil
	}
	slices.Sort(left)
	members := 0
	if info != nil {
		members = len(info.Members)
	}
	return fmt.Errorf("the group %s with %d members has not consumed everything: %s", group, members, strings.Join(left, ", "))
}

// deliver waits until the relay has delivered what is committed now.
func (w *World) deliver(ctx context.Context) error {
	// A message at the end of the WAL: the relay comes by there, whatever is in the WAL before.
	var text string
	if err := w.conn.QueryRow(ctx, "SELECT pg_logical_emit_message(true, 'walposttest', '')::text").Scan(&text); err != nil {
		return err
	}
	end, err := cdc.ParsePosition(text)
	if err != nil {
		return err
	}
	return w.await(ctx, func() error {
		s := w.relay.Status()
		switch {
		case s.Safe >= end:
			return nil
		case s.Reason != "":
			return fmt.Errorf("the relay does not deliver: %s", s.Reason)
		}
		return fmt.Errorf("the relay has delivered up to %s, and the database is at %s", s.Safe, end)
	})
}

// read returns the messages of a topic. A topic that does not exist has none.
func (w *World) read(ctx context.Context, topic string) ([]inbox.Message, error) {
	left := map[int32]int64{} // the end of each partition that is not read yet
	from := map[int32]kgo.Offset{}
	for _, p := range w.broker.PartitionInfos(topic) {
		if p.LogStartOffset < p.LastStableOffset {
			left[p.Partition], from[p.Partition] = p.LastStableOffset, kgo.NewOffset().At(p.LogStartOffset)
		}
	}
	if len(left) == 0 {
		return nil, nil
	}
	client, err := kgo.NewClient(kgo.SeedBrokers(w.Brokers...), kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: from}),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.KeepControlRecords())
	if err != nil {
		return nil, err
	}
	defer client.Close()
	var messages []inbox.Message
	for len(left) > 0 {
		fetches := client.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return nil, err
		}
		fetches.EachRecord(func(r *kgo.Record) {
			end, reads := left[r.Partition]
			if reads && r.Offset < end && !r.Attrs.IsControl() {
				messages = append(messages, message(r))
			}
			if r.Offset+1 >= end {
				delete(left, r.Partition)
			}
		})
	}
	slices.SortStableFunc(messages, func(a, b inbox.Message) int { return cmp.Compare(a.Partition, b.Partition) })
	return messages, nil
}

// message is a record as a consumer with the default configuration hands it to its handler.
func message(r *kgo.Record) inbox.Message {
	m := inbox.Message{
		Group: "walposttest", Attempt: 1, Topic: r.Topic, Partition: r.Partition, Offset: r.Offset, Key: r.Key, Value: r.Value, Time: r.Timestamp,
	}
	for _, h := range r.Headers {
		m.Headers = append(m.Headers, inbox.Header{Key: h.Key, Value: h.Value})
	}
	m.ID = m.Header("id")
	return m
}
