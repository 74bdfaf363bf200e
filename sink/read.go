package sink

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// A reader hands the committed records of one partition to each, in the order of the log. It fetches by itself rather than through the
// consumer, because only the raw answer says how far a read came where the last records are gone (compaction) or are no records
// (transaction markers). It holds the answer of one fetch at a time, so its memory does not grow with the partition.
//
// A reader keeps its place. The next call of toEnd continues there, also after an error, unless the log may be another one: the topic
// was created again, the leader changed, or records were deleted from the front. Then it starts over.
type reader struct {
	cl        *kgo.Client
	topic     string
	partition int32
	from      int64                   // firstRecord, or where to start: the first timestamp that counts, in milliseconds
	stable    bool                    // an open transaction ends the reading; otherwise the reading waits for its end
	patience  time.Duration           // how long to wait without coming further
	each      func(*kgo.Record) error // a record is valid during the call; an error ends the reading
	again     func()                  // nil, or called whenever the reading starts, and starts over

	log              logID // that next is a place in
	start, next, end int64 // first offset of the log, of the next record, and behind the last; next is -1 before the reading starts

	leader, epoch int32 // who leads the partition now; leader is -1 where that must be asked
}

// logID tells the log of a partition from another one that has other records at the same offsets.
type logID struct {
	topic [16]byte // zero before Kafka 2.8
	epoch int32    // of the leader: a new leader may have another end of the log (unclean election)
}

func (l logID) known() bool { return l.topic != [16]byte{} && l.epoch >= 0 }

const (
	firstRecord = -2 // what ListOffsets calls the first offset
	behindLast  = -1 // what ListOffsets calls the end: the high watermark

	// fetchBytes bounds the answer of one fetch, unless a single batch is larger.
	fetchBytes = 1 << 20
)

// readPatience is how long a reading may wait without coming further: for a leader, or for the end of a transaction.
const readPatience = 20 * time.Second

func newReader(cl *kgo.Client, topic string, partition int32, each func(*kgo.Record) error) *reader {
	return &reader{
		cl: cl, topic: topic, partition: partition, from: firstRecord, patience: readPatience, each: each, next: -1,
	}
}

// toEnd reads up to the end that the partition has after the call began. It may take as long as it needs while it comes further. An
// error says what it waited for, when it came no further for the time of patience, or at once where waiting does not help.
func (r *reader) toEnd(ctx context.Context) error {
	begun, moved := false, time.Now()
	var pause backoff
	r.leader = -1
	for {
		step, cancel := context.WithDeadline(ctx, moved.Add(r.patience))
		before := r.next
		err := r.step(step, &begun)
		waiting := err == nil || !final(err) && pause.sleep(step)
		cancel()
		var own stopped
		switch {
		case errors.As(err, &own):
			return own.error
		case !waiting && ctx.Err() != nil:
			return fmt.Errorf("partition %d: %w", r.partition, errors.Join(context.Cause(ctx), err))
		case !waiting:
			return fmt.Errorf("partition %d: %w", r.partition, err)
		case err != nil:
			r.leader = -1 // the partition may have moved
			if errors.Is(err, kerr.OffsetOutOfRange) {
				begun, r.next = false, -1 // records were deleted while they were read
			}
		case begun && r.next >= r.end:
			return nil
		case before >= 0 && r.next > before:
			moved, pause = time.Now(), 0
		}
	}
}

// step asks one question that brings the reading further.
func (r *reader) step(ctx context.Context, begun *bool) error {
	if r.leader < 0 {
		topic, err := r.locate(ctx)
		if err != nil {
			return err
		}
		if now := (logID{topic, r.epoch}); !*begun && (now != r.log || !now.known()) || now.topic != r.log.topic {
			*begun, r.next, r.log = false, -1, now
		}
	}
	if !*begun {
		return r.begin(ctx, begun)
	}
	if r.next >= r.end {
		return nil
	}
	fp, to, err := r.fetch(ctx)
	if err != nil {
		return err
	}
	for _, rec := range fp.Records {
		if err := r.each(rec); err != nil {
			return stopped{err}
		}
	}
	if to > r.next {
		r.next = to
		return nil
	}
	if r.stable && fp.LastStableOffset <= r.next {
		r.next = r.end
		return nil
	}
	return fmt.Errorf("offset %d of %d can not be read yet (last stable offset %d)", r.next, r.end, fp.LastStableOffset)
}

// begin asks where the log starts and ends now, and decides where to read on.
func (r *reader) begin(ctx context.Context, begun *bool) error {
	start, err := r.offset(ctx, firstRecord)
	if err != nil {
		return err
	}
	end, err := r.offset(ctx, behindLast)
	if err != nil {
		return err
	}
	if r.next < 0 || start != r.start || end < r.next {
		first := start
		if r.from != firstRecord {
			if first, err = r.offset(ctx, r.from); err != nil {
				return err
			}
			if first < 0 { // no record is that young
				first = end
			}
		}
		r.next = first
		if r.again != nil {
			r.again()
		}
	}
	r.start, r.end, *begun = start, end, true
	return nil
}

// locate finds the leader of the partition, and returns the id of the topic.
func (r *reader) locate(ctx context.Context) (id [16]byte, err error) {
	meta, err := describeTopics(ctx, r.cl, r.topic)
	if err != nil {
		return id, err
	}
	m := &meta.Topics[0]
	if _, err := usable(m); err != nil {
		return id, err
	}
	for _, p := range m.Partitions {
		if p.Partition == r.partition && p.Leader >= 0 {
			r.leader, r.epoch = p.Leader, p.LeaderEpoch
			return m.TopicID, nil
		}
	}
	return id, kerr.LeaderNotAvailable
}

// offset asks the leader for firstRecord, behindLast, or the first offset with a timestamp in milliseconds: -1 where there is none.
func (r *reader) offset(ctx context.Context, at int64) (int64, error) {
	req := kmsg.NewPtrListOffsetsRequest()
	req.ReplicaID = -1
	rt := kmsg.NewListOffsetsRequestTopic()
	rt.Topic = r.topic
	rp := kmsg.NewListOffsetsRequestTopicPartition()
	rp.Partition, rp.Timestamp, rp.CurrentLeaderEpoch = r.partition, at, r.epoch
	rt.Partitions = append(rt.Partitions, rp)
	req.Topics = append(req.Topics, rt)
	resp, err := r.cl.Broker(int(r.leader)).RetriableRequest(ctx, req)
	if err != nil {
		return 0, err
	}
	for _, t := range resp.(*kmsg.ListOffsetsResponse).Topics {
		for _, p := range t.Partitions {
			return p.Offset, kerr.ErrorForCode(p.ErrorCode)
		}
	}
	return 0, fmt.Errorf("the broker did not answer for the offsets of %s", r.topic)
}

// fetch reads from the next offset on, and returns what it found and where to go on.
func (r *reader) fetch(ctx context.Context) (fp kgo.FetchPartition, next int64, err error) {
	req := kmsg.NewPtrFetchRequest()
	req.ReplicaID = -1
	req.MaxWaitMillis, req.MinBytes, req.MaxBytes = 500, 1, fetchBytes
	req.IsolationLevel = 1 // committed only
	rt := kmsg.NewFetchRequestTopic()
	rt.Topic, rt.TopicID = r.topic, r.log.topic
	rp := kmsg.NewFetchRequestTopicPartition()
	rp.Partition, rp.FetchOffset, rp.PartitionMaxBytes, rp.CurrentLeaderEpoch = r.partition, r.next, fetchBytes, r.epoch
	rt.Partitions = append(rt.Partitions, rp)
	req.Topics = append(req.Topics, rt)
	kresp, err := r.cl.Broker(int(r.leader)).RetriableRequest(ctx, req)
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
				Offset:         r.next,
				IsolationLevel: kgo.ReadCommitted(),
				Topic:          r.topic,
				Partition:      r.partition,
			}, &resp.Topics[i].Partitions[j], kgo.DefaultDecompressor(), nil)
			return fp, next, fp.Err
		}
	}
	return fp, 0, fmt.Errorf("the broker did not answer for %s", r.topic)
}

// final says whether err ends a reading at once.
func final(err error) bool {
	return denied(err) || errors.Is(err, kerr.UnknownTopicOrPartition) || errors.As(err, new(stopped))
}

// stopped is an error of the one who reads.
type stopped struct{ error }
