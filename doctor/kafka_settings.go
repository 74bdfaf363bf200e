package doctor

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/walpost/walpost/internal/fix"
	"github.com/walpost/walpost/internal/kafka"
	"github.com/walpost/walpost/internal/statelog"
)

// topicSettings are the settings of a topic that checkKafka judges.
var topicSettings = []string{
	"max.message.bytes", "min.insync.replicas", "unclean.leader.election.enable", "compression.type",
	"message.timestamp.type", "message.timestamp.before.max.ms", "message.timestamp.after.max.ms", "message.timestamp.difference.max.ms",
	"cleanup.policy", "retention.ms", "retention.bytes", "segment.ms", "segment.bytes", "min.cleanable.dirty.ratio",
}

const (
	// shortestOutage is the age of rows that a topic must take: after an outage over a weekend the relay delivers rows of that age.
	shortestOutage = 72 * time.Hour
	// shortestKeep is how long a consumer must be allowed to be away.
	shortestKeep = 24 * time.Hour
	// clockSlack is how far the clocks of one system may differ without an event being refused.
	clockSlack = time.Minute
	// The newest segment of a checkpoint topic may reach largeSegment or oldSegment, but not both: Confluent Cloud lets nobody set less
	// than 50 MiB. usualRatio is Kafka's default. It bounds the other segments to twice the size of the current records.
	largeSegment = 64 << 20
	oldSegment   = time.Hour
	usualRatio   = 0.5
)

// topicSettings judges a topic's settings other than its replicas. It asks nobody. It does not judge a setting that the broker does not tell.
func (c *kafkaCheck) topicSettings(name, topic string, kv map[string]string, t topicTraffic) {
	set := func(kv string) fix.Step { return c.fixes.topic(topic, kv) }
	c.size(name, topic, kv, t.largest)
	c.timestamps(name, topic, kv, t.newest)
	c.cleanup(name, topic, kv, t.keyless)
	if kv["unclean.leader.election.enable"] == "true" {
		c.add(name+" leader election", Warn, "unclean.leader.election.enable is true: an acknowledged event may be lost with its leader", set("unclean.leader.election.enable=false"))
	}
	sent := cmp.Or(c.cfg.Compression, "snappy")
	if sent == "none" {
		sent = "uncompressed"
	}
	if stored := kv["compression.type"]; stored != "" && stored != "producer" && stored != sent {
		c.add(name+" compression", Warn, fmt.Sprintf("compression.type is %s and walpost sends %s: the brokers compress each batch again", stored, sent), set("compression.type=producer"))
	}
}

// size compares the largest known record with what the topic takes. It only warns, because the row may be delivered already.
func (c *kafkaCheck) size(name, topic string, kv map[string]string, largest int) {
	n, err := strconv.Atoi(kv["max.message.bytes"])
	if err != nil || largest <= n {
		return
	}
	unless := ", unless compression makes it fit" // max.message.bytes is for the stored batch
	if stored := kv["compression.type"]; stored == "uncompressed" || c.cfg.Compression == "none" && (stored == "producer" || stored == "") {
		unless = ""
	}
	c.add(name+" size", Warn, fmt.Sprintf("the largest row of the table becomes a record of %d bytes, more than max.message.bytes, %d: this record is refused and %s%s", largest, n, fate(&c.cfg), unless),
		c.fixes.topic(topic, fmt.Sprintf("max.message.bytes=%d", largest+largest/10+kafka.LeastLimit)), fix.Words("Also raise fetch.max.bytes and max.partition.fetch.bytes of the consumers."))
}

// timestamps judges what a topic does with timestamps. They are those of rows or of their transactions, not of sending.
func (c *kafkaCheck) timestamps(name, topic string, kv map[string]string, newest time.Time) {
	name += " timestamps"
	if kv["message.timestamp.type"] == "LogAppendTime" {
		c.add(name, Warn, "message.timestamp.type is LogAppendTime: the broker replaces the time of each event with its own time", c.fixes.topic(topic, "message.timestamp.type=CreateTime"))
		return
	}
	if key, past := bound(kv, "message.timestamp.before.max.ms"); key != "" && past < shortestOutage {
		c.add(name, Warn, fmt.Sprintf("%s is %s: after a longer outage, the topic refuses the events that have waited", key, past), c.fixes.topic(topic, key+"=9223372036854775807"))
	}
	key, future := bound(kv, "message.timestamp.after.max.ms")
	if key == "" {
		return
	}
	roomy := c.fixes.topic(topic, key+"=3600000")
	now := c.now()
	switch {
	case future < clockSlack:
		c.add(name, Warn, fmt.Sprintf("%s is %s: if the database's clock is ahead of the brokers' clocks by more than this, every event is refused", key, future), roomy)
	case newest.Sub(now) > future:
		c.add(name, Warn, fmt.Sprintf("a row of the table has the timestamp %s, further in the future than %s (%s) allows: this record is refused and %s",
			newest.UTC().Format(time.RFC3339), key, future, fate(&c.cfg)), fix.Words("Correct the program that writes the column of table.field.event.timestamp, or allow a larger difference:"), c.fixes.topic(topic, key+"=9223372036854775807"))
	}
}

// bound is the narrower one of a setting and of the setting for both directions before Kafka 3.6. key is empty if neither is a bound.
func bound(kv map[string]string, setting string) (key string, d time.Duration) {
	for _, k := range []string{setting, "message.timestamp.difference.max.ms"} {
		// A default is the largest int64, which no duration holds.
		if ms, err := strconv.ParseInt(kv[k], 10, 64); err == nil && ms < int64(1<<63-1)/1e6 && (key == "" || ms < d.Milliseconds()) {
			key, d = k, time.Duration(ms)*time.Millisecond
		}
	}
	return key, d
}

// cleanup judges what the topic removes.
func (c *kafkaCheck) cleanup(name, topic string, kv map[string]string, keyless bool) {
	policy := kv["cleanup.policy"]
	if strings.Contains(policy, "compact") {
		c.add(name+" cleanup", Warn, "cleanup.policy is "+policy+": only the newest event of each key is kept",
			fix.Words("If consumers need every event, route the events to another topic. Do not set cleanup.policy=delete on this topic, because the brokers then delete everything in it that is older than retention.ms."))
		if keyless {
			c.add(name+" keys", Warn, "a row of the table has no key, and a compacted topic refuses a record without a key, which "+fate(&c.cfg),
				fix.Words("Map a column that is never NULL (table.field.event.key), or route the events to a topic that is not compacted."))
		}
	}
	if !strings.Contains(policy, "delete") {
		return
	}
	if ms, err := strconv.ParseInt(kv["retention.ms"], 10, 64); err == nil && ms >= 0 {
		switch keep := time.Duration(min(ms, int64(1<<63-1)/1e6)) * time.Millisecond; {
		case keep < shortestKeep:
			c.add(name+" retention", Warn, fmt.Sprintf("retention.ms is %s: a consumer that was away for longer misses events", keep), c.fixes.topic(topic, "retention.ms=604800000"))
		case keep < shortestOutage && kv["message.timestamp.type"] != "LogAppendTime":
			c.add(name+" retention", Warn, fmt.Sprintf("retention.ms is %s, counted from the event's timestamp (usually its commit time): after a longer outage of the relay, events may be deleted as soon as they are written", keep),
				c.fixes.topic(topic, "retention.ms=604800000"))
		}
	}
	if n, err := strconv.ParseInt(kv["retention.bytes"], 10, 64); err == nil && n >= 0 && n < c.cfg.WindowBytes {
		c.add(name+" retention", Warn, fmt.Sprintf("retention.bytes is %d for a partition, less than the relay can have in flight: in a burst, events are deleted before they are read", n),
			c.fixes.topic(topic, "retention.bytes=-1"))
	}
}

// checkpointSettings judges whether a checkpoint topic keeps too little, or more than a connect should have to read.
func (c *kafkaCheck) checkpointSettings(name, topic string, kv map[string]string) {
	p := kv["cleanup.policy"]
	if statelog.DeletesCheckpoints(p) {
		c.add(name+" cleanup", Warn, "cleanup.policy is "+p+": the checkpoint of a relay that is away for longer than retention.ms is deleted",
			c.fixes.topic(topic, "cleanup.policy=compact"))
	}
	if !strings.Contains(p, "compact") {
		return
	}
	size, err1 := strconv.ParseInt(kv["segment.bytes"], 10, 64)
	age, err2 := strconv.ParseInt(kv["segment.ms"], 10, 64)
	if err1 == nil && err2 == nil && size > largeSegment && age > oldSegment.Milliseconds() {
		c.add(name+" segments", Warn, fmt.Sprintf("segment.bytes is %d and segment.ms is %s: the newest segment is not compacted, so each start of a relay reads up to that much",
			size, time.Duration(min(age, int64(1<<63-1)/1e6))*time.Millisecond), c.fixes.topic(topic, compactSoon()))
	}
	if ratio, err := strconv.ParseFloat(kv["min.cleanable.dirty.ratio"], 64); err == nil && ratio > usualRatio {
		c.add(name+" compaction", Warn, fmt.Sprintf("min.cleanable.dirty.ratio is %g: the topic is compacted late, so each start of a relay reads more than necessary", ratio),
			c.fixes.topic(topic, "min.cleanable.dirty.ratio="+statelog.Checkpoints[0]["min.cleanable.dirty.ratio"]))
	}
}

// brokerSettings judges what is set for all topics.
func (c *kafkaCheck) brokerSettings() {
	if c.settingsErr != nil {
		c.add("broker settings", OK, fmt.Sprintf("not checked, because the brokers do not report their settings (%v); walpost run does not need them", c.settingsErr))
		return
	}
	kv := c.settings
	switch auto := kv["auto.create.topics.enable"]; {
	case auto == "true" && !c.cfg.Topics.Create:
		c.add("auto.create.topics.enable", Warn, "the brokers create a missing topic with their defaults for every client that asks for it: a consumer with a wrong topic name creates a topic, and a topic of walpost may get too few partitions",
			brokerSetting("auto.create.topics.enable=false"))
	case auto != "":
		c.add("auto.create.topics.enable", OK, "it is "+auto)
	}
	// A request has batches for many partitions. There is not more in flight than the window.
	if n, err := strconv.ParseInt(kv["socket.request.max.bytes"], 10, 64); err == nil && n < min(kafka.MaxRequest, c.cfg.WindowBytes) {
		c.add("socket.request.max.bytes", Warn, fmt.Sprintf("socket.request.max.bytes is %d, but a request can be as large as delivery.window.bytes (%d): brokers close the connection if a request exceeds the limit", n, c.cfg.WindowBytes),
			brokerSetting("socket.request.max.bytes=104857600"), fix.Words("Or lower delivery.window.bytes."))
	}
}
