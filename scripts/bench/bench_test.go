//go:build linux

// This file and its neighbours compare walpost with pg_recvlogical and Debezium on the same backlog. It also measures the time
// of an event from commit to acknowledgement and to a consumer, the load of the server from the WAL
// source and from polling, and the size of the table without and with a cleanup. The figures depend on the machine and its load: compare only lines of one
// run. See README.md.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/sr/srfake"

	"github.com/walpost/walpost/internal/testenv"
)

var (
	rows        = flag.Int("rows", 100_000, "rows for Strategies")
	backlogs    = flag.String("backlogs", "transaction=500000,rows=300000", "the backlogs, each with its rows: "+strings.Join(slices.Sorted(maps.Keys(shapes)), ", "))
	readers     = flag.String("readers", "pg_recvlogical,walpost", "who reads, in Backlog and Latency; also walpost-exactly-once, walpost-avro, walpost-avro-expanded, debezium, debezium-tuned; direct in Latency")
	results     = flag.String("results", "", "a file to append each result to, as JSON")
	rounds      = flag.Int("rounds", 3, "times that each reader is measured")
	rates       = flag.String("rates", "200,1000,3000", "events per second for the measurement of latency")
	seconds     = flag.Int("seconds", 15, "seconds for each rate")
	version     = flag.String("postgres", "15", "major version of Postgres")
	builds      = flag.String("walpost", "", "programs to compare, separated by commas; empty: build this one")
	recvlogical = flag.String("pg_recvlogical", "", "path of pg_recvlogical; empty: search for it")
	sections    = flag.String("config", "", "a file with further sections of walpost.yaml, such as delivery")
	warmUp      = flag.Int("warmup", 2, "seconds of writing before each measurement of latency; a JVM needs 10 or more")
	cold        = flag.Bool("cold", false, "measure at once, without passes that warm up the broker and count for nothing")
	grows       = flag.Int("cleanup", 120, "seconds to watch the table's size")
	idle        = flag.Bool("idle", false, "wait for a load average below 0.5 before each figure")
)

func TestMain(m *testing.M) { os.Exit(testenv.Main(m)) }

// An env is the servers and the table of one benchmark.
type env struct {
	pg     *testenv.PG
	dsn    string
	kafka  *testenv.KafkaCluster
	dir    string // for configuration files
	builds []string
	source string // further keys of the section source, each after a comma
	router string // the same of the section router
	poll   string // of a relay that polls, the section source.poll; "" for one that reads a slot
	extra  string // sections of walpost.yaml
	once   bool   // extra asks for exactly_once
	seq    int    // the number of the last row that pace wrote

	committed func(payload string) // called by pace's writers after each commit; nil: nobody asks
}

const schema = `
CREATE TABLE outbox (id uuid PRIMARY KEY, aggregatetype text NOT NULL, aggregateid text NOT NULL, type text NOT NULL, payload jsonb NOT NULL,
 created_at timestamptz NOT NULL DEFAULT now());
CREATE TABLE other (pad text);
CREATE PUBLICATION bench FOR TABLE outbox WITH (publish = 'insert');
-- Rows with a payload of 32 bytes for each chunk, most of which do not compress. The payload carries the place in the order of writing.
CREATE PROCEDURE put(first bigint, last bigint, keys int, chunks int) LANGUAGE sql AS $$
 INSERT INTO outbox SELECT md5(n::text)::uuid, 'bench', 'key-' || n % keys, 'Written', jsonb_build_object('seq', n,
  'pad', (SELECT string_agg(md5(n || '-' || i), '') FROM generate_series(1, chunks) i)) FROM generate_series(first, last) n $$;
`

// start starts the servers. Only the readers should work during a measurement, so autovacuum is off
// except for the cleanup.
func start(b *testing.B, opts ...testenv.PGOption) *env {
	e := &env{dir: b.TempDir(), builds: strings.Split(*builds, ",")}
	if *builds == "" {
		e.builds[0] = filepath.Join(e.dir, "walpost")
		out, err := exec.Command("go", "build", "-o", e.builds[0], "github.com/walpost/walpost/cmd/walpost").CombinedOutput()
		check(b, err, string(out))
	}
	if *sections != "" {
		text, err := os.ReadFile(*sections)
		check(b, err)
		e.extra = string(text)
		e.once = strings.Contains(e.extra, "exactly_once")
	}
	e.pg = testenv.Postgres(b, *version, append(opts, testenv.Param("max_wal_size", "16GB"), testenv.Param("checkpoint_timeout", "1h"),
		testenv.Param("shared_buffers", "512MB"))...)
	e.dsn = e.pg.Database(b)
	e.kafka = testenv.OptimisedKafka(b)
	registry := srfake.New()
	b.Cleanup(registry.Close)
	b.Setenv("SCHEMA_REGISTRY", registry.URL()) // for the variants
	e.pg.Exec(b, e.dsn, schema)
	return e
}

func check(b *testing.B, err error, story ...string) {
	b.Helper()
	if err != nil {
		b.Fatal(err, strings.Join(story, "\n"))
	}
}

// measures says whether a reader is among those of -readers.
func measures(reader string) bool { return slices.Contains(strings.Split(*readers, ","), reader) }

// A variant is a way to run walpost.
type variant struct {
	name   string // "", or what follows the name of the program
	router string // further keys of the section router, each after a comma
	extra  string // sections of walpost.yaml
}

// variants are those of -readers.
func variants() []variant {
	const avro = "records: {value.converter: avro}\nschema_registry: {urls: [\"${SCHEMA_REGISTRY}\"]}\n"
	all := []variant{
		{},
		{name: "-exactly-once", extra: "delivery: {guarantee: exactly_once}\n"},
		{name: "-avro", extra: avro},
		{name: "-avro-expanded", router: ", table.expand.json.payload: true", extra: avro},
	}
	return slices.DeleteFunc(all, func(v variant) bool { return !measures("walpost" + v.name) })
}

// as returns the servers for walpost run in this way.
func (e *env) as(v variant) *env {
	changed := *e
	changed.router += v.router
	changed.extra += v.extra
	changed.once = e.once || strings.Contains(v.extra, "exactly_once")
	return &changed
}

// report reports the figures of a pass, of which short ones are repeated, and appends them to the file of -results.
func report(b *testing.B, r result) {
	for unit, v := range r.Metrics { // the last pass'
		b.ReportMetric(v, unit)
	}
	b.ReportMetric(0, "ns/op") // it has the preparations in it
	if *results == "" {
		return
	}
	f, err := os.OpenFile(*results, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	check(b, err)
	check(b, json.NewEncoder(f).Encode(r))
	check(b, f.Close())
}

// name is the name of a build: walpost, or walpost1, walpost2, … if several are compared.
func (e *env) name(build int) string {
	if len(e.builds) == 1 {
		return "walpost"
	}
	return fmt.Sprintf("walpost%d", build+1)
}

var named int

// unique makes a name for a slot, a topic and a checkpoint.
func unique() string {
	named++
	return fmt.Sprintf("bench_%d_%d", os.Getpid(), named)
}

// slot makes a slot that begins at the present end of the WAL, or where another slot is.
func (e *env) slot(b *testing.B, like string) string {
	name := unique()
	if like == "" {
		e.pg.Exec(b, e.dsn, "SELECT pg_create_logical_replication_slot('"+name+"', 'pgoutput')")
	} else {
		e.pg.Exec(b, e.dsn, "SELECT pg_copy_logical_replication_slot('"+like+"', '"+name+"')")
	}
	return name
}

// drop drops a slot after its reader has released it.
func (e *env) drop(b *testing.B, slot string) {
	conn := testenv.Conn(b, e.dsn)
	defer conn.Close(context.Background()) //nolint:errcheck // nothing depends on it
	for {
		_, err := conn.Exec(b.Context(), "SELECT pg_drop_replication_slot($1)", slot)
		if err == nil {
			return
		}
		if !strings.Contains(err.Error(), "is active") {
			b.Fatal(err)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// topic makes a topic for the rows of one reader, and returns its name and the prefix for
// route.topic.replacement.
func (e *env) topic(b *testing.B) (name, prefix string) {
	prefix = unique() + "."
	name = prefix + "bench"
	e.kafka.CreateTopic(b, name, 4, nil)
	return name, prefix
}

// load is the load average of the last minute. With -idle, it waits for an idle machine first.
func load(b *testing.B) float64 {
	for {
		text, err := os.ReadFile("/proc/loadavg")
		check(b, err)
		var now float64
		_, err = fmt.Sscan(string(text), &now)
		check(b, err)
		if !*idle || now < 0.5 {
			return now
		}
		time.Sleep(time.Second)
	}
}
