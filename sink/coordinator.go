package sink

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/walpost/walpost/internal/kafka"
)

// A coordinator is what transactions ask of the broker that keeps the state of a transactional id. Each call is one attempt: whether an
// error ends the producer id is for the caller to decide.
type coordinator interface {
	// features are those of the cluster. With transaction.version 2 (KIP-890, Kafka 4.0) each transaction has an epoch of its own, and a
	// produce request adds its partition.
	features(ctx context.Context) (kafka.Features, error)
	// initialize gives a new epoch, and aborts what is open under an older one. From prev it does so only if nobody else has done it since;
	// prev is noID for a process that begins.
	initialize(ctx context.Context, prev producerID) (producerID, error)
	// join adds partitions to the transaction. The errors are those of the partitions, nil for success.
	join(ctx context.Context, id producerID, all []topicPartition) ([]error, error)
	// finish commits or aborts. next is the producer id of the next transaction.
	finish(ctx context.Context, id producerID, commit, modern bool) (next producerID, err error)
	// hangs reports whether a transaction is open in the first partition of a topic, after a call of initialize that gave the id.
	hangs(ctx context.Context, id int64, topic string) bool
}

// transactionTimeout is how long a transaction may be open. A reader of committed records waits as long for what is behind the
// transaction of a process that has died.
const transactionTimeout = time.Minute

// txClient is the coordinator of a real cluster.
type txClient struct {
	cl   *kgo.Client
	id   string
	node atomic.Pointer[kgo.Broker] // that finish asks, until an attempt fails; nil: not known
}

func (c *txClient) features(ctx context.Context) (kafka.Features, error) {
	return kafka.FeaturesOf(ctx, c.cl)
}

func (c *txClient) initialize(ctx context.Context, prev producerID) (producerID, error) {
	req := kmsg.NewPtrInitProducerIDRequest()
	req.TransactionalID, req.TransactionTimeoutMillis = &c.id, int32(transactionTimeout.Milliseconds())
	req.ProducerID, req.ProducerEpoch = prev.id, prev.epoch
	if prev == noID {
		req.ProducerEpoch = -1
	}
	resp, err := req.RequestWith(ctx, c.cl)
	if err == nil {
		err = kerr.ErrorForCode(resp.ErrorCode)
	}
	if err != nil {
		return noID, err
	}
	return producerID{resp.ProducerID, resp.ProducerEpoch}, nil
}

func (c *txClient) join(ctx context.Context, id producerID, all []topicPartition) ([]error, error) {
	req := kmsg.NewPtrAddPartitionsToTxnRequest()
	req.TransactionalID, req.ProducerID, req.ProducerEpoch = c.id, id.id, id.epoch
	at := map[string]int{}
	for _, p := range all {
		i, ok := at[p.t.name]
		if !ok {
			i = len(req.Topics)
			at[p.t.name] = i
			t := kmsg.NewAddPartitionsToTxnRequestTopic()
			t.Topic = p.t.name
			req.Topics = append(req.Topics, t)
		}
		req.Topics[i].Partitions = append(req.Topics[i].Partitions, p.n)
	}
	resp, err := req.RequestWith(ctx, c.cl)
	if err == nil {
		err = kerr.ErrorForCode(resp.ErrorCode)
	}
	if err != nil {
		return nil, err
	}
	errs := make([]error, len(all))
	for i, p := range all {
		errs[i] = errNoAnswer
		for _, t := range resp.Topics {
			for _, rp := range t.Partitions {
				if t.Topic == p.t.name && rp.Partition == p.n {
					errs[i] = kerr.ErrorForCode(rp.ErrorCode)
				}
			}
		}
	}
	return errs, nil
}

// An endTxn is a request in the newest version that the caller allows.
type endTxn struct {
	kmsg.EndTxnRequest
	highest int16
}

func (r *endTxn) MaxVersion() int16 { return r.highest }

// find returns the coordinator.
func (c *txClient) find(ctx context.Context) (*kgo.Broker, error) {
	if node := c.node.Load(); node != nil {
		return node, nil
	}
	req := kmsg.NewPtrFindCoordinatorRequest()
	req.CoordinatorType, req.CoordinatorKey, req.CoordinatorKeys = 1, c.id, []string{c.id}
	resp, err := req.RequestWith(ctx, c.cl)
	if err != nil {
		return nil, notSent{err}
	}
	node, code := resp.NodeID, resp.ErrorCode
	if len(resp.Coordinators) > 0 {
		node, code = resp.Coordinators[0].NodeID, resp.Coordinators[0].ErrorCode
	}
	if err := kerr.ErrorForCode(code); err != nil {
		return nil, err
	}
	found := c.cl.Broker(int(node))
	c.node.Store(found)
	return found, nil
}

func (c *txClient) finish(ctx context.Context, id producerID, commit, modern bool) (next producerID, err error) {
	node, err := c.find(ctx)
	if err != nil {
		return noID, err
	}
	defer func() {
		if err != nil {
			c.node.Store(nil)
		}
	}()
	req := &endTxn{kmsg.NewEndTxnRequest(), 4}
	if modern {
		req.highest = req.EndTxnRequest.MaxVersion()
	}
	req.TransactionalID, req.ProducerID, req.ProducerEpoch, req.Commit = c.id, id.id, id.epoch, commit
	kresp, err := node.Request(ctx, req)
	if err != nil {
		return noID, err
	}
	resp, ok := kresp.(*kmsg.EndTxnResponse)
	if !ok {
		return noID, errNoAnswer
	}
	if err := kerr.ErrorForCode(resp.ErrorCode); err != nil {
		return noID, err
	}
	if resp.Version >= 5 && resp.ProducerID >= 0 {
		return producerID{resp.ProducerID, resp.ProducerEpoch}, nil
	}
	return id, nil
}

// notSent is the error of an attempt that asked for nothing yet.
type notSent struct{ error }

func (e notSent) Unwrap() error { return e.error }

// unknownEnd reports whether the coordinator may still carry out an attempt with this error.
func unknownEnd(err error) bool {
	return !errors.As(err, new(notSent)) && !errors.As(err, new(*kerr.Error))
}

// over reports whether a producer id is of no use any more: another process has initialized the transactional id, the brokers have
// aborted the transaction because it took too long, or they have forgotten the id.
func over(err error) bool {
	return isOne(err, kerr.ProducerFenced, kerr.InvalidProducerEpoch, kerr.InvalidProducerIDMapping, kerr.InvalidTxnState,
		kerr.UnknownProducerID, kerr.TransactionAbortable)
}

// A lostTransaction is why nothing is committed any more until Fence: the sink does not know what became of its transaction, or nobody
// will commit it.
type lostTransaction struct {
	id  string // transactional
	err error
}

func (l *lostTransaction) Error() string {
	return fmt.Sprintf("the Kafka transaction of transactional id %s is lost: %v", l.id, l.err)
}

func (l *lostTransaction) Unwrap() error { return l.err }
