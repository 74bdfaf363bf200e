package consumer_test

import (
	"context"
	"encoding/json"
	"errors"
	"log"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

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
	var login *consumer.LoginError
	if errors.As(err, &login) {
		log.Fatalf("check the password and the certificates: %v", login)
	}
	if err != nil {
		log.Fatal(err)
	}
}

// One transaction for many events is for hot paths.
func Example_batch() {
	var pool *pgxpool.Pool
	book := func(ctx context.Context, tx pgx.Tx, fresh []inbox.Message) error { return nil }
	_ = consumer.Config{BatchHandler: inbox.BatchHandler(inbox.Pgx(pool), book)}
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

func ExampleConsumer_Stats() {
	var c *consumer.Consumer // from consumer.New
	for _, p := range c.Stats().Partitions {
		if p.Oldest > time.Minute {
			log.Printf("%s/%d: a message waits for %s, lag %d", p.Topic, p.Partition, p.Oldest, p.Lag)
		}
	}
}

func charge(context.Context, int) error { return nil }
