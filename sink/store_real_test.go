//go:build linux || darwin

package sink

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/walpost/walpost/internal/kafka"
	"github.com/walpost/walpost/internal/testenv"
)

// Compaction alone does not move the start of a topic, also where it removes the first records, so LostRecords does not speak of it.
func TestRealCompactionDoesNotLookLikeLostRecords(t *testing.T) {
	k := testenv.KafkaPrivate(t, 1, map[string]string{"log.cleaner.backoff.ms": "100"})
	topic := k.Topic(t, 1, map[string]string{"cleanup.policy": "compact", "segment.bytes": "1048576", "min.cleanable.dirty.ratio": "0.01", "delete.retention.ms": "0"})
	s := kafkaStore(t, k.Brokers(), topic)
	pad := []byte(strings.Repeat("x", 100_000))
	enough := errors.New("enough")
	first := func() (offset int64) {
		r := kafka.Reader{Client: s.cl, Topic: topic, Each: func(r *kgo.Record) error {
			offset = r.Offset
			return enough
		}}
		if err := r.ToEnd(patient(t)); !errors.Is(err, enough) {
			t.Fatal(err)
		}
		return offset
	}
	if err := s.Save(patient(t), "gone/1", pad); err != nil {
		t.Fatal(err)
	}
	if err := s.Save(patient(t), "gone/1", nil); err != nil {
		t.Fatal(err)
	}
	cl := k.Client(t, kgo.DefaultProduceTopic(topic), kgo.ProducerBatchCompression(kgo.NoCompression()))
	for range 30 { // three segments
		if err := cl.ProduceSync(patient(t), &kgo.Record{Key: []byte("other/1"), Value: pad}).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 4*patience) // the cleaner of a busy machine takes its time
	defer cancel()
	for pause := kafka.Backoff(0); first() == 0; {
		if !pause.Sleep(ctx) {
			t.Fatal("the topic is not compacted")
		}
	}
	for _, name := range []string{"gone", "new", "other"} {
		if _, err := s.Load(patient(t), name); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Records that are deleted from the front, as retention and kafka-delete-records.sh do, are noticed by a new start and by one that goes on.
func TestRealRecordsThatWereDeletedAreMissed(t *testing.T) {
	k := testenv.Kafka(t)
	topic := k.Topic(t, 1, map[string]string{"cleanup.policy": "compact,delete"})
	s := kafkaStore(t, k.Brokers(), topic)
	for _, key := range []string{"n/1", "other/1"} {
		if err := s.Save(patient(t), key, []byte("x")); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := s.Load(patient(t), "n"); err != nil || len(got) != 1 {
		t.Fatal(got, err)
	}
	deleteRecords(t, s.cl, topic, 1)
	for what, s := range map[string]*KafkaStore{"the same": s, "another": kafkaStore(t, k.Brokers(), topic)} {
		var lost *LostRecords
		if got, err := s.Load(patient(t), "n"); !errors.As(err, &lost) || *lost != (LostRecords{Topic: topic, Name: "n", Start: 1}) {
			t.Errorf("%s process: %v, %v", what, got, err)
		}
		if got, err := s.Load(patient(t), "other"); err != nil || len(got) != 1 {
			t.Errorf("%s process, the other relay: %v, %v", what, got, err)
		}
	}
}

// A topic that the store makes is compacted while it is written.
func TestRealACheckpointTopicStaysSmall(t *testing.T) {
	k := testenv.Kafka(t)
	topic := k.Topic(t, 1, nil) + ".checkpoints"
	s := kafkaStore(t, k.Brokers(), topic)
	if _, err := s.Load(patient(t), "n"); err != nil {
		t.Fatal(err)
	}
	is, err := kafka.DescribeTopic(patient(t), s.cl, topic, slices.Collect(maps.Keys(CheckpointTopic))...)
	if err != nil || !maps.Equal(is.Settings, CheckpointTopic) {
		t.Errorf("created with %+v, %v", is, err)
	}
	deleteTopic(t, s.cl, topic)
}
