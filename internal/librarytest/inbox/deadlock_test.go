package inbox_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/walpost/walpost/inbox"
)

// Postgres ends a deadlock with another transaction by an error of Retain. The tables are in use then, and nothing is broken.
func TestADeadlockDelaysTheRetentionLikeABusyTable(t *testing.T) {
	// deadlock calls Retain beside a transaction that waits for Retain, as Retain waits for it.
	deadlock := func(t *testing.T, b *base, lock func(tx pgx.Tx) error) (inbox.Retained, error) {
		other, err := b.pool.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = other.Rollback(context.Background()) }()
		if _, err := other.Exec(t.Context(), "SET LOCAL deadlock_timeout = '1h'"); err != nil { // so Retain is the one that finds it
			t.Fatal(err)
		}
		if err := lock(other); err != nil {
			t.Fatal(err)
		}
		var done inbox.Retained
		ended := make(chan error)
		go func() {
			var err error
			done, err = b.db.Retain(t.Context(), inbox.Retention{Keep: 7 * time.Hour, LockWait: time.Minute})
			ended <- err
		}()
		until(t, "it waits for the lock", func() bool {
			return b.pg.Value(t, b.dsn, "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'") == "1"
		})
		if _, err := other.Exec(t.Context(), b.named("UPDATE @inbox_retention SET failures = failures")); err != nil {
			t.Error(err)
		}
		if err := other.Commit(t.Context()); err != nil {
			t.Error(err)
		}
		err = <-ended
		return done, err
	}
	t.Run("a new generation", func(t *testing.T) {
		b := newBase(t, "")
		b.age(8)
		done, err := deadlock(t, b, func(tx pgx.Tx) error {
			_, err := box.Once(t.Context(), tx, "c", message("a"), func(context.Context) error { return nil })
			return err
		})
		if busy := new(inbox.BusyError); !errors.As(err, &busy) || done.Began != 0 {
			t.Errorf("%+v, %v", done, err)
		}
		b.expect("1", "SELECT failures FROM @inbox_retention")
	})
	t.Run("the end of a generation", func(t *testing.T) {
		b := newBase(t, "")
		b.once(b.db, true, "a")
		b.age(8)
		if done, err := b.db.Retain(t.Context(), inbox.Retention{Keep: 7 * time.Hour}); err != nil || done.Began != 2 {
			t.Fatalf("%+v, %v", done, err)
		}
		b.age(8)
		done, err := deadlock(t, b, func(tx pgx.Tx) error {
			_, err := tx.Exec(t.Context(), b.named("SELECT FROM @inbox_processed"))
			return err
		})
		if err == nil && len(done.Dropped) == 0 { // the other one held the row of the retention behind the first part
			done, err = b.db.Retain(t.Context(), inbox.Retention{Keep: 7 * time.Hour})
		}
		if err != nil || !slices.Equal(done.Dropped, []int64{1}) {
			t.Errorf("%+v, %v", done, err)
		}
		b.expect("0", "SELECT failures FROM @inbox_retention")
	})
}
