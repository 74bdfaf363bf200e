package sink

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/testenv"
)

var produce = []kmsg.Key{kmsg.Produce}

// Whatever a broker answers once, nothing is lost, doubled or out of order, and nothing is taken for poison.
func TestEveryErrorThatPassesIsWaitedOut(t *testing.T) {
	for _, e := range []*kerr.Error{
		kerr.NotEnoughReplicas, kerr.KafkaStorageError, kerr.ThrottlingQuotaExceeded, kerr.UnknownTopicOrPartition,
		kerr.RequestTimedOut, kerr.NotEnoughReplicasAfterAppend,
		kerr.OutOfOrderSequenceNumber, kerr.UnknownProducerID, kerr.InvalidProducerEpoch,
		kerr.MessageTooLarge, kerr.RecordListTooLarge, kerr.InvalidRecord, kerr.InvalidTimestamp, kerr.InvalidTopicException,
		kerr.PolicyViolation, kerr.UnsupportedCompressionType,
		kerr.TopicAuthorizationFailed, kerr.ClusterAuthorizationFailed,
		kerr.UnknownServerError, kerr.CorruptMessage, kerr.UnknownTopicID,
		kerr.NotLeaderForPartition, kerr.FencedLeaderEpoch,
	} {
		t.Run(e.Message, func(t *testing.T) {
			t.Parallel()
			c := testenv.FakeKafka(t, kfake.SeedTopics(2, "a", "b"))
			b := open1(t, config(c.ListenAddrs()))
			b.send("a", "k", 1)
			b.send("b", "k", 1)
			b.all()
			// Not the first request behind the fault, so that records are in flight around it. Twice for the errors that are
			// no refusal; a refusal of one record alone would be poison, rightly.
			h := c.Fault(kfake.Fault{Keys: produce, Topic: "a", Err: e, Count: 1, When: several(c, "a")})
			for i := range 3000 {
				b.send("a", fmt.Sprint("k", i%5), 1)
				b.send("b", "k", 1)
			}
			b.all()
			if n := h.Hits(); n != 1 {
				t.Fatalf("the fault was hit %d times", n)
			}
			b.checkLog(c.ListenAddrs(), "a", "b")
		})
	}
}

// several says whether a produce request has more than one record for topic in a batch.
func several(c *kfake.Cluster, topic string) func(kmsg.Request) bool {
	id := c.TopicInfo(topic).TopicID
	return func(req kmsg.Request) bool {
		for _, t := range req.(*kmsg.ProduceRequest).Topics {
			for _, p := range t.Partitions {
				var rb kmsg.RecordBatch
				if (t.Topic == topic || t.TopicID == id) && rb.ReadFrom(p.Records) == nil && rb.NumRecords > 1 {
					return true
				}
			}
		}
		return false
	}
}

// A condition that lasts shows its reason, and delivery goes on by itself when it ends.
func TestAConditionThatLastsIsNamedAndWaitedOut(t *testing.T) {
	for _, e := range []*kerr.Error{
		kerr.TopicAuthorizationFailed, kerr.ClusterAuthorizationFailed, kerr.UnknownServerError, kerr.CorruptMessage, kerr.PolicyViolation,
	} {
		t.Run(e.Message, func(t *testing.T) {
			t.Parallel()
			c := testenv.FakeKafka(t, kfake.SeedTopics(2, "a", "b"))
			b := open1(t, config(c.ListenAddrs()))
			b.send("a", "k", 1)
			b.all()
			h := c.Fault(kfake.Fault{Keys: produce, Topic: "a", Err: e, Count: -1})
			b.send("a", "k", 500)
			b.send("b", "k", 500)
			b.collect(func() bool { return len(b.acked) == 501 }) // b goes on
			if err := h.Wait(patient(t), 4); err != nil {
				t.Fatal(err)
			}
			if err := b.Stalled(); err == nil || !errors.Is(err, e) || !strings.Contains(err.Error(), "topic a") {
				t.Errorf("stalled: %v", err)
			}
			h.Remove()
			b.all()
			b.checkLog(c.ListenAddrs(), "a", "b")
			if err := b.Stalled(); err != nil {
				t.Errorf("still stalled: %v", err)
			}
		})
	}
}

// limited has the topics a and b that take batches of n bytes. The limit is the topics' own, because kfake tells of a topic no
// setting that it has from the broker.
func limited(t testing.TB, n int) *kfake.Cluster {
	t.Helper()
	c := testenv.FakeKafka(t)
	for _, topic := range []string{"a", "b"} {
		if err := c.CreateTopic(topic, 1, map[string]string{"max.message.bytes": fmt.Sprint(n)}); err != nil {
			t.Fatal(err)
		}
	}
	return c
}

// One record that is too large is refused alone, by name: what was sent before it is delivered, what was sent behind it in its partition is not.
func TestOversizeIsRefusedAloneAndHoldsItsPartition(t *testing.T) {
	c := limited(t, 20_000)
	b := open1(t, config(c.ListenAddrs()))
	b.send("a", "k", 300)
	id := b.sendRecord(cdc.Record{Topic: "a", Key: []byte("k"), Partition: -1, Value: testenv.Incompressible(50_000)})
	b.send("a", "k", 300)
	b.send("b", "k", 300)
	b.collect(func() bool { return len(b.acked) == 600 && len(b.poison) == 1 })
	if err := b.poison[id]; !errors.Is(err, kerr.MessageTooLarge) {
		t.Errorf("the ack of the large record: %v", err)
	}
	b.checkLog(c.ListenAddrs(), "a", "b")
	if err := b.Stalled(); err == nil || !strings.Contains(err.Error(), "partition 0 of topic a is halted after event "+id) {
		t.Errorf("stalled: %v", err)
	}
	b.send("a", "k", 1) // nor is what comes later
	b.send("b", "k", 50)
	b.collect(func() bool { return len(b.acked) >= 650 })
	if !b.isHalted("a") {
		t.Error("the partition is not halted any more")
	}
}

// A record is judged by the broker, on what it weighs compressed.
func TestLargeButCompressibleIsDelivered(t *testing.T) {
	c := limited(t, 20_000)
	b := open1(t, config(c.ListenAddrs()))
	for range 5 {
		b.send("a", "k", 20)
		b.sendRecord(cdc.Record{Topic: "a", Key: []byte("k"), Partition: -1, Value: bytes.Repeat([]byte("x"), 100_000)})
	}
	b.send("a", "k", 20)
	b.all()
	b.checkLog(c.ListenAddrs(), "a")
}

// The broker refuses a batch for one of its records: only that one is poison.
func TestAnInvalidRecordAmongManyIsFound(t *testing.T) {
	c := testenv.FakeKafka(t, kfake.SeedTopics(1, "a"))
	b := open1(t, config(c.ListenAddrs()))
	b.send("a", "k", 1)
	b.all()
	bad := []byte("poisonous")
	c.Fault(kfake.Fault{Keys: produce, Err: kerr.InvalidRecord, Count: -1, When: func(req kmsg.Request) bool {
		for _, t := range req.(*kmsg.ProduceRequest).Topics {
			for _, p := range t.Partitions {
				if bytes.Contains(p.Records, bad) {
					return true
				}
			}
		}
		return false
	}})
	b.send("a", "k", 700)
	id := b.sendRecord(cdc.Record{Topic: "a", Key: []byte("k"), Partition: -1, Value: bad})
	b.send("a", "k", 700)
	b.collect(func() bool { return len(b.acked) == 701 && len(b.poison) == 1 })
	if b.poison[id] == nil {
		t.Errorf("refused: %v", b.poison)
	}
	b.checkLog(c.ListenAddrs(), "a")
}

func TestInvalidTopicNamesAreRefusedAtOnce(t *testing.T) {
	c := testenv.FakeKafka(t, kfake.SeedTopics(1, "a"))
	b := open1(t, config(c.ListenAddrs()))
	for _, name := range []string{"", ".", "..", "a b", "ümlaut", "a/b", strings.Repeat("x", 250)} {
		id := b.sendRecord(cdc.Record{Topic: name, Partition: -1})
		b.send(name, "", 1)
		b.collect(func() bool { return b.poison[id] != nil })
	}
	b.send("a", "k", 1)
	b.collect(func() bool { return len(b.acked) == 1 })
}

func TestAPartitionThatIsNotThereIsRefused(t *testing.T) {
	c := testenv.FakeKafka(t, kfake.SeedTopics(3, "a"))
	b := open1(t, config(c.ListenAddrs()))
	for p := range int32(3) {
		b.sendRecord(cdc.Record{Topic: "a", Key: []byte(fmt.Sprint("to", p)), Partition: p})
	}
	b.all()
	for _, r := range readAll(t, c.ListenAddrs(), "a") {
		if string(r.Key) != fmt.Sprint("to", r.Partition) {
			t.Errorf("key %s is in partition %d", r.Key, r.Partition)
		}
	}
	id := b.sendRecord(cdc.Record{Topic: "a", Partition: 3})
	b.collect(func() bool { return b.poison[id] != nil })
}

func TestAMissingTopicIsWaitedForAndNamed(t *testing.T) {
	c := testenv.FakeKafka(t, kfake.SeedTopics(1, "a"))
	b := open1(t, config(c.ListenAddrs()))
	b.send("late", "k", 50)
	b.send("a", "k", 50)
	b.collect(func() bool { return len(b.acked) == 50 })
	waitFor(t, func() bool {
		err := b.Stalled()
		return err != nil && strings.Contains(err.Error(), "topic late does not exist (walpost creates topics only with kafka.topics.create)")
	})
	if err := c.CreateTopic("late", 2, nil); err != nil {
		t.Fatal(err)
	}
	b.all()
	b.checkLog(c.ListenAddrs(), "a", "late")
}

// The client retries its events of a deleted topic without end, so nobody tends the topic. The search creates it again.
func TestADeletedTopicIsCreatedAgainWhereThatIsWanted(t *testing.T) {
	c := testenv.FakeKafka(t)
	cfg := config(c.ListenAddrs())
	cfg.Topics = Topics{Create: true, Partitions: 3, ReplicationFactor: -1}
	b := open1(t, cfg)
	b.send("a", "k", 300)
	b.all()
	if err := c.DeleteTopic("a"); err != nil {
		t.Fatal(err)
	}
	b.send("a", "k", 30)
	waitFor(t, func() bool { _ = b.Stalled(); return len(c.PartitionInfos("a")) == 3 }) // the relay asks all the time
	b.all()
	b.sent["a/k"] = b.sent["a/k"][300:] // the first ones went with the old topic
	b.checkLog(c.ListenAddrs(), "a")
}

// A limit that was raised or lowered while running takes effect.
func TestAChangedLimitTakesEffect(t *testing.T) {
	c := limited(t, 5_000)
	b := open1(t, config(c.ListenAddrs()))
	set := func(n int) {
		setTopicConfig(t, b.cl, "a", "max.message.bytes", fmt.Sprint(n))
	}
	fill := func(size, n int) {
		for range n {
			b.sendRecord(cdc.Record{Topic: "a", Key: []byte("k"), Partition: -1, Value: testenv.Incompressible(size)})
		}
	}
	fill(1000, 40)
	b.all()
	set(50_000)
	fill(20_000, 5)
	fill(1000, 40)
	b.all()
	set(2_000)
	fill(1000, 200)
	b.all()
	b.checkLog(c.ListenAddrs(), "a")
	id := b.sendRecord(cdc.Record{Topic: "a", Key: []byte("k"), Partition: -1, Value: testenv.Incompressible(3000)})
	b.collect(func() bool { return b.poison[id] != nil })
	if n := b.limitOf("a"); n != 2_000 {
		t.Errorf("the sink still makes batches of up to %d bytes", n)
	}
}

// isHalted reports whether the topic, or a partition of it, is halted.
func (b *bench) isHalted(topic string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	t := b.topics[topic]
	if t == nil {
		return false
	}
	for _, p := range t.parts {
		if p.state == halted {
			return true
		}
	}
	return t.halted
}

func (b *bench) limitOf(topic string) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.topics[topic].limit
}
