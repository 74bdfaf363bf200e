//go:build linux || darwin

package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/walpost/walpost/inbox"
	"github.com/walpost/walpost/inbox/consumer"
	"github.com/walpost/walpost/internal/librarytest/process"
	"github.com/walpost/walpost/internal/testenv"
)

func TestMain(m *testing.M) {
	process.Run(func(ctx context.Context, cfg memberConfig) error { return cfg.run(ctx) })
	os.Exit(testenv.Main(m))
}

const patience = time.Minute

var ddl, _ = inbox.Schema("").DDL(0)

// A world is a topic, a dead letter topic and a group, and what the handler of this test saw.
type world struct {
	t                 *testing.T
	k                 *testenv.KafkaCluster
	cl                *kgo.Client // produces
	topic, dead, name string
	log               *testenv.Output

	mu   sync.Mutex
	seen []string // values, in the order in which the handler was called
}

func newWorld(t *testing.T, k *testenv.KafkaCluster, partitions int) *world {
	w := &world{t: t, k: k, topic: k.Topic(t, partitions, nil), dead: k.Topic(t, 1, nil), log: &testenv.Output{}}
	w.name = w.topic + "-group"
	w.cl = k.Client(t, kgo.RecordPartitioner(kgo.ManualPartitioner()))
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("log:\n%s", w.log)
		}
	})
	return w
}

// send produces to a partition. A word is <key>:<value>; its id is <key>:<value>, too.
func (w *world) send(partition int32, words ...string) {
	w.t.Helper()
	for _, word := range words {
		key, _, _ := strings.Cut(word, ":")
		w.produce(&kgo.Record{
			Partition: partition, Key: []byte(key), Value: []byte(word), Headers: []kgo.RecordHeader{{Key: "id", Value: []byte(word)}},
		})
	}
}

func (w *world) produce(rec *kgo.Record) {
	w.t.Helper()
	rec.Topic = w.topic
	if err := w.cl.ProduceSync(w.t.Context(), rec).FirstErr(); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) saw(value string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.seen = append(w.seen, value)
}

func (w *world) all() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.seen)
}

func (w *world) count(value string) (n int) {
	for _, s := range w.all() {
		if s == value {
			n++
		}
	}
	return n
}

// config is what most tests start from: the handler notes each call and returns what f returns.
func (w *world) config(f func(ctx context.Context, m inbox.Message) error) consumer.Config {
	return consumer.Config{
		Brokers: w.k.Brokers(), Group: w.name, Topics: []string{w.topic}, DeadLetterTopic: w.dead,
		Attempts: 3, BackoffMin: 5 * time.Millisecond, BackoffMax: 50 * time.Millisecond, CommitInterval: 20 * time.Millisecond,
		Logger: slog.New(slog.NewTextHandler(w.log, nil)),
		ClientOptions: []kgo.Opt{
			kgo.MetadataMinAge(20 * time.Millisecond), kgo.HeartbeatInterval(200 * time.Millisecond),
			kgo.SessionTimeout(30 * time.Second), // a machine that stands still for some seconds ends no member
			kgo.RetryBackoffFn(func(int) time.Duration { return 20 * time.Millisecond }),
		},
		Handler: func(ctx context.Context, m inbox.Message) error {
			w.saw(string(m.Value))
			if f == nil {
				return nil
			}
			return f(ctx, m)
		},
	}
}

// A member is a running consumer.
type member struct {
	*consumer.Consumer
	w    *world
	stop context.CancelFunc
	done chan error
}

func (w *world) start(cfg consumer.Config) *member {
	w.t.Helper()
	c, err := consumer.New(cfg)
	if err != nil {
		w.t.Fatal(err)
	}
	m := &member{Consumer: c, w: w, done: make(chan error, 1)}
	var ctx context.Context
	ctx, m.stop = context.WithCancel(context.Background())
	go func() { m.done <- c.Run(ctx); close(m.done) }()
	w.t.Cleanup(func() {
		m.stop()
		select {
		case <-m.done:
		case <-time.After(patience):
			w.t.Error("a consumer does not stop")
		}
	})
	return m
}

// closing counts the partitions in which nothing new starts.
func (m *member) closing() (n int) {
	for _, p := range m.Stats().Partitions {
		if p.Closing {
			n++
		}
	}
	return n
}

// end stops the member, and returns what Run returned.
func (m *member) end() error {
	m.w.t.Helper()
	m.stop()
	select {
	case err := <-m.done:
		return err
	case <-time.After(patience):
		m.w.t.Fatal("Run does not return")
		return nil
	}
}

func (w *world) eventually(what string, f func() bool) {
	w.t.Helper()
	for limit := time.Now().Add(patience); !f(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(limit) {
			w.t.Fatalf("not within %s: %s; seen %q", patience, what, w.all())
		}
	}
}

func (w *world) sees(values ...string) {
	w.t.Helper()
	for _, v := range values {
		w.eventually("handler sees "+v, func() bool { return w.count(v) > 0 })
	}
}

// committed is the group's offset of a partition; -1 for none.
func (w *world) committed(partition int32) (at int64) {
	w.t.Helper()
	w.ask(func(adm *kadm.Client) error {
		offsets, err := adm.FetchOffsets(w.t.Context(), w.name)
		at = -1
		if o, ok := offsets.Lookup(w.topic, partition); ok {
			at = o.At
		}
		return err
	})
	return at
}

// ask asks the brokers until they answer: a coordinator can be on its way.
func (w *world) ask(f func(*kadm.Client) error) {
	w.t.Helper()
	var err error
	for limit := time.Now().Add(patience); time.Now().Before(limit); time.Sleep(5 * time.Millisecond) {
		if err = f(kadm.NewClient(w.cl)); err == nil {
			return
		}
	}
	w.t.Fatal(err)
}

func (w *world) commits(partition int32, offset int64) {
	w.t.Helper()
	w.eventually(fmt.Sprintf("offset %d of partition %d is committed", offset, partition), func() bool { return w.committed(partition) == offset })
}

// letters reads n dead letters.
func (w *world) letters(n int) (all []*kgo.Record) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), patience)
	defer cancel()
	cl := w.k.Client(w.t, kgo.ConsumeTopics(w.dead))
	defer cl.Close()
	for len(all) < n {
		fetches := cl.PollFetches(ctx)
		if err := fetches.Err0(); err != nil {
			w.t.Fatalf("%d of %d dead letters: %v", len(all), n, err)
		}
		all = append(all, fetches.Records()...)
	}
	return all
}

func header(rec *kgo.Record, key string) string {
	for _, h := range rec.Headers {
		if h.Key == key {
			return string(h.Value)
		}
	}
	return ""
}

// A gate holds handlers up until it is opened.
type gate chan struct{}

func (g gate) wait(ctx context.Context) error {
	select {
	case <-g:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func newPool(t testing.TB, dsn string) *pgxpool.Pool {
	t.Helper()
	pool, err := pgxpool.New(context.Background(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

var errBroken = errors.New("broken")
