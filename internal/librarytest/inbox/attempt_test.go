package inbox_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/walpost/walpost/inbox"
)

// Whatever a handler does to its connection, its attempts are counted. What is not its fault is not.
func TestAnAttemptIsCountedAlthoughTheTransactionIsUnusable(t *testing.T) {
	p := newPlace(t, "")
	db := inbox.Pgx(p.pool)
	if _, err := db.Store(t.Context(), "c", keyed("k", "a", "b")...); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	calls := 0
	var numbers []int
	var failures []string
	w := inbox.Worker[pgx.Tx]{
		DB: db, Consumer: "c", Concurrency: 1, Attempts: 4, BackoffMin: time.Millisecond, BackoffMax: time.Millisecond, Poll: time.Millisecond,
		Handler: func(ctx context.Context, tx pgx.Tx, m inbox.Message) error {
			if m.ID == "b" {
				stop()
				return nil
			}
			calls++
			numbers = append(numbers, m.Attempt)
			switch calls {
			case 1, 2: // left open
				_, err := tx.Query(ctx, "SELECT generate_series(1, 100000)")
				return err
			case 3: // its own deadline passes
				ctx, cancel := context.WithTimeout(ctx, time.Millisecond)
				defer cancel()
				_, err := tx.Exec(ctx, "SELECT pg_sleep(100)")
				return err
			case 4, 5:
				return fmt.Errorf("book: %w", &pgconn.PgError{Code: "40P01"})
			case 6:
				_, err := tx.Exec(ctx, "SELECT pg_terminate_backend(pg_backend_pid())")
				return err
			}
			return errHandler
		},
		Failed: func(f inbox.Failure) {
			failures = append(failures, fmt.Sprintf("%s%d %t", f.Message.ID, f.Attempt, f.Dead))
		},
	}
	ends := time.AfterFunc(time.Minute, stop)
	defer ends.Stop()
	if err := w.Run(ctx); err != nil {
		t.Error(err)
	}
	want := "[a1 false a2 false a0 false a0 false a3 false a4 true]"
	if got := fmt.Sprint(failures); got != want || calls != 8 {
		t.Errorf("failures %s after %d calls, want %s", got, calls, want)
	}
	// What met a deadlock is repeated and does not count. Neither does a session that ended.
	if got := fmt.Sprint(numbers); got != "[1 2 3 3 3 3 3 4]" {
		t.Errorf("the messages had the attempts %s", got)
	}
	p.expect("dead", "SELECT state FROM inbox_messages WHERE event_id = 'a' AND attempts = 4 AND last_error = $1", errHandler.Error())
}
