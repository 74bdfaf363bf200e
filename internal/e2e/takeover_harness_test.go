//go:build linux || darwin

package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/ledger"
	"github.com/walpost/walpost/internal/shop"
	"github.com/walpost/walpost/internal/testenv"
)

// A takeover is one outbox that Debezium and walpost relay in turn, by one slot, and a consumer that reads it all.
type takeover struct {
	*world
	kafka     *testenv.KafkaCluster
	worker    *testenv.ConnectWorker
	connector string
	options   map[string]string // of the connector

	ledgerMu sync.Mutex
	ledger   *ledger.Ledger
}

// newTakeover has a database with the shop's tables and rows that nobody publishes, and a connector that streams.
func newTakeover(t *testing.T, kafka *testenv.KafkaCluster, worker *testenv.ConnectWorker, options map[string]string) *takeover {
	t.Helper()
	pg := testenv.Postgres(t, "15")
	dsn := pg.Database(t)
	slot := strings.ReplaceAll(unique("dbz"), "-", "_")
	k := &takeover{world: worldIn(t, kafka, pg, dsn, slot), kafka: kafka, worker: worker, connector: slot, ledger: ledger.New()}
	// A column decides the timestamp: so a duplicate has every byte of the first, whoever delivers it.
	k.exec("ALTER TABLE outbox ADD COLUMN at timestamp NOT NULL DEFAULT (now() AT TIME ZONE 'UTC')")
	config, err := testenv.Debezium(dsn, slot)
	if err != nil {
		t.Fatal(err)
	}
	for name, value := range map[string]string{
		"table.include.list": "public.outbox", "snapshot.mode": "no_data", "poll.interval.ms": "20",
		"transforms": "outbox", "transforms.outbox.type": "io.debezium.transforms.outbox.EventRouter",
		"transforms.outbox.table.field.event.key":             "aggregate_id",
		"transforms.outbox.route.by.field":                    "aggregate_type",
		"transforms.outbox.table.field.event.timestamp":       "at",
		"transforms.outbox.table.fields.additional.placement": "event_type:header:eventType",
		"transforms.outbox.route.topic.replacement":           k.prefix + "${routedByValue}",
	} {
		config[name] = value
	}
	for name, value := range options {
		config[name] = value
	}
	k.options = config
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		err := shop.Follow(ctx, k.brokers, k.topics, func(r *kgo.Record) {
			k.ledgerMu.Lock()
			defer k.ledgerMu.Unlock()
			// The one header that differs on purpose.
			kept := *r
			kept.Headers = nil
			for _, h := range r.Headers {
				if h.Key != "__debezium.context.runId" {
					kept.Headers = append(kept.Headers, h)
				}
			}
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
	k.worker.Put(k.t, k.connector, k.options)
	if s, err := k.worker.Status(k.t.Context(), k.connector); err != nil || s.Connector == "STOPPED" {
		k.worker.Resume(k.t, k.connector)
	}
	k.worker.Streams(k.t, k.connector, k.dsn, k.slot)
}

// convert makes walpost.yaml of the connector's configuration, which must go without a word of doubt.
func (k *takeover) convert() {
	k.t.Helper()
	dir := k.t.TempDir()
	text, err := json.Marshal(map[string]any{"name": k.connector, "config": k.options})
	if err != nil {
		k.t.Fatal(err)
	}
	worker := "bootstrap.servers=" + strings.Join(k.brokers, ",") +
		"\nkey.converter=org.apache.kafka.connect.storage.StringConverter\nvalue.converter=org.apache.kafka.connect.storage.StringConverter\n"
	for name, content := range map[string]string{"connector.json": string(text), "worker.properties": worker} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			k.t.Fatal(err)
		}
	}
	cmd := exec.Command(program, "debezium", "convert", filepath.Join(dir, "connector.json"), "--worker", filepath.Join(dir, "worker.properties"))
	var report bytes.Buffer
	cmd.Stderr = &report
	yaml, err := cmd.Output()
	if err != nil {
		k.t.Fatalf("convert: %v\n%s", err, &report)
	}
	k.yaml = string(yaml)
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
func (k *takeover) stored(name string) cdc.Position {
	k.t.Helper()
	for _, o := range k.worker.Offsets(k.t, k.connector) {
		if n, ok := o.Offset[name].(float64); ok {
			return cdc.Position(n)
		}
	}
	return 0
}

func (k *takeover) position() cdc.Position {
	k.t.Helper()
	p, err := cdc.ParsePosition(k.confirmed())
	if err != nil {
		k.t.Fatal(err)
	}
	return p
}

// free says that nobody reads the slot.
func (k *takeover) free() bool {
	k.t.Helper()
	return k.pg.Value(k.t, k.dsn, "SELECT NOT active FROM pg_replication_slots WHERE slot_name = $1", k.slot) == "true"
}

// settled waits until all rows have arrived and says what the consumer saw of the whole history.
func (k *takeover) settled() ledger.Report {
	k.t.Helper()
	k.ledgerMu.Lock()
	err := shop.Truth(k.t.Context(), k.dsn, k.ledger)
	k.ledgerMu.Unlock()
	if err != nil {
		k.t.Fatal(err)
	}
	eventually(k.t, 90*time.Second, "all events arrive", func() bool {
		k.ledgerMu.Lock()
		defer k.ledgerMu.Unlock()
		return k.ledger.Missing() == 0
	})
	time.Sleep(500 * time.Millisecond) // for what comes too much
	k.ledgerMu.Lock()
	defer k.ledgerMu.Unlock()
	rep := k.ledger.Check()
	k.t.Logf("ledger: %s", &rep)
	return rep
}

// sameBytes says that whatever came twice had the same bytes both times, whoever delivered it.
func (k *takeover) sameBytes() {
	k.t.Helper()
	k.ledgerMu.Lock()
	defer k.ledgerMu.Unlock()
	if rep := k.ledger.Check(); rep.Changed+rep.Moved > 0 {
		k.t.Errorf("ledger: %s", &rep)
	}
}

// seen is how many events have arrived, each counted once.
func (k *takeover) seen() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.times)
}

// beyond says whether the slot is confirmed beyond lsn.
func (k *takeover) beyond(lsn string) bool {
	k.t.Helper()
	return k.pg.Value(k.t, k.dsn, "SELECT confirmed_flush_lsn > $1::text::pg_lsn FROM pg_replication_slots WHERE slot_name = $2", lsn, k.slot) == "true"
}

// streamsOrFails waits until the connector reads the slot, or has failed, and returns why.
func (k *takeover) streamsOrFails() (trace string) {
	k.t.Helper()
	ctx, cancel := context.WithTimeout(k.t.Context(), time.Minute)
	defer cancel()
	err := k.worker.TryStreams(ctx, k.connector, k.dsn, k.slot)
	var failed *testenv.ConnectorFailure
	if errors.As(err, &failed) {
		return failed.Trace
	}
	if err != nil {
		k.t.Fatal(err)
	}
	return ""
}
