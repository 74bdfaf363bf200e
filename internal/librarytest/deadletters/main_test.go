//go:build linux || darwin

// Package deadletters_test tests the dead letters of consumers from the handler that fails to the retry, with a real Postgres and
// a real Kafka.
package deadletters_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/walpost/walpost"
	"github.com/walpost/walpost/inbox"
	"github.com/walpost/walpost/inbox/consumer"
	"github.com/walpost/walpost/internal/deadletter"
	"github.com/walpost/walpost/internal/librarytest/process"
	"github.com/walpost/walpost/internal/testenv"
)

func TestMain(m *testing.M) {
	process.Run(func(ctx context.Context, cfg roleConfig) error { return cfg.run(ctx) })
	os.Exit(testenv.Main(m))
}

// ddl makes the tables of the inbox.
var ddl, _ = inbox.Schema("").DDL(0)

const patience = 2 * time.Minute

// A world is a topic with its dead letter topic, and a database with the effects.
type world struct {
	*testing.T
	kafka       *testenv.KafkaCluster
	client      *kgo.Client // produces
	topic, dead string
	pool        *pgxpool.Pool
}

func newWorld(t *testing.T, kafka *testenv.KafkaCluster, partitions int) *world {
	t.Helper()
	pg := testenv.Postgres(t, "17")
	dsn := pg.Database(t)
	pg.Exec(t, dsn, ddl, "CREATE TABLE effects (place bigint GENERATED ALWAYS AS IDENTITY, consumer text, id text, value text)")
	w := &world{T: t, kafka: kafka, topic: kafka.Topic(t, partitions, nil), dead: kafka.Topic(t, 2, nil)}
	w.client = kafka.Client(t, kgo.RecordPartitioner(kgo.ManualPartitioner()))
	var err error
	if w.pool, err = pgxpool.New(t.Context(), dsn); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.pool.Close)
	return w
}

func (w *world) produce(rec *kgo.Record) {
	w.Helper()
	if rec.Topic == "" {
		rec.Topic = w.topic
	}
	if err := w.client.ProduceSync(w.Context(), rec).FirstErr(); err != nil {
		w.Fatal(err)
	}
}

// message is one with the id <key>:<value>.
func message(key, value string) *kgo.Record {
	id := key + ":" + value
	return &kgo.Record{Key: []byte(key), Value: []byte(value), Headers: []kgo.RecordHeader{{Key: "id", Value: []byte(id)}}}
}

// A member consumes for a group, with the effects of its messages in the database. refuse returns why a message fails.
type member struct {
	*world
	group string
	end   func()
}

func (w *world) consume(group string, with func(*consumer.Config), refuse func(m inbox.Message) error) *member {
	w.Helper()
	db := inbox.Pgx(w.pool)
	cfg := consumer.Config{
		Brokers: w.kafka.Brokers(), Group: group, Topics: []string{w.topic}, DeadLetterTopic: w.dead,
		Attempts: 2, BackoffMin: time.Millisecond, BackoffMax: 10 * time.Millisecond, CommitInterval: 20 * time.Millisecond,
		ClientOptions: []kgo.Opt{kgo.HeartbeatInterval(200 * time.Millisecond)}, Logger: slog.New(slog.DiscardHandler),
		Handler: func(ctx context.Context, m inbox.Message) error {
			if refuse != nil {
				if err := refuse(m); err != nil {
					return err
				}
			}
			_, err := db.Once(ctx, group, m, func(ctx context.Context, tx pgx.Tx) error {
				_, err := tx.Exec(ctx, "INSERT INTO effects (consumer, id, value) VALUES ($1, $2, $3)", group, m.ID, string(m.Value))
				return err
			})
			return err
		},
	}
	if with != nil {
		with(&cfg)
	}
	c, err := consumer.New(cfg)
	if err != nil {
		w.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	m := &member{world: w, group: group}
	m.end = sync.OnceFunc(func() { stop(); <-done })
	w.Cleanup(m.end)
	return m
}

// finish waits until the group has committed everything.
func (m *member) finish() *member {
	m.Helper()
	m.eventually("group "+m.group+" reaches the end of the topic", func() (string, bool) {
		adm := kadm.NewClient(m.client)
		ends, err := adm.ListEndOffsets(m.Context(), m.topic)
		if err != nil {
			return err.Error(), false
		}
		at, err := adm.FetchOffsets(m.Context(), m.group)
		if err != nil {
			return err.Error(), false
		}
		for p, end := range ends[m.topic] {
			if o, _ := at.Lookup(m.topic, p); end.Offset > 0 && o.At != end.Offset {
				return fmt.Sprintf("partition %d: %d of %d", p, o.At, end.Offset), false
			}
		}
		return "", true
	})
	return m
}

func (w *world) eventually(what string, f func() (now string, ok bool)) {
	w.Helper()
	now, ok := f()
	for limit := time.Now().Add(patience); !ok; now, ok = f() {
		if time.Now().After(limit) {
			w.Fatalf("not within %s: %s: %s", patience, what, now)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// effects are those of a consumer in their order.
func (w *world) effects(name string) string {
	w.Helper()
	var all string
	if err := w.pool.QueryRow(w.Context(), "SELECT coalesce(string_agg(value, ' ' ORDER BY place), '') FROM effects WHERE consumer = $1", name).Scan(&all); err != nil {
		w.Fatal(err)
	}
	return all
}

// open opens the dead letters, as walpost dead does.
func (w *world) open(toTopic string) *walpost.BadEvents {
	w.Helper()
	cfg := walpost.DefaultConfig()
	cfg.Kafka.Brokers = w.kafka.Brokers()
	topics, err := walpost.OpenConsumed(w.Context(), cfg, w.dead, toTopic, func(string) {}, func(string, int64, int64) {})
	if err != nil {
		w.Fatal(err)
	}
	w.Cleanup(topics.Close)
	return topics
}

// letters are the dead letters that a filter selects, as "value state reason".
func (w *world) letters(f walpost.BadEventFilter) string {
	w.Helper()
	topics := w.open("")
	found, err := topics.Select(&f)
	if err != nil {
		w.Fatal(err)
	}
	var all []string
	for _, e := range found {
		_, value, _, err := topics.History(w.Context(), e)
		if err != nil {
			w.Fatal(err)
		}
		all = append(all, fmt.Sprintf("%s %s %s", value, e.State, e.Reason))
	}
	return strings.Join(all, ", ")
}

// retry sends the open ones of the selected dead letters back.
func (w *world) retry(f walpost.BadEventFilter, opts walpost.RetryOptions) *walpost.RetryReport {
	w.Helper()
	f.State = deadletter.Open
	topics := w.open(opts.ToTopic)
	found, err := topics.Select(&f)
	if err != nil {
		w.Fatal(err)
	}
	report, err := topics.Retry(w.Context(), found, opts)
	if err != nil {
		w.Fatal(err)
	}
	return report
}
