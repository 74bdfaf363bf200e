package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/walpost/walpost/outbox"
)

// The stock of each article, and the price of one piece in cents.
const (
	articles = 5
	stock    = 1_000_000
	price    = 250
)

var ordersSchema = fmt.Sprintf(`
CREATE TABLE articles (id int PRIMARY KEY, available int NOT NULL CHECK (available >= 0));
INSERT INTO articles SELECT n, %d FROM generate_series(1, %d) n;
CREATE TABLE orders (
  id uuid PRIMARY KEY,
  article int NOT NULL REFERENCES articles,
  pieces int NOT NULL,
  state text NOT NULL CHECK (state IN ('placed', 'shipped', 'cancelled', 'refunding', 'refunded'))
);
`, stock, articles)

// orders takes orders. It leads the saga: an order is shipped when it is paid. If it cannot be paid,
// or turns out to be damaged, orders takes back what was done before, in the opposite order.
func orders(dsn string, brokers []string) *service {
	s := &service{name: "orders", dsn: dsn, brokers: brokers, hears: "outbox.event.payment", schema: ordersSchema}
	s.handle = handlePayment
	return s
}

// place reserves the pieces, and asks for the payment by an event.
func place(ctx context.Context, tx pgx.Tx, article, pieces int) error {
	id := outbox.NewID()
	if _, err := tx.Exec(ctx, "UPDATE articles SET available = available - $2 WHERE id = $1", article, pieces); err != nil {
		return err
	}
	if _, err := tx.Exec(ctx, "INSERT INTO orders VALUES ($1, $2, $3, 'placed')", id, article, pieces); err != nil {
		return err
	}
	return tell(ctx, tx, "order", "OrderPlaced", id, int64(pieces*price))
}

// handlePayment goes on with the order that a payment is for.
func handlePayment(ctx context.Context, tx pgx.Tx, e event) error {
	var article, pieces int
	var state string
	err := tx.QueryRow(ctx, "SELECT article, pieces, state FROM orders WHERE id = $1 FOR UPDATE", e.Order).Scan(&article, &pieces, &state)
	if err != nil {
		return err
	}
	become := func(next string) error {
		_, err := tx.Exec(ctx, "UPDATE orders SET state = $2 WHERE id = $1", e.Order, next)
		return err
	}
	giveBack := func() error {
		_, err := tx.Exec(ctx, "UPDATE articles SET available = available + $2 WHERE id = $1", article, pieces)
		return err
	}
	switch {
	case e.Type == "PaymentTaken" && state == "placed" && pieces%7 == 0: // these turn out to be damaged
		return errors.Join(become("refunding"), tell(ctx, tx, "order", "OrderCancelled", e.Order, e.Amount))
	case e.Type == "PaymentTaken" && state == "placed":
		return become("shipped")
	case e.Type == "PaymentDeclined" && state == "placed":
		return errors.Join(become("cancelled"), giveBack())
	case e.Type == "PaymentRefunded" && state == "refunding":
		return errors.Join(become("refunded"), giveBack())
	}
	return fmt.Errorf("%s for an order that is %s", e.Type, state)
}

// customers place orders until ctx ends, as far as the database is there.
func (s *service) customers(pause time.Duration) func(context.Context) error {
	return func(ctx context.Context) error {
		for ctx.Err() == nil {
			err := pgx.BeginFunc(ctx, s.db, func(tx pgx.Tx) error {
				return place(ctx, tx, 1+rand.IntN(articles), 1+rand.IntN(20))
			})
			if err != nil && ctx.Err() == nil {
				slog.Info("an order was not placed", "error", err)
			}
			select {
			case <-ctx.Done():
			case <-time.After(pause):
			}
		}
		return nil
	}
}
