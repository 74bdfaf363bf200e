//go:build linux || darwin

package sink

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

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

// Where Kafka has not ended a transaction in the topic of checkpoints, nobody can read that topic until the next Fence. If Fence can know
// that the transaction was committed, that is what it becomes, and otherwise it is aborted. Another topic that hangs ends with it.
func TestRealFenceEndsWhatTheBrokersLeaveOpen(t *testing.T) {
	k := testenv.KafkaPrivate(t, 3, nil)
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
	visible := func() (all []string) {
		t.Helper()
		for _, topic := range []string{"a", "b", "cp"} {
			r := kafka.Reader{Client: cl, Topic: topic, Patience: 10 * time.Second, Each: func(rec *kgo.Record) error {
				all = append(all, topic+":"+string(rec.Value))
				return nil
			}}
			if err := r.ToEnd(patient(t)); err != nil {
				t.Fatalf("read %s: %v", topic, err)
			}
		}
		return all
	}
	var log bytes.Buffer
	first, want := openTx(t, k.Brokers(), new(wire)), []string(nil)
	first.s.log = slog.New(slog.NewTextHandler(&log, nil))
	for _, known := range []bool{true, false} {
		b := openTx(t, k.Brokers(), new(wire))
		if err := b.s.Fence(t.Context()); err != nil {
			t.Fatal(err)
		}
		b.s.Begin()
		b.s.tx.coordinator = &leaderless{b.s.tx.coordinator, func() {
			if err := k.Kill(int(victim)); err != nil {
				t.Error(err)
			}
			waitFor(t, func() bool {
				cp, err := kafka.DescribeTopic(patient(t), cl, "cp")
				return err == nil && len(cp.Partitions) == 1 && cp.Partitions[0].Leader < 0
			})
		}}
		value := fmt.Sprint("known=", known)
		b.send("a", value)
		b.send("b", value)
		b.s.Commit("k", []byte(value))
		for until := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
			if n, _, lost := b.s.Committed(); n == 1 {
				break
			} else if lost != nil || time.Now().After(until) {
				t.Fatalf("%d commits, lost: %v, stalled: %v", n, lost, b.s.Stalled())
			}
		}
		k.Start(t, int(victim))
		id := b.s.ids.newest.id
		open := []kafka.OpenTransaction(nil)
		waitFor(t, func() bool {
			open, err = first.s.tx.coordinator.open(patient(t), id, "a", "cp")
			return err == nil && len(open) == 2 // otherwise this Kafka doesn't have the bug, so that hanging.go has no purpose
		})
		for _, o := range open {
			waitFor(t, func() bool { // all brokers answer
				h := kafka.Hanging(patient(t), cl, o.Topic, o.Partition, o.Start)
				return h != nil && h.OpenTransaction == o && h.ID == "relay.events"
			})
		}
		if known {
			tells(t, k.Brokers())
		}
		if !known { // as a Fence that was cut short
			if _, err := b.s.tx.coordinator.initialize(patient(t), noID); err != nil {
				t.Fatal(err)
			}
		}
		if err := first.s.Fence(patient(t)); err != nil {
			t.Fatal(err)
		}
		if want = append(want, "b:"+value); known { // in b it was ended
			want = append(want, "a:"+value, "cp:"+value)
		}
		got := visible()
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("%s: %v can be read, want %v", value, got, want)
		}
		if said := map[bool]string{true: "as its commit was meant to", false: "may be delivered twice"}[known]; !strings.Contains(log.String(), said) {
			t.Errorf("%s: the log has no %q:\n%s", value, said, &log)
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
