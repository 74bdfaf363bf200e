package sink

import (
	"context"
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// readPartition returns the committed records of a partition from its start to the end that it has after the call began. It
// fetches by itself rather than through the consumer, because only the raw answer says how far a read got where the last
// records are gone (compaction) or are no records (transaction markers).
func readPartition(ctx context.Context, cl *kgo.Client, topic string, partition int32) ([]*kgo.Record, error) {
	var out []*kgo.Record
	var pause backoff
	next, end := int64(-1), int64(-1)
	for {
		err := func() error {
			if end < 0 {
				start, err := offset(ctx, cl, topic, partition, -2)
				if err != nil {
					return err
				}
				if end, err = offset(ctx, cl, topic, partition, -1); err != nil {
					end = -1
					return err
				}
				next = start
			}
			for next < end {
				fp, to, err := fetch(ctx, cl, topic, partition, next)
				if err != nil {
					return err
				}
				out = append(out, fp.Records...)
				if to <= next {
					// An open transaction, or a broker that has nothing yet: committed data ends here for now.
					return fmt.Errorf("offset %d of %d can not be read yet (last stable offset %d)", next, end, fp.LastStableOffset)
				}
				next, pause = to, 0
			}
			return nil
		}()
		if err == nil {
			return out, nil
		}
		if denied(err) || errors.Is(err, kerr.OffsetOutOfRange) || errors.Is(err, kerr.UnknownTopicOrPartition) || !pause.sleep(ctx) {
			return nil, fmt.Errorf("partition %d: %w", partition, err)
		}
		if ctx.Err() != nil {
			return nil, fmt.Errorf("partition %d: %w", partition, errors.Join(context.Cause(ctx), err))
		}
	}
}

// offset is the start (-2) or the end (-1: the high watermark) of a partition.
func offset(ctx context.Context, cl *kgo.Client, topic string, partition int32, at int64) (int64, error) {
	req := kmsg.NewPtrListOffsetsRequest()
	req.ReplicaID = -1
	rt := kmsg.NewListOffsetsRequestTopic()
	rt.Topic = topic
	rp := kmsg.NewListOffsetsRequestTopicPartition()
	rp.Partition, rp.Timestamp = partition, at
	rt.Partitions = append(rt.Partitions, rp)
	req.Topics = append(req.Topics, rt)
	for _, shard := range cl.RequestSharded(ctx, req) {
		if shard.Err != nil {
			return 0, shard.Err
		}
		for _, t := range shard.Resp.(*kmsg.ListOffsetsResponse).Topics {
			for _, p := range t.Partitions {
				return p.Offset, kerr.ErrorForCode(p.ErrorCode)
			}
		}
	}
	return 0, fmt.Errorf("the brokers did not answer for the end of %s", topic)
}

// fetch reads from one offset on and returns what it found and where to go on.
func fetch(ctx context.Context, cl *kgo.Client, topic string, partition int32, at int64) (fp kgo.FetchPartition, next int64, err error) {
	meta, err := describeTopics(ctx, cl, topic)
	if err != nil {
		return fp, 0, err
	}
	m := &meta.Topics[0]
	if _, err := usable(m); err != nil {
		return fp, 0, err
	}
	leader := int32(-1)
	for _, p := range m.Partitions {
		if p.Partition == partition {
			leader = p.Leader
		}
	}
	if leader < 0 {
		return fp, 0, kerr.LeaderNotAvailable
	}
	req := kmsg.NewPtrFetchRequest()
	req.ReplicaID = -1
	req.MaxWaitMillis, req.MinBytes, req.MaxBytes = 500, 1, 16<<20
	req.IsolationLevel = 1 // committed only
	rt := kmsg.NewFetchRequestTopic()
	rt.Topic, rt.TopicID = topic, m.TopicID
	rp := kmsg.NewFetchRequestTopicPartition()
	rp.Partition, rp.FetchOffset, rp.PartitionMaxBytes, rp.CurrentLeaderEpoch = partition, at, 16<<20, -1
	rt.Partitions = append(rt.Partitions, rp)
	req.Topics = append(req.Topics, rt)
	kresp, err := cl.Broker(int(leader)).RetriableRequest(ctx, req)
	if err != nil {
		return fp, 0, err
	}
	resp := kresp.(*kmsg.FetchResponse)
	if err := kerr.ErrorForCode(resp.ErrorCode); err != nil {
		return fp, 0, err
	}
	for i := range resp.Topics {
		for j := range resp.Topics[i].Partitions {
			fp, next = kgo.ProcessFetchPartition(kgo.ProcessFetchPartitionOpts{
				Offset:         at,
				IsolationLevel: kgo.ReadCommitted(),
				Topic:          topic,
				Partition:      partition,
			}, &resp.Topics[i].Partitions[j], kgo.DefaultDecompressor(), nil)
			return fp, next, fp.Err
		}
	}
	return fp, 0, fmt.Errorf("the broker did not answer for %s", topic)
}
