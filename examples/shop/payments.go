package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// What the customers have together, in cents, and what one payment may take at most.
const (
	funds = 1_000_000_000
	limit = 4_000
)

var paymentsSchema = fmt.Sprintf(`
CREATE TABLE account (balance bigint NOT NULL CHECK (balance >= 0));
INSERT INTO account VALUES (%d);
-- There is no unique constraint on order_id: only the inbox prevents a second payment.
CREATE TABLE bookings (order_id uuid NOT NULL, amount bigint NOT NULL);
CREATE INDEX ON bookings (order_id);
`, funds)

// payments takes the money for an order, or declines, and refunds what was taken for an order that is
// cancelled later.
func payments(dsn string, brokers []string) *service {
	s := &service{name: "payments", dsn: dsn, brokers: brokers, hears: "outbox.event.order", schema: paymentsSchema}
	s.handle = handleOrder
	return s
}

func handleOrder(ctx context.Context, tx pgx.Tx, e event) error {
	book := func(amount int64) error {
		_, err := tx.Exec(ctx, "INSERT INTO bookings VALUES ($1, $2)", e.Order, amount)
		_, changed := tx.Exec(ctx, "UPDATE account SET balance = balance - $1", amount)
		return errors.Join(err, changed)
	}
	switch e.Type {
	case "OrderPlaced":
		if e.Amount > limit {
			return tell(ctx, tx, "payment", "PaymentDeclined", e.Order, e.Amount)
		}
		return errors.Join(book(e.Amount), tell(ctx, tx, "payment", "PaymentTaken", e.Order, e.Amount))
	case "OrderCancelled":
		return errors.Join(book(-e.Amount), tell(ctx, tx, "payment", "PaymentRefunded", e.Order, e.Amount))
	}
	return fmt.Errorf("unknown event %s", e.Type)
}
