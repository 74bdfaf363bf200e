//go:build linux || darwin

package deadletters_test

import (
	"context"
	"log/slog"
	"strconv"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/walpost/walpost"
	"github.com/walpost/walpost/inbox"
	"github.com/walpost/walpost/inbox/consumer"
	"github.com/walpost/walpost/internal/testenv"
)

// How many dead letters of 1 KiB each second a consumer writes, and how many walpost dead reads, retries and drops.
func BenchmarkDeadLetters(b *testing.B) {
	const letters = 5000
	k := testenv.Kafka(b)
	topic, dead := k.Topic(b, 4, nil), k.Topic(b, 1, nil)
	cl := k.Client(b, kgo.DefaultProduceTopic(topic))
	value := testenv.Incompressible(1 << 10)
	for n := range letters {
		id := []byte(strconv.Itoa(n))
		cl.Produce(b.Context(), &kgo.Record{Key: id, Value: value, Headers: []kgo.RecordHeader{{Key: "id", Value: id}}}, nil)
	}
	if err := cl.Flush(b.Context()); err != nil {
		b.Fatal(err)
	}
	c, err := consumer.New(consumer.Config{
		Brokers: k.Brokers(), Group: topic, Topics: []string{topic}, DeadLetterTopic: dead, Logger: slog.New(slog.DiscardHandler),
		Handler: func(context.Context, inbox.Message) error { return inbox.Permanent(errBroken) },
	})
	if err != nil {
		b.Fatal(err)
	}
	ctx, stop := context.WithCancel(b.Context())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	for c.Stats().Dead == 0 {
		time.Sleep(time.Millisecond)
	}
	begin, before := time.Now(), c.Stats().Dead
	for c.Stats().Dead < letters {
		time.Sleep(time.Millisecond)
	}
	b.ReportMetric(float64(letters-before)/time.Since(begin).Seconds(), "written/s")
	stop()
	if err := <-done; err != nil {
		b.Fatal(err)
	}

	cfg := walpost.DefaultConfig()
	cfg.Kafka.Brokers = k.Brokers()
	begin = time.Now()
	topics, err := walpost.OpenConsumed(b.Context(), cfg, dead, "", func(string) {}, func(string, int64, int64) {})
	if err != nil {
		b.Fatal(err)
	}
	defer topics.Close()
	b.ReportMetric(letters/time.Since(begin).Seconds(), "listed/s")
	found, err := topics.Select(&walpost.BadEventFilter{})
	if err != nil || len(found) != letters {
		b.Fatal(len(found), err)
	}
	half := found[:letters/2]
	begin = time.Now()
	if r, err := topics.Retry(b.Context(), half, walpost.RetryOptions{}); err != nil || r.Delivered != len(half) {
		b.Fatal(r, err)
	}
	b.ReportMetric(float64(len(half))/time.Since(begin).Seconds(), "retried/s")
	half = found[letters/2:]
	begin = time.Now()
	if n, err := topics.Drop(b.Context(), half, "a test"); err != nil || n != len(half) {
		b.Fatal(n, err)
	}
	b.ReportMetric(float64(len(half))/time.Since(begin).Seconds(), "dropped/s")
}
