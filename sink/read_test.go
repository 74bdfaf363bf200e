package sink

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/internal/testenv"
	"github.com/walpost/walpost/internal/testenv/short"
)

// fetches notes from which offsets the partition is read.
type fetches struct {
	mu sync.Mutex
	at []int64
}

func watchFetches(c *kfake.Cluster, delay time.Duration) *fetches {
	f := new(fetches)
	c.ControlKey(int16(kmsg.Fetch), func(req kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		f.mu.Lock()
		f.at = append(f.at, req.(*kmsg.FetchRequest).Topics[0].Partitions[0].FetchOffset)
		f.mu.Unlock()
		c.SleepControl(func() { time.Sleep(delay) })
		return nil, nil, false
	})
	return f
}

func (f *fetches) take() []int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	at := f.at
	f.at = nil
	return at
}

// large records, so that the topic takes several fetches.
func largeCheckpoints(t *testing.T, s *KafkaStore, n int) {
	t.Helper()
	for i := range n {
		if err := s.Save(patient(t), "n/1", fmt.Append(nil, i, " ", strings.Repeat("x", 400_000))); err != nil {
			t.Fatal(err)
		}
	}
}

func deleteRecords(t testing.TB, cl *kgo.Client, topic string, before int64) {
	t.Helper()
	to := kadm.Offsets{}
	to.Add(kadm.Offset{Topic: topic, At: before})
	deleted, err := kadm.NewClient(cl).DeleteRecords(patient(t), to)
	if err == nil {
		err = deleted.Error()
	}
	if err != nil {
		t.Fatal(err)
	}
}

// A Load may take longer than its patience, as long as it comes further.
func TestALoadTakesAsLongAsItNeeds(t *testing.T) {
	short.SkipSlow(t)
	c := testenv.FakeKafka(t)
	s := kafkaStore(t, c.ListenAddrs(), "cp")
	largeCheckpoints(t, s, 20)
	const delay = 600 * time.Millisecond
	s.patience = 5 * time.Second
	f := watchFetches(c, delay)
	got, err := s.Load(patient(t), "n")
	if err != nil || !strings.HasPrefix(string(got["n/1"]), "19 ") {
		t.Errorf("after the fetches at %v: %.10s, %v", f.take(), got["n/1"], err)
	}
	if at := f.take(); time.Duration(len(at))*delay <= s.patience {
		t.Errorf("the load took no longer than its patience: %v", at)
	}
}

// A Load that failed has not read for nothing: the next one goes on where it ended. So does one after a whole Load.
func TestALoadGoesOnWhereTheOneBeforeEnded(t *testing.T) {
	c := testenv.FakeKafka(t)
	s := kafkaStore(t, c.ListenAddrs(), "cp")
	largeCheckpoints(t, s, 10)
	f := watchFetches(c, 0)
	after := func(offset int64) func(kmsg.Request) bool {
		return func(req kmsg.Request) bool {
			return req.(*kmsg.FetchRequest).Topics[0].Partitions[0].FetchOffset >= offset
		}
	}
	h := c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Fetch}, Topic: "cp", Err: kerr.TopicAuthorizationFailed, Count: -1, When: after(4)})
	if got, err := s.Load(patient(t), "n"); err == nil || !fault.Retryable(err) {
		t.Fatal(got, err)
	}
	h.Remove()
	f.take()
	load := func(want string, from int64) {
		t.Helper()
		got, err := s.Load(patient(t), "n")
		if err != nil || !strings.HasPrefix(string(got["n/1"]), want+" ") {
			t.Errorf("load: %.10s, %v; want %s", got["n/1"], err, want)
		}
		switch at := f.take(); {
		case from < 0 && len(at) > 0, from >= 0 && (len(at) == 0 || at[0] != from):
			t.Errorf("reads at %v; must begin at %d", at, from)
		}
	}
	load("9", 4)
	load("9", -1)
	largeCheckpoints(t, s, 2)
	load("1", 10)

	// Kafka may have dropped the record that removed a key.
	s.seen.whole = time.Now().Add(-s.keep)
	load("1", 0)
	// Another leader may have another log.
	leader := c.LeaderFor("cp", 0)
	if err := c.MoveTopicPartition("cp", 0, leader); err != nil {
		t.Fatal(err)
	}
	load("1", 0)
	load("1", -1)
	// Another name.
	if got, err := s.Load(patient(t), "m"); err != nil || len(got) != 0 {
		t.Errorf("load: %v, %v", got, err)
	}
	load("1", 0)
	// Records deleted from the front.
	deleteRecords(t, s.cl, "cp", 3)
	f.take()
	load("1", 3)
	if got, err := s.Load(patient(t), "m"); !errors.As(err, new(*LostRecords)) || fault.Retryable(err) || !fault.NeedsPerson(err) {
		t.Errorf("load of a name without a record: %v, %v", got, err)
	}
	// Another topic of the same name, with more records than the one before.
	if err := c.DeleteTopic("cp"); err != nil {
		t.Fatal(err)
	}
	if err := c.CreateTopic("cp", 1, nil); err != nil {
		t.Fatal(err)
	}
	other := kafkaStore(t, c.ListenAddrs(), "cp")
	for range 30 {
		if err := other.Save(patient(t), "m/1", []byte("x")); err != nil {
			t.Fatal(err)
		}
	}
	f.take()
	if got, err := s.Load(patient(t), "n"); err != nil || len(got) != 0 {
		t.Errorf("load from the other topic: %d records, %v", len(got), err)
	}
}

// A cancelled Load ends at once, and says so.
func TestACancelledLoadEnds(t *testing.T) {
	c := testenv.FakeKafka(t)
	s := kafkaStore(t, c.ListenAddrs(), "cp")
	largeCheckpoints(t, s, 1)
	h := c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Fetch}, Topic: "cp", Err: kerr.NotLeaderForPartition, Count: -1})
	ctx, cancel := context.WithCancel(patient(t))
	go func() {
		_ = h.Wait(ctx, 1)
		cancel()
	}()
	if got, err := s.Load(ctx, "n"); err == nil || ctx.Err() == nil {
		t.Errorf("load: %v, %v", got, err)
	}
}

// Where the brokers refuse the settings that keep the topic small, it is made without them.
func TestACheckpointTopicIsMadeWithoutSettingsThatAreRefused(t *testing.T) {
	c := testenv.FakeKafka(t)
	c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.CreateTopics}, Err: kerr.PolicyViolation, Count: -1, When: func(req kmsg.Request) bool {
		return len(req.(*kmsg.CreateTopicsRequest).Topics[0].Configs) > 1
	}})
	var log strings.Builder
	cfg := config(c.ListenAddrs())
	cfg.Logger = zerolog.New(&log)
	s, err := NewKafkaStore(cfg, "cp")
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if _, err := s.Load(patient(t), "n"); err != nil {
		t.Fatal(err)
	}
	if said := log.String(); !strings.Contains(said, "POLICY_VIOLATION") || !strings.Contains(said, "the brokers refuse the settings") {
		t.Error(said)
	}
	if p := c.TopicInfo("cp").Configs["cleanup.policy"]; p == nil || *p != "compact" {
		t.Errorf("created with %v", c.TopicInfo("cp").Configs)
	}
}
