//go:build linux || darwin

package sink

import (
	"maps"
	"slices"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/walpost/walpost/internal/testenv"
)

// A topic that the store makes is compacted while it is written.
func TestRealACheckpointTopicStaysSmall(t *testing.T) {
	k := testenv.Kafka(t)
	topic := k.Topic(t, 1, nil) + ".checkpoints"
	s := kafkaStore(t, k.Brokers(), topic)
	if _, err := s.Load(patient(t), "n"); err != nil {
		t.Fatal(err)
	}
	kv, err := configsOf(patient(t), s.cl, kmsg.ConfigResourceTypeTopic, topic, slices.Collect(maps.Keys(compactedSoon))...)
	if err != nil || !maps.Equal(kv, compactedSoon) {
		t.Errorf("created with %v, %v", kv, err)
	}
	hasNot(t, looked(t, config(k.Brokers()), nil, topic), "warn: segment", "warn: min")
	deleteTopic(t, s.cl, topic)
}
