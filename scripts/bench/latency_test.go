//go:build linux

package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/walpost/walpost/internal/shop"
	"github.com/walpost/walpost/internal/testenv"
)

// A relay runs, and single rows are written at each rate. The time to the acknowledgement is from
// the relay's histogram. The time to a consumer starts at the statement's clock just before the
// commit.
func BenchmarkLatency(b *testing.B) {
	e := start(b, testenv.Param("autovacuum", "off"))
	for text := range strings.SplitSeq(*rates, ",") {
		rate, err := strconv.Atoi(text)
		check(b, err)
		for i, path := range e.builds {
			b.Run(fmt.Sprintf("rate=%d/reader=%s", rate, e.name(i)), func(b *testing.B) {
				for b.Loop() {
					e.latency(b, path, rate)
				}
			})
		}
	}
}

func (e *env) latency(b *testing.B, path string, rate int) {
	slot := e.slot(b, "")
	topic, prefix := e.topic(b)
	p := e.readyRelay(b, path, slot, prefix)
	before := load(b)
	const warmUp = 2 // seconds
	rows := rate * *seconds
	arrive, stop := e.consume(b, topic, rate*warmUp+rows)
	defer stop()
	e.pace(b, rate, warmUp)
	arrive(rate * warmUp)
	earlier := histogram(b, p.out.Page())
	began, cpu := time.Now(), processorTime(p.cmd.Process.Pid)
	e.pace(b, rate, *seconds)
	took := time.Since(began).Seconds()
	cpu = processorTime(p.cmd.Process.Pid) - cpu
	consumed := arrive(rows)
	time.Sleep(300 * time.Millisecond) // the histogram is published several times a second
	after := histogram(b, p.out.Page())
	for i := range after {
		after[i].count -= earlier[i].count
	}
	for _, q := range []float64{.5, .9, .99} {
		b.ReportMetric(quantile(after, q)*1e3, fmt.Sprintf("acked-ms-p%.0f", q*100))
	}
	reportConsumed(b, consumed, .5, .9, .99)
	b.ReportMetric(float64(rows)/took, "written/s")
	b.ReportMetric(100*cpu/took, "CPU-%")
	b.ReportMetric(before, "load")
	b.ReportMetric(0, "ns/op") // it has the preparations in it
	p.stop(b)
	e.drop(b, slot)
}

// consume follows a topic for at most so many rows. arrive waits for the next n rows, and returns their ages in milliseconds.
func (e *env) consume(b *testing.B, topic string, most int) (arrive func(n int) []float64, stop func()) {
	ages := make(chan time.Duration, most)
	ctx, cancel := context.WithCancel(b.Context())
	var consumer sync.WaitGroup
	consumer.Go(func() {
		err := shop.Follow(ctx, e.kafka.Brokers(), []string{topic}, func(r *kgo.Record) {
			now := time.Now().UnixMicro()
			var row struct{ At int64 }
			if err := json.Unmarshal(r.Value, &row); err != nil {
				b.Error(err)
			}
			ages <- time.Duration(now-row.At) * time.Microsecond
		})
		if err != nil {
			b.Error(err)
		}
	})
	arrive = func(n int) (got []float64) {
		for range n {
			select {
			case age := <-ages:
				got = append(got, float64(age.Microseconds())/1e3)
			case <-time.After(time.Minute):
				b.Fatalf("the consumer got %d of %d rows", len(got), n)
			}
		}
		return got
	}
	return arrive, func() { cancel(); consumer.Wait() }
}

// reportConsumed reports quantiles of the time to a consumer, in milliseconds.
func reportConsumed(b *testing.B, ages []float64, quantiles ...float64) {
	slices.Sort(ages)
	for _, q := range quantiles {
		b.ReportMetric(ages[min(len(ages)-1, int(q*float64(len(ages))))], fmt.Sprintf("consumed-ms-p%.0f", q*100))
	}
}

// pace writes rows evenly over some seconds. A slow machine takes longer.
func (e *env) pace(b *testing.B, rate, seconds int) {
	const writers = 4
	var conns [writers]*pgx.Conn
	for i := range conns {
		conns[i] = testenv.Conn(b, e.dsn)
		defer conns[i].Close(context.Background()) //nolint:errcheck // nothing depends on it
	}
	first, began := e.seq, time.Now()
	e.seq += rate * seconds
	var wg sync.WaitGroup
	for i, c := range conns {
		wg.Go(func() {
			for n := i; n < rate*seconds; n += writers {
				time.Sleep(time.Until(began.Add(time.Duration(n) * time.Second / time.Duration(rate))))
				if _, err := c.Exec(b.Context(), `INSERT INTO outbox VALUES (md5($1::bigint::text)::uuid, 'bench', 'key-' || $1::bigint % 1000, 'Written',
 jsonb_build_object('seq', $1::bigint, 'pad', repeat(md5($1::bigint::text), 8), 'at', (extract(epoch FROM clock_timestamp()) * 1000000)::bigint))`, first+n+1); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
}

// A bucket counts the values at or below its bound, in seconds.
type bucket struct{ bound, count float64 }

// histogram reads the histogram of walpost's latency from its metrics.
func histogram(b *testing.B, page string) (all []bucket) {
	resp, err := http.Get(page + "/metrics")
	check(b, err)
	defer resp.Body.Close() //nolint:errcheck // it is read
	text, err := io.ReadAll(resp.Body)
	check(b, err)
	for line := range strings.Lines(string(text)) {
		var k bucket
		if n, _ := fmt.Sscanf(line, `walpost_commit_to_ack_seconds_bucket{le="%g"} %g`, &k.bound, &k.count); n == 2 {
			all = append(all, k)
		}
	}
	if len(all) == 0 {
		b.Fatal("the metrics have no histogram")
	}
	return all
}

// quantile is Prometheus' histogram_quantile, which spreads the values evenly within a bucket.
func quantile(all []bucket, q float64) float64 {
	rank := q * all[len(all)-1].count
	i := slices.IndexFunc(all, func(k bucket) bool { return k.count >= rank })
	below := bucket{}
	if i > 0 {
		below = all[i-1]
	}
	if all[i].count == below.count {
		return all[i].bound
	}
	return below.bound + (all[i].bound-below.bound)*(rank-below.count)/(all[i].count-below.count)
}
