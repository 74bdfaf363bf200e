package inbox

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/walpost/walpost/internal/anytx"
)

// A Retention says how long the inbox remembers.
type Retention struct {
	// Keep is how long a processed event is remembered at least. An event that is delivered again
	// later has its effect again. Keep must therefore be longer than the topic's retention, and longer
	// than any replay goes back. The default is 7 days.
	//
	// All consumers of a database share the generations. So the longest Keep that any caller of
	// Retain ever gave applies to all of them. The column keep of inbox_generations has it.
	Keep time.Duration

	// Generation is how long marks go into one generation. Marks are dropped one generation at a time,
	// so an event is remembered up to Keep + Generation. Each call of Once looks into about
	// Keep/Generation + 2 generations. The default is a quarter of Keep.
	Generation time.Duration

	// Processed is how long processed rows stay in inbox_messages. The default is a day. It does not
	// shorten Keep.
	Processed time.Duration

	// LockWait is the longest time that Retain waits for the transactions that have marked an event.
	// Transactions that want to mark their first event wait meanwhile. The default is a second.
	LockWait time.Duration
}

// Retained is what one call of Retain did.
type Retained struct {
	Began    int64   // the number of the new generation, or 0
	Dropped  []int64 // the generations whose marks are gone
	Messages int64   // the processed rows that were deleted from inbox_messages
}

// A BusyError says that Retain could not lock inbox_processed in time, because a transaction that has
// marked an event is still open. Nothing is lost: the next call tries again. Meanwhile, the table
// grows.
type BusyError struct{ Err error }

func (e *BusyError) Error() string {
	return "inbox_processed is in use by an open transaction: a long handler delays the retention"
}
func (e *BusyError) Unwrap() error { return e.Err }

func (r Retention) withDefaults() (Retention, error) {
	r.Keep = cmp.Or(r.Keep, 7*24*time.Hour)
	r.Generation = cmp.Or(r.Generation, r.Keep/4)
	r.Processed = cmp.Or(r.Processed, 24*time.Hour)
	r.LockWait = cmp.Or(r.LockWait, time.Second)
	if r.Keep < time.Second || r.Generation < time.Second || r.Processed < 0 || r.LockWait < time.Millisecond {
		return r, fmt.Errorf("inbox: a duration of %+v is too short", r)
	}
	return r, nil
}

// Retain begins a new generation if the current one is old enough, drops the generations that ended
// before Keep, and deletes old processed messages. Call it every minute or so, from any number of
// processes: a call that finds nothing to do only reads. Retain locks inbox_processed for a moment.
// The error is a *BusyError if it did not get the lock.
//
// Times are those of the database's clock.
func (db *DB[T]) Retain(ctx context.Context, r Retention) (done Retained, err error) {
	if r, err = r.withDefaults(); err != nil {
		return done, err
	}
	if done.Messages, err = db.deleteProcessed(ctx, r.Processed); err != nil {
		return done, err
	}
	if err := db.raiseKeep(ctx, r); err != nil {
		return done, fmt.Errorf("remember how long events are kept: %w", err)
	}
	var began int64
	var dropped []int64
	_, err = db.in(ctx, func(tx *transaction[T]) error {
		isDue, err := look(ctx, tx, r)
		if err != nil || len(isDue.drop) == 0 && isDue.current == 0 {
			return err
		}
		if _, err := tx.Exec(ctx, fmt.Sprintf("SET LOCAL lock_timeout = %d", r.LockWait.Milliseconds())); err != nil {
			return err
		}
		_, err = tx.Exec(ctx, "LOCK TABLE inbox_processed IN ACCESS EXCLUSIVE MODE")
		if sqlState(err) == "55P03" {
			return &BusyError{err}
		} else if err != nil {
			return err
		}
		began, dropped, err = turn(ctx, tx, r)
		return err
	})
	if err != nil {
		return done, fmt.Errorf("retention of processed events: %w", err)
	}
	done.Began, done.Dropped = began, dropped
	return done, nil
}

// raiseKeep writes Keep into inbox_generations, unless a greater one stands there. It has a
// transaction of its own, so that it holds although Retain does not get the lock of the table.
func (db *DB[T]) raiseKeep(ctx context.Context, r Retention) error {
	return db.retry(ctx, func(tx *transaction[T]) error {
		var n int
		err := tx.QueryRow(ctx, `SELECT count(*) FROM inbox_generations HAVING max(keep) < $1::bigint * interval '1 microsecond'`, []any{r.Keep.Microseconds()}, &n)
		if errors.Is(err, sql.ErrNoRows) {
			return nil
		}
		if err == nil {
			_, err = tx.Exec(ctx, fmt.Sprintf("SET LOCAL lock_timeout = %d", r.LockWait.Milliseconds()))
		}
		if err == nil { // the rows of handlers in the higher isolation levels are locked
			_, err = tx.Exec(ctx, `UPDATE inbox_generations SET keep = $1::bigint * interval '1 microsecond'
				WHERE keep < $1::bigint * interval '1 microsecond'`, r.Keep.Microseconds())
		}
		if sqlState(err) == "55P03" {
			return &BusyError{err}
		}
		return err
	})
}

type dueGenerations struct {
	current int64 // the current generation if it must end, or 0
	drop    []int64
}

func look(ctx context.Context, c anytx.Tx, r Retention) (d dueGenerations, err error) {
	err = c.QueryRow(ctx, `SELECT coalesce(max(generation) FILTER (WHERE ended_at IS NULL
			AND started_at <= clock_timestamp() - $1::bigint * interval '1 microsecond'), 0)
		FROM inbox_generations`, []any{r.Generation.Microseconds()}, &d.current)
	if err != nil {
		return d, err
	}
	return d, queryJSON(ctx, c, &d.drop, `SELECT coalesce(json_agg(generation ORDER BY generation), '[]')::text FROM inbox_generations
		WHERE ended_at <= clock_timestamp() - (SELECT greatest(max(keep), $1::bigint * interval '1 microsecond') FROM inbox_generations)`,
		r.Keep.Microseconds())
}

// turn changes the generations. The caller holds the lock of inbox_processed. So no transaction is
// open that has marked an event, and none can mark before the change is committed.
func turn(ctx context.Context, c anytx.Tx, r Retention) (began int64, dropped []int64, err error) {
	isDue, err := look(ctx, c, r) // another process may have been faster
	if err != nil {
		return 0, nil, err
	}
	var table string // with its schema, which need not be the first of the search_path
	err = c.QueryRow(ctx, `SELECT format('%I.%I', n.nspname, c.relname)
		FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
		WHERE c.oid = 'inbox_processed'::regclass`, nil, &table)
	if err != nil {
		return 0, nil, err
	}
	var statements []string
	if isDue.current > 0 {
		began = isDue.current + 1
		statements = append(statements,
			fmt.Sprintf("CREATE TABLE %s_%d PARTITION OF %[1]s FOR VALUES IN (%[2]d)", table, began),
			"UPDATE inbox_generations SET ended_at = clock_timestamp() WHERE ended_at IS NULL",
			fmt.Sprintf("INSERT INTO inbox_generations (generation, started_at, keep) SELECT %d, clock_timestamp(), max(keep) FROM inbox_generations", began))
	}
	for _, generation := range isDue.drop {
		statements = append(statements, fmt.Sprintf("DROP TABLE %s_%d", table, generation),
			fmt.Sprintf("DELETE FROM inbox_generations WHERE generation = %d", generation))
	}
	for _, s := range statements {
		if _, err := c.Exec(ctx, s); err != nil {
			return 0, nil, fmt.Errorf("%s: %w", s, err)
		}
	}
	return began, isDue.drop, nil
}

// deleteProcessed deletes old processed messages, some thousand in a transaction.
func (db *DB[T]) deleteProcessed(ctx context.Context, age time.Duration) (all int64, err error) {
	const batch = 5000
	for n := int64(batch); n == batch; all += n {
		_, err := db.in(ctx, func(tx *transaction[T]) (err error) {
			n, err = tx.Exec(ctx, `DELETE FROM inbox_messages WHERE id = ANY (ARRAY(SELECT id FROM inbox_messages
				WHERE state = 'processed' AND processed_at <= clock_timestamp() - $1::bigint * interval '1 microsecond'
				ORDER BY processed_at LIMIT $2 FOR UPDATE SKIP LOCKED))`, age.Microseconds(), batch)
			return err
		})
		if err != nil {
			return all, fmt.Errorf("delete processed messages: %w", err)
		}
	}
	return all, nil
}
