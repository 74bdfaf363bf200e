package kafka

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// A Reader hands the committed records of one partition to Each, in the order of the log. It fetches by itself and not through the
// consumer, because only the raw answer says how far a read came if the last records are gone (compaction) or are no records
// (transaction markers). It holds the answer of one fetch at a time, so its memory does not grow with the partition.
//
// A Reader keeps its place. The next call of ToEnd continues there, also after an error, unless the log may be another one: the topic
// was created again, the leader changed, or records were deleted from the front. Then it starts over.
type Reader struct {
	Client    *kgo.Client
	Topic     string
	Partition int32
	ID        [16]byte                // if set, the topic must be this one; otherwise the error is ErrGone
	Since     time.Time               // if set, the first timestamp that counts
	From      int64                   // the first offset that counts
	Whole     bool                    // if the log begins behind From, or ends before it, the error is ErrGone
	Stable    bool                    // an open transaction ends the reading; otherwise the reading waits for its end
	Patience  time.Duration           // how long to wait without coming further; default ReadPatience
	Each      func(*kgo.Record) error // a record is valid during the call; an error ends the reading
	Again     func()                  // if set, it is called when the reading starts, and when it starts over

	Partitions int // of the topic, as of the newest look

	// Start is the first offset of the log, Next that of the next record, and End is behind the last record, as of the newest look.
	Start, Next, End int64

	Older bool // the log has records from before Since, as of the newest look

	log   logID // that Next is a place in
	begun bool  // this call of ToEnd has looked at the log

	leader, epoch int32 // who leads the partition now; leader is -1 if that must be asked
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

// ErrGone says that the log no longer has what is at Reader.From.
var ErrGone = errors.New("records that were in the partition are gone")

// ErrOpen says that a transaction is open, so nothing that's behind its first record can be read.
var ErrOpen = errors.New("a transaction is open")

// ReadPatience is how long a Reader waits without coming further: for a leader, or for the end of a transaction.
const ReadPatience = 20 * time.Second

// ToEnd reads up to the end that the partition has after the call began. It may take as long as it needs while it comes further.
// When it comes no further for the time of Patience, the error says what it waits for. If waiting does not help, it returns
// the error at once.
func (r *Reader) ToEnd(ctx context.Context) error {
	patience := cmp.Or(r.Patience, ReadPatience)
	moved := time.Now()
	var pause Backoff
	var reason error // of the newest attempt that the end of the patience didn't cut short
	r.begun, r.leader = false, -1
	for {
		step, cancel := context.WithDeadline(ctx, moved.Add(patience))
		before := r.Next
		err := r.step(step)
		waiting := err == nil || !final(err) && pause.Sleep(step)
		if err == nil || step.Err() == nil || reason == nil {
			reason = err
		} else if ctx.Err() == nil {
			err = reason
		}
		cancel()
		var own stopped
		switch {
		case errors.As(err, &own):
			return own.error
		case !waiting && ctx.Err() != nil:
			return fmt.Errorf("partition %d: %w", r.Partition, errors.Join(context.Cause(ctx), err))
		case !waiting:
			return fmt.Errorf("partition %d: %w", r.Partition, err)
		case err != nil:
			r.leader = -1 // the partition may have moved
			if errors.Is(err, kerr.OffsetOutOfRange) {
				r.begun, r.Next = false, -1 // records were deleted while they were read
			}
		case r.begun && r.Next >= r.End:
			return nil
		case before >= 0 && r.Next > before:
			moved, pause = time.Now(), 0
		}
	}
}

// step asks one question that brings the reading further.
func (r *Reader) step(ctx context.Context) error {
	if r.leader < 0 {
		topic, err := r.locate(ctx)
		if err != nil {
			return err
		}
		if now := (logID{topic, r.epoch}); !r.begun && (now != r.log || !now.known()) || now.topic != r.log.topic {
			r.begun, r.Next, r.log = false, -1, now
		}
	}
	if !r.begun {
		return r.begin(ctx)
	}
	if r.Next >= r.End {
		return nil
	}
	fp, to, err := r.fetch(ctx)
	if err != nil {
		return err
	}
	for _, rec := range fp.Records {
		if err := r.Each(rec); err != nil {
			return stopped{err}
		}
	}
	if to > r.Next {
		r.Next = to
		return nil
	}
	if r.Stable && fp.LastStableOffset <= r.Next {
		r.Next = r.End
		return nil
	}
	if fp.LastStableOffset <= r.Next {
		return fmt.Errorf("%w at offset %d, and the records up to %d can be read when it ends", ErrOpen, r.Next, r.End)
	}
	return fmt.Errorf("offset %d of %d cannot be read yet (last stable offset %d)", r.Next, r.End, fp.LastStableOffset)
}

// begin asks where the log starts and ends now, and decides where to read on.
func (r *Reader) begin(ctx context.Context) error {
	start, err := r.offset(ctx, firstRecord)
	if err != nil {
		return err
	}
	end, err := r.offset(ctx, behindLast)
	if err != nil {
		return err
	}
	if r.Whole && (start > r.From || end < r.From) {
		// A new leader may say too early an end for a moment, so an end before From is asked for again.
		return fmt.Errorf("%w: offset %d is needed, but the partition has only the offsets from %d to %d", ErrGone, r.From, start, end)
	}
	if r.Next < 0 || start != r.Start || end < r.Next {
		first := start
		if !r.Since.IsZero() {
			if first, err = r.offset(ctx, max(r.Since.UnixMilli(), 0)); err != nil {
				return err
			}
			oldest, err := r.offset(ctx, 0) // of records and markers, as first is
			if err != nil {
				return err
			}
			r.Older = oldest != first
			if first < 0 { // no record is that young
				first = end
			}
		}
		r.Next = min(max(first, r.From), end)
		if r.Again != nil {
			r.Again()
		}
	}
	r.Start, r.End, r.begun = start, end, true
	return nil
}

// locate finds the leader of the partition, and returns the id of the topic.
func (r *Reader) locate(ctx context.Context) (id [16]byte, err error) {
	t, err := DescribeTopic(ctx, r.Client, r.Topic)
	if err == nil {
		err = t.Err
	}
	if err != nil {
		return id, err
	}
	r.Partitions = len(t.Partitions)
	for _, p := range t.Partitions {
		if p.Partition == r.Partition && p.Leader >= 0 {
			if r.ID != [16]byte{} && t.ID != [16]byte{} && r.ID != t.ID { // as a broker sees it that may not have learned of r.ID yet
				return id, fmt.Errorf("%w: the topic was created again", ErrGone)
			}
			r.leader, r.epoch = p.Leader, p.LeaderEpoch
			return t.ID, nil
		}
	}
	return id, kerr.LeaderNotAvailable
}

// offset asks the leader for firstRecord, behindLast, or the first offset with a timestamp in milliseconds: -1 where there is none.
func (r *Reader) offset(ctx context.Context, at int64) (int64, error) {
	req := kmsg.NewPtrListOffsetsRequest()
	req.ReplicaID = -1
	rt := kmsg.NewListOffsetsRequestTopic()
	rt.Topic = r.Topic
	rp := kmsg.NewListOffsetsRequestTopicPartition()
	rp.Partition, rp.Timestamp, rp.CurrentLeaderEpoch = r.Partition, at, r.epoch
	rt.Partitions = append(rt.Partitions, rp)
	req.Topics = append(req.Topics, rt)
	resp, err := r.Client.Broker(int(r.leader)).RetriableRequest(ctx, req)
	if err != nil {
		return 0, err
	}
	for _, t := range resp.(*kmsg.ListOffsetsResponse).Topics {
		for _, p := range t.Partitions {
			return p.Offset, kerr.ErrorForCode(p.ErrorCode)
		}
	}
	return 0, fmt.Errorf("the broker did not answer for the offsets of %s", r.Topic)
}

// fetch reads from the next offset on, and returns what it found and where to go on.
func (r *Reader) fetch(ctx context.Context) (fp kgo.FetchPartition, next int64, err error) {
	req := kmsg.NewPtrFetchRequest()
	req.ReplicaID = -1
	req.MaxWaitMillis, req.MinBytes, req.MaxBytes = 500, 1, fetchBytes
	req.IsolationLevel = 1 // committed only
	rt := kmsg.NewFetchRequestTopic()
	rt.Topic, rt.TopicID = r.Topic, r.log.topic
	rp := kmsg.NewFetchRequestTopicPartition()
	rp.Partition, rp.FetchOffset, rp.PartitionMaxBytes, rp.CurrentLeaderEpoch = r.Partition, r.Next, fetchBytes, r.epoch
	rt.Partitions = append(rt.Partitions, rp)
	req.Topics = append(req.Topics, rt)
	kresp, err := r.Client.Broker(int(r.leader)).RetriableRequest(ctx, req)
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
				Offset:         r.Next,
				IsolationLevel: kgo.ReadCommitted(),
				Topic:          r.Topic,
				Partition:      r.Partition,
			}, &resp.Topics[i].Partitions[j], kgo.DefaultDecompressor(), nil)
			return fp, next, fp.Err
		}
	}
	return fp, 0, fmt.Errorf("the broker did not answer for %s", r.Topic)
}

// TopicID is the id of the topic as of the newest look, zero before Kafka 2.8.
func (r *Reader) TopicID() [16]byte { return r.log.topic }

// final reports whether err ends a reading at once.
func final(err error) bool {
	return Denied(err) || errors.Is(err, kerr.UnknownTopicOrPartition) || errors.As(err, new(stopped))
}

// stopped is an error of Each.
type stopped struct{ error }
