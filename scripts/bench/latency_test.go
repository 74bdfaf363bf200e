//go:build linux

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"regexp"
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

// A follower is a way to follow the table while rows are written. start starts it and returns its
// process (nil if it has none of its own), how to wait for the ages of the next n rows in milliseconds, and how to end it.
type follower struct {
	name  string
	start func(b *testing.B, slot string, most int) (p *process, arrive func(n int) []float64, stop func())
}

// A reader runs, and single rows are written at each rate. The time to a consumer starts at the
// statement's clock just before the commit. The consumer of pg_recvlogical is a pipe, without Kafka, and direct has no relay: the
// writers produce each row after its commit.
// The time to the acknowledgement is from the histogram of walpost.
func BenchmarkLatency(b *testing.B) {
	e := start(b, testenv.Param("autovacuum", "off"))
	var all []follower
	for i, path := range e.builds {
		for _, v := range variants() {
			as := e.as(v)
			all = append(all, follower{e.name(i) + v.name, e.following(func(b *testing.B, slot, prefix string) *process { return as.readyRelay(b, path, slot, prefix) }, (*process).stop)})
		}
	}
	if path := findRecvlogical(b); path != "" && measures("pg_recvlogical") {
		all = append(all, follower{"pg_recvlogical", e.pipe(path)})
	}
	if measures("direct") {
		all = append(all, follower{"direct", e.direct})
	}
	for _, name := range []string{"debezium", "debezium-tuned"} {
		if measures(name) {
			all = append(all, follower{name, e.following(func(b *testing.B, slot, prefix string) *process { return e.connector(b, slot, prefix, tunings[name]) }, (*process).end)})
		}
	}
	if !*cold {
		e.latency(b, follower{"direct", e.direct}, 3000)
	}
	for text := range strings.SplitSeq(*rates, ",") {
		rate, err := strconv.Atoi(text)
		check(b, err)
		for round := range *rounds {
			for i := range all {
				f := all[(round+i)%len(all)] // a different reader is first in each round
				b.Run(fmt.Sprintf("rate=%d/round=%d/reader=%s", rate, round+1, f.name), func(b *testing.B) {
					for b.Loop() {
						report(b, result{"Latency", text, f.name, round + 1, e.latency(b, f, rate)})
					}
				})
			}
		}
	}
}

// latency writes rows at a rate, and returns the figures of a reader by their units.
func (e *env) latency(b *testing.B, f follower, rate int) map[string]float64 {
	slot := e.slot(b, "")
	figures := map[string]float64{"load": load(b)}
	rows := rate * *seconds
	p, arrive, stop := f.start(b, slot, rate**warmUp+rows)
	e.pace(b, rate, *warmUp)
	arrive(rate * *warmUp)
	earlier := histogram(b, p)
	began, cpu := time.Now(), p.processorTimeSoFar()
	e.pace(b, rate, *seconds)
	took := time.Since(began).Seconds()
	cpu = p.processorTimeSoFar() - cpu
	consumed := arrive(rows)
	time.Sleep(300 * time.Millisecond) // the histogram is published several times a second
	after := histogram(b, p)
	for i := range after {
		after[i].count -= earlier[i].count
	}
	for _, q := range []float64{.5, .9, .99} {
		if len(after) > 0 {
			figures["acked-ms-"+quantileName(q)] = quantile(after, q) * 1e3
		}
	}
	slices.Sort(consumed)
	for _, q := range []float64{.5, .9, .99, .999, 1} {
		figures["consumed-ms-"+quantileName(q)] = at(consumed, q)
	}
	figures["written/s"] = float64(rows) / took
	stop()
	if p != nil {
		figures["CPU-%"], figures["peak-MB"] = 100*cpu/took, p.peak
	}
	e.drop(b, slot)
	return figures
}

// following starts a relay into a topic of its own, and a consumer of this topic.
func (e *env) following(relay func(b *testing.B, slot, prefix string) *process, end func(*process, *testing.B)) func(*testing.B, string, int) (*process, func(int) []float64, func()) {
	return func(b *testing.B, slot string, most int) (*process, func(int) []float64, func()) {
		topic, prefix := e.topic(b)
		p := relay(b, slot, prefix)
		arrive, stop := e.consume(b, topic, most)
		return p, arrive, func() { stop(); end(p, b) }
	}
}

// direct has the writers produce each row after its commit: what an outbox replaces, and as fast as it can be.
func (e *env) direct(b *testing.B, _ string, most int) (*process, func(int) []float64, func()) {
	topic, _ := e.topic(b)
	client, err := kgo.NewClient(kgo.SeedBrokers(e.kafka.Brokers()...), kgo.DefaultProduceTopic(topic), kgo.ProducerLinger(0))
	check(b, err)
	e.committed = func(payload string) {
		client.Produce(b.Context(), &kgo.Record{Value: []byte(payload)}, func(_ *kgo.Record, err error) {
			if err != nil {
				b.Error(err)
			}
		})
	}
	arrive, stop := e.consume(b, topic, most)
	return nil, arrive, func() { stop(); e.committed = nil; client.Close() }
}

// written matches the clock in the payload of a row.
var written = regexp.MustCompile(`"at": (\d+),`)

// pipe starts pg_recvlogical, which writes into a pipe.
func (e *env) pipe(path string) func(*testing.B, string, int) (*process, func(int) []float64, func()) {
	return func(b *testing.B, slot string, most int) (*process, func(int) []float64, func()) {
		out, in, err := os.Pipe()
		check(b, err)
		p := launchTo(b, in, path, "--dbname", e.dsn, "--slot", slot, "--start", "--no-loop", "--file", "-",
			"-o", "proto_version=1", "-o", "publication_names=bench")
		check(b, in.Close())
		ages := make(chan time.Duration, most)
		go func() {
			var rest []byte
			chunk := make([]byte, 1<<16)
			for {
				n, err := out.Read(chunk)
				if err != nil { // the program has ended
					return
				}
				now := time.Now().UnixMicro()
				rest = append(rest, chunk[:n]...)
				end := 0
				for _, at := range written.FindAllSubmatchIndex(rest, -1) {
					micros, _ := strconv.ParseInt(string(rest[at[2]:at[3]]), 10, 64) // it has digits only
					ages <- time.Duration(now-micros) * time.Microsecond
					end = at[1]
				}
				rest = append(rest[:0], rest[end:]...)
			}
		}()
		return p, func(n int) []float64 { return take(b, ages, n) }, func() { p.end(b); check(b, out.Close()) }
	}
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
	return func(n int) []float64 { return take(b, ages, n) }, func() { cancel(); consumer.Wait() }
}

// take waits for the ages of the next n rows, and returns them in milliseconds.
func take(b *testing.B, ages <-chan time.Duration, n int) (got []float64) {
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

// reportConsumed reports quantiles of the time to a consumer, in milliseconds.
func reportConsumed(b *testing.B, ages []float64, quantiles ...float64) {
	slices.Sort(ages)
	for _, q := range quantiles {
		b.ReportMetric(at(ages, q), "consumed-ms-"+quantileName(q))
	}
}

// at is a quantile of sorted values.
func at(sorted []float64, q float64) float64 {
	return sorted[min(len(sorted)-1, int(q*float64(len(sorted))))]
}

// quantileName is p50, p99, p999 or max.
func quantileName(q float64) string {
	if q == 1 {
		return "max"
	}
	return "p" + strings.ReplaceAll(strconv.FormatFloat(q*100, 'f', -1, 64), ".", "")
}

// pace writes rows evenly over some seconds, one per transaction, or ten above 3,000 per second. A slow machine takes longer.
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
	each := 1
	if rate > 3000 {
		each = 10
	}
	insert := `INSERT INTO outbox SELECT md5(n::text)::uuid, 'bench', 'key-' || n % 1000, 'Written',
 jsonb_build_object('seq', n, 'pad', repeat(md5(n::text), 8), 'at', (extract(epoch FROM clock_timestamp()) * 1000000)::bigint)
 FROM generate_series($1::bigint, $2::bigint) n`
	if e.committed != nil {
		insert += " RETURNING payload::text"
	}
	for i, c := range conns {
		wg.Go(func() {
			for n := i * each; n < rate*seconds; n += writers * each {
				time.Sleep(time.Until(began.Add(time.Duration(n) * time.Second / time.Duration(rate))))
				rows, err := c.Query(b.Context(), insert, first+n+1, first+min(n+each, rate*seconds))
				var payloads []string
				if err == nil {
					payloads, err = pgx.CollectRows(rows, pgx.RowTo[string])
				}
				if err != nil {
					b.Error(err)
					return
				}
				for _, p := range payloads {
					e.committed(p)
				}
			}
		})
	}
	wg.Wait()
}

// A bucket counts the values at or below its bound, in seconds.
type bucket struct{ bound, count float64 }

// histogram reads the histogram of walpost's latency from its metrics.
func histogram(b *testing.B, p *process) (all []bucket) {
	if p == nil || p.out.Page() == "" { // the program is not walpost
		return nil
	}
	resp, err := http.Get(p.out.Page() + "/metrics")
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
