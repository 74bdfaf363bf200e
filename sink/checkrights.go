package sink

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

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
	case denied(err):
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
	meta, err := describeTopics(ctx, c.cl, topic)
	if err != nil {
		c.add(name, Fail, said(err), "")
		return
	}
	m := &meta.Topics[0]
	n, err := usable(m)
	switch {
	case errors.Is(err, kerr.UnknownTopicOrPartition):
		made, refused, err := createCheckpoints(ctx, c.cl, topic, true)
		if !c.creatable(name, topic, Topics{Partitions: 1}, compactedSoon, made, err) {
			return
		}
		c.add(name, OK, "is missing and will be created"+with(made), "")
		if refused != nil {
			c.add(name+" segments", Warn, "the brokers refuse the settings that keep the topic small ("+said(refused)+"): it will have theirs, and each connect may read much", "")
		}
		return
	case denied(err):
		c.add(name, Fail, "the relay's user may not see it: "+err.Error(), c.mend.grant(topic, "Describe", "Read", "Write", "DescribeConfigs"))
		return
	case err != nil:
		c.add(name, Fail, err.Error(), "")
		return
	}
	c.leaders(name, m)
	if c.readable(ctx, name, topic, relay, m) {
		c.add(name, OK, "can be read and, as far as is told, written", "")
	}
	if n != 1 {
		c.add(name+" partitions", Warn, fmt.Sprintf("it has %d partitions; only partition 0 is used", n), "Nothing has to be done; a new topic wants one partition.")
	}
	kv, err := configsOf(ctx, c.cl, kmsg.ConfigResourceTypeTopic, topic, "min.insync.replicas", "cleanup.policy", "segment.ms", "segment.bytes",
		"min.cleanable.dirty.ratio")
	switch {
	case denied(err):
		c.add(name+" settings", Warn, "the relay's user may not see them: whether it is compacted is not known", c.mend.grant(topic, "DescribeConfigs"))
		return
	case err != nil:
		c.add(name+" settings", Warn, "not told: "+said(err), "")
		return
	}
	c.checkpointSettings(name, topic, kv)
	c.replicas(name, topic, m, kv["min.insync.replicas"])
}

// readable says whether the topic's records can be read, and written as far as is told; it reads them as a start does.
func (c *checker) readable(ctx context.Context, name, topic, relay string, m *kmsg.MetadataResponseTopic) bool {
	var missing []string
	for _, right := range []struct {
		name string
		op   kmsg.ACLOperation
	}{{"Read", kmsg.ACLOperationRead}, {"Write", kmsg.ACLOperationWrite}} {
		if may, told := allowed(m, right.op); told && !may {
			missing = append(missing, right.name)
		}
	}
	if len(missing) > 0 {
		c.add(name, Fail, "the relay's user may not "+strings.ToLower(strings.Join(missing, " or "))+" it", c.mend.grant(topic, missing...))
		return false
	}
	f := fold(c.cl, topic, relay)
	f.patience = askTimeout / 2 // without coming further
	err := f.toEnd(ctx)
	switch {
	case err != nil && ctx.Err() != nil && f.next > f.start:
		c.add(name, Warn, fmt.Sprintf("it is so large that it could not be read in %s: offset %d of %d; a connect reads on until it is at the end", 2*askTimeout, f.next, f.end),
			c.mend.topic(topic, c.mend.compactSoon()))
		return false
	case err != nil:
		fix := "See that partition 0 has a leader and no open transaction (kafka-transactions.sh find-hanging)."
		if denied(err) {
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
