package badevents

import (
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/deadletter"
	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/internal/kafka"
	"github.com/walpost/walpost/internal/testenv"
)

func (w *world) waiting(written bool) *Waiting {
	waiting := NewWaiting(WaitingConfig{
		Kafka: w.cfg.Kafka.Config, Topic: w.cfg.Kafka.DeadLetters, Name: w.cfg.Name, Database: w.cfg.Database, Written: func() bool { return written },
	})
	w.Cleanup(waiting.Close)
	return waiting
}

// deleteTopic deletes the dead letter topic, and returns when the brokers no longer know it.
func (w *world) deleteTopic() {
	w.Helper()
	if _, err := kadm.NewClient(w.client).DeleteTopic(w.Context(), w.prefix); err != nil {
		w.Fatal(err)
	}
	for gone := false; !gone; {
		topic, err := kafka.DescribeTopic(w.Context(), w.client, w.prefix)
		if err != nil {
			w.Fatal(err)
		}
		gone = errors.Is(topic.Err, kerr.UnknownTopicOrPartition)
	}
}

// isOpen expects the ids of open events, and the same count.
func (w *world) isOpen(waiting *Waiting, want ...string) {
	w.Helper()
	if ids, err := waiting.IDs(w.Context()); err != nil || !slices.Equal(ids, want) || waiting.Count() != (Count{Open: len(want)}) {
		w.Errorf("open %q, %v, %+v; want %q", ids, err, waiting.Count(), want)
	}
}

// isUnknown expects that nothing is said.
func (w *world) isUnknown(waiting *Waiting) {
	w.Helper()
	if ids, err := waiting.IDs(w.Context()); err == nil || len(ids) > 0 || waiting.Count().Err == nil {
		w.Errorf("open %q, %v, %+v; want an error", ids, err, waiting.Count())
	}
}

// The relay knows which dead letters are open. A letter that a crash repeats opens nothing.
func TestTheOpenEventsAreKnown(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	x := w.topic("x", 1, nil)
	a, b := w.letter("a", "1", "x", "A"), w.row("", "", "1", "B")
	w.write(a, b)
	waiting := w.waiting(true)
	w.isOpen(waiting, "a", "")
	topics := w.open()
	if report, err := topics.Retry(t.Context(), w.entries(topics, &Filter{Topic: x}), RetryOptions{}); err != nil || report.Delivered != 1 {
		t.Fatal(report, err)
	}
	w.isOpen(waiting, "")
	if waiting.letters.read > 5 {
		t.Errorf("%d records were read", waiting.letters.read)
	}
	w.write(a, b)
	w.isOpen(waiting, "")
	if got := w.states(); got != "a retried 1,  open 1" {
		t.Errorf("the commands say %s", got)
	}
}

// A user who may not read the topic may have written to it before the policy or the ACLs changed.
func TestATopicThatNobodyMaySeeHasNoAnswer(t *testing.T) {
	t.Parallel()
	cluster, asked := testenv.KafkaWithACLs(t, map[string]string{"relay": "secret"}, nil)
	cluster.CreateTopic(t, "dead", 1, nil)
	w := &world{T: t}
	w.cfg.Kafka.Config = kafka.Config{Brokers: []string{asked}, SASL: kafka.SASL{Mechanism: "PLAIN", Username: "relay", Password: "secret"}}
	w.cfg.Kafka.DeadLetters = "dead"
	for _, written := range []bool{false, true} {
		waiting := w.waiting(written)
		w.isUnknown(waiting)
		if err := waiting.Count().Err; !kafka.Denied(err) || fault.Hint(err) == "" {
			t.Errorf("%v, hint %q", err, fault.Hint(err))
		}
	}
}

// deleteBefore deletes the records of the dead letter topic in front of an offset.
func (w *world) deleteBefore(offset int64) {
	w.Helper()
	before := kadm.Offsets{}
	before.AddOffset(w.prefix, 0, offset, -1)
	if _, err := kadm.NewClient(w.client).DeleteRecords(w.Context(), before); err != nil {
		w.Fatal(err)
	}
}

// Records before the open letters may be deleted. Without an open letter, the cleanup would delete the row too.
func TestOpenEventsThatAreDeletedHaveNoAnswer(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.produce(&cdc.Record{Topic: w.prefix, Value: []byte("an order"), Time: began})
	w.write(w.letter("a", "1", "x", "A"), w.letter("b", "1", "x", "B"), w.letter("c", "2", "x", "C"))
	waiting := w.waiting(true)
	w.isOpen(waiting, "a", "b", "c")
	w.deleteBefore(1)
	w.isOpen(waiting, "a", "b", "c")
	w.deleteBefore(2)
	for range 2 {
		w.isUnknown(waiting)
	}
	if hint := fault.Hint(waiting.Count().Err); !strings.Contains(hint, "verify") {
		t.Errorf("hint %q", hint)
	}
	w.isOpen(w.waiting(true), "b", "c") // after a restart
}

// Rows are deleted where no event of theirs is open. So a topic that is gone has no answer, and nor has one that took its place.
func TestATopicThatIsGoneDoesNotSayThatNothingIsOpen(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.write(w.letter("a", "1", "x", "A"))
	buries, halts := w.waiting(true), w.waiting(false)
	w.isOpen(buries, "a")
	w.isOpen(halts, "a")
	w.deleteTopic()
	w.isUnknown(buries)
	w.isUnknown(halts)
	w.isUnknown(w.waiting(true)) // the relay creates the topic, or waits for it
	w.isOpen(w.waiting(false))
	w.kafka.CreateTopic(t, w.prefix, 1, nil)
	w.client = w.kafka.Client(t, kgo.RecordPartitioner(kgo.ManualPartitioner())) // the former one remembers the former topic
	for range 2 {
		w.isUnknown(buries)
		w.isUnknown(halts)
	}
	w.write(w.letter("b", "1", "x", "B"))
	w.isUnknown(buries)
	w.isOpen(w.waiting(true), "b")
}

// A broker that has just started may not know a topic.
func TestOneAnswerDoesNotSayThatATopicIsMissing(t *testing.T) {
	t.Parallel()
	cluster := testenv.FakeKafka(t, kfake.SeedTopics(1, "dead"))
	w := &world{T: t}
	var err error
	if w.client, err = kgo.NewClient(kgo.SeedBrokers(cluster.ListenAddrs()...)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.client.Close)
	w.cfg.Kafka.Config = kafka.Config{Brokers: cluster.ListenAddrs()}
	w.cfg.Kafka.DeadLetters = "dead"
	rec, err := (&deadletter.Letter{Token: "t", ID: "a", Partition: -1, KeyKnown: true, Key: []byte("k"), Record: &cdc.Record{}}).Encode("dead")
	if err != nil {
		t.Fatal(err)
	}
	w.produce(rec)
	known, err := kmsg.NewPtrMetadataRequest().RequestWith(t.Context(), w.client)
	if err != nil {
		t.Fatal(err)
	}
	var denies atomic.Bool
	cluster.ControlKey(int16(kmsg.Metadata), func(req kmsg.Request) (kmsg.Response, error, bool) {
		cluster.KeepControl()
		asked := req.(*kmsg.MetadataRequest)
		if len(asked.Topics) != 1 || !denies.CompareAndSwap(true, false) {
			return nil, nil, false
		}
		resp := asked.ResponseKind().(*kmsg.MetadataResponse)
		topic := kmsg.NewMetadataResponseTopic()
		topic.Topic, topic.ErrorCode = asked.Topics[0].Topic, kerr.UnknownTopicOrPartition.Code
		resp.Brokers, resp.ControllerID, resp.Topics = known.Brokers, known.ControllerID, append(resp.Topics, topic)
		return resp, nil, true
	})
	waiting := w.waiting(false)
	denies.Store(true)
	w.isOpen(waiting, "a")
	if denies.Load() {
		t.Fatal("no broker was asked for the topic")
	}
	denies.Store(true)
	w.isUnknown(waiting)
	w.isOpen(waiting, "a")
}

// A letter that cannot be read may be of any event.
func TestARecordThatCannotBeReadLeavesTheAnswerOpen(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	l := w.letter("a", "1", "x", "A")
	rec, err := l.Encode(w.prefix)
	if err != nil {
		t.Fatal(err)
	}
	rec.Headers[len(rec.Headers)-2].Value = []byte("a form of a later version")
	w.produce(&cdc.Record{Topic: w.prefix, Value: []byte("an order"), Time: began})
	waiting := w.waiting(true)
	w.isOpen(waiting)
	w.produce(rec)
	w.isUnknown(waiting)
}
