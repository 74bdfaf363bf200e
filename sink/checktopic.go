package sink

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// topicSettings are the settings of a topic that a doctor judges beside its size and replicas.
var topicSettings = []string{"message.timestamp.type", "message.timestamp.before.max.ms", "message.timestamp.difference.max.ms", "unclean.leader.election.enable"}

// shortestOutage is how old a row must be allowed to be: a relay that was away for a weekend delivers rows of that age.
const shortestOutage = 72 * time.Hour

// settings judges a topic's own settings. It is pure; a setting that the broker does not tell is not judged.
func (c *checker) settings(name, topic string, kv map[string]string) {
	alter := func(set string) string { return "kafka-configs --alter --topic " + topic + " --add-config " + set }
	if kv["message.timestamp.type"] == "LogAppendTime" {
		c.add(name+" timestamps", Warn, "message.timestamp.type is LogAppendTime: the broker replaces the time of each event by its own", alter("message.timestamp.type=CreateTime"))
	} else {
		for _, key := range []string{"message.timestamp.before.max.ms", "message.timestamp.difference.max.ms"} {
			// The default is the largest int64, which no duration holds.
			ms, err := strconv.ParseInt(kv[key], 10, 64)
			if err == nil && ms < shortestOutage.Milliseconds() {
				c.add(name+" timestamps", Warn, fmt.Sprintf("%s is %s: after an outage that is longer, the topic refuses the rows that waited", key, time.Duration(ms)*time.Millisecond),
					alter(key+"=9223372036854775807"))
				break
			}
		}
	}
	if kv["unclean.leader.election.enable"] == "true" {
		c.add(name+" leader election", Warn, "unclean.leader.election.enable is true: an acknowledged event may be lost with its leader", alter("unclean.leader.election.enable=false"))
	}
}

// size compares the largest record that is known with what the topic takes. It is a warning, since the bound is for the compressed batch.
func (c *checker) size(name, topic, limit string, largest int) {
	if n, err := strconv.Atoi(limit); err == nil && largest > n {
		c.add(name+" size", Warn, fmt.Sprintf("a row that is there makes a record of %d bytes, more than max.message.bytes, %d: one like it is refused and halts the relay, unless compression makes it fit", largest, n),
			fmt.Sprintf("kafka-configs --alter --topic %s --add-config max.message.bytes=%d (and fetch.max.bytes, max.partition.fetch.bytes of its consumers)", topic, largest+largest/10+minLimit))
	}
}

// cluster judges what is set for all topics, as far as the brokers tell.
func (c *checker) cluster(ctx context.Context, broker int32) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	kv, err := configsOf(ctx, c.cl, kmsg.ConfigResourceTypeBroker, strconv.Itoa(int(broker)), "auto.create.topics.enable")
	if err == nil && kv["auto.create.topics.enable"] == "true" && !c.cfg.Topics.Create {
		c.add("kafka auto.create.topics.enable", Warn, "the brokers make a topic for whoever asks for one, with their defaults: a consumer with a wrong name makes one, and a missing topic may appear with too few partitions",
			"set auto.create.topics.enable=false on the brokers; walpost itself asks without making any")
	}
}
