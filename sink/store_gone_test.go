//go:build linux || darwin

package sink

import (
	"context"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/internal/testenv"
)

// A checkpoint topic that somebody deletes under a running relay is made again, and takes checkpoints again.
func TestRealKafkaStoreOutlivesItsTopic(t *testing.T) {
	k := testenv.Kafka(t)
	topic := k.Topic(t, 1, map[string]string{"cleanup.policy": "compact"})
	s := kafkaStore(t, k.Brokers(), topic)
	if err := s.Save(patient(t), "n/1", []byte("x")); err != nil {
		t.Fatal(err)
	}
	cl, err := kgo.NewClient(kgo.SeedBrokers(k.Brokers()...))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	if _, err := kadm.NewClient(cl).DeleteTopics(t.Context(), topic); err != nil {
		t.Fatal(err)
	}
	short, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	if err := s.Save(short, "n/1", []byte("y")); err != nil && !fault.Retryable(err) {
		t.Fatal(err)
	}
	if err := s.Save(patient(t), "n/1", []byte("z")); err != nil {
		t.Fatal(err)
	}
	if got, err := s.Load(patient(t), "n"); err != nil || string(got["n/1"]) != "z" {
		t.Errorf("load: %v, %v", got, err)
	}
}
