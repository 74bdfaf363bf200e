package kafka

import (
	"context"
	"fmt"
	"slices"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// OpenTransactions returns the producers that have a transaction open in a partition, and none if its leader doesn't answer. It needs Read on
// the topic, and Kafka 3.0.
func OpenTransactions(ctx context.Context, cl *kgo.Client, topic string, partition int32) []kadm.DescribedProducer {
	var of kadm.TopicsSet
	of.Add(topic, partition)
	described, _ := kadm.NewClient(cl).DescribeProducers(ctx, of)
	return slices.DeleteFunc(described.SortedProducers(), func(p kadm.DescribedProducer) bool { return p.CurrentTxnStartOffset < 0 })
}

// A HangingTransaction is open in a partition for ever: its coordinator has no such transaction. Kafka 4.3.0 to 4.4.0 leave one where a
// partition has no leader at the moment in which its transaction ends (KAFKA-20734): the coordinator takes the partition for deleted.
type HangingTransaction struct {
	Topic     string
	Partition int32
	Start     int64  // offset of its first record
	ID        string // transactional
}

func (h *HangingTransaction) Error() string {
	return fmt.Sprintf("the transaction of transactional id %s at offset %d of partition %d will never end: its coordinator no longer has it (KAFKA-20734)", h.ID, h.Start, h.Partition)
}

// Hanging returns the transaction that begins at an offset if it is proven to hang, and nil otherwise: its coordinator doesn't have it, and
// it was open before and after the coordinator said so.
func Hanging(ctx context.Context, cl *kgo.Client, topic string, partition int32, start int64) *HangingTransaction {
	find := func() (found kadm.DescribedProducer, ok bool) {
		for _, p := range OpenTransactions(ctx, cl, topic, partition) {
			if p.CurrentTxnStartOffset == start {
				return p, true
			}
		}
		return found, false
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
			return &HangingTransaction{topic, partition, start, tx.TxnID}
		}
	}
	return nil
}
