package sink

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/walpost/walpost/internal/kafka"
)

// topic judges one topic by what the brokers say of it.
func (c *checker) topic(ctx context.Context, is *kafka.Topic, t Traffic) {
	topic, name := is.Name, "topic "+is.Name
	switch {
	case errors.Is(is.Err, kerr.UnknownTopicOrPartition) && c.cfg.Topics.Create:
		how := c.newTopic(topic)
		ctx, cancel := context.WithTimeout(ctx, askTimeout)
		defer cancel()
		made, err := how.Create(ctx, c.cl, true)
		if c.creatable(name, how, made, err) {
			c.add(name, OK, "is missing and will be created (kafka.topics.create)"+with(made), "")
			if made := settingsOf(made); len(made) > 0 {
				c.settings(name, topic, made, t)
			}
		}
		return
	case errors.Is(is.Err, kerr.UnknownTopicOrPartition):
		c.add(name, Fail, "does not exist", c.mend.create(c.newTopic(topic))+"\nor set kafka.topics.create: true")
		return
	case kafka.Denied(is.Err):
		c.add(name, Fail, "the relay's user may not see it, and so not whether it exists: "+is.Err.Error(), c.mend.grant(topic, "Describe", "Write", "DescribeConfigs"))
		return
	case is.Err != nil:
		c.add(name, Fail, is.Err.Error(), "")
		return
	}
	n := int32(len(is.Partitions))
	detail := fmt.Sprintf("%d partitions, %d replicas", n, fewest(is))
	for _, key := range []string{"min.insync.replicas", "max.message.bytes"} {
		if v := is.Settings[key]; v != "" {
			detail += ", " + key + " " + v
		}
	}
	may, told := is.Allows(kmsg.ACLOperationWrite)
	switch {
	case !told:
		c.add(name, OK, detail+"; the brokers do not tell whether the relay's user may write to it", "")
	case !may:
		c.add(name, Fail, "the relay's user may not write to it", c.mend.grant(topic, "Write"))
	default:
		c.add(name, OK, detail, "")
	}
	if t.Partition >= n {
		c.add(name+" partitions", Warn, fmt.Sprintf("a row that is there asks for partition %d, and there are %d: one like it halts the relay", t.Partition, n),
			"Correct the value that is placed as partition, or add partitions to "+topic+", which moves keys to others.")
	}
	c.leaders(name, is)
	switch {
	case kafka.Denied(is.Refused):
		c.add(name+" settings", Warn, fmt.Sprintf("the relay's user may not see them: max.message.bytes is taken for %d, and a topic that takes less is learned from refusals", kafka.UsualLimit),
			c.mend.grant(topic, "DescribeConfigs"))
	case is.Refused != nil:
		c.add(name+" settings", Warn, "not told: "+said(is.Refused), "")
	default:
		c.replicas(name, is)
		c.settings(name, topic, is.Settings, t)
	}
}

// newTopic is a topic of records as a run would create it.
func (c *checker) newTopic(name string) kafka.NewTopic {
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

// replicas compares a topic's replicas, and those of them that are in sync now, with its min.insync.replicas.
func (c *checker) replicas(name string, t *kafka.Topic) {
	least, err := strconv.Atoi(t.Settings["min.insync.replicas"])
	if err != nil {
		return // not told
	}
	if !c.replication(name, t.Name, fewest(t), least) {
		return
	}
	least = min(least, fewest(t)) // c.caps, or it was not more
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
		c.add(name+" in-sync replicas", Fail, "fewer than min.insync.replicas wants, so nothing can be written now to partition "+strings.Join(short, ", "),
			"Start the brokers that are down; kafka-topics.sh"+c.mend.to+" --describe --under-min-isr-partitions shows all that is concerned")
	}
	if len(behind) > 0 {
		c.add(name+" in-sync replicas", Warn, "a replica is down or behind of partition "+strings.Join(behind, ", "),
			"Start the brokers that are down; kafka-topics.sh"+c.mend.to+" --describe --under-replicated-partitions shows all that is concerned")
	}
}

// replication compares the number of replicas with min.insync.replicas, and says whether it can be met at all.
func (c *checker) replication(name, topic string, rf, least int) bool {
	name += " replicas"
	switch {
	case least > rf && c.caps:
		c.add(name, Warn, fmt.Sprintf("min.insync.replicas is %d, more than the replicas, %d: these brokers take it for %d, and an acknowledged event is on fewer brokers than is wanted", least, rf, rf),
			"Give it more replicas (kafka-reassign-partitions.sh).\nor "+c.mend.topic(topic, fmt.Sprintf("min.insync.replicas=%d", max(1, rf-1))))
	case least > rf:
		c.add(name, Fail, fmt.Sprintf("min.insync.replicas is %d, more than the replicas, %d: nothing can be written", least, rf),
			c.mend.topic(topic, fmt.Sprintf("min.insync.replicas=%d", max(1, rf-1)))+"\nor give it more replicas (kafka-reassign-partitions.sh)")
		return false
	case least == rf && rf > 1:
		c.add(name, Warn, fmt.Sprintf("min.insync.replicas is %d of %d replicas: one broker that stops stops delivery", least, rf),
			c.mend.topic(topic, fmt.Sprintf("min.insync.replicas=%d", rf-1))+"\nor give it more replicas (kafka-reassign-partitions.sh)")
	case least < 2 && rf > 1:
		c.add(name, Warn, fmt.Sprintf("min.insync.replicas is %d of %d replicas: an acknowledged event may be on one broker only", least, rf),
			c.mend.topic(topic, "min.insync.replicas=2"))
	case rf == 1 && c.brokers > 1:
		c.add(name, Warn, "there is one replica: an acknowledged event is lost with its broker", "Give it more replicas (kafka-reassign-partitions.sh).")
	}
	return true
}

func (c *checker) leaders(name string, t *kafka.Topic) {
	var without []string
	for i := range t.Partitions {
		if p := &t.Partitions[i]; p.Leader < 0 {
			without = append(without, fmt.Sprint(p.Partition))
		}
	}
	if len(without) > 0 {
		c.add(name+" leaders", Fail, "nothing can be written now, since no broker leads partition "+strings.Join(without, ", "),
			"Start the brokers that are down; kafka-topics.sh"+c.mend.to+" --describe --unavailable-partitions shows all that is concerned")
	}
}

// creatable judges whether the brokers would create a topic, by their answer, and the replicas that it would have.
func (c *checker) creatable(name string, how kafka.NewTopic, made kadm.CreateTopicResponse, err error) bool {
	if err != nil {
		fix := c.mend.create(how)
		if kafka.Denied(err) {
			fix += "\nor " + c.mend.grant(how.Name, "Create")
		}
		c.add(name, Fail, "is missing and can not be created: "+said(err), fix)
		return false
	}
	// A broker that does not tell what it would make answers nothing of it.
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
