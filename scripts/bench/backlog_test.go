//go:build linux

package main

import (
	"cmp"
	"context"
	"fmt"
	"os/exec"
	"strconv"
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

// A shape is how the rows of a backlog look and were committed.
type shape struct {
	each         int    // rows per statement
	commit       string // SQL behind each statement; "": one transaction
	keys, chunks int    // different keys, and 32 bytes of payload each; 0: 1000 and 8
}

var shapes = map[string]shape{
	"transaction": {each: 1000},
	"rows":        {each: 1, commit: "COMMIT;"},
	"hundred":     {each: 100, commit: "COMMIT;"},
	"busy":        {each: 1, commit: "INSERT INTO other SELECT repeat('x', 200) FROM generate_series(1, 10); COMMIT;"},
	"1key":        {each: 100, commit: "COMMIT;", keys: 1},
	"5000keys":    {each: 100, commit: "COMMIT;", keys: 5000},
	"2kB":         {each: 100, commit: "COMMIT;", chunks: 64},
	"64kB":        {each: 1, commit: "COMMIT;", chunks: 2048},
	"10M":         {each: 100, commit: "COMMIT;"},
	"5M-at-once":  {each: 1000},
}

// A backlog is a number of rows that were written while no reader ran.
type backlog struct {
	shape
	name  string
	rows  int
	first int    // the number of its first row in the order of writing
	slot  string // at its beginning
	end   string // the LSN after its last row
}

// A pass is what a reader needed for a backlog.
type pass struct {
	*process
	rows  int // that it read meanwhile
	took  time.Duration
	first time.Duration // from the start of the process to the first record in Kafka; 0 without Kafka
	check func()        // compares the topic with the backlog, and deletes it; nil without Kafka
}

// A reader reads a backlog from a slot, and returns after the end of its process.
type reader struct {
	name string
	read func(b *testing.B, g *backlog, slot string) pass
}

// The readers read each backlog in turn, each from its own slot on the same WAL.
func BenchmarkBacklog(b *testing.B) {
	e := start(b, testenv.Param("autovacuum", "off"))
	var all []reader
	if path := findRecvlogical(b); path != "" && measures("pg_recvlogical") {
		all = append(all, reader{"pg_recvlogical", e.recvlogical(path)})
	}
	for i, path := range e.builds {
		for _, v := range variants() {
			all = append(all, reader{e.name(i) + v.name, e.as(v).walpost(path)})
		}
	}
	for _, name := range []string{"debezium", "debezium-tuned"} {
		if measures(name) {
			all = append(all, reader{name, e.debezium(tunings[name])})
		}
	}
	for i, text := range strings.Split(*backlogs, ",") {
		name, rows, _ := strings.Cut(text, "=")
		form, ok := shapes[name]
		n, err := strconv.Atoi(rows)
		if !ok || err != nil {
			b.Fatalf("-backlogs: %q isn't a backlog and its rows", text)
		}
		g := &backlog{shape: form, name: name, rows: n}
		e.write(b, g)
		if i == 0 && !*cold {
			for _, r := range all {
				e.measure(b, g, r)
			}
		}
		for round := range *rounds {
			for i := range all {
				r := all[i]
				if round%2 == 1 { // each reader comes behind another one than before
					r = all[len(all)-1-i]
				}
				b.Run(fmt.Sprintf("backlog=%s/round=%d/reader=%s", g.name, round+1, r.name), func(b *testing.B) {
					for b.Loop() {
						report(b, result{"Backlog", g.name, r.name, round + 1, e.measure(b, g, r)})
					}
				})
			}
		}
		e.drop(b, g.slot)
	}
}

// measure lets a reader read a backlog, and returns its figures by their units.
func (e *env) measure(b *testing.B, g *backlog, r reader) map[string]float64 {
	before := load(b)
	postmaster := e.pg.Value(b, e.dsn, "SELECT split_part(pg_read_file('postmaster.pid'), E'\\n', 1)")
	slot := e.slot(b, g.slot)
	postgres := newMeter(b.Context(), func() []string { return children(postmaster) })
	kafka := newMeter(b.Context(), func() []string { return []string{strconv.Itoa(e.kafka.PID(1))} })
	p := r.read(b, g, slot)
	server, broker := postgres.seconds(), kafka.seconds()
	e.drop(b, slot)
	if p.check != nil {
		p.check()
	}
	events, timed := float64(g.rows), float64(p.rows)
	figures := map[string]float64{
		"events/s": timed / p.took.Seconds(), "CPU-s/Mevents": p.processorTime() / timed * 1e6,
		"server-CPU-s/Mevents": server / events * 1e6, "peak-MB": p.peak, "load": before,
	}
	if p.first > 0 {
		figures["first-ms"] = float64(p.first.Milliseconds())
		figures["Kafka-CPU-s/Mevents"] = broker / events * 1e6
	}
	return figures
}

// write makes a slot and writes the backlog.
func (e *env) write(b *testing.B, g *backlog) {
	g.slot = e.slot(b, "")
	conn := testenv.Conn(b, e.dsn)
	check(b, conn.QueryRow(b.Context(), "SELECT count(*) + 1 FROM outbox").Scan(&g.first))
	for _, sql := range []string{
		"SET synchronous_commit = off",
		fmt.Sprintf("DO $$ BEGIN FOR n IN %d..%d BY %d LOOP CALL put(n, least(n + %[3]d, %d) - 1, %d, %d); %s END LOOP; END $$",
			g.first, g.first+g.rows-1, g.each, g.first+g.rows, cmp.Or(g.keys, 1000), cmp.Or(g.chunks, 8), g.commit),
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
func (e *env) recvlogical(path string) func(*testing.B, *backlog, string) pass {
	return func(b *testing.B, g *backlog, slot string) pass {
		p := launch(b, path, "--dbname", e.dsn, "--slot", slot, "--start", "--no-loop", "--endpos", g.end,
			"--file", "/dev/null", "-o", "proto_version=1", "-o", "publication_names=bench")
		p.wait(b)
		return pass{process: p, rows: g.rows, took: p.ended.Sub(p.began)}
	}
}

// walpost is `walpost run` into Kafka. The time ends when the brokers have everything.
func (e *env) walpost(path string) func(*testing.B, *backlog, string) pass {
	return func(b *testing.B, g *backlog, slot string) pass {
		topic, prefix := e.topic(b)
		adm := kadm.NewClient(e.kafka.Client(b))
		p := e.relay(b, path, slot, prefix)
		e.stored(b, 1, adm, topic, p)
		first := time.Since(p.began)
		e.stored(b, g.rows, adm, topic, p)
		took := time.Since(p.began)
		p.stop(b)
		return pass{p, g.rows, took, first, func() { e.compare(b, g, adm, topic) }}
	}
}

// stored waits until the brokers have n records, and returns how many they have. It fails the benchmark if the process ends, or if
// nothing comes for two minutes.
func (e *env) stored(b *testing.B, n int, adm *kadm.Client, topic string, p *process) (stored int) {
	for moved := time.Now(); ; p.sleep(b, 20*time.Millisecond) {
		ends, err := adm.ListEndOffsets(b.Context(), topic)
		check(b, err)
		now := 0
		ends.Each(func(o kadm.ListedOffset) { now += int(o.Offset) })
		if now >= n && e.once { // the markers of transactions have offsets, too
			now = int(p.delivered(b))
		}
		if now >= n {
			return now
		}
		if now != stored {
			stored, moved = now, time.Now()
		}
		if time.Since(moved) > 2*time.Minute {
			b.Fatalf("%d of %d events arrived\n%s", stored, n, p.out.String())
		}
	}
}

// compare compares the topic with the backlog: each row has exactly one record with its id and key,
// there are no other records, and each key is in the order of writing on one partition. Then it deletes the topic.
func (e *env) compare(b *testing.B, g *backlog, adm *kadm.Client, topic string) {
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
	_, err = adm.DeleteTopic(b.Context(), topic)
	check(b, err)
}
