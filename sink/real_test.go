//go:build linux || darwin

package sink

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/kafka"
	"github.com/walpost/walpost/internal/testenv"
)

// The fakes share code and blind spots with the client; what follows asks a real broker the same questions.

func TestRealLimitsThatChangeTakeEffect(t *testing.T) {
	k := testenv.Kafka(t)
	a := k.Topic(t, 1, map[string]string{"max.message.bytes": "5000"})
	b := open1(t, config(k.Brokers()))
	fill := func(size, n int) {
		for range n {
			b.sendRecord(cdc.Record{Topic: a, Key: []byte("k"), Partition: -1, Value: testenv.Incompressible(size)})
		}
	}
	fill(1000, 40)
	b.sendRecord(cdc.Record{Topic: a, Key: []byte("k"), Partition: -1, Value: []byte(strings.Repeat("x", 50_000))}) // small when compressed
	fill(1000, 40)
	b.all()
	k.Configure(t, "max.message.bytes", "50000", a)
	fill(20_000, 20)
	b.all()
	k.Configure(t, "max.message.bytes", "2000", a)
	fill(1000, 200)
	b.all()
	b.checkLog(k.Brokers(), a)
}

func TestRealTopicCreatedAgainIsDeliveredTo(t *testing.T) {
	k := testenv.Kafka(t)
	a := k.Topic(t, 1, nil)
	b := open1(t, config(k.Brokers()))
	b.send(a, "k", 30)
	b.all()
	deleteTopic(t, b.cl, a)
	b.send(a, "k", 30)
	waitFor(t, func() bool { err := b.Stalled(); return err != nil && strings.Contains(err.Error(), "topic "+a) })
	k.CreateTopic(t, a, 2, nil)
	b.all()
	b.sent[a+"/k"] = b.sent[a+"/k"][30:]
	b.checkLog(k.Brokers(), a)
}

func TestRealMissingTopicIsCreated(t *testing.T) {
	k := testenv.Kafka(t)
	cfg := config(k.Brokers())
	cfg.Topics = Topics{Create: true, Partitions: -1, ReplicationFactor: -1}
	b := open1(t, cfg)
	name := k.Topic(t, 1, nil) + ".made"
	b.send(name, "k", 20)
	b.all()
	b.checkLog(k.Brokers(), name)
	deleteTopic(t, b.cl, name)
}

func TestRealPurgeWouldLoseARecord(t *testing.T) {
	k := testenv.Kafka(t)
	purgeLoses(t, k.Brokers(), k.Topic(t, 1, nil))
}

func TestRealKeysOfManyPartitionsStayInOrder(t *testing.T) {
	k := testenv.Kafka(t)
	a := k.Topic(t, 12, nil)
	b := open1(t, config(k.Brokers()))
	for i := range 5000 {
		b.send(a, fmt.Sprint("k", i%50), 1)
	}
	b.all()
	b.checkLog(k.Brokers(), a)
}

// A follower that does not keep up holds up every acknowledgement until its leader drops it. Nothing is wrong with the client then,
// so nothing is delivered twice.
func TestRealSlowFollowerGivesNoDuplicates(t *testing.T) {
	k := testenv.KafkaPrivate(t, 3, map[string]string{"replica.lag.time.max.ms": "6000", "broker.session.timeout.ms": "120000"})
	k.CreateTopic(t, "a", 1, map[string]string{"min.insync.replicas": "1"})
	// The controller is no good choice, because another one would have to be elected before the follower can be dropped.
	cl := k.Client(t)
	var leader, follower int
	waitFor(t, func() bool {
		req := kmsg.NewPtrDescribeQuorumRequest()
		rt := kmsg.NewDescribeQuorumRequestTopic()
		rt.Topic = "__cluster_metadata"
		rt.Partitions = append(rt.Partitions, kmsg.NewDescribeQuorumRequestTopicPartition())
		req.Topics = append(req.Topics, rt)
		quorum, err := req.RequestWith(patient(t), cl)
		if err != nil {
			t.Fatal(err)
		}
		is, err := kafka.DescribeTopic(patient(t), cl, "a")
		if err != nil {
			t.Fatal(err)
		}
		if len(quorum.Topics) == 0 || len(quorum.Topics[0].Partitions) == 0 || len(is.Partitions) == 0 {
			return false
		}
		p := &is.Partitions[0]
		for _, id := range p.ISR {
			if id != p.Leader && id != quorum.Topics[0].Partitions[0].LeaderID {
				leader, follower = int(p.Leader), int(id)
			}
		}
		return len(p.ISR) == 3
	})
	// Only replication is to be slow. The test pauses the follower, so another broker answers the client's questions in its place.
	cfg := config(k.Brokers())
	cfg.Dial = func(ctx context.Context, network, host string) (net.Conn, error) {
		if host == k.Brokers()[follower-1] {
			host = k.Brokers()[leader-1]
		}
		return new(net.Dialer).DialContext(ctx, network, host)
	}
	b := open1(t, cfg)
	b.send("a", "k", 10)
	b.all()
	if err := k.Pause(follower); err != nil {
		t.Fatal(err)
	}
	b.send("a", "k", 100)
	b.all()
	if n := renewals(b.Kafka); n > 0 {
		t.Errorf("%d producer ids were given up", n)
	}
	if err := k.Resume(follower); err != nil {
		t.Fatal(err)
	}
	b.checkLog(k.Brokers(), "a")
}

// Records that are too large, without a key in a compacted topic, or for a partition that is not there: each is passed over, and the
// others arrive in order.
func TestRealRefusedRecordsArePassedOver(t *testing.T) {
	k := testenv.Kafka(t)
	a := k.Topic(t, 2, map[string]string{"max.message.bytes": "20000", "cleanup.policy": "compact"})
	cfg := config(k.Brokers())
	cfg.DeadLetters, cfg.Bury = a+".dead", true
	b := open1(t, cfg)
	bad := map[string]error{}
	for n := range 40 {
		b.send(a, fmt.Sprint("k", n%5), 30)
		switch rec := (cdc.Record{Topic: a, Key: []byte("k1"), Partition: -1}); n % 8 {
		case 1:
			rec.Value = testenv.Incompressible(50_000)
			bad[b.sendRecord(rec)] = kerr.MessageTooLarge
		case 3:
			rec.Key, rec.Value = nil, []byte("no key")
			bad[b.sendRecord(rec)] = kerr.InvalidRecord // kfake does not check that
		case 5:
			rec.Partition = 2
			bad[b.sendRecord(rec)] = nil
		}
	}
	b.passingOver(func() bool { return len(b.acked)+len(b.poison) == len(b.ids) })
	if len(b.poison) != len(bad) {
		t.Errorf("%d refused, %d are bad", len(b.poison), len(bad))
	}
	for id, want := range bad {
		if got := b.poison[id]; got == nil || want != nil && !errors.Is(got, want) {
			t.Errorf("record %s is refused with %v, want %v", id, got, want)
		}
	}
	b.checkLog(k.Brokers(), a)
	b.takesBack, b.backKey = true, "k1"
	// The record goes to the partition of k1: what is sent to another partition at the same time may be delivered.
	logged := readAll(b, k.Brokers(), a)
	partition := logged[slices.IndexFunc(logged, func(r *kgo.Record) bool { return string(r.Key) == "k1" })].Partition
	for range 10 { // the brokers refuse the whole batch that the record is in
		b.send(a, "k2", 1)
		b.sendRecord(cdc.Record{Topic: a, Partition: partition, Value: []byte("no key")})
		b.send(a, "k1", 30)
		b.send(a, "k2", 30)
	}
	before := len(b.acked)
	b.passingOver(func() bool { return len(b.acked)+len(b.poison) == len(b.ids) })
	if len(b.mine) > 0 || len(b.acked) != before+310 {
		t.Errorf("not taken back: %v; %d acknowledged", b.mine, len(b.acked)-before)
	}
	b.checkLog(k.Brokers(), a)
	refused := len(b.poison)
	b.sendRecord(cdc.Record{Topic: cfg.DeadLetters, Key: []byte("k"), Partition: -1, Value: testenv.Incompressible(3 << 20)})
	b.collect(func() bool { return len(b.acked)+len(b.poison) == len(b.ids) })
	if len(b.poison) != refused {
		t.Errorf("a large dead letter was refused: %v", b.poison)
	}
	deleteTopic(t, b.cl, cfg.DeadLetters)
}
