package doctor

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/walpost/walpost/internal/kafka"
	"github.com/walpost/walpost/sink"
)

// deadLetters judges the topic of dead letters. A dead letter must be kept until a person has looked at it.
func (c *kafkaCheck) deadLetters(ctx context.Context, topic string) {
	name := "dead letter topic " + topic
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	t, err := kafka.DescribeTopic(ctx, c.cl, topic, topicSettings...)
	switch {
	case err != nil:
		c.add(name, Fail, said(err))
		return
	case errors.Is(t.Err, kerr.UnknownTopicOrPartition):
		made, refused, err := sink.CreateLetterTopic(ctx, c.cl, topic, true)
		if !c.creatable(name, kafka.NewTopic{Name: topic, Partitions: 1, Settings: sink.LetterTopic}, made, err) {
			return
		}
		c.add(name, OK, "the topic is missing and will be created"+with(made))
		if refused != nil {
			c.add(name+" size", Warn, "the brokers refuse a max.message.bytes as large as a request ("+said(refused)+"): the relay halts at a dead letter that is larger than the topic's limit")
		}
		return
	case kafka.Denied(t.Err):
		c.add(name, Fail, "the relay's user may not see the topic: "+t.Err.Error(), c.fixes.grant(topic, "Describe", "Read", "Write", "DescribeConfigs"))
		return
	case t.Err != nil:
		c.add(name, Fail, t.Err.Error())
		return
	}
	c.leaders(name, t)
	if missing := lacking(t); len(missing) > 0 {
		c.add(name, Fail, "the relay's user may not "+strings.ToLower(strings.Join(missing, " or "))+" the topic", c.fixes.grant(topic, missing...))
	} else {
		c.add(name, OK, "the topic exists and, according to the brokers, can be read and written")
	}
	switch {
	case kafka.Denied(t.Refused):
		c.add(name+" settings", Warn, "the relay's user may not see them, so it is not known whether the topic keeps dead letters", c.fixes.grant(topic, "DescribeConfigs"))
	case t.Refused != nil:
		c.add(name+" settings", Warn, "the brokers do not report them: "+said(t.Refused))
	default:
		c.deadLetterSettings(name, topic, t.Settings)
		c.replicas(name, t)
	}
}

// lacking returns the rights that the brokers do not give, of those to read and to write a topic.
func lacking(t *kafka.Topic) (missing []string) {
	for _, right := range []struct {
		name string
		op   kmsg.ACLOperation
	}{{"Read", kmsg.ACLOperationRead}, {"Write", kmsg.ACLOperationWrite}} {
		if may, told := t.Allows(right.op); told && !may {
			missing = append(missing, right.name)
		}
	}
	return missing
}

// deadLetterSettings judges whether the topic takes every dead letter, and keeps it.
func (c *kafkaCheck) deadLetterSettings(name, topic string, kv map[string]string) {
	if p := kv["cleanup.policy"]; strings.Contains(p, "compact") {
		c.add(name+" cleanup", Fail, "cleanup.policy is "+p+": only the newest dead letter of each key is kept", c.fixes.topic(topic, "cleanup.policy=delete"))
	}
	for _, key := range []string{"retention.ms", "retention.bytes"} {
		if n, err := strconv.ParseInt(kv[key], 10, 64); err == nil && n >= 0 {
			c.add(name+" retention", Fail, fmt.Sprintf("%s is %d: the brokers delete dead letters that nobody has looked at", key, n), c.fixes.topic(topic, key+"=-1"))
		}
	}
	if key, past := bound(kv, "message.timestamp.before.max.ms"); key != "" && past < shortestOutage {
		c.add(name+" timestamps", Warn, fmt.Sprintf("%s is %s: after a longer outage the topic refuses dead letters, which have the commit time", key, past),
			c.fixes.topic(topic, key+"=9223372036854775807"))
	}
	if n, err := strconv.Atoi(kv["max.message.bytes"]); err == nil && n <= c.largest {
		verdict := Fail
		if n == c.largest {
			verdict = Warn // only events that are too large for their own topic do not fit
		}
		c.add(name+" size", verdict, fmt.Sprintf("max.message.bytes is %d, no more than that of the largest topic that rows go to (%d): the relay halts at a dead letter that is larger", n, c.largest),
			c.fixes.topic(topic, fmt.Sprintf("max.message.bytes=%d", min(2*c.largest, kafka.MaxRequest))))
	}
}
