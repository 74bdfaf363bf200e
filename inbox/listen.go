package inbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/walpost/walpost/internal/lib/anytx"
)

// channel is where Store notifies. The payload is the name of the consumer.
const channel = "inbox_messages"

func notify(ctx context.Context, c anytx.Tx, payload string) error {
	if _, err := c.Exec(ctx, "SELECT pg_notify($1::text, $2::text)", channel, payload); err != nil {
		return fmt.Errorf("notify the workers: %w", err)
	}
	return nil
}

// A connect opens a connection beside those of a DB, to the same database.
type connect func(context.Context) (*pgx.Conn, error)

// errOnlyPolls says that a DB can open no such connection.
var errOnlyPolls = errors.New("the DB does not use pgx")

func connectPgx(pool interface {
	Begin(ctx context.Context) (pgx.Tx, error)
},
) connect {
	return func(ctx context.Context) (*pgx.Conn, error) {
		if p, ok := pool.(interface{ Config() *pgxpool.Config }); ok {
			config := p.Config()
			if config.BeforeConnect != nil { // it may set a password of short life
				if err := config.BeforeConnect(ctx, config.ConnConfig); err != nil {
					return nil, err
				}
			}
			return dial(ctx, config.ConnConfig)
		}
		tx, err := pool.Begin(ctx)
		if err != nil {
			return nil, err
		}
		conn := tx.Conn()
		if err := tx.Rollback(ctx); err != nil {
			return nil, err
		}
		if conn == nil { // a stand-in for tests
			return nil, errOnlyPolls
		}
		return dial(ctx, conn.Config())
	}
}

func connectSQL(db *sql.DB) connect {
	return func(ctx context.Context) (*pgx.Conn, error) {
		borrowed, err := db.Conn(ctx)
		if err != nil {
			return nil, err
		}
		var config *pgx.ConnConfig
		err = borrowed.Raw(func(driver any) error {
			c, ok := driver.(interface{ Conn() *pgx.Conn })
			if !ok {
				return errOnlyPolls
			}
			config = c.Conn().Config()
			return nil
		})
		if err = errors.Join(err, borrowed.Close()); err != nil {
			return nil, err
		}
		return dial(ctx, config)
	}
}

func dial(ctx context.Context, config *pgx.ConnConfig) (*pgx.Conn, error) {
	config.OnNotification = nil // that of the pool would get what WaitForNotification returns
	return pgx.ConnectConfig(ctx, config)
}

// probeTimeout bounds each step of listening that Postgres answers.
const probeTimeout = 5 * time.Second

// listen wakes the worker when Store has notified it, until ctx ends.
func (w *running[T]) listen(ctx context.Context) {
	for failures := 0; ctx.Err() == nil; {
		err := w.listenOnce(ctx, func() {
			if failures = 0; ctx.Err() == nil {
				w.logger().Info("the worker listens: notifications of new messages arrive")
			}
		})
		if ctx.Err() != nil {
			return
		}
		if failures++; failures == 1 {
			w.logger().Warn("no notifications of new messages arrive: the worker only polls", "poll", w.poll(), "err", err)
		}
		pause(ctx, min(time.Second<<min(failures, 10), 5*time.Minute))
	}
}

// listenOnce listens on one connection until that fails. It calls works when it knows that
// notifications arrive.
func (w *running[T]) listenOnce(ctx context.Context, works func()) error {
	step := func(do func(ctx context.Context) error) error {
		ctx, cancel := context.WithTimeout(ctx, probeTimeout)
		defer cancel()
		return do(ctx)
	}
	var conn *pgx.Conn
	err := step(func(ctx context.Context) (err error) {
		conn, err = w.DB.connect(ctx)
		return err
	})
	if err != nil {
		return err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = conn.Close(ctx)
	}()

	err = step(func(ctx context.Context) error { return w.own(ctx, conn) })
	if err == nil {
		err = step(func(ctx context.Context) error {
			_, err := conn.Exec(ctx, "LISTEN "+channel)
			return err
		})
	}
	// Another session notifies the worker, with a payload that is nobody's.
	if err == nil {
		err = step(func(ctx context.Context) error {
			return w.DB.retry(ctx, func(tx *transaction[T]) error { return notify(ctx, tx, "") })
		})
	}
	if err == nil {
		err = step(func(ctx context.Context) error {
			if _, err := conn.WaitForNotification(ctx); err != nil {
				return fmt.Errorf("no notification arrives within %s: %w", probeTimeout, err)
			}
			return nil
		})
	}
	if err != nil {
		return err
	}
	works()
	w.wake() // for what was stored before
	for {
		n, err := w.next(ctx, conn)
		switch {
		case err == nil && n.Payload == w.Consumer:
			w.wake()
		case err != nil && (ctx.Err() != nil || !pgconn.Timeout(err) || conn.IsClosed()):
			return err
		case err != nil:
			if err := step(conn.Ping); err != nil {
				return err
			}
		}
	}
}

// errPooler says that a session of the server does not belong to one connection.
var errPooler = errors.New("a pooler, such as PgBouncer in transaction mode, is between this process and Postgres")

// own returns errPooler if the session behind conn serves other connections, too. A pooler accepts
// LISTEN from any of them, and drops the notifications.
func (w *running[T]) own(ctx context.Context, conn *pgx.Conn) error {
	const query = "SELECT pg_backend_pid()::text"
	var first, other, second string
	if err := conn.QueryRow(ctx, query).Scan(&first); err != nil {
		return err
	}
	// It holds a session that a pooler has free.
	return w.DB.retry(ctx, func(tx *transaction[T]) error {
		if err := tx.QueryRow(ctx, query, nil, &other); err != nil {
			return err
		}
		if err := conn.QueryRow(ctx, query).Scan(&second); err != nil {
			return err
		}
		if first == other || first != second {
			return errPooler
		}
		return nil
	})
}

// next waits for a notification. After 60 Polls, or a minute, it times out, because a connection
// whose host is gone is silent, too.
func (w *running[T]) next(ctx context.Context, conn *pgx.Conn) (*pgconn.Notification, error) {
	ctx, cancel := context.WithTimeout(ctx, min(60*w.poll(), time.Minute))
	defer cancel()
	return conn.WaitForNotification(ctx)
}
