package consumer_test

import (
	"context"
	"encoding/json"
	"errors"
	"log"
	"log/slog"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/walpost/walpost/inbox"
	"github.com/walpost/walpost/inbox/consumer"
)

// The mark of the event and its effect are in one transaction, so each event has one effect.
func Example() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	book := func(ctx context.Context, tx pgx.Tx, m inbox.Message) error {
		_, err := tx.Exec(ctx, "INSERT INTO bookings SELECT $1::jsonb", m.Value)
		return err
	}
	c, err := consumer.New(consumer.Config{
		Brokers:         []string{"kafka-1:9092", "kafka-2:9092"},
		Group:           "payments",
		Topics:          []string{"outbox.event.order"},
		DeadLetterTopic: "payments.dead",
		Handler:         inbox.Handler(inbox.Pgx(pool), book),
	})
	if err != nil {
		log.Fatal(err)
	}
	http.HandleFunc("/ready", func(w http.ResponseWriter, _ *http.Request) {
		if !c.Ready() {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	})
	go func() { log.Fatal(http.ListenAndServe(":8080", nil)) }()
	err = c.Run(ctx) // until SIGTERM
	if login, ok := errors.AsType[*consumer.LoginError](err); ok {
		log.Fatalf("check the password and the certificates: %v", login.Err)
	}
	if uncommitted, ok := errors.AsType[*consumer.UncommittedError](err); ok {
		log.Printf("these partitions come again in part: %v (%v)", uncommitted.Partitions, uncommitted.Err)
	} else if err != nil {
		log.Fatal(err)
	}
}

// One transaction for many events is for hot paths.
func Example_batch() {
	var pool *pgxpool.Pool
	book := func(ctx context.Context, tx pgx.Tx, fresh []inbox.Message) error { return nil }
	_ = consumer.Config{BatchHandler: inbox.BatchHandler(inbox.Pgx(pool), book), BatchSize: 500}
}

// An error that no other attempt can change is Permanent. A service that is away is no fault of the
// message: Retryable.
func ExamplePermanent() {
	handler := func(ctx context.Context, m inbox.Message) error {
		var order struct{ Amount int }
		if err := json.Unmarshal(m.Value, &order); err != nil {
			return inbox.Permanent(err)
		}
		if err := charge(ctx, order.Amount); err != nil {
			return inbox.Retryable(err)
		}
		return nil
	}
	_ = consumer.Config{Handler: handler}
}

// A function around a Handler sees each attempt.
func ExampleHandler() {
	timed := func(next consumer.Handler) consumer.Handler {
		return func(ctx context.Context, m inbox.Message) error {
			begun := time.Now()
			err := next(ctx, m)
			log.Printf("%s/%d/%d: %s, %v", m.Topic, m.Partition, m.Offset, time.Since(begun), err)
			return err
		}
	}
	var db *inbox.DB[pgx.Tx]
	var book inbox.HandlerFunc[pgx.Tx]
	_ = consumer.Config{Handler: timed(inbox.Handler(db, book))}
}

func ExampleBatchHandler() {
	timed := func(next consumer.BatchHandler) consumer.BatchHandler {
		return func(ctx context.Context, batch []inbox.Message) error {
			begun := time.Now()
			err := next(ctx, batch)
			log.Printf("%d messages: %s, %v", len(batch), time.Since(begun), err)
			return err
		}
	}
	var db *inbox.DB[pgx.Tx]
	var book func(ctx context.Context, tx pgx.Tx, fresh []inbox.Message) error
	_ = consumer.Config{BatchHandler: timed(inbox.BatchHandler(db, book))}
}

// The order within a key is the default, and lets more handlers run at the same time.
func ExampleOrder() {
	for _, order := range []consumer.Order{consumer.ByKey, consumer.ByPartition} {
		_ = consumer.Config{Order: order}
	}
}

// What a Consumer can be told: most services need none of it.
func ExampleConfig() {
	_ = consumer.Config{
		ClientOptions: []kgo.Opt{kgo.ClientID("payments-7"), kgo.DialTLS()},
		Concurrency:   50, // the pool needs as many connections

		// A topic from elsewhere, without ids, which was renamed.
		IDHeader:  "ce_id",
		MissingID: inbox.PositionAsID,
		Scope:     func(topic string) string { return strings.TrimSuffix(topic, "-v2") },

		Attempts:       inbox.Unlimited,
		HandlerTimeout: 10 * time.Second,
		BackoffMin:     time.Second,
		BackoffMax:     time.Minute,
		Failed:         func(f inbox.Failure) { log.Printf("event %s: %v", f.Message.ID, f.Err) },

		Buffer:           1_000,
		BufferBytes:      8 << 20,
		Grace:            5 * time.Second,
		RebalanceTimeout: 30 * time.Second,
		CommitInterval:   100 * time.Millisecond,
		Logger:           slog.New(slog.DiscardHandler),
	}
}

func ExampleConsumer_Stats() {
	show := func(s consumer.Stats) {
		log.Printf("member %t: %d handled, %d dead, %d missed; attempts: %d failed, %d failed and do not count, %d were a retry; %d batches split",
			s.Joined, s.Handled, s.Dead, s.Missed, s.Failed, s.Uncounted, s.Retried, s.Split)
		log.Printf("now: %d handlers run, %d messages wait for the dead letter topic", s.InFlight, s.DeadWaiting)
	}
	showPartition := func(p consumer.PartitionStats) {
		log.Printf("%s/%d: committed %d, lag %d, buffered %d (paused: %t, closing: %t), the oldest waits for %s",
			p.Topic, p.Partition, p.Committed, p.Lag, p.Buffered, p.Paused, p.Closing, p.Oldest)
	}
	var c *consumer.Consumer // from consumer.New
	stats := c.Stats()
	show(stats)
	for _, p := range stats.Partitions {
		showPartition(p)
	}
}

func charge(context.Context, int) error { return nil }
