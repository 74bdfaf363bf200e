package sink

import (
	"context"
	"slices"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/walpost/walpost/internal/kafka"
)

// Kafka may leave a transaction open for ever: see kafka.HangingTransaction. But a leader knows one open transaction of a producer id. So the
// next transaction of the same id that has the partition ends the hanging one with it. That is what Fence does for the topic of checkpoints,
// which can be read then, as Fence promises.

// txStatus is what the coordinator tells of a transactional id. The zero value is that of an unknown one.
type txStatus struct {
	id    producerID
	state string // as in DescribeTransactions
}

// committed reports whether a transaction is known to be committed. With transaction.version 2, its end gives the producer the
// next epoch, and any other process gets one behind that. A process that aborts its transaction by itself begins no other one.
func (s txStatus) committed(tx kafka.OpenTransaction) bool {
	return s.id == producerID{tx.ProducerID, tx.Epoch + 1} && (s.state == "PrepareCommit" || s.state == "CompleteCommit" || s.state == "Ongoing")
}

func (c *txClient) status(ctx context.Context) (txStatus, error) {
	all, err := kadm.NewClient(c.cl).DescribeTransactions(ctx, c.id)
	if err != nil {
		return txStatus{}, err
	}
	tx := all[c.id]
	return txStatus{producerID{tx.ProducerID, tx.ProducerEpoch}, tx.State}, tx.Err
}

func (c *txClient) open(ctx context.Context, id int64, topics ...string) ([]kafka.OpenTransaction, error) {
	all, err := kafka.OpenTransactions(ctx, c.cl, topics...)
	return slices.DeleteFunc(all, func(o kafka.OpenTransaction) bool { return o.ProducerID != id }), err
}

// fence initializes the transactional id, and ends what hangs in the topic of checkpoints. before is kept from one attempt to the next,
// because the first one changes what the coordinator knows. Brokers that answer no such questions are not asked again.
func (tx *transactions) fence(ctx context.Context, latest bool, before *txStatus) (producerID, error) {
	c := tx.coordinator
	if latest && *before == (txStatus{}) { // epochs tell nothing before transaction.version 2
		status, err := c.status(ctx)
		if kerr.IsRetriable(err) {
			return noID, err
		}
		*before = status
	}
	id, err := c.initialize(ctx, noID)
	if err != nil || !latest {
		return id, err
	}
	// The coordinator ends all other transactions before it gives an id.
	found, err := c.open(ctx, id.id, tx.checkpoints)
	switch {
	case len(found) > 0:
		return tx.endHanging(ctx, id, found[0], *before)
	case kerr.IsRetriable(err) && !isOne(err, kerr.UnknownTopicOrPartition):
		return noID, err
	}
	return id, nil
}

// endHanging ends a hanging transaction in all partitions that this process may read.
func (tx *transactions) endHanging(ctx context.Context, id producerID, hangs kafka.OpenTransaction, before txStatus) (producerID, error) {
	c, commit := tx.coordinator, before.committed(hangs)
	all := []kafka.OpenTransaction{hangs}
	if others, _ := c.open(ctx, id.id); len(others) > 0 { // a partition that can't be asked about ends with its next transaction
		others = slices.DeleteFunc(others, func(o kafka.OpenTransaction) bool { return o.Epoch != hangs.Epoch || o.Topic == hangs.Topic })
		all = append(all, others...)
	}
	warning := "the brokers left a transaction open for ever (KAFKA-20734): ending it as its commit was meant to"
	if !commit {
		warning = "the brokers left a transaction open for ever (KAFKA-20734): aborting it, because it is not known to be committed; its events may be delivered twice"
	}
	tx.s.log.Warn(warning, "topic", hangs.Topic, "partition", hangs.Partition, "offset", hangs.Start, "partitions", len(all))
	partitions := make([]topicPartition, len(all))
	for i, o := range all {
		partitions[i] = topicPartition{&topic{name: o.Topic}, o.Partition}
	}
	errs, err := c.join(ctx, id, partitions)
	if err == nil && slices.ContainsFunc(errs, func(err error) bool { return err != nil }) && len(all) > 1 { // then it has added none
		errs, err = c.join(ctx, id, partitions[:1])
	}
	if err == nil {
		err = errs[0]
	}
	next := noID
	for pause := kafka.Backoff(0); err == nil; {
		if next, err = c.finish(ctx, id, commit, true); err == nil || over(err) || !again(ctx, err, &pause) {
			break
		}
		err = nil
	}
	if over(err) { // another process has fenced this one since
		err = &LostTransaction{ID: tx.id, Err: err}
	}
	return next, err
}
