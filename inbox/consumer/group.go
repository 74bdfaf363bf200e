package consumer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// The callbacks of the group run one at a time, and never between a poll and the end of take: see
// kgo.BlockRebalanceOnPoll. A partition that this member does not own any more is therefore never in
// schedule.partitions when take or commit look there.

func (c *Consumer) assigned(_ context.Context, _ *kgo.Client, added map[string][]int32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.joined = true
	c.letIn()
	for topic, ids := range added {
		for _, id := range ids {
			p := newPartition(c.handlers, place{topic, id})
			if c.s.partitions[p.place] = p; c.stopping {
				p.closeDown()
			}
		}
	}
	c.reshare()
}

// reshare pauses and resumes partitions after their shares of the buffer have changed.
func (c *Consumer) reshare() {
	for _, p := range c.s.partitions {
		c.flow(p)
	}
}

// revoked gives partitions up. The group waits for it, and heartbeats continue meanwhile.
func (c *Consumer) revoked(_ context.Context, _ *kgo.Client, partitions map[string][]int32) {
	if err := c.release(partitions); err != nil {
		c.complaints.log.Warn("revoked partitions have messages that the next owner handles again", "err", err)
	}
}

// lost is told that other members may own the partitions already. Nothing is committed for them.
func (c *Consumer) lost(_ context.Context, _ *kgo.Client, partitions map[string][]int32) {
	c.mu.Lock()
	c.joined = false
	gone := c.closeDown(partitions)
	c.forget(partitions)
	c.mu.Unlock()
	if len(gone) > 0 {
		c.complaints.log.Warn("partitions were lost: another member handles their messages again", "partitions", partitions)
	}
	c.abandon(gone)
	c.commits.Lock() // a commit that was collected before has ended
	defer c.commits.Unlock()
}

// release lets running handlers end, commits, and forgets the partitions.
func (c *Consumer) release(partitions map[string][]int32) error {
	if len(partitions) == 0 {
		return nil
	}
	c.mu.Lock()
	gone := c.closeDown(partitions)
	c.mu.Unlock()
	grace := time.NewTimer(c.cfg.Grace)
	defer grace.Stop()
	for _, p := range gone {
		select {
		case <-p.idle:
			continue
		case <-grace.C:
		}
		break
	}
	c.abandon(gone)
	err := c.commit(c.handlers)
	c.mu.Lock()
	defer c.mu.Unlock()
	uncommitted := map[string][]int32{}
	for _, p := range gone {
		if p.uncommitted() {
			uncommitted[p.topic] = append(uncommitted[p.topic], p.partition)
		}
	}
	c.forget(partitions)
	if len(uncommitted) > 0 {
		err = &UncommittedError{uncommitted, err}
	}
	return err
}

// An UncommittedError means that messages of these partitions were handled, or are still in a
// handler that doesn't return, but that their offsets aren't committed, so they will be delivered
// again. Either a commit has failed, or an earlier message of the partition isn't finished.
type UncommittedError struct {
	Partitions map[string][]int32 // by topic
	Err        error              // of the commit, or nil
}

func (e *UncommittedError) Error() string {
	text := fmt.Sprintf("messages of the partitions %v were handled and not committed, so they are delivered again", e.Partitions)
	if e.Err != nil {
		return text + ": " + e.Err.Error()
	}
	return text + ": an earlier message is not finished, or a handler does not return"
}

func (e *UncommittedError) Unwrap() error { return e.Err }

func (c *Consumer) closeDown(partitions map[string][]int32) (gone []*partition) {
	for topic, ids := range partitions {
		for _, id := range ids {
			if p := c.s.partitions[place{topic, id}]; p != nil {
				p.closeDown()
				gone = append(gone, p)
			}
		}
	}
	return gone
}

// abandon ends the contexts of the handlers, and waits a moment for them.
func (c *Consumer) abandon(gone []*partition) {
	for _, p := range gone {
		p.cancel()
	}
	wait := time.NewTimer(afterCancel)
	defer wait.Stop()
	for _, p := range gone {
		select {
		case <-p.idle:
		case <-wait.C:
			c.complaints.log.Warn("a handler does not return although its context has ended: the consumer gives the partition up without waiting for it",
				"topic", p.topic, "partition", p.partition)
			return
		}
	}
}

// forget removes partitions. A pause would outlive the assignment.
func (c *Consumer) forget(partitions map[string][]int32) {
	for topic, ids := range partitions {
		for _, id := range ids {
			delete(c.s.partitions, place{topic, id})
		}
	}
	c.cl.ResumeFetchPartitions(partitions)
	c.reshare()
}

func (c *Consumer) assignment() map[string][]int32 {
	all := map[string][]int32{}
	for at := range c.s.partitions {
		all[at.topic] = append(all[at.topic], at.partition)
	}
	return all
}

// commit commits the positions that have moved.
func (c *Consumer) commit(ctx context.Context) error {
	c.commits.Lock()
	defer c.commits.Unlock()
	moved := map[*partition]int64{}
	offsets := map[string]map[int32]kgo.EpochOffset{}
	c.mu.Lock()
	for at, p := range c.s.partitions {
		if p.position.Offset < 0 || p.position.Offset == p.committed {
			continue
		}
		if offsets[at.topic] == nil {
			offsets[at.topic] = map[int32]kgo.EpochOffset{}
		}
		offsets[at.topic][at.partition] = p.position
		moved[p] = p.position.Offset
	}
	c.mu.Unlock()
	if len(offsets) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), requestTimeout)
	defer cancel()
	var failed error
	c.cl.CommitOffsetsSync(ctx, offsets, func(_ *kgo.Client, _ *kmsg.OffsetCommitRequest, resp *kmsg.OffsetCommitResponse, err error) {
		if failed = err; err == nil {
			for _, t := range resp.Topics {
				for _, p := range t.Partitions {
					failed = cmp.Or(failed, kerr.ErrorForCode(p.ErrorCode))
				}
			}
		}
	})
	c.mu.Lock()
	defer c.mu.Unlock()
	if failed != nil {
		c.complaints.about("commit", "a commit of offsets failed", "err", failed)
		return fmt.Errorf("commit of offsets: %w", failed)
	}
	c.complaints.over("commit")
	for p, offset := range moved {
		p.committed = offset
	}
	return nil
}

const lagInterval = 10 * time.Second

// measure asks the brokers which topics exist, and where their partitions end. Fetches do not tell it
// while a partition is paused. An error says what the client alone does not report: the brokers are away.
func (c *Consumer) measure(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, lagInterval)
	defer cancel()
	topics := c.topics()
	var ends kadm.ListedOffsets
	absent, err := c.findAbsent(ctx, topics)
	present := slices.DeleteFunc(slices.Clone(topics), func(topic string) bool { return absent[topic] })
	if err == nil && len(present) > 0 { // with none, ListEndOffsets would take all topics of the cluster
		if ends, err = kadm.NewClient(c.cl).ListEndOffsets(ctx, present...); err == nil {
			err = ends.Error()
		}
	}
	committed := c.cl.CommittedOffsets()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.waiting = err == nil && len(topics) > 0 && len(present) == 0
	if absent != nil {
		c.noteAbsent(absent)
	}
	switch {
	case err == nil:
		c.complaints.over("brokers")
	case !errors.Is(ctx.Err(), context.Canceled):
		c.complaints.about("brokers", "asking the brokers where the topics end failed", "err", err)
	}
	for at, p := range c.s.partitions {
		if end, ok := ends.Lookup(at.topic, at.partition); ok {
			p.end = max(p.end, end.Offset)
		}
		if o, ok := committed[at.topic][at.partition]; ok && p.committed < 0 {
			p.committed = o.Offset
		}
	}
}

// findAbsent returns which of the topics, and of the dead letter topic, do not exist.
func (c *Consumer) findAbsent(ctx context.Context, topics []string) (map[string]bool, error) {
	if c.cfg.DeadLetterTopic != "" {
		topics = append(slices.Clone(topics), c.cfg.DeadLetterTopic)
	}
	if len(topics) == 0 { // Metadata would take all topics of the cluster
		return nil, c.cl.Ping(ctx)
	}
	found, err := kadm.NewClient(c.cl).Metadata(ctx, topics...)
	if err != nil {
		return nil, err
	}
	absent := map[string]bool{}
	for _, topic := range found.Topics {
		if errors.Is(topic.Err, kerr.UnknownTopicOrPartition) {
			absent[topic.Topic] = true
		}
	}
	return absent, nil
}

// noteAbsent logs which topics are absent now, and which are no longer.
func (c *Consumer) noteAbsent(absent map[string]bool) {
	for topic := range absent {
		switch {
		case c.absent[topic]:
		case topic == c.cfg.DeadLetterTopic:
			c.complaints.log.Warn("the dead letter topic does not exist: create it, or a message that cannot be handled holds up its key", "topic", topic)
		default:
			c.complaints.log.Warn("the topic does not exist yet: waiting for it", "topic", topic)
		}
	}
	for topic := range c.absent {
		if !absent[topic] {
			c.complaints.log.Info("the topic exists now", "topic", topic)
		}
	}
	c.absent = absent
}

// topics returns the topics of Config, or those of the assigned partitions if Config has patterns.
func (c *Consumer) topics() []string {
	if patterns, _ := c.cl.OptValue(kgo.ConsumeRegex).(bool); patterns {
		c.mu.Lock()
		defer c.mu.Unlock()
		return slices.Collect(maps.Keys(c.assignment()))
	}
	return c.cfg.Topics
}
