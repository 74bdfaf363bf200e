package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/walpost/walpost"
	"github.com/walpost/walpost/inbox"
	"github.com/walpost/walpost/inbox/consumer"
	"github.com/walpost/walpost/outbox"
)

// A service has a database of its own. It tells others what it did by events, and hears from them
// by events. Nobody else reads its tables.
type service struct {
	name    string
	dsn     string
	brokers []string
	hears   string // the topic of the other service's events
	schema  string

	db     *pgxpool.Pool
	inbox  *inbox.DB[pgx.Tx]
	handle func(ctx context.Context, tx pgx.Tx, e event) error
}

// An event is what both services send. Its key is the order, so the events of one order stay in
// order.
type event struct {
	Type   string `json:"-"`
	Order  string `json:"order"`
	Amount int64  `json:"amount"`
}

// open waits for the database, and makes the tables that are missing.
func (s *service) open(ctx context.Context) error {
	pool, err := pgxpool.New(ctx, s.dsn)
	if err != nil {
		return err
	}
	s.db, s.inbox = pool, inbox.Pgx(pool)
	makeTables := func() error {
		if err := s.inbox.Migrate(ctx); err != nil {
			return err
		}
		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			var made bool
			if err := tx.QueryRow(ctx, "SELECT to_regclass('outbox') IS NOT NULL").Scan(&made); err != nil || made {
				return err
			}
			if _, err := tx.Exec(ctx, s.schema); err != nil {
				return err
			}
			return outbox.Migrate(ctx, tx)
		})
	}
	for err = makeTables(); err != nil; err = makeTables() {
		slog.Info("the database is not ready", "service", s.name, "error", err)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(500 * time.Millisecond):
		}
	}
	return nil
}

// run relays the events of this service to Kafka, and handles those of the other service, until ctx
// ends. The relay is a part of the process here. It can as well be the program walpost beside it.
func (s *service) run(ctx context.Context, work ...func(context.Context) error) error {
	defer s.db.Close()
	relay, err := s.relay()
	if err != nil {
		return err
	}
	events, err := consumer.New(consumer.Config{
		Brokers: s.brokers, Group: s.name, Topics: []string{s.hears}, Handler: inbox.Handler(s.inbox, s.take),
		BackoffMin: 100 * time.Millisecond, CommitInterval: 500 * time.Millisecond,
		Logger: slog.With("service", s.name),
	})
	if err != nil {
		return err
	}
	retain := func(ctx context.Context) error { return s.inbox.RunRetention(ctx, inbox.Retention{}) }
	parts := append(work, relay.Run, events.Run, retain)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan error, len(parts))
	for _, part := range parts {
		go func() { ended <- part(ctx) }()
	}
	var all error
	for range parts {
		if err := <-ended; err != nil && ctx.Err() == nil {
			all = errors.Join(all, fmt.Errorf("%s: %w", s.name, err))
		}
		cancel() // if one part ends, all end
	}
	return all
}

func (s *service) relay() (*walpost.Relay, error) {
	cfg := walpost.DefaultConfig()
	cfg.Source.DSN = walpost.Secret(s.dsn)
	cfg.Source.Table, cfg.Source.OrderColumn = "public.outbox", "seq"
	cfg.Source.Slot, cfg.Source.Publication = s.name, s.name
	cfg.Source.Snapshot = "initial" // events may be written before the first start of the relay
	cfg.Router.AdditionalPlacement = "event_type:header:eventType"
	cfg.Kafka.Brokers = s.brokers
	cfg.Kafka.Topics.Create, cfg.Kafka.Topics.Partitions = true, 4
	cfg.ShutdownGrace = 5 * time.Second
	cfg.Logger = slog.With("service", s.name)
	return walpost.New(cfg)
}

// take takes the effect of a message in tx. The inbox has marked the message in tx, so the mark, the
// effect and the events that follow from it are one transaction.
func (s *service) take(ctx context.Context, tx pgx.Tx, m inbox.Message) error {
	e := event{Type: m.Type()}
	if err := json.Unmarshal(m.Value, &e); err != nil {
		return inbox.Permanent(err)
	}
	return s.handle(ctx, tx, e)
}

// tell writes an event in the transaction that makes it true.
func tell(ctx context.Context, tx pgx.Tx, aggregate, what, order string, amount int64) error {
	return outbox.Write(ctx, tx, outbox.Event{
		AggregateType: aggregate, AggregateID: order, Type: what, Payload: event{Order: order, Amount: amount},
	})
}
