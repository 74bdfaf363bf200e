package inbox_test

import (
	"context"
	"database/sql"
	"errors"
	"log"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/walpost/walpost/inbox"
)

func book(ctx context.Context, tx pgx.Tx, value []byte) error {
	_, err := tx.Exec(ctx, "INSERT INTO bookings SELECT $1::jsonb", value)
	return err
}

// The transaction is the inbox's. This is what most handlers need.
func ExampleDB_Once() {
	run := func(ctx context.Context, pool *pgxpool.Pool, m inbox.Message) error {
		db := inbox.Pgx(pool)
		fresh, err := db.Once(ctx, "payments", m, func(ctx context.Context, tx pgx.Tx) error {
			return book(ctx, tx, m.Value)
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
					if err := book(ctx, tx, m.Value); err != nil {
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

// Call Retain regularly, from any process.
func ExampleDB_Retain() {
	run := func(ctx context.Context, db *inbox.DB[pgx.Tx]) {
		for range time.Tick(time.Minute) {
			_, err := db.Retain(ctx, inbox.Retention{Keep: 30 * 24 * time.Hour})
			var busy *inbox.BusyError
			if errors.As(err, &busy) {
				continue // a transaction is open: the next call tries again
			}
			if err != nil {
				log.Print(err)
			}
		}
	}
	_ = run
}

// Store first, handle later.
func ExampleWorker() {
	run := func(ctx context.Context, db *inbox.DB[pgx.Tx], msgs []inbox.Message) error {
		if _, err := db.Store(ctx, "payments", msgs...); err != nil {
			return err // do not commit the offset
		}

		worker := inbox.Worker[pgx.Tx]{
			DB: db, Consumer: "payments", Concurrency: 4, Attempts: 10,
			Handle: func(ctx context.Context, tx pgx.Tx, m inbox.Message) error {
				return book(ctx, tx, m.Value)
			},
			Failed: func(f inbox.Failure) {
				log.Printf("event %s, attempt %d: %v", f.Message.ID, f.Attempt, f.Err)
			},
		}
		return worker.Run(ctx)
	}
	_ = run
}
