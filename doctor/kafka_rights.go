package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/internal/fix"
	"github.com/walpost/walpost/internal/kafka"
	"github.com/walpost/walpost/internal/statelog"
)

// idempotent asks for a producer id, as every start of the producer does. That writes nothing.
//
// The brokers want IdempotentWrite on the cluster for it. Since 2.8 (KIP-679) Write on any topic is enough.
func (c *kafkaCheck) idempotent(ctx context.Context) {
	const name = "idempotent producing"
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	req := kmsg.NewPtrInitProducerIDRequest()
	req.ProducerID, req.ProducerEpoch = -1, -1
	resp, err := req.RequestWith(ctx, c.cl)
	if err == nil {
		err = kerr.ErrorForCode(resp.ErrorCode)
	}
	switch {
	case err == nil:
		c.add(name, OK, "the brokers assign a producer id")
	case kafka.Denied(err):
		c.add(name, Fail, "the brokers assign no producer id: the relay's user has neither IdempotentWrite on the cluster nor, from Kafka 2.8 on, Write on any topic",
			fix.Words("Grant Write on the topics (see below). Before Kafka 2.8, grant IdempotentWrite:"), c.fixes.grantIdempotentWrite())
	default:
		c.add(name, Fail, "the brokers assign no producer id: "+errorLine(err), fix.Words("Look at the brokers' logs: the coordinator that assigns producer ids does not answer."))
	}
}

// transactionState is the brokers' own topic of transactions. They create it when the first transactional id is initialised.
const transactionState, stateReplication = "__transaction_state", "transaction.state.log.replication.factor"

// unknownProducer are the answers of brokers to the end of a transaction of a producer that none of them knows. NOT_COORDINATOR and the two
// behind it are those of a broker that doesn't look for the producer.
var unknownProducer = []*kerr.Error{
	kerr.NotCoordinator, kerr.CoordinatorNotAvailable, kerr.CoordinatorLoadInProgress,
	kerr.InvalidProducerIDMapping, kerr.InvalidProducerEpoch, kerr.ProducerFenced, kerr.InvalidTxnState, kerr.ConcurrentTransactions,
}

var errAccepted = errors.New("they let walpost end a transaction that does not exist")

// transactional judges whether the relay's user may write with a transactional id. use says what the relay does with it, and without what
// a relay has that does not.
//
// It asks a broker to end a transaction of a producer that no broker knows. Kafka looks at the rights first, and then refuses the
// request, so a running relay notices nothing. Initialising the id would tell as much, and fence that relay.
func (c *kafkaCheck) transactional(ctx context.Context, id, use, needs, without string) {
	name := "transactional id " + id
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	req := kmsg.NewPtrEndTxnRequest()
	req.TransactionalID, req.ProducerID, req.ProducerEpoch = id, -1, -1
	resp, err := c.cl.Broker(int(c.broker)).Request(ctx, req) // any broker knows the rights, and none but the coordinator looks further
	if err == nil {
		err = kerr.ErrorForCode(resp.(*kmsg.EndTxnResponse).ErrorCode)
	}
	var answer *kerr.Error
	switch {
	case kafka.Denied(err):
		c.add(name, Fail, "the relay's user may not use this transactional id, "+use+": "+err.Error(), c.fixes.grantTransactional(id))
		return
	case errors.As(err, &answer) && slices.Contains(unknownProducer, answer):
	default:
		c.add(name, Fail, "the brokers do not seem to support transactions, which "+needs+" needs: "+errorLine(cmp.Or(err, errAccepted)),
			fix.Words("Use brokers that support transactions, or "+without+"."))
		return
	}
	if need := c.stateReplicas(); need > c.brokers {
		c.add(name, Fail, fmt.Sprintf("transaction.state.log.replication.factor is %d, more than the cluster has brokers (%d): it cannot create its topic %s, so there are no transactions, which %s needs", need, c.brokers, transactionState, needs),
			brokerSetting(fmt.Sprintf("transaction.state.log.replication.factor=%d", c.brokers)), brokerSetting(fmt.Sprintf("transaction.state.log.min.isr=%d", max(1, c.brokers-1))))
		return
	}
	c.add(name, OK, "the relay's user may write with it")
}

// transactionVersion judges the protocol of transactions, and whether the brokers end each one. Before KIP-890, a request that was delayed
// for long can end the next transaction or leave one open.
func (c *kafkaCheck) transactionVersion(ctx context.Context) {
	const name = "transaction.version"
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	has, err := kafka.FeaturesOf(ctx, c.cl)
	switch {
	case errors.Is(err, kafka.ErrNotFenced):
		c.add(name, Fail, err.Error(), fix.Words(fault.Hint(err)))
	case err != nil:
		c.add(name, Warn, "the brokers do not report their transaction.version: "+errorLine(err))
	case has.Transaction < 2:
		c.add(name, Warn, fmt.Sprintf("transaction.version is %d: a produce request that arrives very late can leave a transaction open, which holds up readers of committed records (KIP-890)", has.Transaction),
			fix.Words("Upgrade the brokers to Kafka 4.0 or later, and then the feature:"), fix.Command("kafka-features.sh"+c.fixes.access+" upgrade --feature transaction.version=2"))
	default:
		c.add(name, OK, fmt.Sprintf("transaction.version is %d", has.Transaction))
	}
	if has.LeavesTransactionsOpen() {
		c.add("brokers' release", Warn, kafka.LeavesTransactionsOpen,
			fix.Words("Upgrade the brokers to a release with the fix. Until then, three replicas and min.insync.replicas=2 make such partitions rare."))
	}
}

// stateReplicas is how many brokers it takes to create the topic transactionState; 0 if the topic exists, or if that is not known.
func (c *kafkaCheck) stateReplicas() (n int) {
	if t := c.topics[transactionState]; t != nil && errors.Is(t.Err, kerr.UnknownTopicOrPartition) {
		n, _ = strconv.Atoi(c.settings[stateReplication]) // 0 if it is not told
	}
	return n
}

// checkpoint judges the topic of the checkpoints, and reads it as a start of the relay does.
func (c *kafkaCheck) checkpoint(ctx context.Context, topic, relay string) {
	name := "checkpoint topic " + topic
	// A topic that cannot be read to its end would use up the caller's time.
	ctx, cancel := context.WithTimeout(ctx, 2*askTimeout)
	defer cancel()
	t, refused := c.ownTopic(ctx, name, topic, true, statelog.Checkpoints)
	if refused != nil {
		c.add(name+" segments", Warn, "the brokers refuse the settings that keep the topic small ("+errorLine(refused)+"): the topic will have the brokers' settings, and each start of a relay may have to read a lot")
	}
	if t == nil {
		return
	}
	if c.readable(ctx, name, relay, t) {
		c.add(name, OK, "the topic can be read and, according to the brokers, written")
	}
	c.onePartition(name, t)
	if c.settingsKnown(name, t, "the topic is compacted") {
		c.checkpointSettings(name, topic, t.Settings)
		c.replicas(name, t)
	}
}

// onePartition warns of partitions that walpost does not use.
func (c *kafkaCheck) onePartition(name string, t *kafka.Topic) {
	if n := len(t.Partitions); n != 1 {
		c.add(name+" partitions", Warn, fmt.Sprintf("the topic has %d partitions, and only partition 0 is used", n), fix.Words("There is nothing to do. A new topic needs one partition."))
	}
}

// readable reports whether the topic's records can be read and, as far as the brokers tell, written. It reads them as a start does.
func (c *kafkaCheck) readable(ctx context.Context, name, relay string, t *kafka.Topic) bool {
	topic := t.Name
	if missing := lacking(t); len(missing) > 0 {
		c.add(name, Fail, "the relay's user may not "+strings.ToLower(strings.Join(missing, " or "))+" the topic", c.fixes.grant(topic, missing...))
		return false
	}
	at, err := statelog.CheckRecords(ctx, c.cl, topic, relay, askTimeout/2)
	var lost *statelog.LostRecords
	switch {
	case errors.As(err, &lost):
		c.add(name, Fail, lost.Error(), fix.Words(lost.Hint()))
	case err != nil && ctx.Err() != nil && at.Next > at.Start:
		c.add(name, Warn, fmt.Sprintf("the topic is so large that it could not be read in %s: offset %d of %d; each start of a relay reads it to its end", 2*askTimeout, at.Next, at.End),
			c.fixes.topic(topic, compactSoon()))
	case kafka.Denied(err):
		c.add(name, Fail, "the topic cannot be read: "+errorLine(err), c.fixes.grant(topic, "Read"))
	case err != nil:
		c.add(name, Fail, "the topic cannot be read: "+errorLine(err), fix.Words("Make sure that partition 0 has a leader and no open transaction (kafka-transactions.sh find-hanging)."))
	}
	return err == nil
}
