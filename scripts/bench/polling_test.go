//go:build linux

package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/walpost/walpost/internal/testenv"
)

var pollRates = flag.String("polling", "0,200,1000", "events per second for the comparison of polling with the WAL; 0 is an idle table")

// A source is a way to read the table, with a database of its own that has what this way needs.
type source struct {
	env
	name string
	cols bool // the table has what polling needs
}

// BenchmarkPolling compares the WAL source with polling, by the time to a consumer and by the load of
// the server. "none" has the writers alone.
func BenchmarkPolling(b *testing.B) {
	e := start(b, testenv.Param("autovacuum", "off"))
	postmaster := e.pg.Value(b, e.dsn, "SELECT split_part(pg_read_file('postmaster.pid'), E'\\n', 1)")
	if len(children(postmaster)) == 0 {
		b.Fatalf("process %s has no children", postmaster)
	}
	const cursor = "strategy: cursor, xid_column: xid, interval: 200ms"
	all := []*source{{name: "none"}, {name: "wal"}, {name: "poll", cols: true}, {name: "poll+notify", cols: true}}
	for _, s := range all {
		s.env = *e
		if s.name != "none" && s.name != "wal" {
			s.poll = cursor
		}
		s.dsn = e.pg.Database(b)
		e.pg.Exec(b, s.dsn, schema)
		if s.cols {
			file := filepath.Join(e.dir, "setup.yaml")
			check(b, os.WriteFile(file, fmt.Appendf(nil, "source: {dsn: %q, table: public.outbox, kind: poll, order_column: n, poll: {%s}}\nrouter: {table.field.event.key: aggregateid, route.by.field: aggregatetype}\n", s.dsn, cursor), 0o600))
			launch(b, e.builds[0], "setup", "--apply", "--config", file).wait(b)
		}
		if s.name == "poll" {
			e.pg.Exec(b, s.dsn, "DO $$ BEGIN EXECUTE (SELECT 'DROP TRIGGER ' || quote_ident(tgname) || ' ON outbox' FROM pg_trigger WHERE tgrelid = 'outbox'::regclass AND NOT tgisinternal); END $$")
		}
	}
	for round := range *rounds {
		for text := range strings.SplitSeq(*pollRates, ",") {
			rate, err := strconv.Atoi(text)
			check(b, err)
			for i := range all {
				s := all[(round+i)%len(all)]
				b.Run(fmt.Sprintf("round=%d/rate=%d/source=%s", round+1, rate, s.name), func(b *testing.B) {
					for b.Loop() {
						s.measure(b, postmaster, rate)
					}
				})
			}
		}
	}
}

// measure measures one source at one rate.
func (s *source) measure(b *testing.B, postmaster string, rate int) {
	topic, prefix := s.topic(b)
	arrive, stop := s.consume(b, topic, rate*(*warmUp+*seconds))
	defer stop()
	var relay *process
	slot := ""
	if s.name == "none" {
		arrive = func(int) []float64 { return nil }
	} else {
		if s.poll != "" {
			slot = unique()
		} else {
			slot = s.slot(b, "")
		}
		relay = s.readyRelay(b, s.builds[0], slot, prefix)
	}
	work := func(seconds int) {
		began := time.Now()
		s.pace(b, rate, seconds)
		time.Sleep(time.Until(began.Add(time.Duration(seconds) * time.Second)))
	}
	work(*warmUp)
	arrive(rate * *warmUp)
	before, began := s.counts(b), time.Now()
	server := newMeter(b.Context(), func() []string { return children(postmaster) })
	own := newMeter(b.Context(), func() []string {
		if relay == nil {
			return nil
		}
		return []string{strconv.Itoa(relay.cmd.Process.Pid)}
	})
	work(*seconds)
	ages := arrive(rate * *seconds)
	took := time.Since(began).Seconds()
	b.ReportMetric(100*server.seconds()/took, "server-CPU-%")
	b.ReportMetric(100*own.seconds()/took, "relay-CPU-%")
	if len(ages) > 0 {
		reportConsumed(b, ages, .5, .99)
	}
	after := s.counts(b)
	b.ReportMetric((after[0]-before[0])/took, "tx/s")
	b.ReportMetric((after[1]-before[1])/took, "outbox-rows/s")
	b.ReportMetric(load(b), "load")
	b.ReportMetric(0, "ns/op") // it has the preparations in it
	if relay != nil {
		relay.stop(b)
		if s.poll == "" {
			s.drop(b, slot)
		}
	}
}

// counts are the transactions of the database and the rows that scans of the outbox have read. Processes report them once a second.
func (s *source) counts(b *testing.B) (n [2]float64) {
	time.Sleep(1500 * time.Millisecond)
	text := s.pg.Value(b, s.dsn, `SELECT xact_commit + xact_rollback || ' ' || (SELECT seq_tup_read + coalesce(idx_tup_fetch, 0) FROM pg_stat_user_tables WHERE relname = 'outbox')
 FROM pg_stat_database WHERE datname = current_database()`)
	_, err := fmt.Sscan(text, &n[0], &n[1])
	check(b, err, text)
	return n
}

// A meter adds up the time that processes ran, by the scheduler's clock: ticks of a hundredth of a second miss work that sleeps and wakes with
// them. It looks ten times a second, so it misses little of a process that ends.
type meter struct {
	pids       func() []string
	ran, began map[string]float64 // of each thread, in seconds
	stop       func()
}

// newMeter measures the processes that pids returns, which may change.
func newMeter(ctx context.Context, pids func() []string) *meter {
	m := &meter{pids: pids, ran: map[string]float64{}, began: map[string]float64{}}
	m.look()
	for thread, ran := range m.ran {
		m.began[thread] = ran
	}
	ctx, cancel := context.WithCancel(ctx)
	var done sync.WaitGroup
	done.Go(func() {
		for ctx.Err() == nil {
			time.Sleep(100 * time.Millisecond)
			m.look()
		}
	})
	m.stop = func() { cancel(); done.Wait() }
	return m
}

func (m *meter) look() {
	for _, pid := range m.pids() {
		threads, _ := filepath.Glob("/proc/" + pid + "/task/*/schedstat")
		for _, thread := range threads {
			text, _ := os.ReadFile(thread) // it may have ended
			var ns float64
			if n, _ := fmt.Sscan(string(text), &ns); n == 1 {
				m.ran[thread] = ns / 1e9
			}
		}
	}
}

// seconds stops the meter, and returns how long the processes ran.
func (m *meter) seconds() (sum float64) {
	m.stop()
	for thread, ran := range m.ran {
		sum += ran - m.began[thread]
	}
	return sum
}

// children are the processes of a server.
func children(postmaster string) []string {
	text, _ := os.ReadFile("/proc/" + postmaster + "/task/" + postmaster + "/children") // the server runs as long as the benchmark
	return strings.Fields(string(text))
}
