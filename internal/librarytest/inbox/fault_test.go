package inbox_test

import (
	"context"
	"database/sql/driver"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/walpost/walpost/inbox"
	"github.com/walpost/walpost/internal/lib/attempts"
)

// Worker and consumer.Consumer decide by Failures.
func TestFailuresCountWhatIsTheMessagesFault(t *testing.T) {
	var f attempts.Failures
	for i, c := range []struct {
		err  error
		want attempts.Fault
	}{
		{errHandler, attempts.Message},
		{inbox.Retryable(errHandler), attempts.Elsewhere},
		{driver.ErrBadConn, attempts.Elsewhere},
		{driver.ErrBadConn, attempts.Elsewhere},
		{context.DeadlineExceeded, attempts.Elsewhere},
		{driver.ErrBadConn, attempts.Elsewhere},
		{driver.ErrBadConn, attempts.Elsewhere},
		{driver.ErrBadConn, attempts.Message},
		{context.DeadlineExceeded, attempts.Message},
		{inbox.Permanent(errHandler), attempts.Permanent},
	} {
		if got := f.Add(c.err); got != c.want {
			t.Errorf("failure %d, %v: %d, want %d", i, c.err, got, c.want)
		}
	}
	if want := (attempts.Failures{All: 10, Counted: 4, Unclear: 7}); f != want {
		t.Errorf("%+v, want %+v", f, want)
	}
}

// What is not the message's fault makes no message dead, and what no attempt can change does so at
// once.
func TestAWorkerBlamesAsTheConsumerDoes(t *testing.T) {
	p := newPlace(t, "")
	db := inbox.Pgx(p.pool)
	sql := func(sql string) func(context.Context, pgx.Tx) error {
		return func(ctx context.Context, tx pgx.Tx) error { _, err := tx.Exec(ctx, sql); return err }
	}
	returns := func(err error) func(context.Context, pgx.Tx) error {
		return func(context.Context, pgx.Tx) error { return err }
	}
	for name, c := range map[string]struct {
		handle   func(context.Context, pgx.Tx) error
		attempts int    // of the Worker
		want     string // state, failures, attempts and unclear after three calls at most
	}{
		"a missing table":              {sql("INSERT INTO missing VALUES (1)"), 1, "pending 3 0 0"},
		"a session that is ended":      {sql("SELECT pg_terminate_backend(pg_backend_pid())"), 1, "pending 3 0 0"},
		"Retryable":                    {returns(fmt.Errorf("service: %w", inbox.Retryable(errHandler))), 1, "pending 3 0 0"},
		"Permanent":                    {returns(fmt.Errorf("decode: %w", inbox.Permanent(errHandler))), 0, "dead 1 1 0"},
		"a statement that is too slow": {sql("SET LOCAL statement_timeout = 1; SELECT pg_sleep(60)"), 1, "pending 3 0 3"},
		"a handler that is too slow":   {sql("SELECT pg_sleep(60)"), 1, "pending 3 0 3"},
		"another error":                {sql("SELECT 1/0"), 2, "dead 2 2 0"},
	} {
		if n, err := db.Store(t.Context(), name, keyed("k", "a")...); n != 1 || err != nil {
			t.Fatal(n, err)
		}
		w := inbox.Worker[pgx.Tx]{
			DB: db, Consumer: name, Concurrency: 1, Attempts: c.attempts, BackoffMin: time.Nanosecond, BackoffMax: time.Nanosecond, HandlerTimeout: time.Second, Poll: time.Millisecond,
			Handler: func(ctx context.Context, tx pgx.Tx, _ inbox.Message) error { return c.handle(ctx, tx) },
		}
		failed := 0
		ctx, stop := context.WithTimeout(t.Context(), time.Minute)
		w.Failed = func(f inbox.Failure) {
			if failed++; failed == 3 || f.Dead {
				stop()
			}
		}
		if err := w.Run(ctx); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		stop()
		p.expect(c.want, "SELECT concat_ws(' ', state, failures, attempts, unclear) FROM inbox_messages WHERE consumer = $1", name)
	}
	for consumer, n := range map[string]int64{"Permanent": 1, "a missing table": 0} {
		if got, err := db.RetryAllDead(t.Context(), consumer); got != n || err != nil {
			t.Errorf("RetryAllDead of %s: %d, %v", consumer, got, err)
		}
	}
	p.expect("pending 0 0 0", "SELECT concat_ws(' ', state, failures, attempts, unclear) FROM inbox_messages WHERE consumer = 'Permanent'")
}
