package deploy

import (
	"context"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/plugin/kprom"

	"github.com/walpost/walpost/internal/doctest"
	"github.com/walpost/walpost/internal/testenv"
)

var (
	described = regexp.MustCompile(`desc\("(walpost_[a-z_]+)"|Name: "(walpost_[a-z_]+)"|"(walpost_kafka_[a-z_]+)":`)
	asked     = regexp.MustCompile(`\b(walpost|pg|go|process|promhttp)_[a-z0-9_]+\b`)
)

// metricsIn lists the metrics that an expression asks for.
func metricsIn(expr string) []string { return asked.FindAllString(expr, -1) }

// exported lists everything on /metrics: what internal/command/statuspage describes, and what the process and the Kafka client
// have in a real registry after records were produced to a broker.
func exported(t *testing.T) []string {
	t.Helper()
	sources, err := filepath.Glob("../internal/command/statuspage/*.go")
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, path := range sources {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		source, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range described.FindAllSubmatch(source, -1) {
			names = append(names, string(m[1])+string(m[2])+string(m[3]))
		}
	}
	if len(names) < 30 {
		t.Fatalf("only %d metrics in internal/command/statuspage", len(names))
	}
	for _, suffix := range []string{"_bucket", "_sum", "_count"} {
		names = append(names, "walpost_commit_to_ack_seconds"+suffix)
	}
	families, err := produced(t).Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if strings.Contains(f.GetName(), "_kafka_buffered_") { // internal/command/statuspage leaves them out
			continue
		}
		names = append(names, f.GetName())
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// otherNames look like metrics: a slot, a field of a payload, a constraint, and the metrics of inbox/consumer.
var otherNames = regexp.MustCompile(`^walpost_(\d|claim$|closed$|consumer_)`)

// The pages name metrics in backquotes. walpost_slot_… stands for all that begin so.
func TestThePagesNameMetricsThatAreExported(t *testing.T) {
	ours := exported(t)
	pages, err := doctest.Pages("..")
	if err != nil {
		t.Fatal(err)
	}
	named := 0
	for _, p := range pages {
		if p.Name == "CHANGELOG.md" { // also of former versions
			continue
		}
		for _, span := range p.Spans {
			for _, m := range regexp.MustCompile(`\b(walpost_[a-z0-9_]+)(…)?`).FindAllStringSubmatch(span, -1) {
				if otherNames.MatchString(m[1]) {
					continue
				}
				named++
				if !slices.ContainsFunc(ours, func(name string) bool {
					return name == m[1] || (m[2] == "…" || strings.HasSuffix(m[1], "_")) && strings.HasPrefix(name, m[1])
				}) {
					t.Errorf("%s: nothing exports %s", p.Name, m[0])
				}
			}
		}
	}
	if named < 60 {
		t.Errorf("only %d names of metrics", named)
	}
}

// produced is a registry as the program makes it, with a Kafka client that has delivered something. The client runs
// its hook for a batch after the promises of the batch, so the last metrics are there a moment later.
func produced(t *testing.T) *prometheus.Registry {
	t.Helper()
	cluster := testenv.FakeKafka(t, kfake.SeedTopics(1, "orders"))
	reg := prometheus.NewRegistry()
	reg.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	client, err := kgo.NewClient(kgo.SeedBrokers(cluster.ListenAddrs()...), kgo.WithHooks(kprom.NewMetrics("walpost_kafka", kprom.Registerer(reg))))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close) // the plugin takes its metrics away with the client
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	if err := client.ProduceSync(ctx, &kgo.Record{Topic: "orders", Value: []byte("x")}).FirstErr(); err != nil {
		t.Fatal(err)
	}
	for testutil.CollectAndCount(reg, "walpost_kafka_produce_bytes_total") == 0 {
		if ctx.Err() != nil {
			t.Fatal("the client counts no bytes that it produced")
		}
		time.Sleep(time.Millisecond)
	}
	return reg
}
