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

// DefaultKeep is how long a processed event is remembered by default. It is twice the time that Kafka
// keeps records by default, and a day.
const DefaultKeep = 15 * 24 * time.Hour

// A Retention says how long the inbox remembers.
type Retention struct {
	// Keep is how long a processed event is remembered at least. An event that is delivered again
	// later has its effect again. Keep must therefore be longer than the topic's retention, and longer
	// than any replay goes back. The default is DefaultKeep.
	//
	// All consumers of a database share the generations. So the longest Keep that any caller of
	// Retain ever gave applies to all of them. inbox_retention has it.
	Keep time.Duration

	// Generation is how long marks go into one generation. Marks are dropped one generation at a time,
	// so an event is remembered up to Keep + Generation. Each call of Once looks into about
	// Keep/Generation + 2 generations. The default is a quarter of Keep.
	Generation time.Duration

	// Processed is how long processed rows stay in inbox_messages. The default is a day. It does not
	// shorten Keep.
	Processed time.Duration

	// LockWait is the longest time that Retain waits for the transactions that have marked an event, and
	// for readers of inbox_processed such as pg_dump. Transactions that want to mark their first event
	// wait meanwhile. The default is a second.
	LockWait time.Duration
}

// Retained is what one call of Retain did.
type Retained struct {
	Began    int64   // the number of the new generation, or 0
	Dropped  []int64 // the generations whose marks are gone
	Messages int64   // the processed rows that were deleted from inbox_messages
}

// A BusyError says that Retain could not lock inbox_processed in time, because a transaction that has
// marked an event or reads the table is still open. Nothing is lost: a later call tries again.
// Meanwhile, the table grows.
type BusyError struct{ Err error }

func (e *BusyError) Error() string {
	return "inbox_processed is in use by an open transaction: a long handler or a reader such as pg_dump delays the retention"
}
func (e *BusyError) Unwrap() error { return e.Err }

func (r Retention) withDefaults() (Retention, error) {
	r.Keep = cmp.Or(r.Keep, DefaultKeep)
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
// processes: a call that finds nothing to do only reads. Retain locks inbox_processed for a moment,
// and marks wait for it. So only one caller at a time tries, and after a *BusyError all callers leave
// the table alone: for 60 times LockWait at first, then twice as long each time, up to an hour.
//
// Times are those of the database's clock.
func (db *DB[T]) Retain(ctx context.Context, r Retention) (done Retained, err error) {
	if r, err = r.withDefaults(); err != nil {
		return done, err
	}
	if done.Messages, err = db.deleteProcessed(ctx, r.Processed); err != nil {
		return done, err
	}
	if err := db.raiseKeep(ctx, r.Keep); err != nil {
		return done, fmt.Errorf("remember how long events are kept: %w", err)
	}
	var busy error
	var isDue dueGenerations
	_, err = db.in(ctx, func(tx *transaction[T]) error {
		var mine bool
		err := tx.QueryRow(ctx, "SELECT retry_at <= clock_timestamp() FROM inbox_retention FOR UPDATE SKIP LOCKED", nil, &mine)
		if err != nil || !mine {
			if errors.Is(err, sql.ErrNoRows) { // another caller is at it
				return nil
			}
			return err
		}
		if isDue, err = look(ctx, tx, r); err != nil || len(isDue.drop) == 0 && isDue.current == 0 {
			return err
		}
		if busy, err = lock(ctx, tx, r.LockWait); busy != nil || err != nil {
			isDue = dueGenerations{}
			return err
		}
		return turn(ctx, tx, isDue)
	})
	if err = cmp.Or(err, busy); err != nil {
		return done, fmt.Errorf("retention of processed events: %w", err)
	}
	if isDue.current > 0 {
		done.Began = isDue.current + 1
	}
	if len(isDue.drop) > 0 {
		done.Dropped = isDue.drop
	}
	return done, nil
}

// raiseKeep writes Keep into inbox_retention, unless a greater one stands there. It has a transaction
// of its own, so that it holds although Retain does not get the lock of the table.
func (db *DB[T]) raiseKeep(ctx context.Context, keep time.Duration) error {
	return db.retry(ctx, func(tx *transaction[T]) error {
		_, err := tx.Exec(ctx, `UPDATE inbox_retention SET keep = $1::bigint * interval '1 microsecond'
			WHERE keep < $1::bigint * interval '1 microsecond'`, keep.Microseconds())
		return err
	})
}

// lock locks inbox_processed. If it does not get the lock in time, busy is a *BusyError, and all
// callers pause. The caller has locked the row of inbox_retention.
func lock(ctx context.Context, c anytx.Tx, wait time.Duration) (busy, err error) {
	for _, s := range []string{"SAVEPOINT inbox_lock", fmt.Sprintf("SET LOCAL lock_timeout = %d", wait.Milliseconds())} {
		if _, err := c.Exec(ctx, s); err != nil {
			return nil, err
		}
	}
	_, err = c.Exec(ctx, "LOCK TABLE inbox_processed IN ACCESS EXCLUSIVE MODE")
	if sqlState(err) != "55P03" {
		return nil, err
	}
	busy = &BusyError{err}
	if _, err = c.Exec(ctx, "ROLLBACK TO SAVEPOINT inbox_lock"); err == nil {
		_, err = c.Exec(ctx, `UPDATE inbox_retention SET failures = failures + 1, retry_at = clock_timestamp() +
			least(interval '1 hour', $1::bigint * interval '60 microseconds' * power(2, least(failures, 20)))`, wait.Microseconds())
	}
	return busy, err
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
		WHERE ended_at <= clock_timestamp() - (SELECT keep FROM inbox_retention)`)
}

// turn changes the generations. The caller holds the lock of inbox_processed. So no transaction is
// open that has marked an event, and none can mark before the change is committed.
func turn(ctx context.Context, c anytx.Tx, isDue dueGenerations) error {
	var table string // with its schema, which need not be the first of the search_path
	err := c.QueryRow(ctx, `SELECT format('%I.%I', n.nspname, c.relname)
		FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
		WHERE c.oid = 'inbox_processed'::regclass`, nil, &table)
	if err != nil {
		return err
	}
	statements := []string{"UPDATE inbox_retention SET failures = 0, retry_at = '-infinity' WHERE failures > 0"}
	if began := isDue.current + 1; isDue.current > 0 {
		statements = append(statements,
			fmt.Sprintf("CREATE TABLE %s_%d PARTITION OF %[1]s FOR VALUES IN (%[2]d)", table, began),
			"UPDATE inbox_generations SET ended_at = clock_timestamp() WHERE ended_at IS NULL",
			fmt.Sprintf("INSERT INTO inbox_generations (generation, started_at) VALUES (%d, clock_timestamp())", began))
	}
	for _, generation := range isDue.drop {
		statements = append(statements, fmt.Sprintf("DROP TABLE %s_%d", table, generation),
			fmt.Sprintf("DELETE FROM inbox_generations WHERE generation = %d", generation))
	}
	for _, s := range statements {
		if _, err := c.Exec(ctx, s); err != nil {
			return fmt.Errorf("%s: %w", s, err)
		}
	}
	return nil
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
