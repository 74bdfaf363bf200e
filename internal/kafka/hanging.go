package kafka

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// An OpenTransaction has records in a partition, and no end there.
type OpenTransaction struct {
	Topic      string
	Partition  int32
	ProducerID int64
	Epoch      int16 // of its records
	Start      int64 // offset of the first one
}

// OpenTransactions asks the leaders for what is open in topics, or in all topics if none is given. Beside an error it returns what it has
// found. It needs Read on a topic, and Kafka 3.0.
func OpenTransactions(ctx context.Context, cl *kgo.Client, topics ...string) (open []OpenTransaction, err error) {
	known, err := kadm.NewClient(cl).ListTopics(ctx, topics...)
	if err != nil {
		return nil, err
	}
	req := kmsg.NewPtrDescribeProducersRequest()
	for _, t := range known.Sorted() {
		rt := kmsg.NewDescribeProducersRequestTopic()
		rt.Topic, rt.Partitions = t.Topic, t.Partitions.Numbers()
		req.Topics = append(req.Topics, rt)
		err = cmp.Or(err, t.Err)
	}
	for _, shard := range cl.RequestSharded(ctx, req) {
		if err = cmp.Or(err, shard.Err); shard.Err != nil {
			continue
		}
		for _, t := range shard.Resp.(*kmsg.DescribeProducersResponse).Topics {
			for _, p := range t.Partitions {
				err = cmp.Or(err, kerr.ErrorForCode(p.ErrorCode))
				for _, a := range p.ActiveProducers {
					if a.CurrentTxnStartOffset >= 0 {
						open = append(open, OpenTransaction{t.Topic, p.Partition, a.ProducerID, int16(a.ProducerEpoch), a.CurrentTxnStartOffset})
					}
				}
			}
		}
	}
	return open, err
}

// A HangingTransaction is open in a partition for ever: its coordinator has no such transaction. Kafka 4.3.0 to 4.4.0 leave one where a
// partition has no leader at the moment in which its transaction ends (KAFKA-20734): the coordinator takes the partition for deleted.
type HangingTransaction struct {
	OpenTransaction
	ID string // transactional
}

func (h *HangingTransaction) Error() string {
	return fmt.Sprintf("the transaction of transactional id %s at offset %d of partition %d will never end: its coordinator no longer has it (KAFKA-20734)", h.ID, h.Start, h.Partition)
}

// Hanging returns the transaction that begins at an offset if it is proven to hang, and nil otherwise: its coordinator doesn't have it, and
// it was open before and after the coordinator said so.
func Hanging(ctx context.Context, cl *kgo.Client, topic string, partition int32, start int64) *HangingTransaction {
	find := func() (OpenTransaction, bool) {
		all, _ := OpenTransactions(ctx, cl, topic)
		i := slices.IndexFunc(all, func(o OpenTransaction) bool { return o.Partition == partition && o.Start == start })
		return append(all, OpenTransaction{})[max(i, 0)], i >= 0
	}
	open, ok := find()
	if !ok {
		return nil
	}
	adm := kadm.NewClient(cl)
	listed, _ := adm.ListTransactions(ctx, []int64{open.ProducerID}, nil) // of the brokers that answer
	if ids := listed.TransactionalIDs(); len(ids) == 1 {
		said, err := adm.DescribeTransactions(ctx, ids...)
		tx := said[ids[0]]
		again, still := find()
		if err == nil && tx.Err == nil && tx.ProducerID == open.ProducerID && !tx.Topics.Lookup(topic, partition) && still && again == open {
			return &HangingTransaction{open, tx.TxnID}
		}
	}
	return nil
}
