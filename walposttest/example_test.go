//go:build linux || darwin

package walposttest_test

import (
	"context"
	"encoding/json"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/walpost/walpost"
	"github.com/walpost/walpost/inbox"
	"github.com/walpost/walpost/inbox/consumer"
	"github.com/walpost/walpost/inbox/inboxtest"
	"github.com/walpost/walpost/internal/testenv/short"
	"github.com/walpost/walpost/outbox"
	"github.com/walpost/walpost/walposttest"
)

// The tested service: it takes orders, and books those that it hears of.
type service struct{ pool *pgxpool.Pool }

const schema = "CREATE TABLE orders (id text, total int); CREATE TABLE bookings (id text, total int)"

type order struct {
	ID    string `json:"id"`
	Total int    `json:"total"`
}

func (s service) placeOrder(ctx context.Context, o order) error {
	return pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "INSERT INTO orders VALUES ($1, $2)", o.ID, o.Total); err != nil {
			return err
		}
		return outbox.Write(ctx, tx, outbox.Event{AggregateType: "order", AggregateID: o.ID, Type: "OrderPlaced", Payload: o})
	})
}

func (s service) book(ctx context.Context, tx pgx.Tx, m inbox.Message) error {
	var o order
	if err := json.Unmarshal(m.Value, &o); err != nil {
		return inbox.Permanent(err)
	}
	_, err := tx.Exec(ctx, "INSERT INTO bookings VALUES ($1, $2)", o.ID, o.Total)
	return err
}

func (s service) consumer(brokers []string) (*consumer.Consumer, error) {
	return consumer.New(consumer.Config{
		Brokers: brokers, Group: "payments", Topics: []string{"outbox.event.order"},
		Handler: inbox.Handler(inbox.Pgx(s.pool), s.book), CommitInterval: 100 * time.Millisecond,
	})
}

func (s service) bookings(t testing.TB) (all []order) {
	t.Helper()
	rows, err := s.pool.Query(t.Context(), "SELECT id, total FROM bookings ORDER BY id")
	if err != nil {
		t.Fatal(err)
	}
	if all, err = pgx.CollectRows(rows, pgx.RowToStructByPos[order]); err != nil {
		t.Fatal(err)
	}
	return all
}

// The test of the service.
func TestAPlacedOrderIsBooked(t *testing.T) {
	short.Skip(t, "Postgres")
	w := walposttest.Options{Schema: schema, Topics: []string{"outbox.event.order"}}.Start(t)
	pool, err := pgxpool.New(t.Context(), w.DSN)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	s := service{pool}

	if err := s.placeOrder(t.Context(), order{"4711", 1250}); err != nil {
		t.Fatal(err)
	}
	events := w.Events("outbox.event.order")
	if len(events) != 1 || events[0].Type() != "OrderPlaced" || string(events[0].Key) != "4711" {
		t.Fatalf("events %v", events)
	}

	c, err := s.consumer(w.Brokers)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	w.Consumed("payments", "outbox.event.order")
	if got := s.bookings(t); len(got) != 1 || got[0] != (order{"4711", 1250}) {
		t.Errorf("bookings %v", got)
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}

	// The handler alone, with a message as it was delivered.
	events[0].ID = outbox.NewID()
	inboxtest.Twice(t, inboxtest.Handler(inbox.Pgx(pool), s.book), events[0], func() []order { return s.bookings(t) })
}

func ExampleStart() {
	var t *testing.T                      // of the test
	serve := func(w *walposttest.World) { // starts the service with w.DSN and w.Brokers
	}

	serve(walposttest.Start(t))
}

func ExampleOptions_Start() {
	var t *testing.T // of the test

	w := walposttest.Options{Schema: schema}.Start(t) // connect the service to w.DSN and w.Brokers
	events := w.Events("outbox.event.order")          // once everything is delivered
	w.Consumed("payments", "outbox.event.order")      // once the group has handled everything
	_ = events
}

// A service with its own schema, and with its own routing in walpost.yaml.
func ExampleOptions() {
	var t *testing.T          // of the test
	var orders *outbox.Outbox // of the service
	migrate := func(dsn string) error { return nil }

	w := walposttest.Options{
		Version: "16",
		Migrate: migrate,
		Outbox:  orders.Options(),
		Relay:   func(cfg *walpost.Config) { cfg.Router.TopicReplacement = "shop.${routedByValue}" },
	}.Start(t)
	// …
	if events := w.Events("shop.order"); len(events) != 1 {
		t.Errorf("events %v", events)
	}
}
