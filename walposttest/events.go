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
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/inbox"
)

// Events waits until the relay has delivered every event committed so far, and returns all messages
// of a topic as a consumer gets them, in the order of the topic's partition. If nothing has been
// written, the result is empty. Their Group is "walposttest".
func (w *World) Events(topic string) []inbox.Message {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), patience)
	defer cancel()
	if err := w.deliver(ctx); err != nil {
		w.t.Fatalf("walposttest: %v", err)
	}
	messages, err := w.read(ctx, topic)
	if err != nil {
		w.t.Fatalf("walposttest: read the topic %s: %v", topic, err)
	}
	return messages
}

// Consumed waits until the relay has delivered every event committed so far, and a consumer group
// has committed the offsets of all messages in the topics. By then, its handlers have had their
// effects. Consumed doesn't wait for events that these handlers write. A consumer commits every
// Config.CommitInterval, which is a second by default. If it only stores messages for an
// inbox.Worker (inbox.Store), Consumed returns when they are stored: wait for the Worker's effect
// yourself.
//
// The test fails if a topic doesn't exist, because no event went to it and Options.Topics doesn't
// list it.
func (w *World) Consumed(group string, topics ...string) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), patience)
	defer cancel()
	if len(topics) == 0 {
		w.t.Fatalf("walposttest: Consumed: no topics")
	}
	err := w.deliver(ctx)
	if err == nil {
		err = w.consumed(ctx, group, topics)
	}
	if err != nil {
		w.t.Fatalf("walposttest: %v", err)
	}
}

func (w *World) consumed(ctx context.Context, group string, topics []string) error {
	ends := map[string]map[int32]int64{}
	for _, topic := range topics {
		if w.broker.TopicInfo(topic) == nil {
			return fmt.Errorf("Consumed: there is no topic %s: no event went to it, and Options.Topics does not list it", topic)
		}
		// Not the end of the partition: a consumer does not get the control record of a transaction there.
		messages, err := w.read(ctx, topic)
		if err != nil {
			return fmt.Errorf("read the topic %s: %w", topic, err)
		}
		ends[topic] = map[int32]int64{}
		for _, m := range messages {
			ends[topic][m.Partition] = max(ends[topic][m.Partition], m.Offset+1)
		}
	}
	err := w.await(ctx, func() error { return notCommitted(w.broker.GroupInfo(group), group, ends) })
	if missing := w.missingTopics(); err != nil && len(missing) > 0 {
		err = fmt.Errorf("%w; a client asks for topics that do not exist: list %s in Options.Topics", err, strings.Join(missing, ", "))
	}
	return err
}

// notCommitted returns an error with what the group has not committed, or nil.
func notCommitted(info *kfake.GroupInfo, group string, ends map[string]map[int32]int64) error {
	var left []string
	for topic, partitions := range ends {
		for partition, end := range partitions {
			committed := int64(0)
			if info != nil {
				committed = info.Commits[topic][partition].Offset
			}
			if committed < end {
				left = append(left, fmt.Sprintf("%s/%d at %d of %d", topic, partition, committed, end))
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

// noteTopics sees each request for metadata, which the broker then answers.
func (w *World) noteTopics(req kmsg.Request) (kmsg.Response, error, bool) {
	if req, ok := req.(*kmsg.MetadataRequest); ok {
		for _, t := range req.Topics {
			if t.Topic != nil {
				w.asked.Store(*t.Topic, nil)
			}
		}
	}
	return nil, nil, false
}

// missingTopics returns the topics that the service asked for and that do not exist, such as a consumer's
// DeadLetterTopic.
func (w *World) missingTopics() (names []string) {
	w.asked.Range(func(name, _ any) bool {
		if w.broker.TopicInfo(name.(string)) == nil && !slices.Contains(w.own, name.(string)) {
			names = append(names, name.(string))
		}
		return true
	})
	slices.Sort(names)
	return names
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
