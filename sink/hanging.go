package sink

import (
	"context"
	"slices"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/walpost/walpost/internal/kafka"
)

// hangs reports whether the leader has a transaction of a producer id open in the first partition of a topic. Brokers that don't answer that
// have none.
func (c *txClient) hangs(ctx context.Context, id int64, topic string) bool {
	open := kafka.OpenTransactions(ctx, c.cl, topic, 0)
	return slices.ContainsFunc(open, func(p kadm.DescribedProducer) bool { return p.ProducerID == id })
}

// endHanging ends a transaction that Kafka has left open for ever in the topic of checkpoints, where Fence has just got id: see
// kafka.HangingTransaction. A leader knows one open transaction of a producer id, so the next one that has the partition ends it.
//
// It aborts, although the coordinator may have committed. Then walpost goes on at the checkpoint before, and delivers again what the commit
// made visible in other partitions. With the checkpoint committed, events would be lost where their partition hangs too, and their
// transaction ended otherwise.
func (tx *transactions) endHanging(ctx context.Context, id producerID, latest bool) (producerID, error) {
	ctx, cancel := context.WithTimeout(ctx, kafka.ProbeLimit)
	defer cancel()
	if !tx.coordinator.hangs(ctx, id.id, tx.checkpoints) {
		return id, nil
	}
	tx.s.log.Warn("the brokers left a transaction open for ever: aborting it; its events are delivered again", "topic", tx.checkpoints)
	errs, err := tx.coordinator.join(ctx, id, []topicPartition{{&topic{name: tx.checkpoints}, 0}})
	if err == nil {
		err = errs[0]
	}
	if err == nil {
		id, err = tx.coordinator.finish(ctx, id, false, latest)
	}
	if over(err) { // another process has fenced this one since
		err = &lostTransaction{id: tx.id, err: err}
	}
	return id, err
}
