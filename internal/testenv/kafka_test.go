//go:build linux || darwin

package testenv

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/walpost/walpost/internal/testenv/short"
)

const timeout = time.Minute

func within(t *testing.T, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

func roundTrip(t *testing.T, c *KafkaCluster, topic, value string) {
	t.Helper()
	ctx := within(t, timeout)
	cl := c.Client(t, kgo.ConsumeTopics(topic))
	if err := cl.ProduceSync(ctx, &kgo.Record{Topic: topic, Value: []byte(value)}).FirstErr(); err != nil {
		t.Fatal(err)
	}
	for {
		f := cl.PollFetches(ctx)
		if err := f.Err(); err != nil {
			t.Fatal(err)
		}
		for _, r := range f.Records() {
			if string(r.Value) == value {
				return
			}
		}
	}
}

func TestARecordGoesIntoKafkaAndOut(t *testing.T) {
	c := Kafka(t)
	if Kafka(t) != c {
		t.Error("two shared brokers")
	}
	topic := c.Topic(t, 3, map[string]string{"max.message.bytes": "2000"})
	roundTrip(t, c, topic, "v")
	cl := c.Client(t, kgo.ProducerBatchCompression(kgo.NoCompression()))
	err := cl.ProduceSync(within(t, timeout), &kgo.Record{Topic: topic, Value: make([]byte, 3000)}).FirstErr()
	if !errors.Is(err, kerr.MessageTooLarge) {
		t.Errorf("a record above max.message.bytes: %v, want %v", err, kerr.MessageTooLarge)
	}
}

func TestProducingDoesNotMakeATopic(t *testing.T) {
	cl := Kafka(t).Client(t, kgo.AllowAutoTopicCreation(), kgo.UnknownTopicRetries(4))
	err := cl.ProduceSync(within(t, timeout), &kgo.Record{Topic: unique("nowhere"), Value: []byte("v")}).FirstErr()
	if !errors.Is(err, kerr.UnknownTopicOrPartition) {
		t.Errorf("got %v, want %v", err, kerr.UnknownTopicOrPartition)
	}
}

func TestAKilledBrokerComesBackWithItsRecords(t *testing.T) {
	c := KafkaPrivate(t, 1, map[string]string{"message.max.bytes": "5000"})
	topic := c.Topic(t, 1, nil)
	roundTrip(t, c, topic, "first")
	for _, end := range []func(...int) error{c.Kill, c.Stop} {
		if err := end(); err != nil {
			t.Fatal(err)
		}
		c.Start(t)
		roundTrip(t, c, topic, "again")
	}
	cl := c.Client(t, kgo.ConsumeTopics(topic))
	if r := cl.PollFetches(within(t, timeout)).Records(); len(r) == 0 || string(r[0].Value) != "first" {
		t.Errorf("the first record is %v", r)
	}
}

func TestAPausedBrokerAnswersNothingUntilItIsResumed(t *testing.T) {
	c := KafkaPrivate(t, 1, nil)
	topic := c.Topic(t, 1, nil)
	cl := c.Client(t, kgo.DefaultProduceTopic(topic))
	if err := cl.ProduceSync(within(t, timeout), kgo.StringRecord("before")).FirstErr(); err != nil {
		t.Fatal(err)
	}
	if err := c.Pause(); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	cl.Produce(context.WithoutCancel(t.Context()), kgo.StringRecord("meanwhile"), func(_ *kgo.Record, err error) { done <- err })
	select {
	case err := <-done:
		t.Errorf("an answer from a paused broker: %v", err)
	case <-time.After(500 * time.Millisecond):
	}
	if err := c.Resume(); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(time.Minute):
		t.Error("no answer from a resumed broker")
	}
}

func TestThreeNodesGoOnWithoutOne(t *testing.T) {
	c := KafkaPrivate(t, 3, nil)
	topic := c.Topic(t, 3, nil)
	roundTrip(t, c, topic, "with three")
	for id, end := range []func(...int) error{c.Kill, c.Stop} {
		if err := end(id + 1); err != nil {
			t.Fatal(err)
		}
		roundTrip(t, c, topic, "with two")
		c.Start(t, id+1)
	}
	roundTrip(t, c, topic, "with three again")
}

func TestAMachineWithoutJavaIsToldWhatIsMissing(t *testing.T) {
	short.Skip(t, "the full tier, whose Kafka it asks for")
	t.Setenv("PATH", t.TempDir())
	t.Setenv("JAVA_HOME", "")
	r := &recorder{TB: t}
	func() {
		defer func() { _ = recover() }()
		Kafka(r)
	}()
	if !strings.Contains(r.fatal, "Java 17") || !strings.Contains(r.fatal, "go test -short") {
		t.Errorf("fatal %q, want what is missing, and what needs none of it", r.fatal)
	}
}

// recorder notes Fatal instead of failing.
type recorder struct {
	testing.TB
	fatal string
}

func (r *recorder) Fatal(args ...any) {
	r.fatal = args[0].(error).Error()
	panic("fatal")
}
