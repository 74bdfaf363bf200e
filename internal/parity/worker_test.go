//go:build linux || darwin

package parity

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/walpost/walpost/internal/testenv"
)

// outboxConnector is a connector for the table outbox of a new database, whose events go to one
// topic.
func outboxConnector(t *testing.T, c *testenv.KafkaCluster) (pg *testenv.PG, dsn, topic string, config map[string]string) {
	t.Helper()
	pg = testenv.Postgres(t, "")
	dsn = pg.Database(t)
	pg.Exec(t, dsn, "CREATE TABLE outbox (id uuid PRIMARY KEY, aggregatetype text, aggregateid text, payload text)")
	config, err := connector(dsn, pg.Value(t, dsn, "SELECT current_database()"))
	if err != nil {
		t.Fatal(err)
	}
	topic = c.Topic(t, 1, nil)
	for k, v := range map[string]string{
		"table.include.list": "public.outbox", "snapshot.mode": "no_data", "poll.interval.ms": "20",
		"transforms": "o", "transforms.o.type": "io.debezium.transforms.outbox.EventRouter",
		"transforms.o.route.topic.replacement": topic,
	} {
		config[k] = v
	}
	return pg, dsn, topic, config
}

func within(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

const outboxRow = "INSERT INTO outbox VALUES (gen_random_uuid(), 'order', 'k', $$first$$)"

func TestAConnectorDeliversAndGoesOnFromItsOffsets(t *testing.T) {
	c := testenv.Kafka(t)
	w := Connect(t, c, nil)
	pg, dsn, topic, config := outboxConnector(t, c)
	slot := config["slot.name"]
	w.Put(t, "orders", config)
	w.Streams(t, "orders", dsn, slot)
	cl := c.Client(t, kgo.ConsumeTopics(topic))
	next := func(want string) {
		t.Helper()
		for {
			f := cl.PollFetches(within(t))
			if err := f.Err(); err != nil {
				t.Fatal(err)
			}
			for _, r := range f.Records() {
				if string(r.Value) != want || string(r.Key) != "k" {
					t.Fatalf("record %q %q, want k %q", r.Key, r.Value, want)
				}
				return
			}
		}
	}
	pg.Exec(t, dsn, outboxRow)
	next("first")

	w.StopConnector(t, "orders")
	active := "SELECT active FROM pg_replication_slots WHERE slot_name = $1"
	if got := pg.Value(t, dsn, active, slot); got != "false" {
		t.Errorf("slot in use: %s, want false", got)
	}
	offsets := w.Offsets(t, "orders")
	if len(offsets) != 1 || offsets[0].Partition["server"] != config["topic.prefix"] || offsets[0].Offset["lsn"] == nil {
		t.Fatalf("offsets %v, want one of server %s with an lsn", offsets, config["topic.prefix"])
	}
	pg.Exec(t, dsn, strings.Replace(outboxRow, "first", "second", 1))
	w.Resume(t, "orders")
	next("second")
	w.StopConnector(t, "orders")
	w.Delete(t, "orders")
	if s, err := w.Status(t.Context(), "orders"); err != nil || s != (ConnectorStatus{}) {
		t.Errorf("a deleted connector: %+v, %v", s, err)
	}
	if err := w.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := w.Start(within(t)); err != nil {
		t.Fatal(err)
	}
	w.Put(t, "orders", config)
	w.Streams(t, "orders", dsn, slot)
	pg.Exec(t, dsn, strings.Replace(outboxRow, "first", "third", 1))
	next("third") // not the second again: the worker has written the offset
	w.StopConnector(t, "orders")
	w.ResetOffsets(t, "orders")
	if left := w.Offsets(t, "orders"); len(left) != 0 {
		t.Errorf("offsets after a reset: %v", left)
	}
}

func TestAFailedConnectorSaysWhy(t *testing.T) {
	c := testenv.Kafka(t)
	w := Connect(t, c, nil)
	pg, dsn, _, config := outboxConnector(t, c)
	config["transforms.o.table.field.event.key"] = "nowhere"
	w.Put(t, "orders", config)
	w.Streams(t, "orders", dsn, config["slot.name"])
	pg.Exec(t, dsn, outboxRow)
	var failed *ConnectorFailure
	err := w.until(within(t), "orders", func(ConnectorStatus) (bool, error) { return false, nil })
	if !errors.As(err, &failed) || !strings.Contains(failed.Trace, "nowhere is not a valid field name") {
		t.Errorf("a missing field: %v", err)
	}
	config["snapshot.mode"] = "never"
	err = w.TryPut(t.Context(), "refused", config)
	var refusal *RESTError
	if !errors.As(err, &refusal) || refusal.Status != 400 || !strings.Contains(refusal.Message, "snapshot.mode") {
		t.Errorf("a bad snapshot.mode: %v", err)
	}
}
