//go:build linux || darwin

package statelog

import (
	"context"
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
	w := &world{brokers: k.Brokers(), topic: topic}
	s := w.store(t)
	pad := []byte(strings.Repeat("x", 100_000))
	first := func() (offset int64) {
		if _, err := s.log.Read(patient(t), 0, func(r *kgo.Record) bool { offset = r.Offset; return false }); err != nil {
			t.Fatal(err)
		}
		return offset
	}
	save(t, s, "gone/1", string(pad))
	save(t, s, "gone/1", "")
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
