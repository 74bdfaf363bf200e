package consumer_test

import (
	"context"
	"encoding/json"
	"log"
	"os/signal"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/walpost/walpost/inbox"
	"github.com/walpost/walpost/inbox/consumer"
)

func Example() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	c, err := consumer.New(consumer.Config{
		Brokers:         []string{"kafka-1:9092", "kafka-2:9092"},
		Group:           "payments",
		Topics:          []string{"outbox.event.order"},
		DeadLetterTopic: "payments.dead",
		Handler: func(ctx context.Context, m inbox.Message) error {
			log.Printf("order %s: %s", m.Key, m.Value)
			return nil
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	if err := c.Run(ctx); err != nil { // until SIGTERM
		log.Fatal(err)
	}
}

// The mark of the event and its effect are in one transaction, so each event has one effect.
func Example_once() {
	var pool *pgxpool.Pool
	db := inbox.Pgx(pool)
	handler := func(ctx context.Context, m inbox.Message) error {
		_, err := db.Once(ctx, "payments", m, func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, "INSERT INTO bookings SELECT $1::jsonb", m.Value)
			return err
		})
		return err
	}
	_ = consumer.Config{Handler: handler}
}

// One transaction for many events is for hot paths.
func Example_batch() {
	var pool *pgxpool.Pool
	db := inbox.Pgx(pool)
	batchHandler := func(ctx context.Context, batch []inbox.Message) error {
		for _, o := range db.Batch(ctx, "payments", batch, book) {
			if o.Err != nil {
				return o.Err // the consumer hands over the messages one by one
			}
		}
		return nil
	}
	_ = consumer.Config{BatchHandler: batchHandler}
}

func book(context.Context, pgx.Tx, []inbox.Message) error { return nil }

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
