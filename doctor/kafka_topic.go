package doctor

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/walpost/walpost/internal/fix"
	"github.com/walpost/walpost/internal/kafka"
)

// topic judges one topic that records go to.
func (c *kafkaCheck) topic(ctx context.Context, topic string, t topicTraffic) {
	const rename = "Change router.route.topic.replacement or the value that it uses."
	name := "topic " + topic
	described := c.known(name, topic, rename)
	switch {
	case described == nil:
		return
	case errors.Is(described.Err, kerr.UnknownTopicOrPartition) && c.cfg.Topics.Create:
		how := c.newTopic(topic)
		ctx, cancel := context.WithTimeout(ctx, askTimeout)
		defer cancel()
		made, err := how.Create(ctx, c.cl, true)
		if c.creatable(name, how, rename, made, err) {
			c.add(name, OK, "the topic is missing and will be created (kafka.topics.create)"+with(made))
			if made := settingsOf(made); len(made) > 0 {
				c.topicSettings(name, topic, made, t)
			}
		}
		return
	case errors.Is(described.Err, kerr.UnknownTopicOrPartition):
		c.add(name, Fail, "the topic does not exist", c.fixes.create(c.newTopic(topic)), fix.Words("Or set kafka.topics.create: true."))
		return
	case kafka.Denied(described.Err):
		c.add(name, Fail, "the relay's user may not see the topic, so walpost cannot tell whether it exists: "+described.Err.Error(), c.fixes.grant(topic, "Describe", "Write", "DescribeConfigs"))
		return
	case described.Err != nil:
		c.add(name, Fail, described.Err.Error())
		return
	}
	n := int32(len(described.Partitions))
	detail := fmt.Sprintf("%d partitions, %d replicas", n, fewest(described))
	for _, key := range []string{"min.insync.replicas", "max.message.bytes"} {
		if v := described.Settings[key]; v != "" {
			detail += ", " + key + " " + v
		}
	}
	may, known := described.Allows(kmsg.ACLOperationWrite)
	switch {
	case !known:
		c.add(name, OK, detail+"; the brokers do not report whether the relay's user may write to the topic")
	case !may:
		c.add(name, Fail, "the relay's user may not write to the topic", c.fixes.grant(topic, "Write"))
	default:
		c.add(name, OK, detail)
	}
	if t.partition >= n {
		c.add(name+" partitions", Warn, fmt.Sprintf("a row of the table asks for partition %d, and there are %d partitions: this row %s", t.partition, n, fate(&c.cfg)),
			fix.Words("Correct the value that is placed as partition, or add partitions to "+topic+", which moves keys to other partitions."))
	}
	c.leaders(name, described)
	switch {
	case kafka.Denied(described.Refused):
		c.add(name+" settings", Warn, fmt.Sprintf("the relay's user may not read the topic's settings: walpost assumes %d for max.message.bytes, and learns of a lower limit when a broker refuses a record", kafka.UsualLimit),
			c.fixes.grant(topic, "DescribeConfigs"))
	case described.Refused != nil:
		c.add(name+" settings", Warn, "the brokers do not report the topic's settings: "+errorLine(described.Refused))
	default:
		c.replicas(name, described)
		c.topicSettings(name, topic, described.Settings, t)
	}
}

// unnamed says how the topics come to be if no row names one yet. patterns are their names.
func (c *kafkaCheck) unnamed(ctx context.Context, checkpoint string, patterns []string) {
	const name = "topics"
	to := "rows go to topics such as " + strings.Join(patterns, " and ")
	if c.cfg.Topics.Create {
		c.add(name, OK, to+": walpost creates a missing topic when its first event comes (kafka.topics.create)")
		return
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	all, err := kafka.TopicNames(ctx, c.cl)
	if err != nil {
		c.add(name, Fail, "the brokers do not list their topics: "+err.Error())
		return
	}
	var fit []string
	for _, topic := range all {
		for _, p := range patterns {
			// Each name fits *, so a topic of that pattern says nothing.
			if ok, err := path.Match(p, topic); err == nil && ok && p != "*" && topic != checkpoint && !slices.Contains(fit, topic) {
				fit = append(fit, topic)
			}
		}
	}
	if n := len(fit); n > 0 {
		fit = fit[:min(n, 5)]
		if n > len(fit) {
			fit = append(fit, fmt.Sprintf("and %d others", n-len(fit)))
		}
		c.add(name, OK, to+", and there are "+strings.Join(fit, ", ")+"; no row goes to another topic yet, and an event for a missing topic waits until somebody creates the topic")
		return
	}
	why := to + ", and the brokers list no such topic: the first event waits until somebody creates its topic"
	if slices.Contains(patterns, "*") {
		why = "each row determines its own topic: an event whose topic does not exist waits until somebody creates the topic"
	}
	if c.settings["auto.create.topics.enable"] == "true" {
		why += ", because walpost does not use auto.create.topics.enable"
	}
	c.add(name, Warn, why, fix.Key{Name: "kafka.topics.create", Value: "true"}, fix.Words("Or create each topic before its first event, for example:"),
		c.fixes.create(c.newTopic(strings.ReplaceAll(patterns[0], "*", "order"))))
}

// newTopic is a topic of records as a run would create it.
func (c *kafkaCheck) newTopic(name string) kafka.NewTopic {
	return kafka.NewTopic{Name: name, Partitions: c.cfg.Topics.Partitions, Replicas: c.cfg.Topics.ReplicationFactor}
}

// fewest is the number of replicas of the partition that has the fewest.
func fewest(t *kafka.Topic) int {
	n := len(t.Partitions[0].Replicas)
	for i := range t.Partitions {
		n = min(n, len(t.Partitions[i].Replicas))
	}
	return n
}

// replicas compares a topic's replicas, and the replicas that are in sync now, with its min.insync.replicas.
func (c *kafkaCheck) replicas(name string, t *kafka.Topic) {
	least, err := strconv.Atoi(t.Settings["min.insync.replicas"])
	if err != nil {
		return // not told
	}
	if !c.replication(name, t.Name, fewest(t), least) {
		return
	}
	least = min(least, fewest(t)) // it is above only if the brokers cap it
	behind, short := []string{}, []string{}
	for i := range t.Partitions {
		p := &t.Partitions[i]
		switch {
		case p.Leader < 0:
		case len(p.ISR) < least:
			short = append(short, fmt.Sprintf("%d (%d of %d)", p.Partition, len(p.ISR), least))
		case len(p.ISR) < len(p.Replicas):
			behind = append(behind, fmt.Sprint(p.Partition))
		}
	}
	if len(short) > 0 {
		c.add(name+" in-sync replicas", Fail, "fewer replicas are in sync than min.insync.replicas, so the brokers refuse writes to partition "+strings.Join(short, ", "),
			c.describe("--under-min-isr-partitions")...)
	}
	if len(behind) > 0 {
		c.add(name+" in-sync replicas", Warn, "a replica is down, or has not caught up, in partition "+strings.Join(behind, ", "),
			c.describe("--under-replicated-partitions")...)
	}
}

const moreReplicas = fix.Words("Or give the topic more replicas (kafka-reassign-partitions.sh).")

// describe says how to see the partitions that brokers which are down concern.
func (c *kafkaCheck) describe(which string) fix.Fix {
	return fix.Fix{fix.Words("Start the brokers that are down. To list all affected partitions:"), fix.Command("kafka-topics.sh" + c.fixes.access + " --describe " + which)}
}

// replication compares the number of replicas with min.insync.replicas, and reports whether the setting can be met.
func (c *kafkaCheck) replication(name, topic string, rf, least int) bool {
	name += " replicas"
	switch {
	case least > rf && c.caps:
		c.add(name, Warn, fmt.Sprintf("min.insync.replicas is %d, more than the number of replicas, %d: the brokers use %d instead, so an acknowledged event is on fewer brokers than the setting demands", least, rf, rf),
			fix.Words("Give the topic more replicas (kafka-reassign-partitions.sh), or lower the setting:"), c.fixes.topic(topic, fmt.Sprintf("min.insync.replicas=%d", max(1, rf-1))))
	case least > rf:
		c.add(name, Fail, fmt.Sprintf("min.insync.replicas is %d, more than the number of replicas, %d: the brokers refuse every write", least, rf),
			c.fixes.topic(topic, fmt.Sprintf("min.insync.replicas=%d", max(1, rf-1))), moreReplicas)
		return false
	case least == rf && rf > 1:
		c.add(name, Warn, fmt.Sprintf("min.insync.replicas is %d of %d replicas: delivery stops when one broker stops", least, rf),
			c.fixes.topic(topic, fmt.Sprintf("min.insync.replicas=%d", rf-1)), moreReplicas)
	case least < 2 && rf > 1:
		c.add(name, Warn, fmt.Sprintf("min.insync.replicas is %d of %d replicas: an acknowledged event may be on one broker only", least, rf),
			c.fixes.topic(topic, "min.insync.replicas=2"))
	case rf == 1 && c.brokers > 1:
		c.add(name, Warn, "there is one replica: an acknowledged event is lost with its broker", fix.Words("Give the topic more replicas (kafka-reassign-partitions.sh)."))
	}
	return true
}

func (c *kafkaCheck) leaders(name string, t *kafka.Topic) {
	var without []string
	for i := range t.Partitions {
		if p := &t.Partitions[i]; p.Leader < 0 {
			without = append(without, fmt.Sprint(p.Partition))
		}
	}
	if len(without) > 0 {
		c.add(name+" leaders", Fail, "nothing can be written now, because no broker leads partition "+strings.Join(without, ", "),
			c.describe("--unavailable-partitions")...)
	}
}

// creatable judges whether the brokers would create a topic, by their answer, and the replicas that it would have. rename is what to do
// where no topic can have the name.
func (c *kafkaCheck) creatable(name string, how kafka.NewTopic, rename fix.Words, made kadm.CreateTopicResponse, err error) bool {
	if err != nil {
		steps := fix.Fix{c.fixes.create(how)}
		switch {
		case errors.Is(err, kerr.InvalidTopicException): // such as a name that collides with another topic's
			steps = fix.Fix{rename}
		case kafka.Denied(err):
			steps = append(steps, fix.Words("Or let walpost create the topic:"), c.fixes.grant(how.Name, "Create"))
		}
		c.add(name, Fail, "the topic is missing and cannot be created: "+errorLine(err), steps...)
		return false
	}
	// An old broker does not tell what it would create.
	if least, err := strconv.Atoi(settingsOf(made)["min.insync.replicas"]); err == nil && made.ReplicationFactor > 0 {
		c.replication(name, how.Name, int(made.ReplicationFactor), least)
	}
	return true
}

func with(made kadm.CreateTopicResponse) string {
	if made.NumPartitions <= 0 {
		return ""
	}
	return fmt.Sprintf(", with %d partitions and %d replicas", made.NumPartitions, made.ReplicationFactor)
}

func settingsOf(made kadm.CreateTopicResponse) map[string]string {
	kv := map[string]string{}
	for name, c := range made.Configs {
		if c.Value != nil {
			kv[name] = *c.Value
		}
	}
	return kv
}
