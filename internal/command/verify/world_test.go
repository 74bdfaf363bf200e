package verify

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/kafka"
	"github.com/walpost/walpost/internal/lib/pgname"
	ipg "github.com/walpost/walpost/internal/pg"
	"github.com/walpost/walpost/internal/table"
	"github.com/walpost/walpost/internal/testenv"
	"github.com/walpost/walpost/router"
)

// A world is a database with an outbox and a slot, and topics of its own.
type world struct {
	*testing.T
	pg     *testenv.PG
	dsn    string
	client *kgo.Client
	cfg    Config
	prefix string // of the topics
	runs   bool   // verify sees a slot that moves, as a relay would move it

	cluster *testenv.KafkaCluster
	topics  map[string]bool
}

const outboxTable = `CREATE TABLE outbox (seq bigint GENERATED ALWAYS AS IDENTITY, id text, aggregate_type text, aggregate_id text,
 payload text, at timestamptz)`

func newWorld(t *testing.T, commits string, options ...func(*router.Config)) *world {
	t.Helper()
	pg, cluster := testenv.Postgres(t, "16", testenv.Param("track_commit_timestamp", commits)), testenv.Kafka(t)
	w := &world{T: t, pg: pg, dsn: pg.Database(t), cluster: cluster, topics: map[string]bool{}}
	w.client = cluster.Client(t, kgo.RecordPartitioner(kgo.ManualPartitioner()))
	name, err := (ipg.Database{DSN: w.dsn}).Name()
	if err != nil {
		t.Fatal(err)
	}
	w.prefix = name + "."
	w.exec(outboxTable, "CREATE PUBLICATION walpost FOR TABLE outbox WITH (publish = 'insert')",
		fmt.Sprintf("SELECT pg_create_logical_replication_slot('%s', 'pgoutput')", name))
	t.Cleanup(func() { w.exec(fmt.Sprintf("SELECT pg_drop_replication_slot('%s')", name)) })
	rc := router.DefaultConfig()
	rc.Tables, rc.TopicReplacement = []string{"public.outbox"}, w.prefix+"${routedByValue}"
	for _, o := range options {
		o(&rc)
	}
	routes, err := router.New(rc)
	if err != nil {
		t.Fatal(err)
	}
	w.runs = true
	w.cfg = Config{
		From:   table.Source{DB: ipg.Database{DSN: w.dsn}, Names: ipg.Names{Publication: "walpost", Tables: []pgname.Table{{Schema: "public", Name: "outbox"}}}},
		Router: routes, Kafka: &kafka.Config{Brokers: cluster.Brokers()}, Slot: name, OrderColumn: "seq",
	}
	return w
}

func (w *world) exec(sql ...string) { w.Helper(); w.pg.Exec(w.T, w.dsn, sql...) }

// settings are those of topics with this name, also if a number follows; other topics have none.
var settings = map[string]map[string]string{"compact": {"cleanup.policy": "compact"}, "broker": {"message.timestamp.type": "LogAppendTime"}}

// insert writes rows "id topic key payload" in one transaction.
func (w *world) insert(rows ...string) {
	w.Helper()
	var values []string
	for _, r := range rows {
		var v []string
		if topic := strings.Fields(r)[1]; topic != "NULL" && topic != "nowhere" && !w.topics[topic] {
			w.cluster.CreateTopic(w.T, w.prefix+topic, 2, settings[strings.TrimRight(topic, "0123456789")])
			w.topics[topic] = true
		}
		for _, f := range strings.Fields(r) {
			if f == "NULL" {
				v = append(v, f)
			} else {
				v = append(v, "'"+f+"'")
			}
		}
		values = append(values, "("+strings.Join(v, ", ")+")")
	}
	w.exec("INSERT INTO outbox (id, aggregate_type, aggregate_id, payload) VALUES " + strings.Join(values, ", "))
}

// later makes sure that the next transaction commits so much later that its time is certain.
func (w *world) later() { w.exec("SELECT pg_sleep(1.1)") }

// records are what the relay would send for the table, in the order of the rows. If the server keeps no commit times, all of
// them have one time, as the rows of one transaction have.
func (w *world) records() (out []*kgo.Record) {
	w.Helper()
	now := time.Now()
	reader, err := w.cfg.From.Open(w.Context(), table.Options{})
	if err != nil {
		w.Fatal(err)
	}
	defer reader.Close()
	rows, err := reader.Tables()[0].Select(w.Context(), table.Selection{Order: table.Order{By: table.ByColumn, Column: "seq"}})
	if err != nil {
		w.Fatal(err)
	}
	for {
		ev, err := rows.Next()
		if err != nil {
			w.Fatal(err)
		}
		if ev == nil {
			return out
		}
		if !rows.CommitKnown {
			ev.Time = now
		}
		var rec cdc.Record
		if ok, err := w.cfg.Router.Route(ev, &rec); err != nil || !ok {
			continue // the relay would halt here
		}
		r := &kgo.Record{Topic: rec.Topic, Key: rec.Key, Value: rec.Value, Timestamp: rec.Time, Partition: 1}
		for _, h := range rec.Headers {
			r.Headers = append(r.Headers, kgo.RecordHeader{Key: h.Key, Value: h.Value})
		}
		out = append(out, r)
	}
}

// copyOf is a record that is sent once more.
func copyOf(r *kgo.Record, changes ...func(*kgo.Record)) *kgo.Record {
	c := &kgo.Record{Topic: r.Topic, Key: r.Key, Value: r.Value, Timestamp: r.Timestamp, Partition: r.Partition, Headers: slices.Clone(r.Headers)}
	for _, change := range changes {
		change(c)
	}
	return c
}

func header(name, value string) func(*kgo.Record) {
	return func(r *kgo.Record) { r.Headers = append(r.Headers, kgo.RecordHeader{Key: name, Value: []byte(value)}) }
}

// send produces records in this order. All are in one partition, as if their keys were there, unless they say another one.
func (w *world) send(records ...*kgo.Record) {
	w.Helper()
	for _, r := range records {
		if err := w.client.ProduceSync(w.Context(), r).FirstErr(); err != nil {
			w.Fatal(err)
		}
	}
}

// confirm moves the slot to the end of the WAL.
func (w *world) confirm() {
	w.Helper()
	w.exec(fmt.Sprintf("SELECT pg_replication_slot_advance('%s', pg_current_wal_insert_lsn())", w.cfg.Slot))
}

// trim deletes the records of topic before an offset of partition 1.
func (w *world) trim(topic string, before int64) {
	w.Helper()
	var o kadm.Offsets
	o.Add(kadm.Offset{Topic: w.prefix + topic, Partition: 1, At: before})
	if _, err := kadm.NewClient(w.client).DeleteRecords(w.Context(), o); err != nil {
		w.Fatal(err)
	}
}

func (w *world) verify(changes ...func(*Options)) *Report {
	w.Helper()
	ctx, cancel := context.WithTimeout(w.Context(), time.Minute)
	defer cancel()
	if w.runs {
		moving, stop := context.WithCancel(ctx)
		var done sync.WaitGroup
		done.Go(func() {
			for moving.Err() == nil {
				w.confirm()
				time.Sleep(50 * time.Millisecond)
			}
		})
		defer done.Wait()
		defer stop()
	}
	opts := Options{Wait: DefaultWait, TempDir: w.TempDir(), Limit: 100, memory: 4 << 10}
	for _, change := range changes {
		change(&opts)
	}
	r, err := Run(ctx, w.cfg, opts)
	if err != nil {
		w.Fatal(err)
	}
	return r
}

// wants compares the findings with lines "kind id offset", and the number of contiguous duplicates.
func (w *world) wants(r *Report, repeated int64, lines ...string) {
	w.Helper()
	var got, details []string
	for _, f := range r.Findings {
		got = append(got, fmt.Sprintf("%s %s %d", f.Kind, f.EventID, f.Offset))
		details = append(details, fmt.Sprintf("%+v", f))
	}
	slices.Sort(got)
	slices.Sort(lines)
	if !slices.Equal(got, lines) || r.Repeated != repeated {
		w.Errorf("findings %q, %d contiguous duplicates; must be %q, %d\n%s\n%+v", got, r.Repeated, lines, repeated, strings.Join(details, "\n"), r)
	}
}

func at(t *testing.T, text string) time.Time {
	t.Helper()
	v, err := time.Parse(time.RFC3339, text)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// elsewhere has events by "table id".
func elsewhere(events map[string]Place) func(context.Context) (func(table, id string) Place, error) {
	return func(context.Context) (func(table, id string) Place, error) {
		return func(table, id string) Place { return events[table+" "+id] }, nil
	}
}
