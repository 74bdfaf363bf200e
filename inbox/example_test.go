package inbox_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/walpost/walpost/inbox"
)

func book(ctx context.Context, tx pgx.Tx, m inbox.Message) error {
	_, err := tx.Exec(ctx, "INSERT INTO bookings SELECT $1::jsonb", m.Value)
	return err
}

// This is what most services need: a Handler for consumer.Config, whose transaction is the inbox's.
func ExampleHandler() {
	var pool *pgxpool.Pool
	_ = inbox.Handler(inbox.Pgx(pool), func(ctx context.Context, tx pgx.Tx, m inbox.Message) error {
		if m.Attempt > 1 {
			log.Printf("event %s, attempt %d, trace %s", m.ID, m.Attempt, m.Header("traceparent"))
		}
		return book(ctx, tx, m)
	})
}

// The group "billing" was renamed. It keeps the marks of the old name.
func ExampleHandler_renamed() {
	var db *inbox.DB[pgx.Tx]
	handler := inbox.Handler(db, book)
	_ = func(ctx context.Context, m inbox.Message) error {
		m.Group = "billing"
		return handler(ctx, m)
	}
}

// Events of other types are ignored. With nil in place of inbox.Ignore, they become dead letters.
func ExampleByType() {
	var db *inbox.DB[pgx.Tx]
	unbook := func(ctx context.Context, tx pgx.Tx, m inbox.Message) error { return nil }
	handler := inbox.Handler(db, inbox.ByType(map[string]inbox.HandlerFunc[pgx.Tx]{
		"OrderPlaced":    book,
		"OrderCancelled": unbook,
	}, inbox.Ignore))
	_ = handler
}

func ExampleTypeError() {
	_ = inbox.Worker[pgx.Tx]{Failed: func(f inbox.Failure) {
		var unknown *inbox.TypeError
		if errors.As(f.Err, &unknown) {
			log.Printf("nothing handles events of the type %q", unknown.Type)
		}
	}}
}

func ExampleDB_Once() {
	run := func(ctx context.Context, pool *pgxpool.Pool, m inbox.Message) error {
		db := inbox.Pgx(pool)
		fresh, err := db.Once(ctx, "payments", m, func(ctx context.Context, tx pgx.Tx) error {
			return book(ctx, tx, m)
		})
		report(m, fresh, err)
		return err
	}
	_ = run
}

func report(m inbox.Message, fresh bool, err error) {
	id, noID := errors.AsType[*inbox.IDError](err)
	_, handler := errors.AsType[*inbox.HandlerError](err)
	switch {
	case err == nil:
		log.Printf("event %s is processed; now: %t", m.ID, fresh)
	case noID:
		log.Printf("the message %s/%d/%d has no usable id: %s", id.Topic, id.Partition, id.Offset, id.Reason)
	case inbox.IsPermanent(err):
		log.Printf("event %s is dead: %v", m.ID, err)
	case handler:
		log.Printf("event %s must be tried again: %v", m.ID, err)
	default:
		log.Printf("the database cannot be used: %v", err)
	}
}

// The transaction is the caller's.
func ExampleOnce() {
	run := func(ctx context.Context, db *sql.DB, m inbox.Message) error {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer tx.Rollback()
		_, err = inbox.Once(ctx, tx, "payments", m, func(ctx context.Context) error {
			_, err := tx.ExecContext(ctx, "INSERT INTO bookings SELECT $1::jsonb", m.Value)
			return err
		})
		if err != nil {
			return err
		}
		return tx.Commit()
	}
	_ = run
}

// A consumer that does not use package consumer fills a Message from what its broker delivers.
func ExampleMessage_WithID() {
	m := inbox.Message{
		Topic: "orders-v2", Partition: 3, Offset: 42, Time: time.UnixMilli(1_770_000_000_000),
		Scope:   "orders", // the topic was renamed: its marks still count
		Headers: []inbox.Header{{Key: "eventType", Value: []byte("OrderPlaced")}},
	}
	m.ID = m.Header("id") // it has none
	for _, missing := range []inbox.MissingID{inbox.RefuseMissingID, inbox.PositionAsID} {
		m, err := m.WithID(missing)
		fmt.Println(m.ID, err)
	}
	// Output:
	//  message orders-v2/3/42: the message has no event id
	// position:orders-v2/3/42@1770000000000 <nil>
}

// A service makes its tables and keeps them small by itself.
func ExampleDB_RunRetention() {
	run := func(ctx context.Context, pool *pgxpool.Pool) error {
		db := inbox.Pgx(pool).In("events") // a schema that exists
		if err := db.Migrate(ctx); err != nil {
			return err
		}
		go db.RunRetention(ctx, inbox.Retention{Keep: 2 * inbox.DefaultKeep, Processed: time.Hour, Logger: slog.Default()})
		return nil
	}
	_ = run
}

// One call, for a job that runs every minute.
func ExampleDB_Retain() {
	run := func(ctx context.Context, db *inbox.DB[pgx.Tx]) error {
		done, err := db.Retain(ctx, inbox.Retention{Keep: 2 * inbox.DefaultKeep, LockWait: 5 * time.Second})
		if _, busy := errors.AsType[*inbox.BusyError](err); busy {
			return nil // a transaction is open: the next call tries again
		}
		logRetained(done)
		return err
	}
	_ = run
}

func logRetained(r inbox.Retained) {
	log.Printf("began generation %d, emptied %v, deleted %d stored messages", r.Began, r.Dropped, r.Messages)
}

// The tables are in a schema of their own, and the transaction is the caller's.
func ExampleSchema() {
	const events = inbox.Schema("events")

	up, down := events.DDL(0) // the files of a migration, if the service does not call Migrate
	fmt.Println(strings.Contains(up, `CREATE TABLE "events".inbox_processed`), strings.HasPrefix(down, `DROP TABLE "events".inbox_`))

	file := events.Goose(inbox.Version - 1) // one file of goose, for tables of the version before
	fmt.Println(strings.HasPrefix(file, "-- +goose Up"))

	run := func(ctx context.Context, tx *sql.Tx, m inbox.Message) error {
		_, err := events.Once(ctx, tx, "payments", m, func(ctx context.Context) error {
			_, err := tx.ExecContext(ctx, "INSERT INTO bookings SELECT $1::jsonb", m.Value)
			return err
		})
		return err
	}
	_ = run
	// Output:
	// true true
	// true
}

// Store first, handle later.
func ExampleWorker() {
	run := func(ctx context.Context, db *inbox.DB[pgx.Tx], msgs []inbox.Message) error {
		if _, err := db.Store(ctx, "payments", msgs...); err != nil {
			return err // do not commit the offset
		}

		worker := inbox.Worker[pgx.Tx]{
			DB: db, Consumer: "payments", Concurrency: 4, Attempts: inbox.Unlimited, Handler: book,
			BackoffMin: time.Second, BackoffMax: time.Minute, HandlerTimeout: 10 * time.Second, Grace: 5 * time.Second, Poll: 10 * time.Second,
			Failed: func(f inbox.Failure) {
				log.Printf("event %s, attempt %d: %v (dead: %t, next attempt in %s)", f.Message.ID, f.Attempt, f.Err, f.Dead, f.Pause)
				if p, ok := errors.AsType[*inbox.PanicError](f.Err); ok {
					log.Printf("panic %v: %s", p.Value, p.Stack)
				}
			},
		}
		return worker.Run(ctx)
	}
	_ = run
}

// The transaction is the caller's.
func ExampleStore() {
	run := func(ctx context.Context, tx *sql.Tx, msgs []inbox.Message) error {
		_, err := inbox.Store(ctx, tx, "payments", msgs...)
		return err
	}
	_ = run
}

// Dead messages are tried again when their cause is mended.
func ExampleDB_RetryDead() {
	run := func(ctx context.Context, db *inbox.DB[pgx.Tx]) error {
		_, err := db.RetryDead(ctx, "payments", "outbox.event.order", "0193a7b2-6f1e-7c3a-9d54-2b1f8e6c7a90")
		if err == nil {
			_, err = db.RetryAllDead(ctx, "shipping")
		}
		return err
	}
	_ = run
}

func ExampleDB_Backlog() {
	run := func(ctx context.Context, db *inbox.DB[pgx.Tx]) {
		if backlog, err := db.Backlog(ctx, "payments"); err == nil && tooLong(backlog) {
			log.Print("the workers cannot keep up")
		}
	}
	_ = run
}

func tooLong(b inbox.Backlog) bool {
	return b.Age > time.Minute || b.Pending > 10_000 || b.Failing+b.Dead > 0
}
