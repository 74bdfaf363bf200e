// Service takes orders by HTTP, and writes an event for each in the same transaction. It also consumes these events,
// and books each order to its customer's account. Any other service would consume them in the same way.
//
//	DATABASE_URL='postgres://shop@localhost/shop?pool_max_conns=20' KAFKA_BROKERS=localhost:9092 LISTEN=localhost:8080 go run ./examples/service
//	curl -d '{"customer": "c-7", "cents": 1250}' localhost:8080/orders
//
// walpost relays the events in a process of its own. Create the topic payments.dead before: nothing else does.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/walpost/walpost/inbox"
	"github.com/walpost/walpost/inbox/consumer"
	"github.com/walpost/walpost/outbox"
)

const schema = `CREATE TABLE IF NOT EXISTS orders (id uuid PRIMARY KEY, customer text NOT NULL, cents bigint NOT NULL CHECK (cents > 0));
CREATE TABLE IF NOT EXISTS accounts (customer text PRIMARY KEY, owes bigint NOT NULL)`

// An order is a row of orders, and the payload of its event.
type order struct {
	ID       string `json:"id"`
	Customer string `json:"customer"`
	Cents    int64  `json:"cents"`
}

func main() {
	slog.SetDefault(slog.New(slog.NewJSONHandler(os.Stderr, nil)))
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		slog.Error("the service ends", "err", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		return err
	}
	defer pool.Close()
	db := inbox.Pgx(pool)
	_, err = pool.Exec(ctx, schema)
	if err := errors.Join(err, outbox.Migrate(ctx, pool), db.Migrate(ctx)); err != nil {
		return err
	}
	c, err := consumer.New(consumer.Config{
		Brokers:         strings.Split(os.Getenv("KAFKA_BROKERS"), ","),
		Group:           "payments",
		Topics:          []string{"outbox.event.order"},
		DeadLetterTopic: "payments.dead",
		Handler:         inbox.Handler(db, book),
	})
	if err != nil {
		return err
	}
	go db.RunRetention(ctx, inbox.Retention{})
	http.HandleFunc("POST /orders", func(w http.ResponseWriter, r *http.Request) {
		var o order
		err := json.NewDecoder(r.Body).Decode(&o)
		if err == nil {
			o.ID = outbox.NewID()
			err = place(r.Context(), pool, o)
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		fmt.Fprintln(w, o.ID)
	})
	server := &http.Server{Addr: os.Getenv("LISTEN"), ReadHeaderTimeout: 5 * time.Second}
	stopped := make(chan error, 1)
	go func() {
		err := c.Run(ctx) // until SIGTERM
		stopped <- errors.Join(err, server.Shutdown(context.WithoutCancel(ctx)))
	}()
	if err := server.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return <-stopped
}

// place writes an order and its event: both are committed, or neither is.
func place(ctx context.Context, pool *pgxpool.Pool, o order) error {
	return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "INSERT INTO orders VALUES ($1, $2, $3)", o.ID, o.Customer, o.Cents); err != nil {
			return err
		}
		return outbox.Write(ctx, tx, outbox.Event{
			AggregateType: "order",       // the topic: outbox.event.order
			AggregateID:   o.ID,          // the key
			Type:          "OrderPlaced", // a header, if walpost.yaml places it
			Payload:       o,             // the value, as JSON
		})
	})
}

// book adds an order to its customer's account. tx also marks the event as processed, so it is added once.
func book(ctx context.Context, tx pgx.Tx, m inbox.Message) error {
	var o order
	if err := json.Unmarshal(m.Value, &o); err != nil {
		return inbox.Permanent(err) // a dead letter at once
	}
	_, err := tx.Exec(ctx, `INSERT INTO accounts AS a VALUES ($1, $2)
		ON CONFLICT (customer) DO UPDATE SET owes = a.owes + excluded.owes`, o.Customer, o.Cents)
	return err
}
