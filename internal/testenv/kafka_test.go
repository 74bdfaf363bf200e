//go:build linux || darwin

package testenv

import (
	"context"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

func deadline(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func roundTrip(t *testing.T, c *KafkaCluster, topic string) {
	t.Helper()
	ctx := deadline(t)
	cl := c.Client(t, kgo.ConsumeTopics(topic))
	if err := cl.ProduceSync(ctx, &kgo.Record{Topic: topic, Key: []byte("k"), Value: []byte("v")}).FirstErr(); err != nil {
		t.Fatal(err)
	}
	f := cl.PollFetches(ctx)
	if err := f.Err(); err != nil {
		t.Fatal(err)
	}
	if r := f.Records()[0]; string(r.Key) != "k" || string(r.Value) != "v" {
		t.Errorf("got %s=%s, want k=v", r.Key, r.Value)
	}
}

func TestARecordGoesIntoKafkaAndOut(t *testing.T) {
	c := Kafka(t)
	roundTrip(t, c, c.Topic(t, 3, map[string]string{"max.message.bytes": "2000"}))
}
