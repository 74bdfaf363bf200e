package sink

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"

	"github.com/walpost/walpost/internal/kafka"
	"github.com/walpost/walpost/internal/testenv"
)

// transactionVersions are those of transactions: each with an epoch of its own, and partitions that join (before Kafka 4.0).
var transactionVersions = map[string][]kfake.Opt{"2": nil, "0": {kfake.MaxVersions(kversion.V3_9_0())}}

func (b *txBench) stallsBy(part string) {
	b.Helper()
	var got error
	for until := time.Now().Add(patience); time.Now().Before(until); time.Sleep(5 * time.Millisecond) {
		if got = b.s.Stalled(); got != nil {
			break
		}
	}
	if got == nil || !strings.Contains(got.Error(), part) {
		b.Fatalf("stalled: %v, must tell of %s", got, part)
	}
}

func (b *txBench) holds(n int) {
	b.Helper()
	waitFor(b.T, func() bool {
		b.s.mu.Lock()
		defer b.s.mu.Unlock()
		return len(b.s.tx.held) == n
	})
}

// What a transaction had written into the old topic goes in front of what waited for the new one.
func TestATransactionKeepsTheOrderInATopicCreatedAgain(t *testing.T) {
	for version, opts := range transactionVersions {
		t.Run(version, func(t *testing.T) {
			c := testenv.FakeKafka(t, append(opts, kfake.NumBrokers(1), kfake.SeedTopics(1, "a", "cp"))...)
			b := openTx(t, c.ListenAddrs(), new(wire))
			b.begin()
			b.send("a", "1")
			b.holds(1)
			if err := c.DeleteTopic("a"); err != nil {
				t.Fatal(err)
			}
			b.send("a", "2")
			b.stallsBy("topic a")
			if err := c.CreateTopic("a", 1, nil); err != nil {
				t.Fatal(err)
			}
			b.send("a", "3")
			b.holds(3)
			b.s.Commit("k", []byte("cp"))
			b.committed(1)
			cl, err := kgo.NewClient(kgo.SeedBrokers(c.ListenAddrs()...), kgo.ConsumeTopics("a"), kgo.FetchIsolationLevel(kgo.ReadCommitted()))
			if err != nil {
				t.Fatal(err)
			}
			defer cl.Close()
			var got []string
			for len(got) < 3 {
				cl.PollFetches(t.Context()).EachRecord(func(r *kgo.Record) { got = append(got, string(r.Value)) })
			}
			if want := []string{"1", "2", "3"}; !slices.Equal(got, want) {
				t.Errorf("the new topic has %v, must be %v", got, want)
			}
		})
	}
}

// A topic that was deleted since the transaction before is asked about, although it was known a moment ago.
func TestATransactionAsksForADeletedTopic(t *testing.T) {
	for version, opts := range transactionVersions {
		t.Run(version, func(t *testing.T) {
			c := testenv.FakeKafka(t, append(opts, kfake.NumBrokers(1), kfake.SeedTopics(1, "a", "b", "cp"))...)
			b := openTx(t, c.ListenAddrs(), new(wire))
			b.begin()
			b.send("a", "1")
			b.s.Commit("k", []byte("cp1"))
			b.committed(1)
			if err := c.DeleteTopic("a"); err != nil {
				t.Fatal(err)
			}
			b.send("a", "2")
			b.send("b", "3")
			b.stallsBy("topic a")
			b.holds(1) // b goes on
			if err := c.CreateTopic("a", 1, nil); err != nil {
				t.Fatal(err)
			}
			b.s.Commit("k", []byte("cp2"))
			b.committed(2)
		})
	}
}

// A hindrance of the coordinator that is over isn't what a stall is blamed on.
func TestAStallIsNotBlamedOnAnEarlierJoin(t *testing.T) {
	c := testenv.FakeKafka(t, append(transactionVersions["0"], kfake.NumBrokers(1), kfake.SeedTopics(1, "a", "cp"))...)
	b := openTx(t, c.ListenAddrs(), new(wire))
	b.begin()
	c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.AddPartitionsToTxn}, Err: kerr.ConcurrentTransactions, Count: 1})
	b.send("a", "1")
	b.holds(1)
	b.send("missing", "2")
	time.Sleep(kafka.StallAfter + 10*time.Millisecond)
	b.stallsBy("topic missing")
}

// refuses is a coordinator that has fenced this process.
type refuses struct{ coordinator }

func (refuses) finish(context.Context, producerID, bool, bool) (producerID, error) {
	return noID, kerr.ProducerFenced
}

func TestALostTransactionIsNotUnderWay(t *testing.T) {
	b := newTxBench(t)
	b.begin()
	b.send("a", "1")
	b.s.tx.coordinator = refuses{b.s.tx.coordinator}
	b.s.Commit("k", nil)
	waitFor(t, func() bool { _, _, lost := b.s.Committed(); return lost != nil })
	if n, underWay, _ := b.s.Committed(); n != 0 || underWay {
		t.Errorf("%d commits, under way: %v", n, underWay)
	}
}

// The answer to a creation that a Fence has overtaken is nobody's.
func TestALateRefusalOfATopicIsNoAckBehindFence(t *testing.T) {
	c := testenv.FakeKafka(t, kfake.NumBrokers(1), kfake.SeedTopics(1, "cp"))
	b := openTx(t, c.ListenAddrs(), new(wire))
	b.s.cfg.Topics = Topics{Create: true, Partitions: 1, ReplicationFactor: -1}
	asked, answer := make(chan struct{}), make(chan struct{})
	c.ControlKey(kmsg.CreateTopics.Int16(), func(req kmsg.Request) (kmsg.Response, error, bool) {
		close(asked)
		c.SleepControl(func() { <-answer })
		resp := req.ResponseKind().(*kmsg.CreateTopicsResponse)
		rt := kmsg.NewCreateTopicsResponseTopic()
		rt.Topic, rt.ErrorCode = "a_b", kerr.InvalidTopicException.Code
		resp.Topics = append(resp.Topics, rt)
		return resp, nil, true
	})
	b.begin()
	b.send("a_b", "1")
	<-asked
	b.begin()
	close(answer)
	waitFor(t, func() bool {
		b.s.mu.Lock()
		defer b.s.mu.Unlock()
		return b.s.line.creators == 0
	})
	if got := b.s.Acks(nil); len(got) > 0 {
		t.Errorf("acks of the former life: %+v", got)
	}
}
