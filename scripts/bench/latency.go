//go:build linux

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kgo"
)

const (
	writers = 4
	warmUp  = 2 // seconds
)

// latency runs a relay and writes single rows at each rate. It shows the time to the acknowledgement, from the relay's histogram,
// and the time to a consumer, which starts at the statement's clock just before the commit.
func (e *env) latency(ctx context.Context, path string, rates []int, seconds int) (err error) {
	slot, err := e.slot(ctx)
	if err != nil {
		return err
	}
	topic, prefix := e.topic()
	proc, err := e.readyRelay(ctx, path, slot, prefix)
	if err != nil {
		return err
	}
	defer proc.kill()
	var seq int64
	if err := e.sql(ctx, func(c *pgx.Conn) error { return c.QueryRow(ctx, "SELECT count(*) FROM outbox").Scan(&seq) }); err != nil {
		return err
	}
	f, err := follow(ctx, e.kafka.Brokers(), topic, seq)
	if err != nil {
		return err
	}
	defer f.stop()

	fmt.Printf("\nLatency of single rows from commit on, in ms, %s, %d s for each rate\n", path, seconds)
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "rate\twritten\tacknowledged p50\tp90\tp99\tconsumed p50\tp90\tp99\tCPU %\tload\t")
	for _, rate := range rates {
		load, err := e.load(ctx)
		if err != nil {
			return err
		}
		if seq, err = e.pace(ctx, seq, rate, warmUp); err != nil {
			return err
		}
		if err := f.reach(ctx, seq); err != nil {
			return err
		}
		f.reset()
		before, err := histogram(proc.page())
		if err != nil {
			return err
		}
		began, cpu, first := time.Now(), processorTime(proc.cmd.Process.Pid), seq
		if seq, err = e.pace(ctx, seq, rate, seconds); err != nil {
			return err
		}
		took := time.Since(began)
		cpu = processorTime(proc.cmd.Process.Pid) - cpu
		if err := f.reach(ctx, seq); err != nil {
			return err
		}
		time.Sleep(300 * time.Millisecond) // the histogram is published several times a second
		after, err := histogram(proc.page())
		if err != nil {
			return err
		}
		for i := range after {
			after[i].count -= before[i].count
		}
		got := f.sorted()
		at := func(q float64) float64 { return got[min(len(got)-1, int(q*float64(len(got))))].Seconds() * 1e3 }
		fmt.Fprintf(w, "%d/s\t%.0f/s\t%.2f\t%.2f\t%.2f\t%.2f\t%.2f\t%.2f\t%.0f\t%s\t\n", rate, float64(seq-first)/took.Seconds(),
			quantile(after, .5)*1e3, quantile(after, .9)*1e3, quantile(after, .99)*1e3, at(.5), at(.9), at(.99),
			100*cpu.Seconds()/took.Seconds(), load)
	}
	_ = w.Flush() // standard output
	if err := proc.stop(); err != nil {
		return err
	}
	return e.drop(ctx, slot)
}

// pace writes rows after seq, evenly over some seconds, and returns the number of the last row. A slow machine takes longer.
func (e *env) pace(ctx context.Context, seq int64, rate, seconds int) (int64, error) {
	total := rate * seconds
	var wg sync.WaitGroup
	failed := make([]error, writers)
	conns := make([]*pgx.Conn, writers)
	for i := range conns {
		c, err := pgx.Connect(ctx, e.dsn)
		if err != nil {
			return seq, err
		}
		defer c.Close(context.WithoutCancel(ctx)) //nolint:errcheck // nothing depends on it
		conns[i] = c
	}
	began := time.Now()
	for i, c := range conns {
		wg.Go(func() {
			for n := i; n < total && failed[i] == nil; n += writers {
				time.Sleep(time.Until(began.Add(time.Duration(n) * time.Second / time.Duration(rate))))
				_, failed[i] = c.Exec(ctx, `INSERT INTO outbox VALUES (md5($1::bigint::text)::uuid, 'bench', 'key-' || $1::bigint % 1000, 'Written',
 jsonb_build_object('seq', $1::bigint, 'pad', repeat(md5($1::bigint::text), 8), 'at', (extract(epoch FROM clock_timestamp()) * 1000000)::bigint))`, seq+int64(n)+1)
			}
		})
	}
	wg.Wait()
	return seq + int64(total), errors.Join(failed...)
}

// A follower is a consumer that records the age of each record on arrival.
type follower struct {
	cl   *kgo.Client
	done chan struct{}

	mu   sync.Mutex
	ages []time.Duration
	last int64 // the row's number, if none is missing
}

func follow(ctx context.Context, brokers []string, topic string, last int64) (*follower, error) {
	cl, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if err != nil {
		return nil, err
	}
	f := &follower{cl: cl, done: make(chan struct{}), last: last}
	go func() {
		defer close(f.done)
		for {
			fetches := cl.PollFetches(ctx)
			if fetches.IsClientClosed() || ctx.Err() != nil {
				return
			}
			now := time.Now().UnixMicro()
			f.mu.Lock()
			fetches.EachRecord(func(r *kgo.Record) {
				var row struct{ At int64 }
				if json.Unmarshal(r.Value, &row) == nil {
					f.ages = append(f.ages, time.Duration(now-row.At)*time.Microsecond)
				}
				f.last++
			})
			f.mu.Unlock()
		}
	}()
	return f, nil
}

// reach waits until all rows up to seq have arrived.
func (f *follower) reach(ctx context.Context, seq int64) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		f.mu.Lock()
		arrived := f.last >= seq
		f.mu.Unlock()
		if arrived {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for the consumer: %w", ctx.Err())
		case <-time.After(5 * time.Millisecond):
		}
	}
}

func (f *follower) reset() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ages = f.ages[:0]
}

func (f *follower) sorted() []time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	got := slices.Clone(f.ages)
	slices.Sort(got)
	return got
}

func (f *follower) stop() {
	f.cl.Close()
	<-f.done
}

// A bucket counts the values at or below its bound, in seconds.
type bucket struct{ bound, count float64 }

// histogram reads the histogram of walpost's latency from its metrics.
func histogram(page string) ([]bucket, error) {
	resp, err := http.Get(page + "/metrics")
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close() //nolint:errcheck // it is read
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, err
	}
	var all []bucket
	for line := range strings.Lines(string(text)) {
		rest, ok := strings.CutPrefix(line, `walpost_commit_to_ack_seconds_bucket{le="`)
		bound, count, found := strings.Cut(rest, `"} `)
		if !ok || !found {
			continue
		}
		var b bucket
		if b.bound, err = strconv.ParseFloat(bound, 64); err != nil {
			return nil, err
		}
		if b.count, err = strconv.ParseFloat(strings.TrimSpace(count), 64); err != nil {
			return nil, err
		}
		all = append(all, b)
	}
	if len(all) == 0 {
		return nil, errors.New("the metrics have no histogram")
	}
	return all, nil
}

// quantile is Prometheus' histogram_quantile, which spreads the values evenly within a bucket.
func quantile(all []bucket, q float64) float64 {
	rank := q * all[len(all)-1].count
	below := bucket{}
	for _, b := range all {
		if b.count >= rank {
			if b.count == below.count {
				return b.bound
			}
			return below.bound + (b.bound-below.bound)*(rank-below.count)/(b.count-below.count)
		}
		below = b
	}
	return below.bound
}

// processorTime is the CPU time of a process, to a hundredth of a second.
func processorTime(pid int) time.Duration {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	_, rest, _ := strings.Cut(string(b), ") ") // behind the name
	f := strings.Fields(rest)
	if len(f) < 13 {
		return 0
	}
	user, _ := strconv.Atoi(f[11]) // the kernel wrote it
	system, _ := strconv.Atoi(f[12])
	return time.Duration(user+system) * time.Second / 100
}
