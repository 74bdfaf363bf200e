//go:build linux || darwin

package consumer_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/walpost/walpost/inbox"
	"github.com/walpost/walpost/inbox/consumer"
	"github.com/walpost/walpost/internal/testenv"
)

// Whatever is wrong with the database or with the program, no message becomes a dead letter.
func TestADatabaseThatCannotWorkMakesNoDeadLetters(t *testing.T) {
	pg := testenv.Postgres(t, "17")
	k := testenv.Kafka(t)
	once := func(pool *pgxpool.Pool) consumer.Handler {
		return func(ctx context.Context, m inbox.Message) error {
			ctx, cancel := context.WithTimeout(ctx, 100*time.Millisecond) // the handler's own
			defer cancel()
			_, err := inbox.Pgx(pool).Once(ctx, "payments", m, func(context.Context, pgx.Tx) error { return nil })
			return err
		}
	}
	for what, prepare := range map[string]func(t *testing.T) (handler consumer.Handler, repair func()){
		"a pool without a free connection": func(t *testing.T) (consumer.Handler, func()) {
			dsn := pg.Database(t)
			pg.Exec(t, dsn, ddl)
			cfg, err := pgxpool.ParseConfig(dsn)
			if err != nil {
				t.Fatal(err)
			}
			cfg.MaxConns = 1
			pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(pool.Close)
			conn, err := pool.Acquire(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			return once(pool), conn.Release
		},
		"a statement that hangs": func(t *testing.T) (consumer.Handler, func()) {
			pool := newPool(t, pg.Database(t))
			pg.Exec(t, pool.Config().ConnString(), ddl)
			tx, err := pool.Begin(t.Context())
			if err == nil {
				_, err = tx.Exec(t.Context(), "LOCK inbox_processed")
			}
			if err != nil {
				t.Fatal(err)
			}
			return once(pool), func() { _ = tx.Rollback(context.Background()) }
		},
		"a missing table": func(t *testing.T) (consumer.Handler, func()) {
			pool := newPool(t, pg.Database(t))
			return once(pool), func() { pg.Exec(t, pool.Config().ConnString(), ddl) }
		},
		"an unset name": func(t *testing.T) (consumer.Handler, func()) {
			pool := newPool(t, pg.Database(t))
			pg.Exec(t, pool.Config().ConnString(), ddl)
			set := make(gate)
			return func(ctx context.Context, m inbox.Message) error {
				name := ""
				select {
				case <-set:
					name = "payments"
				default:
				}
				_, err := inbox.Pgx(pool).Once(ctx, name, m, func(context.Context, pgx.Tx) error { return nil })
				return err
			}, func() { close(set) }
		},
	} {
		t.Run(what, func(t *testing.T) {
			w := newWorld(t, k, 1)
			handler, repair := prepare(t)
			w.send(0, "a:1")
			m := w.start(w.config(handler))
			w.eventually("many attempts", func() bool { return w.count("a:1") > 10 || m.Stats().Dead > 0 })
			repair()
			w.commits(0, 1)
			if s := m.Stats(); s.Failed != 0 || s.Dead != 0 || s.Handled != 1 {
				t.Errorf("%+v", s)
			}
		})
	}
}

// These failures have their cause in the handler, and repeat with each attempt.
func TestAFaultOfTheHandlerIsNotTakenForOneOfTheDatabase(t *testing.T) {
	pg := testenv.Postgres(t, "17")
	pool := newPool(t, pg.Database(t))
	pg.Exec(t, pool.Config().ConnString(), ddl)
	k := testenv.Kafka(t)
	for what, fn := range map[string]func(ctx context.Context, tx pgx.Tx) error{
		"a statement while rows are read": func(ctx context.Context, tx pgx.Tx) error {
			rows, err := tx.Query(ctx, "SELECT generate_series(1, 3)")
			if err != nil {
				return err
			}
			defer rows.Close()
			rows.Next()
			_, err = tx.Exec(ctx, "SELECT 1")
			return err
		},
		"a statement after the handler's own timeout": func(ctx context.Context, tx pgx.Tx) error {
			ctx, cancel := context.WithTimeout(ctx, time.Millisecond)
			defer cancel()
			<-ctx.Done()
			_, err := tx.Exec(ctx, "SELECT 1")
			return err
		},
		"a slow service": func(ctx context.Context, _ pgx.Tx) error {
			ctx, cancel := context.WithTimeout(ctx, time.Millisecond)
			defer cancel()
			<-ctx.Done()
			return fmt.Errorf("service: %w", ctx.Err())
		},
		"a handler that waits for the end of its ctx": func(ctx context.Context, _ pgx.Tx) error {
			<-ctx.Done()
			return ctx.Err()
		},
	} {
		t.Run(what, func(t *testing.T) {
			w := newWorld(t, k, 1)
			w.send(0, "a:1", "a:2")
			cfg := w.config(func(ctx context.Context, m inbox.Message) error {
				_, err := inbox.Pgx(pool).Once(ctx, w.name, m, func(ctx context.Context, tx pgx.Tx) error {
					if m.ID == "a:1" {
						return fn(ctx, tx)
					}
					return nil
				})
				return err
			})
			cfg.HandlerTimeout = 50 * time.Millisecond
			m := w.start(cfg)
			w.eventually("the end of a:1", func() bool { return m.Stats().Dead > 0 || w.count("a:1") > 30 })
			if s := m.Stats(); s.Dead != 1 || s.Failed != 3 {
				t.Fatalf("%+v", s)
			}
			w.commits(0, 2)
		})
	}
}

// Whatever a batch fails with, only the message that causes it waits.
func TestABatchIsHandledOneByOneWhateverItFailsWith(t *testing.T) {
	k := testenv.Kafka(t)
	batch := func(t *testing.T, handler consumer.BatchHandler) (*world, *member) {
		w := newWorld(t, k, 1)
		var recs []*kgo.Record
		for i := range 5 {
			id := fmt.Append(nil, i)
			recs = append(recs, &kgo.Record{Topic: w.topic, Key: id, Value: id, Headers: []kgo.RecordHeader{{Key: "id", Value: id}}})
		}
		if err := w.cl.ProduceSync(t.Context(), recs...).FirstErr(); err != nil {
			t.Fatal(err)
		}
		cfg := w.config(nil)
		cfg.Handler = nil
		cfg.BatchHandler = handler
		return w, w.start(cfg)
	}
	t.Run("a batch that is too large for the timeout", func(t *testing.T) {
		w, m := batch(t, func(_ context.Context, batch []inbox.Message) error {
			if len(batch) > 1 {
				return fmt.Errorf("message %d: %w", len(batch), context.DeadlineExceeded)
			}
			return nil
		})
		w.commits(0, 5)
		if s := m.Stats(); s.Split == 0 || s.Failed != 0 || s.Dead != 0 {
			t.Errorf("%+v", s)
		}
	})
	for what, err := range map[string]error{
		"a service that one message needs": inbox.Retryable(errBroken),
		"a table that one message names":   &pgconn.PgError{Code: "42P01"},
	} {
		t.Run(what, func(t *testing.T) {
			var repaired atomic.Bool
			w, m := batch(t, func(_ context.Context, batch []inbox.Message) error {
				for _, m := range batch {
					if string(m.Value) == "2" && !repaired.Load() {
						return err
					}
				}
				return nil
			})
			w.eventually("the other messages are handled", func() bool { return m.Stats().Handled == 4 })
			w.eventually("the message is tried again", func() bool { return m.Stats().Uncounted > 2 })
			repaired.Store(true)
			w.commits(0, 5)
			if s := m.Stats(); s.Failed != 0 || s.Dead != 0 {
				t.Errorf("%+v", s)
			}
		})
	}
}
