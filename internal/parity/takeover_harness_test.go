//go:build linux || darwin

package parity

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/ledger"
	"github.com/walpost/walpost/internal/shop"
	"github.com/walpost/walpost/internal/testenv"
)

// A stage is where takeovers are played: a Kafka, a Connect worker on it, and the built walpost.
type stage struct {
	kafka   *testenv.KafkaCluster
	worker  *ConnectWorker
	walpost string // the program
}

// A takeover is one outbox that Debezium and walpost relay in turn, by one slot, and a consumer that reads it all.
type takeover struct {
	*stage
	t       *testing.T
	pg      *testenv.PG
	dsn     string
	slot    string            // and the name of the connector
	options map[string]string // of the connector
	config  string            // the path of walpost.yaml
	ledger  *ledger.Ledger    // of the consumer
}

// takeover has a database with the shop's tables and rows that nobody publishes, and the options of a connector.
func (s *stage) takeover(t *testing.T, options map[string]string) *takeover {
	t.Helper()
	pg := testenv.Postgres(t, "15")
	dsn := pg.Database(t)
	slot := pg.Value(t, dsn, "SELECT current_database()")
	k := &takeover{stage: s, t: t, pg: pg, dsn: dsn, slot: slot, ledger: ledger.New()}
	// A column decides the timestamp: so a duplicate has every byte of the first, whoever delivers it.
	k.exec(shop.Schema, "ALTER TABLE outbox ADD COLUMN at timestamp NOT NULL DEFAULT (now() AT TIME ZONE 'UTC')")
	var topics []string
	for _, typ := range shop.Types {
		topics = append(topics, slot+"."+typ)
		s.kafka.CreateTopic(t, slot+"."+typ, 3, nil)
	}
	config, err := connector(dsn, slot)
	if err != nil {
		t.Fatal(err)
	}
	maps.Copy(config, map[string]string{
		"table.include.list": "public.outbox", "snapshot.mode": "no_data", "poll.interval.ms": "20",
		"transforms": "outbox", "transforms.outbox.type": "io.debezium.transforms.outbox.EventRouter",
		"transforms.outbox.table.field.event.key":             "aggregate_id",
		"transforms.outbox.route.by.field":                    "aggregate_type",
		"transforms.outbox.table.field.event.timestamp":       "at",
		"transforms.outbox.table.fields.additional.placement": "event_type:header:eventType",
		"transforms.outbox.route.topic.replacement":           slot + ".${routedByValue}",
	})
	maps.Copy(config, options)
	k.options = config
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		err := shop.Follow(ctx, s.kafka.Brokers(), topics, func(r *kgo.Record) {
			// The one header that differs on purpose.
			kept := *r
			kept.Headers = slices.DeleteFunc(slices.Clone(r.Headers), func(h kgo.RecordHeader) bool { return h.Key == runHeader })
			k.ledger.Observe(shop.Entry(&kept))
		})
		if err != nil {
			t.Errorf("consumer: %v", err)
		}
	}()
	t.Cleanup(func() { cancel(); <-done })
	return k
}

// debezium lets the connector run, with options that win over its own, and returns when it reads the slot.
func (k *takeover) debezium(options ...string) {
	k.t.Helper()
	for i := 0; i < len(options); i += 2 {
		k.options[options[i]] = options[i+1]
	}
	k.worker.Put(k.t, k.slot, k.options)
	if s, err := k.worker.Status(k.t.Context(), k.slot); err != nil || s.Connector == "STOPPED" {
		k.worker.Resume(k.t, k.slot)
	}
	k.worker.Streams(k.t, k.slot, k.dsn, k.slot)
}

// convert makes walpost.yaml of the connector's configuration, which must go without a word of doubt. A halt ends at once.
func (k *takeover) convert() {
	k.t.Helper()
	dir := k.t.TempDir()
	k.config = filepath.Join(dir, "walpost.yaml")
	write := func(path string, text []byte) {
		if err := os.WriteFile(path, text, 0o600); err != nil {
			k.t.Fatal(err)
		}
	}
	text, err := json.Marshal(map[string]any{"name": k.slot, "config": k.options})
	if err != nil {
		k.t.Fatal(err)
	}
	connector, worker := filepath.Join(dir, "connector.json"), filepath.Join(dir, "worker.properties")
	write(connector, text)
	write(worker, []byte("bootstrap.servers="+strings.Join(k.kafka.Brokers(), ",")+
		"\nkey.converter=org.apache.kafka.connect.storage.StringConverter\nvalue.converter=org.apache.kafka.connect.storage.StringConverter\n"))
	cmd := exec.Command(k.walpost, "debezium", "convert", connector, "--worker", worker)
	var report bytes.Buffer
	cmd.Stderr = &report
	yaml, err := cmd.Output()
	if err != nil {
		k.t.Fatalf("convert: %v\n%s", err, &report)
	}
	write(k.config, append(yaml, "\nhttp: {listen: \"127.0.0.1:0\"}\nhalt_linger: 0s\nmonitor: {interval: 1s}\n"...))
}

// command runs walpost to its end.
func (k *takeover) command(args ...string) (code int, out string) {
	k.t.Helper()
	cmd := exec.CommandContext(k.t.Context(), k.walpost, append(args, "--config", k.config)...)
	text, err := cmd.CombinedOutput()
	if cmd.ProcessState == nil {
		k.t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), string(text)
}

// run starts walpost, and returns when events flow. end sends a signal and returns the exit code.
func (k *takeover) run(args ...string) (end func(syscall.Signal) int) {
	k.t.Helper()
	log := new(testenv.Output)
	cmd := exec.CommandContext(k.t.Context(), k.walpost, append([]string{"run", "--config", k.config}, args...)...)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		k.t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = cmd.Wait() // ProcessState has the code
	}()
	k.t.Cleanup(func() {
		<-ended
		if k.t.Failed() {
			k.t.Logf("walpost wrote:\n%s", log)
		}
	})
	k.eventually("walpost is ready", func() bool {
		select {
		case <-ended:
			k.t.Fatalf("walpost ended with code %d", cmd.ProcessState.ExitCode())
		default:
		}
		resp, err := http.Get(log.Page() + "/readyz")
		if err != nil {
			return false
		}
		defer resp.Body.Close() //nolint:errcheck // only the status counts
		return resp.StatusCode == http.StatusOK
	})
	return func(s syscall.Signal) int {
		_ = cmd.Process.Signal(s) // it may have ended
		defer time.AfterFunc(3*time.Minute, func() { _ = cmd.Process.Kill() }).Stop()
		<-ended
		return cmd.ProcessState.ExitCode()
	}
}

// stopCleanly ends walpost and returns the position of the checkpoint.
func (k *takeover) stopCleanly(end func(syscall.Signal) int) cdc.LSN {
	k.t.Helper()
	if code := end(syscall.SIGTERM); code != 0 {
		k.t.Fatalf("exit code %d after SIGTERM", code)
	}
	return k.confirmed()
}

var tokenInHint = regexp.MustCompile(`--accept-gap=([0-9a-f]+)`)

// refused runs walpost, which must refuse to go on for a reason with these words. It must leave the slot and the publication as they
// are. refused returns the token of the gap.
func (k *takeover) refused(want ...string) (token string) {
	k.t.Helper()
	state := func() string {
		return k.value(`SELECT format('%s %s confirmed %s, publications %s', slot_name, plugin, confirmed_flush_lsn,
			(SELECT string_agg(pubname || oid, ' ') FROM pg_publication)) FROM pg_replication_slots WHERE slot_name = $1`, k.slot)
	}
	before := state()
	code, out := k.command("run")
	if code != 3 {
		k.t.Errorf("exit code %d, want 3", code)
	}
	if n := strings.Count(out, "halted: this needs an operator"); n != 1 {
		k.t.Errorf("the halt is logged %d times", n)
	}
	for _, words := range want {
		if !strings.Contains(out, words) {
			k.t.Errorf("the reason does not say %q", words)
		}
	}
	if after := state(); after != before {
		k.t.Errorf("what was there changed from %q to %q", before, after)
	}
	if m := tokenInHint.FindStringSubmatch(out); m != nil {
		return m[1]
	}
	k.t.Fatalf("no token in\n%s", out)
	return ""
}

func (k *takeover) exec(sql ...string) {
	k.t.Helper()
	k.pg.Exec(k.t, k.dsn, sql...)
}

func (k *takeover) value(sql string, args ...any) string {
	k.t.Helper()
	return k.pg.Value(k.t, k.dsn, sql, args...)
}

// eventually waits for an event, and fails the test when it does not come.
func (k *takeover) eventually(what string, ok func() bool) {
	k.t.Helper()
	for limit := time.Now().Add(3 * time.Minute); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(limit) {
			k.t.Fatalf("not in 3 minutes: %s", what)
		}
	}
}

// insert commits n rows in one transaction and returns their ids.
func (k *takeover) insert(n int) []string {
	k.t.Helper()
	return strings.Fields(k.value(fmt.Sprintf(`WITH r AS (INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload)
		SELECT 'order', 'k' || g, 'made', '{"n": 1}' FROM generate_series(1, %d) g RETURNING id) SELECT string_agg(id::text, ' ') FROM r`, n)))
}

// arrive waits until all of the events are in Kafka.
func (k *takeover) arrive(ids []string) {
	k.t.Helper()
	k.eventually(fmt.Sprintf("%d events arrive", len(ids)), func() bool { return k.ledger.Seen(ids...) == len(ids) })
}

// again is how many records came that had come before.
func (k *takeover) again() int {
	_, duplicates := k.ledger.Arrived()
	return duplicates
}

// now is where the server is.
func (k *takeover) now() cdc.LSN {
	k.t.Helper()
	return k.position("SELECT pg_current_wal_lsn()::text")
}

// confirmed is the slot's position; after a clean stop that is the checkpoint.
func (k *takeover) confirmed() cdc.LSN {
	k.t.Helper()
	return k.position("SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = $1", k.slot)
}

func (k *takeover) position(sql string, args ...any) cdc.LSN {
	k.t.Helper()
	p, err := cdc.ParseLSN(k.value(sql, args...))
	if err != nil {
		k.t.Fatal(err)
	}
	return p
}

// check runs walpost check, which must find nothing that fails.
func (k *takeover) check() (out string) {
	k.t.Helper()
	code, out := k.command("check")
	if code != 0 || strings.Contains(out, "FAIL") {
		k.t.Fatalf("check: exit code %d\n%s", code, out)
	}
	return out
}

// stored is a position of the connector's stored offset: lsn, lsn_proc or lsn_commit; 0 where there is none.
func (k *takeover) stored(name string) cdc.LSN {
	k.t.Helper()
	for _, o := range k.worker.Offsets(k.t, k.slot) {
		if n, ok := o.Offset[name].(float64); ok {
			return cdc.LSN(n)
		}
	}
	return 0
}

// free says that nobody reads the slot.
func (k *takeover) free() bool {
	k.t.Helper()
	return k.value("SELECT NOT active FROM pg_replication_slots WHERE slot_name = $1", k.slot) == "true"
}

// settled waits until all rows have arrived and says what the consumer saw of the whole history.
func (k *takeover) settled() ledger.Report {
	k.t.Helper()
	if err := shop.Truth(k.t.Context(), k.dsn, k.ledger); err != nil {
		k.t.Fatal(err)
	}
	k.eventually("all events arrive", func() bool { return k.ledger.Missing() == 0 })
	time.Sleep(500 * time.Millisecond) // for what comes too much
	rep := k.ledger.Check()
	k.t.Logf("ledger: %s", &rep)
	return rep
}

// sameBytes says that whatever came twice had the same bytes both times, whoever delivered it.
func (k *takeover) sameBytes() {
	k.t.Helper()
	if rep := k.ledger.Check(); rep.Changed+rep.Moved > 0 {
		k.t.Errorf("ledger: %s", &rep)
	}
}

// seen is how many events have arrived, each counted once.
func (k *takeover) seen() int {
	records, duplicates := k.ledger.Arrived()
	return records - duplicates
}

// streamsOrFails waits until the connector reads the slot, or has failed, and returns why.
func (k *takeover) streamsOrFails() (trace string) {
	k.t.Helper()
	ctx, cancel := context.WithTimeout(k.t.Context(), 3*time.Minute)
	defer cancel()
	err := k.worker.TryStreams(ctx, k.slot, k.dsn, k.slot)
	var failed *ConnectorFailure
	if errors.As(err, &failed) {
		return failed.Trace
	}
	if err != nil {
		k.t.Fatal(err)
	}
	return ""
}
