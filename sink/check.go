package sink

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// A Level says how bad a Finding is.
type Level string

// The levels of a Finding.
const (
	OK   Level = "ok"
	Warn Level = "warn"
	Fail Level = "FAIL"
)

// A Finding is one precondition: what was looked at, what was found, and what would mend it ("" where nothing has to).
type Finding struct {
	Name   string
	Level  Level
	Detail string
	Fix    string
}

// Check looks at the Kafka side of the preconditions: the brokers, the topics that are known beforehand with the size of the largest record
// that is known to go there (0: none), and checkpointTopic ("" for none). It changes nothing. It is bounded by ctx, and by some
// seconds for each question.
func Check(ctx context.Context, cfg Config, topics map[string]int, checkpointTopic string) []Finding {
	if err := cfg.Validate(); err != nil {
		return []Finding{{"kafka configuration", Fail, err.Error(), "correct the configuration"}}
	}
	cfg = cfg.withDefaults()
	dials := new(dialHook)
	cl, err := newAdmin(cfg, dials)
	if err != nil {
		return []Finding{{"kafka configuration", Fail, err.Error(), "correct the configuration"}}
	}
	defer cl.Close()
	c := checker{cl: cl, cfg: cfg}

	ask, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	meta, err := describeTopics(ask, cl)
	if err != nil {
		detail := fmt.Sprintf("%v: %v", cfg.Brokers, err)
		if why := dials.last(); why != nil && !errors.Is(err, why) {
			detail += fmt.Sprintf(" (%v)", why)
		}
		c.add("kafka brokers", Fail, detail, "see that kafka.brokers, kafka.tls and kafka.sasl are right and that the brokers run and can be reached from here")
		return c.found
	}
	c.brokers = len(meta.Brokers)
	c.add("kafka brokers", OK, fmt.Sprintf("%d reachable", c.brokers), "")
	c.cluster(ctx, meta.ControllerID)
	for _, t := range slices.Sorted(maps.Keys(topics)) {
		c.topic(ctx, t, topics[t])
	}
	if checkpointTopic != "" {
		c.checkpoint(ctx, checkpointTopic)
	}
	return c.found
}

type checker struct {
	cl      *kgo.Client
	cfg     Config
	brokers int
	found   []Finding
}

func (c *checker) add(name string, level Level, detail, fix string) {
	c.found = append(c.found, Finding{name, level, detail, fix})
}

func (c *checker) topic(ctx context.Context, topic string, largest int) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	name := "topic " + topic
	if err := invalidTopic(topic); err != nil {
		c.add(name, Fail, err.Error(), "change router.route.topic.replacement or the value it is made of")
		return
	}
	meta, err := describeTopics(ctx, c.cl, topic)
	if err != nil {
		c.add(name, Fail, err.Error(), "")
		return
	}
	m := &meta.Topics[0]
	n, err := usable(m)
	switch {
	case errors.Is(err, kerr.UnknownTopicOrPartition) && c.cfg.Topics.Create:
		if err := c.creatable(ctx, topic, c.cfg.Topics); err != nil {
			c.add(name, Fail, fmt.Sprintf("is missing and can not be created: %v", err), c.createCommand(topic))
			return
		}
		c.add(name, OK, "is missing and will be created (kafka.topics.create)", "")
		return
	case errors.Is(err, kerr.UnknownTopicOrPartition):
		c.add(name, Fail, "does not exist", c.createCommand(topic)+", or set kafka.topics.create: true")
		return
	case denied(err):
		c.add(name, Fail, err.Error(), "grant Describe and Write on the topic to the relay's user")
		return
	case err != nil:
		c.add(name, Fail, err.Error(), "")
		return
	}
	if may, known := allowed(m, kmsg.ACLOperationWrite); known && !may {
		c.add(name, Fail, "the relay's user may not write to it", "kafka-acls --add --allow-principal User:… --operation Write --topic "+topic)
		return
	}
	detail := fmt.Sprintf("%d partitions", n)
	if kv, err := configsOf(ctx, c.cl, kmsg.ConfigResourceTypeTopic, topic, append([]string{"max.message.bytes", "min.insync.replicas"}, topicSettings...)...); err == nil {
		if v := kv["max.message.bytes"]; v != "" {
			detail += ", max.message.bytes " + v
			c.size(name, topic, v, largest)
		}
		c.replicas(name, topic, m, kv["min.insync.replicas"])
		c.settings(name, topic, kv)
	}
	c.leaders(name, m)
	c.add(name, OK, detail, "")
}

// replicas compares a topic's replication factor with its min.insync.replicas.
func (c *checker) replicas(name, topic string, m *kmsg.MetadataResponseTopic, minISR string) {
	least, err := strconv.Atoi(minISR)
	if err != nil {
		return // not told
	}
	rf := len(m.Partitions[0].Replicas)
	switch {
	case least > rf:
		c.add(name+" replicas", Fail, fmt.Sprintf("min.insync.replicas is %d and there are only %d replicas: nothing can be written", least, rf),
			"add replicas, or lower min.insync.replicas of "+topic)
	case least == rf && rf > 1:
		c.add(name+" replicas", Warn, fmt.Sprintf("min.insync.replicas is %d of %d replicas: one broker that stops stops delivery", least, rf),
			fmt.Sprintf("set min.insync.replicas=%d on %s", rf-1, topic))
	case least < 2 && rf > 1:
		c.add(name+" replicas", Warn, fmt.Sprintf("min.insync.replicas is %d of %d replicas: an acknowledged event may be on one broker only", least, rf),
			fmt.Sprintf("set min.insync.replicas=2 on %s", topic))
	case rf == 1 && c.brokers > 1:
		c.add(name+" replicas", Warn, "there is one replica: an acknowledged event is lost with its broker", "add replicas to "+topic)
	}
}

func (c *checker) leaders(name string, m *kmsg.MetadataResponseTopic) {
	for _, p := range m.Partitions {
		if err := kerr.ErrorForCode(p.ErrorCode); err != nil || p.Leader < 0 {
			c.add(name+" leaders", Warn, fmt.Sprintf("partition %d has no leader now", p.Partition), "")
			return
		}
	}
}

func (c *checker) checkpoint(ctx context.Context, topic string) {
	name := "checkpoint topic " + topic
	// Bounded well below the caller's patience: a topic that can not be read to its end would wait for ever.
	ctx, cancel := context.WithTimeout(ctx, 2*askTimeout)
	defer cancel()
	meta, err := describeTopics(ctx, c.cl, topic)
	if err != nil {
		c.add(name, Fail, err.Error(), "")
		return
	}
	m := &meta.Topics[0]
	n, err := usable(m)
	if errors.Is(err, kerr.UnknownTopicOrPartition) {
		if err := c.creatable(ctx, topic, Topics{Partitions: 1}); err != nil {
			c.add(name, Fail, fmt.Sprintf("is missing and can not be created: %v", err),
				fmt.Sprintf("kafka-topics --create --topic %s --partitions 1 --config cleanup.policy=compact", topic))
			return
		}
		c.add(name, OK, "is missing and will be created", "")
		return
	}
	if err != nil {
		c.add(name, Fail, err.Error(), "grant Describe, Read and Write on the topic to the relay's user")
		return
	}
	if _, err := readPartition(ctx, c.cl, topic, 0); err != nil {
		c.add(name, Fail, fmt.Sprintf("can not be read: %v", err), "grant Read on the topic to the relay's user")
		return
	}
	if may, known := allowed(m, kmsg.ACLOperationWrite); known && !may {
		c.add(name, Fail, "the relay's user may not write to it", "kafka-acls --add --allow-principal User:… --operation Write --topic "+topic)
		return
	}
	if n != 1 {
		c.add(name, Warn, fmt.Sprintf("has %d partitions; only partition 0 is used", n), "")
	}
	if kv, err := configsOf(ctx, c.cl, kmsg.ConfigResourceTypeTopic, topic, "cleanup.policy", "min.insync.replicas"); err == nil {
		if p := kv["cleanup.policy"]; p != "" && !strings.Contains(p, "compact") {
			c.add(name, Warn, "is not compacted (cleanup.policy="+p+"): checkpoints may be deleted",
				fmt.Sprintf("kafka-configs --alter --topic %s --add-config cleanup.policy=compact", topic))
		}
		c.replicas(name, topic, m, kv["min.insync.replicas"])
	}
	c.add(name, OK, "readable", "")
}

func (c *checker) createCommand(topic string) string {
	return "kafka-topics --create --topic " + topic
}

// creatable asks the brokers whether they would create a topic, without creating it.
func (c *checker) creatable(ctx context.Context, topic string, how Topics) error {
	_, err := createTopicReq(ctx, c.cl, topic, how, nil, true)
	return err
}

// allowed says whether the topic's answer permits an operation; known is false where the broker does not tell.
func allowed(m *kmsg.MetadataResponseTopic, op kmsg.ACLOperation) (may, known bool) {
	const notTold = -1 << 31
	if m.AuthorizedOperations == notTold || m.AuthorizedOperations == 0 {
		return false, false
	}
	return m.AuthorizedOperations&(1<<uint(op)) != 0, true
}
