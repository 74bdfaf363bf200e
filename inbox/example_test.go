package inbox_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log"
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
		if err == nil && !fresh {
			log.Printf("event %s was processed before", m.ID)
		}
		return err
	}
	_ = run
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

func ExampleDB_Batch() {
	run := func(ctx context.Context, db *inbox.DB[pgx.Tx], msgs []inbox.Message) {
		outcomes := db.Batch(ctx, "payments", msgs,
			func(ctx context.Context, tx pgx.Tx, fresh []inbox.Message) error {
				for _, m := range fresh {
					if err := book(ctx, tx, m); err != nil {
						return err
					}
				}
				return nil
			})
		for i, o := range outcomes {
			if o.Err != nil {
				log.Printf("event %s: %v", msgs[i].ID, o.Err)
			}
		}
	}
	_ = run
}

// A service makes its tables and keeps them small by itself.
func ExampleDB_RunRetention() {
	run := func(ctx context.Context, pool *pgxpool.Pool) error {
		db := inbox.Pgx(pool).In("events") // a schema that exists
		if err := db.Migrate(ctx); err != nil {
			return err
		}
		go db.RunRetention(ctx, inbox.Retention{Keep: 30 * 24 * time.Hour})
		return nil
	}
	_ = run
}

// One call, for a job that runs every minute.
func ExampleDB_Retain() {
	run := func(ctx context.Context, db *inbox.DB[pgx.Tx]) error {
		_, err := db.Retain(ctx, inbox.Retention{Keep: 30 * 24 * time.Hour})
		var busy *inbox.BusyError
		if errors.As(err, &busy) {
			return nil // a transaction is open: the next call tries again
		}
		return err
	}
	_ = run
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
			Failed: func(f inbox.Failure) {
				log.Printf("event %s, attempt %d: %v", f.Message.ID, f.Attempt, f.Err)
			},
		}
		return worker.Run(ctx)
	}
	_ = run
}
