package sink

import (
	"bytes"
	"flag"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/testenv"
	"github.com/walpost/walpost/internal/testenv/short"
)

var seeds = flag.Uint64("seeds", short.Raced[uint64](12, 4), "how many seeds the test under random faults tries")

// Whatever happens to brokers, leaders, connections and rights: each key's records are all in the log, in order. And once,
// except where the answer to a written batch was lost and the same batch was then refused for another reason: the client then
// gives up a batch that is in the log, and nobody can know. That is a contiguous re-run, as after a crash.
func TestOrderAndCompletenessUnderRandomFaults(t *testing.T) {
	for seed := range short.Pick(*seeds, 2) {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
			t.Parallel()
			chaos(t, rand.New(rand.NewPCG(seed, 1)), seed%3 != 0, seed%3 != 1)
		})
	}
}

// chaos runs one seed: with answers that are lost after the write, with refusals, or with both.
func chaos(t *testing.T, r *rand.Rand, lost, refused bool) {
	topics := []string{"a", "b", "c"}
	c := testenv.FakeKafka(t, kfake.NumBrokers(3))
	limit := map[string]string{"max.message.bytes": "20000"}
	for _, topic := range topics[:2] {
		if err := c.CreateTopic(topic, 3, limit); err != nil {
			t.Fatal(err)
		}
	}
	if r.IntN(2) == 0 {
		if err := c.CreateTopic("c", 2, limit); err != nil {
			t.Fatal(err)
		}
		topics = topics[:2]
	}
	w := new(wire)
	cfg := config(c.ListenAddrs())
	cfg.Dial = w.dial
	cfg.Topics.Create = len(topics) == 3
	b := open1(t, cfg)
	b.wire = time.Second // the fake brokers write nothing that they have not begun to write by then
	errs := []*kerr.Error{kerr.NotEnoughReplicas, kerr.KafkaStorageError, kerr.UnknownTopicOrPartition, kerr.NotLeaderForPartition}
	if lost {
		errs = append(errs, kerr.RequestTimedOut, kerr.NotEnoughReplicasAfterAppend)
	}
	if refused {
		errs = append(errs, kerr.TopicAuthorizationFailed, kerr.ClusterAuthorizationFailed, kerr.UnknownServerError,
			kerr.CorruptMessage, kerr.PolicyViolation, kerr.UnknownTopicID)
	}
	var faults []*kfake.FaultHandle
	for range 60 {
		switch topic := topics[r.IntN(len(topics))]; r.IntN(8) {
		case 0, 1, 2:
			f := kfake.Fault{Keys: produce, Topic: topic, Err: errs[r.IntN(len(errs))], Count: 1 + r.IntN(3)}
			if r.IntN(2) == 0 {
				f.Partitions = []int32{int32(r.IntN(3))}
			}
			faults = append(faults, c.Fault(f))
		case 3: // a refusal that passes, of a batch of several: nothing is poison
			if refused && c.TopicInfo(topic) != nil {
				c.Fault(kfake.Fault{Keys: produce, Topic: topic, Err: kerr.MessageTooLarge, When: several(c, topic)})
			}
		case 4:
			if !lost {
				continue
			}
			w.cut.Store(int32(1 + r.IntN(2)))
		case 5:
			c.ShufflePartitionLeaders()
		case 6:
			if !refused {
				continue
			}
			faults = append(faults, c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Metadata, kmsg.DescribeConfigs}, Topic: topic, Err: kerr.UnknownServerError}))
		}
		for range r.IntN(200) {
			rec := cdc.Record{Topic: topics[r.IntN(len(topics))], Key: fmt.Append(nil, "k", r.IntN(9)), Partition: -1}
			switch r.IntN(200) {
			case 0: // too large for its topic until it is compressed
				rec.Value = bytes.Repeat([]byte("x"), 30_000)
			case 1, 2, 3, 4, 5, 6, 7, 8, 9:
				rec.Value = testenv.Incompressible(r.IntN(5000))
			}
			b.sendRecord(rec)
		}
		if r.IntN(4) == 0 {
			n := len(b.ids) * r.IntN(100) / 100
			b.collect(func() bool { return len(b.acked) >= n })
		}
		b.take()
	}
	b.all()
	for _, h := range faults {
		h.Remove()
	}
	b.rerunsMayBe = lost && refused || renewals(b.Kafka) > 0
	if n := renewals(b.Kafka); n > 0 {
		t.Logf("%d times a partition gave up its producer id", n)
	}
	b.checkLog(c.ListenAddrs(), topics...)
}
