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
	"github.com/walpost/walpost/internal/statelog"
	"github.com/walpost/walpost/sink"
)

// fate is what becomes of an event that cannot be delivered. cfg is nil if records do not go to Kafka.
func fate(cfg *sink.Config) string {
	all := []string{"halts the relay"}
	if cfg == nil {
		return all[0]
	}
	if cfg.Bury {
		all = append(all, "goes to the dead letter topic")
	}
	if cfg.Park {
		all = append(all, "has its key parked")
	}
	if len(all) == 1 {
		return all[0]
	}
	return strings.Join(all, ", or ") + " (delivery.on_poison)"
}

// letters judges a topic of walpost's own: of dead letters, or of parked events. what is such an event. The topic must keep each until a
// person has dealt with it. An unused topic may be missing.
func (c *kafkaCheck) letters(ctx context.Context, what, topic string, used bool) {
	name := what + " topic " + topic
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	t, refused := c.ownTopic(ctx, name, topic, used, statelog.Letters)
	if refused != nil {
		c.add(name+" size", Warn, "the brokers refuse to raise max.message.bytes to the size of a request ("+errorLine(refused)+"): the relay halts on a "+what+" that is larger than the topic's limit")
	}
	if t == nil {
		return
	}
	if topic == c.cfg.Parking {
		c.onePartition(name, t)
	}
	if missing := lacking(t); len(missing) > 0 {
		c.add(name, Fail, "the relay's user may not "+strings.ToLower(strings.Join(missing, " or "))+" the topic", c.fixes.grant(topic, missing...))
	} else {
		c.add(name, OK, "the topic exists and, according to the brokers, can be read and written")
	}
	if may, known := t.Allows(kmsg.ACLOperationDelete); known && !may && c.cfg.Park && topic == c.cfg.Parking {
		c.add(name+" deletion", Warn, "the relay's user may not delete records of the topic, so those of released events stay, and the topic grows", c.fixes.grant(topic, "Delete"))
	}
	if c.settingsKnown(name, t, "the topic keeps every "+what) {
		c.letterSettings(name, what, topic, t.Settings)
		c.replicas(name, t)
	}
}

// ownTopic describes a topic of walpost's own. If the topic does not exist and is used, ownTopic says whether it could be created
// with the settings. It returns nil if there is no topic to judge. refused is why the brokers refuse the settings.
func (c *kafkaCheck) ownTopic(ctx context.Context, name, topic string, used bool, settings statelog.Settings) (t *kafka.Topic, refused error) {
	const rename = "Change the name of the topic in the configuration."
	switch t = c.known(name, topic, rename); {
	case t == nil:
	case t.Err == nil:
		c.leaders(name, t)
		return t, nil
	case !used:
	case errors.Is(t.Err, kerr.UnknownTopicOrPartition):
		made, refused, err := settings.Create(ctx, c.cl, topic, true)
		if c.creatable(name, kafka.NewTopic{Name: topic, Partitions: 1, Settings: settings[0]}, rename, made, err) {
			c.add(name, OK, "the topic is missing and will be created"+with(made))
			return nil, refused
		}
	case kafka.Denied(t.Err):
		c.add(name, Fail, "the relay's user may not see the topic: "+t.Err.Error(), c.fixes.grant(topic, "Describe", "Read", "Write", "DescribeConfigs"))
	default:
		c.add(name, Fail, t.Err.Error())
	}
	return nil, nil
}

// settingsKnown reports whether the brokers have told the settings of a topic, by which walpost knows whether what is true.
func (c *kafkaCheck) settingsKnown(name string, t *kafka.Topic, what string) bool {
	switch {
	case kafka.Denied(t.Refused):
		c.add(name+" settings", Warn, "the relay's user may not read the topic's settings, so walpost cannot tell whether "+what, c.fixes.grant(t.Name, "DescribeConfigs"))
	case t.Refused != nil:
		c.add(name+" settings", Warn, "the brokers do not report the topic's settings: "+errorLine(t.Refused))
	}
	return t.Refused == nil
}

// lacking returns the rights that the brokers do not give, of those to read and to write a topic.
func lacking(t *kafka.Topic) (missing []string) {
	for _, right := range []struct {
		name string
		op   kmsg.ACLOperation
	}{{"Read", kmsg.ACLOperationRead}, {"Write", kmsg.ACLOperationWrite}} {
		if may, known := t.Allows(right.op); known && !may {
			missing = append(missing, right.name)
		}
	}
	return missing
}

// letterSettings judges whether the topic takes every event, and keeps it.
func (c *kafkaCheck) letterSettings(name, what, topic string, kv map[string]string) {
	if p := kv["cleanup.policy"]; strings.Contains(p, "compact") {
		c.add(name+" cleanup", Fail, "cleanup.policy is "+p+": only the newest "+what+" of each key is kept",
			c.fixes.topic(topic, "cleanup.policy=delete,retention.ms=-1,retention.bytes=-1")) // delete alone removes what is older than retention.ms
	}
	for _, key := range []string{"retention.ms", "retention.bytes"} {
		if n, err := strconv.ParseInt(kv[key], 10, 64); err == nil && n >= 0 {
			c.add(name+" retention", Fail, fmt.Sprintf("%s is %d: the brokers delete each %s after a while, whether or not an operator has dealt with it", key, n, what), c.fixes.topic(topic, key+"=-1"))
		}
	}
	if key, past := bound(kv, "message.timestamp.before.max.ms"); key != "" && past < shortestOutage {
		c.add(name+" timestamps", Warn, fmt.Sprintf("%s is %s: after a longer outage, the topic refuses a %s, because its timestamp is the event's commit time", key, past, what),
			c.fixes.topic(topic, key+"=9223372036854775807"))
	}
	if n, err := strconv.Atoi(kv["max.message.bytes"]); err == nil && n <= c.largest {
		verdict := Fail
		if n == c.largest {
			verdict = Warn // only events that are too large for their own topic do not fit
		}
		c.add(name+" size", verdict, fmt.Sprintf("max.message.bytes is %d, not more than the largest max.message.bytes of the rows' topics (%d): the relay halts on a %s that is larger", n, c.largest, what),
			c.fixes.topic(topic, fmt.Sprintf("max.message.bytes=%d", min(2*c.largest, kafka.MaxRequest))))
	}
}
