package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
)

// A report counts the orders by what became of them.
type report struct {
	placed, shipped, cancelled, refunded int
	open                                 int // the saga of these is not finished
}

func (r report) String() string {
	return fmt.Sprintf("%d orders: %d shipped, %d cancelled, %d refunded, %d in progress", r.placed, r.shipped, r.cancelled, r.refunded, r.open)
}

// audit counts the orders, and compares the books of the two services. Every difference is an error:
// a lost event leaves an order open, and one that has its effect twice moves money or pieces twice.
// The books are only comparable when no order is open.
func audit(ctx context.Context, ordersDSN, paymentsDSN string) (r report, err error) {
	shop, err := pgx.Connect(ctx, ordersDSN)
	if err != nil {
		return r, err
	}
	defer shop.Close(ctx)
	bank, err := pgx.Connect(ctx, paymentsDSN)
	if err != nil {
		return r, err
	}
	defer bank.Close(ctx)

	var reserved, missing int64
	err = shop.QueryRow(ctx, `SELECT count(*), count(*) FILTER (WHERE state = 'shipped'), count(*) FILTER (WHERE state = 'cancelled'),
		count(*) FILTER (WHERE state = 'refunded'), count(*) FILTER (WHERE state IN ('placed', 'refunding')),
		coalesce(sum(pieces) FILTER (WHERE state = 'shipped'), 0), (SELECT $1 - sum(available) FROM articles) FROM orders`, stock*articles).
		Scan(&r.placed, &r.shipped, &r.cancelled, &r.refunded, &r.open, &reserved, &missing)
	if err != nil || r.open > 0 {
		return r, err
	}
	var wrong []string
	if reserved != missing {
		wrong = append(wrong, fmt.Sprintf("%d pieces were shipped, and %d are missing from the stock", reserved, missing))
	}
	var booked, balance int64
	if err := bank.QueryRow(ctx, "SELECT coalesce(sum(amount), 0), (SELECT balance FROM account) FROM bookings").Scan(&booked, &balance); err != nil {
		return r, err
	}
	if booked != reserved*price || balance != funds-booked {
		wrong = append(wrong, fmt.Sprintf("%d cents were booked for goods of %d, and the balance is %d of %d", booked, reserved*price, balance, funds))
	}
	// Order by order: a payment for each that was shipped or refunded, and one back for each that was refunded.
	type books struct{ taken, back int }
	paid := map[string]books{}
	rows, err := bank.Query(ctx, "SELECT order_id::text, count(*) FILTER (WHERE amount > 0), count(*) FILTER (WHERE amount < 0) FROM bookings GROUP BY 1")
	if err != nil {
		return r, err
	}
	var id, state string
	var b books
	_, err = pgx.ForEachRow(rows, []any{&id, &b.taken, &b.back}, func() error { paid[id] = b; return nil })
	if err != nil {
		return r, err
	}
	want := map[string]books{"shipped": {1, 0}, "cancelled": {0, 0}, "refunded": {1, 1}}
	if rows, err = shop.Query(ctx, "SELECT id::text, state FROM orders"); err != nil {
		return r, err
	}
	_, err = pgx.ForEachRow(rows, []any{&id, &state}, func() error {
		if paid[id] != want[state] && len(wrong) < 10 {
			wrong = append(wrong, fmt.Sprintf("order %s is %s, and was paid %d times and refunded %d times", id, state, paid[id].taken, paid[id].back))
		}
		delete(paid, id)
		return nil
	})
	if len(paid) > 0 {
		wrong = append(wrong, fmt.Sprintf("%d payments are for orders that do not exist", len(paid)))
	}
	if len(wrong) > 0 {
		return r, fmt.Errorf("the books do not balance: %s", strings.Join(wrong, "; "))
	}
	return r, err
}
