package badevents

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/deadletter"
	"github.com/walpost/walpost/internal/testenv"
	"github.com/walpost/walpost/relay"
	"github.com/walpost/walpost/router"
	"github.com/walpost/walpost/sink"
)

func TestMain(m *testing.M) { os.Exit(testenv.Main(m)) }

// A world is a dead letter topic, and topics that events are meant for.
type world struct {
	*testing.T
	kafka  *testenv.KafkaCluster
	client *kgo.Client
	prefix string
	cfg    Config
	n      int // letters

	mu   sync.Mutex
	said []string
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{T: t, kafka: testenv.Kafka(t)}
	w.client = w.kafka.Client(t, kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ProducerBatchMaxBytes(8<<20))
	w.prefix = w.kafka.Topic(t, 1, map[string]string{"max.message.bytes": "8388608"}) // its name is the dead letter topic's
	w.cfg = Config{Name: "shop.walpost", Database: "shop", Kafka: sink.DefaultConfig(), Version: "test", Produce: func(bool) {}, Progress: func(string, int64, int64) {}}
	w.cfg.Kafka.Brokers, w.cfg.Kafka.WindowBytes = w.kafka.Brokers(), 64<<20
	w.cfg.Kafka.DeadLetters, w.cfg.Parking = w.prefix, w.prefix+".parked"
	w.cfg.Say = func(text string) { w.mu.Lock(); defer w.mu.Unlock(); w.said = append(w.said, text) }
	w.route("aggregate_type")
	return w
}

// route has rows routed by another column.
func (w *world) route(by string) {
	w.Helper()
	rc := router.DefaultConfig()
	rc.Tables, rc.RouteBy, rc.TopicReplacement = []string{"public.outbox"}, by, w.prefix+".${routedByValue}"
	routes, err := router.New(rc)
	if err != nil {
		w.Fatal(err)
	}
	w.cfg.Router = routes
}

func (w *world) topic(name string, partitions int, settings map[string]string) string {
	w.Helper()
	w.kafka.CreateTopic(w.T, w.prefix+"."+name, partitions, settings)
	return w.prefix + "." + name
}

var began = time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)

// letter returns the letter of an event in the form record. Each is a second younger than the last one.
func (w *world) letter(id, key, topic, value string) *deadletter.Letter {
	w.n++
	at := began.Add(time.Duration(w.n) * time.Second)
	return &deadletter.Letter{
		Token: "t-" + id, Reason: cdc.TooLarge, Error: "too large", Table: "public.outbox", ID: id, Commit: cdc.Position(1000 + w.n), Row: 1, CommitTime: at,
		Topic: w.prefix + "." + topic, Partition: -1, Attempts: 1, Version: "old", Key: []byte(key), KeyKnown: true,
		Name: w.cfg.Name, Database: w.cfg.Database,
		Record: &cdc.Record{Value: []byte(value), Time: at, Headers: []cdc.Header{{Key: "id", Value: []byte(id)}}},
	}
}

// row returns the letter of an event in the form row. The topic that it was routed to is unknown.
func (w *world) row(id, typ, key, value string) *deadletter.Letter {
	l := w.letter(id, key, "", "")
	l.Reason, l.Error, l.Topic, l.Record = cdc.Unroutable, "no type", "", nil
	rel := &cdc.Relation{ID: 7, Schema: "public", Name: "outbox", ReplicaIdentity: 'd'}
	l.Event = &cdc.Event{Kind: cdc.Insert, Pos: l.Commit, Time: l.CommitTime, Row: cdc.Row{Relation: rel}}
	for _, c := range [][2]string{{"id", id}, {"aggregate_type", typ}, {"aggregate_id", key}, {"payload", value}, {"other", "rows"}} {
		rel.Columns = append(rel.Columns, cdc.Column{Name: c[0], TypeOID: 25, TypeMod: -1})
		v := cdc.Value{Bytes: []byte(c[1])}
		if c[1] == "" {
			v.Bytes = nil
		}
		l.Event.Row.Values = append(l.Event.Row.Values, v)
	}
	return l
}

func (w *world) write(letters ...*deadletter.Letter) {
	w.Helper()
	for _, l := range letters {
		rec, err := l.Encode(w.prefix)
		if err != nil {
			w.Fatal(err)
		}
		w.produce(rec)
	}
}

func (w *world) produce(rec *cdc.Record) {
	w.Helper()
	out := &kgo.Record{Topic: rec.Topic, Key: rec.Key, Value: rec.Value, Timestamp: rec.Time}
	for _, h := range rec.Headers {
		out.Headers = append(out.Headers, kgo.RecordHeader{Key: h.Key, Value: h.Value})
	}
	if err := w.client.ProduceSync(w.Context(), out).FirstErr(); err != nil {
		w.Fatal(err)
	}
}

func (w *world) open() *Topics {
	w.Helper()
	t, err := Open(w.Context(), w.cfg)
	if err != nil {
		w.Fatal(err)
	}
	w.Cleanup(t.Close)
	return t
}

// entries are the selected events; a nil filter selects those that are open.
func (w *world) entries(t *Topics, f *Filter) []*Event {
	w.Helper()
	if f == nil {
		f = &Filter{State: deadletter.Open}
	}
	found, err := t.Select(f)
	if err != nil {
		w.Fatal(err)
	}
	return found
}

// states tells what has become of each event, in the order of the topic.
func (w *world) states() string {
	w.Helper()
	var out []string
	for _, e := range w.entries(w.open(), &Filter{}) {
		out = append(out, fmt.Sprintf("%s %s %d", e.ID, e.State, e.Attempts))
	}
	return strings.Join(out, ", ")
}

// records are "id=value" of the records in a topic, in their order.
func (w *world) records(topic string) string {
	w.Helper()
	var out []string
	l := log{client: w.client, Topic: topic}
	ctx, cancel := context.WithTimeout(w.Context(), time.Minute)
	defer cancel()
	info, err := l.describe(ctx)
	if err != nil {
		w.Fatal(err)
	}
	for p := range info.Partitions {
		r := readAll(w.client, topic, int32(p), func(rec *kgo.Record) {
			id, origin := "", ""
			for _, h := range rec.Headers {
				switch h.Key {
				case "id":
					id = string(h.Value)
				case "walpost.origin":
					origin = string(h.Value)
				}
			}
			if origin != relay.OriginDeadLetter {
				id += "(origin " + origin + ")"
			}
			out = append(out, id+"="+string(rec.Value[:min(len(rec.Value), 10)]))
		})
		if err := r.ToEnd(ctx); err != nil {
			w.Fatal(err)
		}
	}
	return strings.Join(out, " ")
}
