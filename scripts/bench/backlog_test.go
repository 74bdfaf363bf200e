//go:build linux

package bench

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/walpost/walpost/internal/ledger"
	"github.com/walpost/walpost/internal/shop"
	"github.com/walpost/walpost/internal/testenv"
)

// A backlog is a number of rows that were written while no reader ran.
type backlog struct {
	name, commit string
	rows         int
	first        int    // the number of its first row in the order of writing
	slot         string // at its beginning
	end          string // the LSN after its last row
}

// A reader reads a backlog from a slot. It returns the process after its end, and the time that it
// took.
type reader struct {
	name string
	read func(b *testing.B, g *backlog, slot string) (*process, time.Duration)
}

// The readers read each backlog in turn, each from its own slot on the same WAL.
func BenchmarkBacklog(b *testing.B) {
	e := start(b, testenv.Param("autovacuum", "off"))
	var readers []reader
	if path := findRecvlogical(b); path != "" {
		readers = append(readers, reader{"pg_recvlogical", e.recvlogical(path)})
	}
	for i, path := range e.builds {
		readers = append(readers, reader{e.name(i), e.walpost(path, "")}, reader{e.name(i) + "-bulk", e.walpost(path, ", bulk_catch_up: auto")})
	}
	if *withDebezium {
		readers = append(readers, reader{"debezium", e.debezium(b)})
	}
	for _, g := range []*backlog{
		{name: "transaction", rows: *rows},
		{name: "rows", rows: *txns, commit: "COMMIT;"},
		{name: "hundred", rows: *hundreds, commit: "IF n % 100 = 0 THEN COMMIT; END IF;"},
		{name: "busy", rows: *busy, commit: "INSERT INTO other SELECT repeat('x', 200) FROM generate_series(1, 10); COMMIT;"},
	} {
		if g.rows == 0 {
			continue
		}
		e.write(b, g)
		for round := range *rounds {
			for i := range readers {
				r := readers[(round+i)%len(readers)] // a different reader is first in each round
				b.Run(fmt.Sprintf("backlog=%s/round=%d/reader=%s", g.name, round+1, r.name), func(b *testing.B) { e.measure(b, g, r) })
			}
		}
	}
}

func (e *env) measure(b *testing.B, g *backlog, r reader) {
	before := load(b)
	postmaster := e.pg.Value(b, e.dsn, "SELECT split_part(pg_read_file('postmaster.pid'), E'\\n', 1)")
	var took time.Duration
	var cpu, server, peak float64
	passes := 0.0
	for b.Loop() {
		slot := e.slot(b, g.slot)
		m := newMeter(b.Context(), func() []string { return children(postmaster) })
		p, t := r.read(b, g, slot)
		server += m.seconds()
		e.drop(b, slot)
		took += t
		cpu += p.processorTime()
		peak = max(peak, p.peak)
		passes++
	}
	events := passes * float64(g.rows)
	b.ReportMetric(0, "ns/op") // it has the preparations in it
	b.ReportMetric(events/took.Seconds(), "events/s")
	b.ReportMetric(cpu/events*1e6, "CPU-s/Mevents")
	b.ReportMetric(server/events*1e6, "server-CPU-s/Mevents")
	b.ReportMetric(peak, "peak-MB")
	b.ReportMetric(before, "load")
}

// write makes a slot and writes the backlog.
func (e *env) write(b *testing.B, g *backlog) {
	g.slot = e.slot(b, "")
	conn := testenv.Conn(b, e.dsn)
	check(b, conn.QueryRow(b.Context(), "SELECT count(*) + 1 FROM outbox").Scan(&g.first))
	for _, sql := range []string{
		"SET synchronous_commit = off",
		fmt.Sprintf("DO $$ BEGIN FOR n IN %d..%d LOOP CALL put(n); %s END LOOP; END $$", g.first, g.first+g.rows-1, g.commit),
		"SET synchronous_commit = on",
		"CHECKPOINT", // also flushes the commits
	} {
		_, err := conn.Exec(b.Context(), sql, pgx.QueryExecModeSimpleProtocol)
		check(b, err)
	}
	check(b, conn.QueryRow(b.Context(), "SELECT pg_current_wal_flush_lsn()::text").Scan(&g.end))
}

// findRecvlogical returns the path of pg_recvlogical, or "" if it is not installed.
func findRecvlogical(b *testing.B) string {
	for _, path := range []string{*recvlogical, "/usr/lib/postgresql/" + *version + "/bin/pg_recvlogical", "pg_recvlogical"} {
		if found, err := exec.LookPath(path); path != "" && err == nil {
			return found
		}
	}
	b.Log("pg_recvlogical is not installed (Debian: postgresql-client or postgresql): the others run without it")
	return ""
}

// recvlogical is pg_recvlogical to /dev/null.
func (e *env) recvlogical(path string) func(*testing.B, *backlog, string) (*process, time.Duration) {
	return func(b *testing.B, g *backlog, slot string) (*process, time.Duration) {
		p := launch(b, path, "--dbname", e.dsn, "--slot", slot, "--start", "--no-loop", "--endpos", g.end,
			"--file", "/dev/null", "-o", "proto_version=1", "-o", "publication_names=bench")
		p.wait(b)
		return p, p.ended.Sub(p.began)
	}
}

// walpost is `walpost run` into Kafka. The time ends when the brokers have everything.
func (e *env) walpost(path, source string) func(*testing.B, *backlog, string) (*process, time.Duration) {
	return func(b *testing.B, g *backlog, slot string) (*process, time.Duration) {
		topic, prefix := e.topic(b)
		adm := kadm.NewClient(e.kafka.Client(b))
		e.source = source
		p := e.relay(b, path, slot, prefix)
		e.source = ""
		e.stored(b, g.rows, adm, topic, p)
		took := time.Since(p.began)
		p.stop(b)
		e.compare(b, g, topic)
		_, err := adm.DeleteTopic(b.Context(), topic)
		check(b, err)
		return p, took
	}
}

// transactions says that the relay uses transactions of Kafka, whose markers have offsets, too.
func transactions(b *testing.B) bool {
	if *sections == "" {
		return false
	}
	text, err := os.ReadFile(*sections)
	check(b, err)
	return strings.Contains(string(text), "exactly_once")
}

// stored waits until the brokers have n records. It fails the benchmark if the process ends.
func (e *env) stored(b *testing.B, n int, adm *kadm.Client, topic string, p *process) {
	if transactions(b) {
		for p.delivered(b) < float64(n) {
			p.sleep(b, 20*time.Millisecond)
		}
		return
	}
	for stored := int64(0); stored < int64(n); {
		p.sleep(b, 20*time.Millisecond)
		ends, err := adm.ListEndOffsets(b.Context(), topic)
		check(b, err)
		stored = 0
		ends.Each(func(o kadm.ListedOffset) { stored += o.Offset })
	}
}

// compare compares the topic with the backlog: each row has exactly one record with its id and key,
// there are no other records, and each key is in the order of writing on one partition.
func (e *env) compare(b *testing.B, g *backlog, topic string) {
	accounts := ledger.New()
	written, err := testenv.Conn(b, e.dsn).Query(b.Context(),
		"SELECT id::text, aggregateid, (payload->>'seq')::bigint FROM outbox WHERE (payload->>'seq')::bigint BETWEEN $1 AND $2", g.first, g.first+g.rows-1)
	check(b, err)
	var id, key string
	var seq int64
	keys := map[string]string{}
	_, err = pgx.ForEachRow(written, []any{&id, &key, &seq}, func() error {
		accounts.Commit(id, key, seq)
		keys[id] = key
		return nil
	})
	check(b, err)
	left := g.rows
	ctx, done := context.WithCancel(b.Context())
	defer done()
	check(b, shop.Follow(ctx, e.kafka.Brokers(), []string{topic}, func(r *kgo.Record) {
		entry := shop.Entry(r)
		accounts.Observe(entry)
		if entry.Key != keys[entry.ID] {
			b.Errorf("event %s has the key %q, and its row %q", entry.ID, entry.Key, keys[entry.ID])
		}
		if left--; left == 0 {
			time.AfterFunc(time.Second, done) // for what comes too much
		}
	}))
	if report := accounts.Check(); !report.OK() || report.Duplicates > 0 {
		b.Fatal(report.String())
	}
}
