package sink

import (
	"fmt"
	"strconv"
	"time"
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
