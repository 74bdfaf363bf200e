package walpostotel_test

import (
	"context"
	"log"
	"os"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/walpost/walpost/inbox"
	"github.com/walpost/walpost/inbox/consumer"
	walpostotel "github.com/walpost/walpost/otel"
	"github.com/walpost/walpost/otel/otelstats"
	"github.com/walpost/walpost/outbox"
)

// A service that handles events, and writes events of its own, which are in the same trace. Its program
// calls otel.SetTracerProvider and otel.SetMeterProvider, as OpenTelemetry's documentation shows.
func Example() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	var telemetry walpostotel.Telemetry // uses the providers that the program has set
	events, err := outbox.New(outbox.Options{FromContext: telemetry.FromContext})
	if err != nil {
		log.Fatal(err)
	}
	book := func(ctx context.Context, tx pgx.Tx, m inbox.Message) error {
		return events.Write(ctx, tx, outbox.Event{AggregateType: "payment", AggregateID: string(m.Key), Type: "PaymentTaken", Payload: map[string]int{"total": 12}})
	}
	c, err := consumer.New(consumer.Config{
		Brokers: []string{"kafka-1:9092"},
		Group:   "payments",
		Topics:  []string{"outbox.event.order"},
		Handler: telemetry.Handler(inbox.Handler(inbox.Pgx(pool), book)),
	})
	if err != nil {
		log.Fatal(err)
	}
	if _, err := otelstats.Register("payments", c, nil); err != nil {
		log.Fatal(err)
	}
	if err := c.Run(ctx); err != nil {
		log.Fatal(err)
	}
}

func book(ctx context.Context, tx pgx.Tx, m inbox.Message) error {
	_, err := tx.Exec(ctx, "INSERT INTO bookings SELECT $1::jsonb", m.Value)
	return err
}

// The span of a batch links to the writer's span of each message.
func ExampleTelemetry_BatchHandler() {
	pool, err := pgxpool.New(context.Background(), os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	var telemetry walpostotel.Telemetry
	c, err := consumer.New(consumer.Config{
		Brokers: []string{"kafka-1:9092"},
		Group:   "payments",
		Topics:  []string{"outbox.event.order"},
		BatchHandler: telemetry.BatchHandler(inbox.BatchHandler(inbox.Pgx(pool), func(ctx context.Context, tx pgx.Tx, fresh []inbox.Message) error {
			for _, m := range fresh {
				if err := book(ctx, tx, m); err != nil {
					return err
				}
			}
			return nil
		})),
	})
	if err != nil {
		log.Fatal(err)
	}
	if err := c.Run(context.Background()); err != nil {
		log.Fatal(err)
	}
}

// A Worker handles messages that DB.Store has saved, with their headers.
func ExampleHandlerFunc() {
	pool, err := pgxpool.New(context.Background(), os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	var telemetry walpostotel.Telemetry
	w := inbox.Worker[pgx.Tx]{DB: inbox.Pgx(pool), Consumer: "payments", Handler: walpostotel.HandlerFunc(telemetry, book)}
	if err := w.Run(context.Background()); err != nil {
		log.Fatal(err)
	}
}
