package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/walpost/walpost/internal/command/statuspage"
	"github.com/walpost/walpost/internal/testenv"
	"github.com/walpost/walpost/slot"
)

// process is a running walpost.
type process struct {
	*exec.Cmd
	t    *testing.T
	page string // where its HTTP is
	done chan struct{}
	log  testenv.Output
}

// start runs walpost, which must listen.
func start(t *testing.T, args ...string) *process {
	t.Helper()
	return launch(t, append(args, "--http", "127.0.0.1:0")...)
}

// launch is start for a configuration that has http.listen.
func launch(t *testing.T, args ...string) *process {
	t.Helper()
	p := spawn(t, args...)
	p.listens()
	return p
}

// spawn starts walpost, and does not wait for anything.
func spawn(t *testing.T, args ...string) *process {
	t.Helper()
	p := &process{Cmd: exec.Command("walpost", args...), t: t, done: make(chan struct{})}
	p.Stdout, p.Stderr = io.Discard, &p.log
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = p.Wait() // ProcessState has the code
		close(p.done)
	}()
	t.Cleanup(func() {
		_ = p.Process.Kill() // it may have ended
		<-p.done
		if t.Failed() {
			t.Logf("walpost wrote:\n%s", &p.log)
		}
	})
	return p
}

// listens waits until the process listens.
func (p *process) listens() {
	p.t.Helper()
	p.log.Wait(p.t, "http listens")
	p.page = p.log.Page()
}

// get asks the process's HTTP.
func (p *process) get(path string) (int, string) {
	p.t.Helper()
	resp, err := http.Get(p.page + path)
	if err != nil {
		p.t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		p.t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

// until asks /api/status until it is as wanted.
func (p *process) until(what string, ok func(v *statuspage.View) bool) {
	p.t.Helper()
	var v statuspage.View
	for limit := time.Now().Add(2 * time.Minute); time.Now().Before(limit); time.Sleep(20 * time.Millisecond) {
		_, body := p.get("/api/status")
		v = statuspage.View{}
		if err := json.Unmarshal([]byte(body), &v); err != nil {
			p.t.Fatalf("%v in %s", err, body)
		}
		if ok(&v) {
			return
		}
	}
	p.t.Fatalf("not in 2 minutes: %s; the status is %+v", what, v)
}

// stop asks the process to end, and returns its exit code.
func (p *process) stop() int {
	p.t.Helper()
	if err := p.Process.Signal(syscall.SIGTERM); err != nil {
		p.t.Fatal(err)
	}
	return p.ended()
}

func (p *process) ended() int {
	p.t.Helper()
	select {
	case <-p.done:
		return p.ProcessState.ExitCode()
	case <-time.After(2 * time.Minute):
		p.t.Fatal("did not end in 2 minutes")
		return 0
	}
}

// command runs walpost to its end.
func command(t *testing.T, args ...string) (code int, out string) {
	t.Helper()
	cmd := exec.Command("walpost", args...)
	text, err := cmd.CombinedOutput()
	if cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), string(text)
}

// consume reads n records of topic, and what comes within a moment after them.
func consume(t *testing.T, kafka *testenv.KafkaCluster, topic string, n int) (ids []string) {
	t.Helper()
	client := kafka.Client(t, kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	for len(ids) < n {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		fetches := client.PollFetches(ctx)
		cancel()
		if err := fetches.Err(); err != nil {
			t.Fatalf("after %d of %d records: %v", len(ids), n, err)
		}
		fetches.EachRecord(func(r *kgo.Record) { ids = append(ids, header(r, "id")) })
	}
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	client.PollFetches(ctx).EachRecord(func(r *kgo.Record) { ids = append(ids, header(r, "id")) })
	return ids
}

func header(r *kgo.Record, key string) string {
	for _, h := range r.Headers {
		if h.Key == key {
			return string(h.Value)
		}
	}
	return ""
}

const outboxTable = `CREATE TABLE outbox (id int PRIMARY KEY, aggregate_type text NOT NULL, aggregate_id text NOT NULL,
	event_type text NOT NULL DEFAULT 'x', payload jsonb)`

func rows(from, to int, topic string) string {
	return fmt.Sprintf(`INSERT INTO outbox SELECT g, '%s', 'k' || g %% 7, 'made', '{"a": 1}' FROM generate_series(%d, %d) g`, topic, from, to)
}

func TestRunRelaysAndStopsAndGoesOn(t *testing.T) {
	kafka := testenv.Kafka(t)
	pg := testenv.Postgres(t, "")
	dsn := pg.Database(t)
	topic := kafka.Topic(t, 3, nil)
	config := t.TempDir() + "/walpost.yaml"
	write(t, config, `
source: {dsn: "${E2E_DSN}", table: outbox}
router: {route.topic.replacement: "${routedByValue}"}
kafka: {brokers: "${E2E_BROKERS}"}
checkpoint: {topic: `+kafka.Topic(t, 1, map[string]string{"cleanup.policy": "compact"})+`}
monitor: {interval: 1s}
`)
	t.Setenv("E2E_DSN", dsn)
	t.Setenv("E2E_BROKERS", strings.Join(kafka.Brokers(), ","))

	if code, out := command(t, "check", "-c", config); code != exitFailed || !strings.Contains(out, "FAIL  postgres: ") {
		t.Errorf("check before the table is there: exit code %d\n%s", code, out)
	}
	pg.Exec(t, dsn, outboxTable)
	if code, out := command(t, "setup", "-c", config, "--make-slot", "--apply"); code != exitOK || !strings.Contains(out, "done: publication walpost\ndone: slot walpost") {
		t.Fatalf("setup: exit code %d\n%s", code, out)
	}
	if code, out := command(t, "setup", "-c", config); code != exitOK || out != "-- Everything is there.\n" {
		t.Errorf("setup again: exit code %d\n%s", code, out)
	}
	if code, out := command(t, "check", "-c", config); code != exitOK {
		t.Errorf("check: exit code %d\n%s", code, out)
	}
	if code, out := command(t, "status", "-c", config); code != exitFailed || !strings.Contains(out, "nobody is reading the slot") {
		t.Errorf("status: exit code %d\n%s", code, out)
	}

	p := start(t, "run", "-c", config)
	pg.Exec(t, dsn, rows(1, 1000, topic))
	p.until("1000 events", func(v *statuspage.View) bool {
		return v.Ready && v.Events == 1000 && v.InFlight.Events == 0 && v.Slot.Severity == slot.OK
	})
	at := strings.TrimPrefix(p.page, "http://")
	for _, args := range [][]string{{"--http", at}, {"--json", "--http", at}, {"--http", "off"}} {
		if code, out := command(t, append([]string{"status", "-c", config}, args...)...); code != exitOK {
			t.Errorf("status %s while it runs: exit code %d\n%s", args, code, out)
		}
	}
	if code, out := command(t, "status", "-c", config, "--http", "127.0.0.1:1"); code != exitFailed || !strings.Contains(out, "no relay answers at 127.0.0.1:1 (connection refused)") {
		t.Errorf("status of a relay that is elsewhere: exit code %d\n%s", code, out)
	}
	for path, want := range map[string]string{
		"/livez": "ok", "/readyz": "ok", "/": "<title>walpost</title>", "/status.js": "use strict", "/status.css": "dark",
		"/metrics": `walpost_events_total{topic="` + topic + `"} 1000`,
	} {
		if code, body := p.get(path); code != http.StatusOK || !strings.Contains(body, want) {
			t.Errorf("%s: %d, no %q in\n%s", path, code, want, body)
		}
	}
	if _, body := p.get("/metrics"); !strings.Contains(body, "walpost_kafka_produce_records_total") && !strings.Contains(body, "walpost_kafka_produce_bytes_total") {
		t.Errorf("no metrics of the Kafka client")
	}
	if code := p.stop(); code != exitOK {
		t.Errorf("SIGTERM: exit code %d", code)
	}

	pg.Exec(t, dsn, rows(1001, 1500, topic))
	p = start(t, "run", "-c", config)
	p.until("500 events", func(v *statuspage.View) bool { return v.Events >= 500 && v.InFlight.Events == 0 })
	if code := p.stop(); code != exitOK {
		t.Errorf("SIGTERM: exit code %d", code)
	}
	ids := consume(t, kafka, topic, 1500)
	seen := map[string]int{}
	for _, id := range ids {
		seen[id]++
	}
	if len(ids) != 1500 || len(seen) != 1500 {
		t.Errorf("%d records with %d ids, want 1500: a clean stop and start repeats nothing", len(ids), len(seen))
	}
}

func TestDroppedSlotHaltsAndLingers(t *testing.T) {
	pg := testenv.Postgres(t, "")
	dsn := pg.Database(t)
	pg.Exec(t, dsn, outboxTable)
	p := start(t, "run", "--dsn", dsn, "--table", "outbox", "--slot", "lost_"+fmt.Sprint(os.Getpid()), "--stdout",
		"--checkpoint-store", "file", "--checkpoint-path", t.TempDir()+"/position", "--halt-linger", "forever")
	slot := "lost_" + fmt.Sprint(os.Getpid())
	p.until("ready", func(v *statuspage.View) bool { return v.Ready })
	pg.Exec(t, dsn, rows(1, 10, "t"))
	p.until("10 events", func(v *statuspage.View) bool { return v.Ready && v.Events == 10 && v.InFlight.Events == 0 })
	pg.Exec(t, dsn, "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = '"+slot+"'",
		"DO $$ BEGIN FOR i IN 1..200 LOOP BEGIN PERFORM pg_drop_replication_slot('"+slot+"'); RETURN; EXCEPTION WHEN object_in_use THEN PERFORM pg_sleep(0.01); "+
			"PERFORM pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = '"+slot+"'; END; END LOOP; END $$")
	p.until("halted", func(v *statuspage.View) bool { return v.State == "halted" })
	if code, body := p.get("/readyz"); code != http.StatusServiceUnavailable || !strings.Contains(body, slot) {
		t.Errorf("/readyz: %d %s", code, body)
	}
	if code, body := p.get("/livez"); code != http.StatusOK {
		t.Errorf("/livez: %d %s", code, body)
	}
	_, host, _ := strings.Cut(dsn, "@")
	host, _, _ = strings.Cut(host, "/")
	// A halted relay is told also if the database cannot be asked.
	if code, out := command(t, "status", "--dsn", strings.Replace(dsn, host, "127.0.0.1:1", 1), "--table", "outbox", "--slot", slot, "--http", strings.TrimPrefix(p.page, "http://")); code != exitPerson ||
		!strings.Contains(out, "connection refused") || !strings.Contains(out, "the relay is not ready (halted)") {
		t.Errorf("status without the database: exit code %d, want %d\n%s", code, exitPerson, out)
	}
	if code, out := command(t, "status", "--dsn", dsn, "--table", "outbox", "--slot", slot); code != exitPerson || !strings.Contains(out, "does not exist") {
		t.Errorf("status: exit code %d, want %d\n%s", code, exitPerson, out)
	}
	if code := p.stop(); code != exitPerson {
		t.Errorf("exit code %d, want %d", code, exitPerson)
	}
	p.log.Wait(t, "hint: ")
}

func TestRunWaitsForWhatIsNotThere(t *testing.T) {
	p := start(t, "run", "--dsn", "postgres://nobody@127.0.0.1:1/shop", "--table", "outbox", "--brokers", "127.0.0.1:2")
	p.until("a reason", func(v *statuspage.View) bool { return !v.Ready && strings.Contains(v.Reason, "refused") })
	if code, body := p.get("/readyz"); code != http.StatusServiceUnavailable || !strings.Contains(body, "no-checkpoint: ") {
		t.Errorf("/readyz: %d %s", code, body)
	}
	if code, _ := p.get("/livez"); code != http.StatusOK {
		t.Errorf("/livez: %d", code)
	}
	if code, body := p.get("/metrics"); code != http.StatusOK || !strings.Contains(body, "walpost_monitor_last_success_timestamp_seconds 0") {
		t.Errorf("/metrics: %d %s", code, body)
	}
	if code := p.stop(); code != exitOK {
		t.Errorf("exit code %d, want %d", code, exitOK)
	}
}

func write(t *testing.T, name, text string) {
	t.Helper()
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}
