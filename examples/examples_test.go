// Package examples runs each example as its reader would.
package examples

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/walpost/walpost/internal/keeper"
	"github.com/walpost/walpost/internal/testenv"
	"github.com/walpost/walpost/internal/testenv/short"
)

var update = flag.Bool("update", false, "write records.jsonl")

// bin has the programs walpost, embed and service.
var bin string

func TestMain(m *testing.M) {
	keeper.Init()
	short.SkipAll("a build of walpost")
	os.Exit(func() int {
		var err error
		if bin, err = os.MkdirTemp("", "walpost-examples-"); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(bin) //nolint:errcheck // a temporary folder
		build := exec.Command("go", "build", "-o", bin, "../cmd/walpost", "./embed", "./service")
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "%v\n%s", err, out)
			return 1
		}
		return testenv.Main(m)
	}())
}

// world is an empty database and an empty Kafka.
type world struct {
	*testing.T
	pg      *testenv.PG
	dsn     string
	brokers string
}

func newWorld(t *testing.T) *world {
	t.Helper()
	pg := testenv.Postgres(t, "17")
	kafka := testenv.FakeKafka(t)
	return &world{t, pg, pg.Database(t), strings.Join(kafka.ListenAddrs(), ",")}
}

// start runs a program until the end of the test, which it must end well.
func (w *world) start(name string, env []string, args ...string) {
	w.Helper()
	cmd, log := exec.Command(filepath.Join(bin, name), args...), new(testenv.Output)
	cmd.Env, cmd.Stdout, cmd.Stderr = append(os.Environ(), env...), log, log
	if err := cmd.Start(); err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM) // it may have ended; then Wait has its code
		if err := cmd.Wait(); err != nil {
			w.Errorf("%s ends with %v", name, err)
		}
		if w.Failed() {
			w.Logf("%s wrote:\n%s", name, log)
		}
	})
}

// A record is what a consumer sees.
type record struct {
	Topic   string            `json:"topic"`
	Key     string            `json:"key"`
	Headers map[string]string `json:"headers"`
	Value   string            `json:"value"`
}

// records waits for n records that are not walpost's own. Headers that differ in each run are left out.
func (w *world) records(n int) (all []record) {
	w.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(strings.Split(w.brokers, ",")...), kgo.ConsumeRegex(), kgo.ConsumeTopics(`^[^_].*`),
		kgo.ConsumeExcludeTopics(`^walpost\..*`), kgo.MetadataMaxAge(time.Second), kgo.MetadataMinAge(100*time.Millisecond))
	if err != nil {
		w.Fatal(err)
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(w.Context(), time.Minute)
	defer cancel()
	for len(all) < n {
		client.PollFetches(ctx).EachRecord(func(r *kgo.Record) {
			got := record{r.Topic, string(r.Key), map[string]string{}, string(r.Value)}
			for _, h := range r.Headers {
				if !strings.HasPrefix(h.Key, "__debezium") {
					got.Headers[h.Key] = string(h.Value)
				}
			}
			all = append(all, got)
		})
		if ctx.Err() != nil {
			w.Fatalf("%d records in a minute, want %d: %v", len(all), n, all)
		}
	}
	return all
}

// run runs the statements of a file.
func (w *world) run(file string) {
	w.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		w.Fatal(err)
	}
	w.pg.Exec(w.T, w.dsn, string(text))
}

// Each of these examples has a schema, a configuration, a transaction that writes events, and the records that a consumer gets.
func TestTheConfigurationsGiveTheRecords(t *testing.T) {
	for name, n := range map[string]int{"sql": 2, "spring": 1, "debezium": 1} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.run(filepath.Join(name, "schema.sql"))
			w.start("walpost", []string{"WALPOST_DSN=" + w.dsn, "WALPOST_BROKERS=" + w.brokers, "WALPOST_KAFKA_BROKERS=" + w.brokers, "DEBEZIUM_PASSWORD=x"},
				"run", "--config", filepath.Join(name, "walpost.yaml"), "--http=off", "--create-topics")
			for limit := time.Now().Add(time.Minute); w.pg.Value(t, w.dsn, "SELECT count(*)::text FROM pg_replication_slots WHERE active AND database = current_database()") != "1"; {
				if time.Sleep(20 * time.Millisecond); time.Now().After(limit) {
					t.Fatal("nobody reads the slot")
				}
			}
			w.run(filepath.Join(name, "write.sql"))
			var got bytes.Buffer
			for _, r := range w.records(n) {
				line, err := json.Marshal(r)
				if err != nil {
					t.Fatal(err)
				}
				got.Write(append(line, '\n'))
			}
			file := filepath.Join(name, "records.jsonl")
			if *update {
				if err := os.WriteFile(file, got.Bytes(), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil || got.String() != string(want) {
				t.Errorf("%s: %v\ngot  %swant %s", file, err, &got, want)
			}
		})
	}
}

// The converted file is what convert writes today.
func TestTheConnectorIsConverted(t *testing.T) {
	got, err := exec.Command(filepath.Join(bin, "walpost"), "debezium", "convert", "debezium/connector.json").Output()
	if err != nil {
		t.Fatal(err)
	}
	want, err := os.ReadFile("debezium/walpost.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("convert prints\n%s", got)
	}
}
