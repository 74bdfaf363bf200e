package walpost_test

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/walpost/walpost"
	"github.com/walpost/walpost/outbox"
)

func ExampleNew() {
	run := func(ctx context.Context, dsn string, brokers []string) error {
		cfg := walpost.DefaultConfig()
		cfg.Source.DSN, cfg.Source.Table = walpost.Secret(dsn), "public.outbox"
		cfg.Kafka.Brokers = brokers
		relay, err := walpost.New(cfg)
		if err != nil {
			return err
		}
		return relay.Run(ctx) // until ctx ends
	}
	_ = run
}

func Example_outbox() {
	place := func(ctx context.Context, tx pgx.Tx, order any) (err error) {
		err = outbox.Write(ctx, tx, outbox.Event{
			AggregateType: "order", AggregateID: "4711", Type: "OrderPlaced", Payload: order,
		})
		return err
	}
	_ = place
}
