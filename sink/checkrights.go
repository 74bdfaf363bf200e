package sink

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/walpost/walpost/internal/kafka"
	"github.com/walpost/walpost/internal/topicname"
)

// idempotent asks for a producer id, as every start of the producer does. Nothing is written: a number is given out.
//
// The brokers want IdempotentWrite on the cluster for it; since 2.8 (KIP-679) Write on any topic does as well.
func (c *checker) idempotent(ctx context.Context) {
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
		c.add(name, OK, "a producer id is given", "")
	case kafka.Denied(err):
		c.add(name, Fail, "no producer id is given: the relay's user neither has IdempotentWrite on the cluster nor, from Kafka 2.8 on, Write on any topic",
			"Grant Write on the topics (below)\nor, before Kafka 2.8, "+c.mend.grantCluster("IdempotentWrite"))
	default:
		c.add(name, Fail, "no producer id is given: "+said(err), "Look at the brokers' logs: the coordinator that gives out producer ids does not answer.")
	}
}

// checkpoint judges the topic of the checkpoints, and reads it as a start of relay does.
func (c *checker) checkpoint(ctx context.Context, topic, relay string) {
	name := "checkpoint topic " + topic
	// Bounded well below the caller's patience: a topic that can not be read to its end would wait for ever.
	ctx, cancel := context.WithTimeout(ctx, 2*askTimeout)
	defer cancel()
	if err := topicname.Check(topic); err != nil {
		c.add(name, Fail, err.Error(), "Change checkpoint.topic.")
		return
	}
	t, err := kafka.DescribeTopic(ctx, c.cl, topic, "min.insync.replicas", "cleanup.policy", "segment.ms", "segment.bytes", "min.cleanable.dirty.ratio")
	switch {
	case err != nil:
		c.add(name, Fail, said(err), "")
		return
	case errors.Is(t.Err, kerr.UnknownTopicOrPartition):
		made, refused, err := createCheckpoints(ctx, c.cl, topic, true)
		if !c.creatable(name, kafka.NewTopic{Name: topic, Partitions: 1, Settings: compactedSoon}, made, err) {
			return
		}
		c.add(name, OK, "is missing and will be created"+with(made), "")
		if refused != nil {
			c.add(name+" segments", Warn, "the brokers refuse the settings that keep the topic small ("+said(refused)+"): it will have theirs, and each connect may read much", "")
		}
		return
	case kafka.Denied(t.Err):
		c.add(name, Fail, "the relay's user may not see it: "+t.Err.Error(), c.mend.grant(topic, "Describe", "Read", "Write", "DescribeConfigs"))
		return
	case t.Err != nil:
		c.add(name, Fail, t.Err.Error(), "")
		return
	}
	c.leaders(name, t)
	if c.readable(ctx, name, relay, t) {
		c.add(name, OK, "can be read and, as far as is told, written", "")
	}
	if n := len(t.Partitions); n != 1 {
		c.add(name+" partitions", Warn, fmt.Sprintf("it has %d partitions; only partition 0 is used", n), "Nothing has to be done; a new topic wants one partition.")
	}
	switch {
	case kafka.Denied(t.Refused):
		c.add(name+" settings", Warn, "the relay's user may not see them: whether it is compacted is not known", c.mend.grant(topic, "DescribeConfigs"))
		return
	case t.Refused != nil:
		c.add(name+" settings", Warn, "not told: "+said(t.Refused), "")
		return
	}
	c.checkpointSettings(name, topic, t.Settings)
	c.replicas(name, t)
}

// readable says whether the topic's records can be read, and written as far as is told; it reads them as a start does.
func (c *checker) readable(ctx context.Context, name, relay string, t *kafka.Topic) bool {
	topic := t.Name
	var missing []string
	for _, right := range []struct {
		name string
		op   kmsg.ACLOperation
	}{{"Read", kmsg.ACLOperationRead}, {"Write", kmsg.ACLOperationWrite}} {
		if may, told := t.Allows(right.op); told && !may {
			missing = append(missing, right.name)
		}
	}
	if len(missing) > 0 {
		c.add(name, Fail, "the relay's user may not "+strings.ToLower(strings.Join(missing, " or "))+" it", c.mend.grant(topic, missing...))
		return false
	}
	f := fold(c.cl, topic, relay)
	f.Patience = askTimeout / 2 // without coming further
	err := f.ToEnd(ctx)
	switch {
	case err != nil && ctx.Err() != nil && f.Next > f.Start:
		c.add(name, Warn, fmt.Sprintf("it is so large that it could not be read in %s: offset %d of %d; a connect reads on until it is at the end", 2*askTimeout, f.Next, f.End),
			c.mend.topic(topic, c.mend.compactSoon()))
		return false
	case err != nil:
		fix := "See that partition 0 has a leader and no open transaction (kafka-transactions.sh find-hanging)."
		if kafka.Denied(err) {
			fix = c.mend.grant(topic, "Read")
		}
		c.add(name, Fail, "can not be read: "+said(err), fix)
		return false
	}
	if lost := f.lost(); lost != nil {
		c.add(name, Fail, lost.Error(), lost.Hint())
		return false
	}
	return true
}
