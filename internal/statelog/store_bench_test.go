//go:build linux || darwin

package statelog

import (
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/walpost/walpost/internal/testenv"
)

// fillCheckpoints makes a topic with n checkpoints of 100 relays, none of them compacted yet.
func fillCheckpoints(t testing.TB, k *testenv.KafkaCluster, n int) (topic string) {
	t.Helper()
	topic = k.Topic(t, 1, map[string]string{"cleanup.policy": "compact"})
	cl := k.Client(t, kgo.DefaultProduceTopic(topic), kgo.ProducerBatchCompression(kgo.NoCompression())) // as a Save does
	value := strings.Repeat("x", 400)
	for i := range n {
		r := &kgo.Record{Key: fmt.Appendf(nil, "relay%d/1", i%100), Value: fmt.Append(nil, i, " ", value)}
		cl.Produce(t.Context(), r, func(_ *kgo.Record, err error) {
			if err != nil {
				t.Error(err)
			}
		})
	}
	if err := cl.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	return topic
}

// peakOf returns by how much the live heap grew at most while work ran, and how much of that is left.
func peakOf(work func()) (peak, left int) {
	live := func() int {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return int(m.HeapAlloc)
	}
	before := live()
	var wg sync.WaitGroup
	done := make(chan struct{})
	wg.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
				peak = max(peak, live()-before)
			}
		}
	})
	work()
	close(done)
	wg.Wait()
	return peak, live() - before
}

// A Load of 100,000 checkpoints takes no more memory than one of ten thousand. A single byte slice kept of
// each record takes more than the limit.
func TestRealALoadTakesTheSameMemoryForAnyNumberOfRecords(t *testing.T) {
	k := testenv.Kafka(t)
	peaks := map[int]int{}
	for _, n := range []int{10_000, 100_000} {
		topic := fillCheckpoints(t, k, n)
		w := &world{brokers: k.Brokers(), topic: topic}
		s := w.store(t)
		var left int
		peaks[n], left = peakOf(func() {
			got, err := s.Load(t.Context(), "relay7")
			if want := fmt.Sprint(n-93, " "); err != nil || !strings.HasPrefix(string(got["relay7/1"]), want) {
				t.Errorf("load: %.10s, %v; want %s", got["relay7/1"], err, want)
			}
		})
		t.Logf("%d records: %.1f MiB more at the peak, %.1f MiB afterwards", n, float64(peaks[n])/(1<<20), float64(left)/(1<<20))
	}
	if more := peaks[100_000] - peaks[10_000]; more > 8<<20 {
		t.Errorf("100,000 records take %d bytes more than ten thousand", more)
	}
}

// BenchmarkRealLoad reads a checkpoint topic that was never compacted.
func BenchmarkRealLoad(b *testing.B) {
	k := testenv.Kafka(b)
	for _, n := range []int{10_000, 100_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			topic := fillCheckpoints(b, k, n)
			peak := 0
			for b.Loop() {
				w := &world{brokers: k.Brokers(), topic: topic}
				s := w.store(b)
				p, _ := peakOf(func() {
					if _, err := s.Load(b.Context(), "relay7"); err != nil {
						b.Fatal(err)
					}
				})
				peak = max(peak, p)
			}
			b.ReportMetric(float64(peak)/(1<<20), "peak-MiB")
			b.ReportMetric(float64(n)*float64(b.N)/b.Elapsed().Seconds(), "records/s")
		})
	}
}
