//go:build linux || darwin

package sink

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/internal/kafka"
	"github.com/walpost/walpost/internal/statelog"
	"github.com/walpost/walpost/internal/testenv"
)

// leaderless ends a transaction while some of its partitions have no leader, and so meets KAFKA-20734.
type leaderless struct {
	coordinator
	stop func()
}

func (l *leaderless) finish(ctx context.Context, id producerID, commit, modern bool) (producerID, error) {
	if l.stop != nil {
		l.stop()
	}
	l.stop = nil
	return l.coordinator.finish(ctx, id, commit, modern)
}

// Where Kafka has not ended a transaction in the topic of checkpoints, nobody can read that topic until the next Fence. It aborts: what
// became of the transaction's events is different from partition to partition, so they must come again.
func TestRealFenceEndsWhatTheBrokersLeaveOpen(t *testing.T) {
	k := testenv.KafkaWithHangingTransactions(t, 3)
	cl := k.Client(t)
	k.CreateTopic(t, "b", 1, nil)
	led, err := kafka.DescribeTopic(patient(t), cl, "b")
	if err != nil {
		t.Fatal(err)
	}
	victim := led.Partitions[0].Leader%3 + 1
	for _, topic := range []string{"a", "cp"} {
		createAt(t, cl, topic, victim)
	}
	visible := func(topic string) (all []string) {
		t.Helper()
		r := kafka.Reader{Client: cl, Topic: topic, Patience: 10 * time.Second, Each: func(rec *kgo.Record) error {
			all = append(all, string(rec.Value))
			return nil
		}}
		if err := r.ToEnd(patient(t)); err != nil {
			t.Fatalf("read %s: %v", topic, err)
		}
		return all
	}
	commit := func(b *txBench, value string) {
		t.Helper()
		b.send("a", value)
		b.send("b", value)
		b.s.Commit("k", []byte(value))
		for until := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
			if n, _, lost := b.s.Committed(); n == 1 {
				return
			} else if lost != nil || time.Now().After(until) {
				t.Fatalf("%d commits, lost: %v, stalled: %v", n, lost, b.s.Stalled())
			}
		}
	}
	begun := func(fences int) *txBench {
		t.Helper()
		b := openTx(t, k.Brokers(), new(wire))
		var log testenv.Output
		b.s.log = slog.New(slog.NewTextHandler(&log, nil))
		for range fences {
			if err := b.s.Fence(patient(t)); err != nil {
				t.Fatal(err)
			}
		}
		if n := strings.Count(log.String(), kafka.LeavesTransactionsOpen); n != 1 {
			t.Errorf("warned %d times about this release:\n%s", n, log.String())
		}
		b.s.Begin()
		return b
	}
	b := begun(2)
	b.s.tx.coordinator = &leaderless{b.s.tx.coordinator, func() {
		if err := k.Kill(int(victim)); err != nil {
			t.Error(err)
		}
		waitFor(t, func() bool {
			cp, err := kafka.DescribeTopic(patient(t), cl, "cp")
			return err == nil && len(cp.Partitions) == 1 && cp.Partitions[0].Leader < 0
		})
	}}
	commit(b, "1")
	k.Start(t, int(victim))
	waitFor(t, func() bool {
		for _, topic := range []string{"a", "cp"} {
			open := kafka.OpenTransactions(patient(t), cl, topic, 0)
			if len(open) != 1 { // otherwise this Kafka doesn't have the bug, so that hanging.go has no purpose
				return false
			}
			want := kafka.HangingTransaction{Topic: topic, Start: open[0].CurrentTxnStartOffset, ID: "relay.events"}
			if h := kafka.Hanging(patient(t), cl, topic, 0, want.Start); h == nil || *h != want {
				return false // not all brokers answer yet
			}
		}
		return true
	})
	tells(t, k.Brokers())
	// The process goes on. What it writes to a joins the transaction that hangs there, which the next Fence aborts.
	b.send("a", "2")
	waitFor(t, func() bool {
		ends, err := kadm.NewClient(cl).ListEndOffsets(patient(t), "a")
		end, ok := ends.Lookup("a", 0)
		return err == nil && ok && end.Offset == 2
	})

	next := begun(1)
	if got := visible("cp"); len(got) > 0 {
		t.Errorf("the checkpoints are %v, although an event is lost", got)
	}
	if got := visible("a"); len(got) > 0 {
		t.Errorf("%v came in a, although the transaction that had it was aborted", got)
	}
	commit(next, "1")
	for _, topic := range []string{"a", "b", "cp"} {
		if got := visible(topic); !slices.Contains(got, "1") {
			t.Errorf("%s: %v can be read", topic, got)
		}
	}
}

// tells wants a reader of checkpoints to say what to do.
func tells(t *testing.T, brokers []string) {
	t.Helper()
	cfg := statelog.Config{Topic: "cp"}
	cfg.Brokers = brokers
	store, err := statelog.NewKafkaStore(cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = store.Close(context.Background()) }()
	_, err = store.Load(patient(t), "k")
	if h := new(kafka.HangingTransaction); !errors.As(err, &h) || !errors.Is(err, kafka.ErrOpen) || !strings.Contains(fault.Hint(err), "abort --topic cp --partition 0 --start-offset") {
		t.Errorf("a reader's error: %v; hint %q", err, fault.Hint(err))
	}
}

// createAt creates a topic of one partition with one replica.
func createAt(t *testing.T, cl *kgo.Client, name string, broker int32) {
	t.Helper()
	req := kmsg.NewPtrCreateTopicsRequest()
	rt := kmsg.NewCreateTopicsRequestTopic()
	rt.Topic, rt.NumPartitions, rt.ReplicationFactor = name, -1, -1
	at := kmsg.NewCreateTopicsRequestTopicReplicaAssignment()
	at.Replicas = []int32{broker}
	least, one := kmsg.NewCreateTopicsRequestTopicConfig(), "1"
	least.Name, least.Value = "min.insync.replicas", &one
	rt.ReplicaAssignment, rt.Configs = append(rt.ReplicaAssignment, at), append(rt.Configs, least)
	req.Topics = append(req.Topics, rt)
	resp, err := req.RequestWith(patient(t), cl)
	if err != nil || resp.Topics[0].ErrorCode != 0 {
		t.Fatalf("create topic %s: %+v, %v", name, resp, err)
	}
	waitFor(t, func() bool {
		is, err := kafka.DescribeTopic(patient(t), cl, name)
		return err == nil && len(is.Partitions) == 1 && is.Partitions[0].Leader == broker
	})
}
