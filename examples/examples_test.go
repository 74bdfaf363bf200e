// Package examples runs each example as its reader would.
package examples

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/walpost/walpost/internal/localpg"
	"github.com/walpost/walpost/internal/testenv"
	"github.com/walpost/walpost/internal/testenv/short"
	"github.com/walpost/walpost/outbox"
)

var update = flag.Bool("update", false, "write records.jsonl")

// bin has the programs walpost, embed and writer.
var bin string

func TestMain(m *testing.M) {
	short.SkipAll("a build of walpost")
	os.Exit(func() int {
		var err error
		if bin, err = os.MkdirTemp("", "walpost-examples-"); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(bin) //nolint:errcheck // a temporary folder
		build := exec.Command("go", "build", "-o", bin, "../cmd/walpost", "./embed", "./writer")
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

// start runs a program until the end of the test.
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

// An order that comes to the service writer by HTTP is a record that the relay in the service embed delivers.
func TestAServiceWritesAndAnotherRelays(t *testing.T) {
	w := newWorld(t)
	o, err := outbox.New(outbox.Options{})
	if err != nil {
		t.Fatal(err)
	}
	up, _ := o.DDL()
	w.pg.Exec(t, w.dsn, up, "CREATE TABLE orders (id text PRIMARY KEY, customer text NOT NULL, total bigint NOT NULL)")
	pages := map[string]string{}
	for _, name := range []string{"embed", "writer"} {
		port, err := localpg.FreePort()
		if err != nil {
			t.Fatal(err)
		}
		listen := fmt.Sprintf("127.0.0.1:%d", port)
		pages[name] = "http://" + listen
		w.start(name, []string{"DATABASE_URL=" + w.dsn, "KAFKA_BROKERS=" + w.brokers, "LISTEN=" + listen})
	}
	ask := func(want int, do func() (*http.Response, error)) string {
		t.Helper()
		for limit := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
			resp, err := do()
			if err == nil {
				text, _ := io.ReadAll(resp.Body) // a part is seen by the comparison
				resp.Body.Close()
				if resp.StatusCode == want {
					return strings.TrimSpace(string(text))
				}
				err = fmt.Errorf("%s: %s", resp.Status, text)
			}
			if time.Now().After(limit) {
				t.Fatal(err)
			}
		}
	}
	ask(http.StatusOK, func() (*http.Response, error) { return http.Get(pages["embed"] + "/readyz") })
	id := ask(http.StatusCreated, func() (*http.Response, error) {
		return http.Post(pages["writer"]+"/orders", "application/json", strings.NewReader(`{"customer": "c-7", "total": 1250}`))
	})
	got := w.records(1)[0]
	var payload map[string]any
	if err := json.Unmarshal([]byte(got.Value), &payload); err != nil || got.Key != id || got.Topic != "outbox.event.order" || payload["total"] != 1250.0 || payload["id"] != id {
		t.Errorf("%+v, %v; the order is %s", got, err, id)
	}
	// An order that is there already is refused, and has no event: the transaction is one.
	w.pg.Exec(t, w.dsn, "ALTER TABLE orders ADD CHECK (total > 0)")
	ask(http.StatusInternalServerError, func() (*http.Response, error) {
		return http.Post(pages["writer"]+"/orders", "application/json", strings.NewReader(`{"customer": "c-7", "total": -1}`))
	})
	if n := w.pg.Value(t, w.dsn, "SELECT count(*)::text FROM outbox"); n != "1" {
		t.Errorf("%s rows in the outbox, want 1", n)
	}
}
