package inbox

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"
)

// DefaultKeep is how long a processed event is remembered by default. It is twice as long as Kafka
// keeps records by default, plus a day.
const DefaultKeep = 15 * 24 * time.Hour

// A Retention says how long the inbox remembers.
type Retention struct {
	// Keep is the minimum time for which an event is remembered after it was processed, or stored
	// for a Worker. An event that is delivered again later takes effect again, so Keep must be longer
	// than the topic's retention, and longer than any replay goes back. The default is DefaultKeep.
	//
	// All consumers of a database share the generations, so the longest Keep that any caller of
	// Retain has ever passed applies to all of them. It is stored in inbox_retention. A generation
	// takes marks for a quarter of Keep, and marks are removed one generation at a time, so an
	// event is remembered for up to a quarter longer than Keep. After Keep is raised, the next
	// generation can begin late, and events are remembered for up to twice as long.
	Keep time.Duration

	// Processed is how long processed rows stay in inbox_messages. The default is a day. It does not
	// shorten Keep.
	Processed time.Duration

	// LockWait is the longest time that Retain waits for the transactions that have marked an
	// event, and for readers of a generation that it truncates, such as pg_dump. Transactions that
	// are about to mark their first event can wait that long, too. The default is a second, and the
	// maximum an hour.
	LockWait time.Duration

	// Logger gets a line for whatever RunRetention couldn't do. The default is slog.Default();
	// slog.New(slog.DiscardHandler) is silent.
	Logger *slog.Logger
}

// Retained is what one call of Retain did.
type Retained struct {
	Began    int64   // the number of the new generation, or 0
	Dropped  []int64 // the generations whose marks were all removed now
	Messages int64   // the processed rows that were deleted from inbox_messages
}

// A BusyError means that Retain couldn't lock inbox_processed in time, because a transaction that
// has marked an event is still open. Nothing is lost: a later call tries again. Until one succeeds,
// the table grows.
type BusyError struct{ Err error }

func (e *BusyError) Error() string {
	return "inbox_processed is in use by an open transaction: a long handler delays the retention"
}
func (e *BusyError) Unwrap() error { return e.Err }

func (r Retention) withDefaults() (Retention, error) {
	r.Keep = cmp.Or(r.Keep, DefaultKeep)
	r.Processed = cmp.Or(r.Processed, 24*time.Hour)
	r.LockWait = min(cmp.Or(r.LockWait, time.Second), time.Hour)
	r.Logger = cmp.Or(r.Logger, slog.Default())
	if r.Keep < time.Second || r.Processed < 0 || r.LockWait < time.Millisecond {
		return r, fmt.Errorf("inbox: a duration is too short: Keep %s, Processed %s, LockWait %s", r.Keep, r.Processed, r.LockWait)
	}
	return r, nil
}

// RunRetention calls Retain every minute or so until ctx ends, and then returns nil. It logs what
// Retain can't do, and continues. Any number of processes can run it at the same time. It returns
// an error if r is invalid.
func (db *DB[T]) RunRetention(ctx context.Context, r Retention) error {
	r, err := r.withDefaults()
	if err != nil {
		return err
	}
	var failures int
	var logged time.Time
	for ctx.Err() == nil {
		_, err := db.Retain(ctx, r)
		switch busy := (*BusyError)(nil); {
		case err == nil && failures > 0:
			r.Logger.Info("the retention of the inbox works again", "failures", failures)
			failures = 0
		case err == nil || ctx.Err() != nil:
		case errors.As(err, &busy): // at most every minute: see Retain
			r.Logger.Warn("the retention of the inbox waits: its tables grow", "err", err)
		default:
			if failures++; failures == 1 || time.Since(logged) > time.Hour {
				r.Logger.Error("the retention of the inbox fails: its tables grow", "failures", failures, "err", err)
				logged = time.Now()
			}
		}
		pause(ctx, min(time.Minute, r.Keep/60))
	}
	return nil
}

// Retain begins a new generation if the current one is old enough, empties the generations that
// ended before Keep, and deletes old processed messages. Call it every minute or so, from any
// number of processes: a call that finds nothing to do only reads. RunRetention does it.
//
// To begin a generation, Retain locks inbox_processed for a moment, during which marks wait.
// Readers don't wait for Retain, and Retain doesn't wait for them. A generation is emptied by
// TRUNCATE if the role has that privilege on the generation's partition and gets the lock within
// LockWait, and otherwise by DELETE, some thousand marks in a transaction. Only one caller at a
// time tries to lock. After a *BusyError, all callers leave the table alone, at first for 60 times
// LockWait, then for twice as long each time, up to an hour.
//
// Times are those of the database's clock.
func (db *DB[T]) Retain(ctx context.Context, r Retention) (done Retained, err error) {
	if r, err = r.withDefaults(); err != nil {
		return done, err
	}
	var state retentionState
	err = db.readCommitted(ctx, func(tx *transaction[T]) error {
		version, err := tx.version(ctx)
		if err == nil && version != Version {
			return db.schema.errVersion(version)
		}
		return err
	})
	if err != nil {
		return done, fmt.Errorf("inbox: retention: %w", err)
	}
	if done.Messages, err = db.deleteProcessed(ctx, r.Processed); err != nil {
		return done, err
	}
	// It has a transaction of its own, so that it holds although the table is busy.
	err = db.readCommitted(ctx, func(tx *transaction[T]) error {
		_, err := tx.Exec(ctx, `UPDATE @inbox_retention SET keep = $1::bigint * interval '1 microsecond'
			WHERE keep < $1::bigint * interval '1 microsecond'`, r.Keep.Microseconds())
		return err
	})
	if err != nil {
		return done, fmt.Errorf("remember how long events are kept: %w", err)
	}
	err = db.readCommitted(ctx, func(tx *transaction[T]) error { return state.read(ctx, tx.schemaTx) })
	if err == nil && state.Next != 0 {
		done.Began, err = db.turn(ctx, r)
	}
	for again := state.Expired; err == nil && again; {
		var generation int64
		if generation, again, err = db.empty(ctx, r); generation != 0 {
			done.Dropped = append(done.Dropped, generation)
		}
	}
	if err != nil {
		return done, fmt.Errorf("retention of processed events: %w", err)
	}
	return done, nil
}

// A retentionState is what there is to do.
type retentionState struct {
	Next    int64    // the generation to begin, or 0
	Expired bool     // a generation is to be emptied
	Single  []string // partitions without a row, and rows without a partition
}

func (s *retentionState) read(ctx context.Context, tx schemaTx) error {
	*s = retentionState{}
	err := queryJSON(ctx, tx, s, `SELECT json_build_object(
		'Next', (SELECT next.generation FROM @inbox_generations next, @inbox_generations current
			WHERE next.ended_at = '-infinity' AND current.ended_at IS NULL AND current.started_at <= clock_timestamp() - r.keep / 4
			ORDER BY next.generation < current.generation, next.generation LIMIT 1),
		'Expired', EXISTS (SELECT FROM @inbox_generations
			WHERE ended_at > '-infinity' AND ended_at <= clock_timestamp() - r.keep),
		'Single', (SELECT json_agg(name ORDER BY name) FROM (SELECT 'inbox_processed_' || generation AS name FROM @inbox_generations) g
			FULL JOIN (SELECT c.relname::text AS name FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
				WHERE i.inhparent = $1::text::regclass) p USING (name)
			WHERE g.name IS NULL OR p.name IS NULL))::text
		FROM @inbox_retention r WHERE pause_until <= clock_timestamp()`, tx.schema.table("inbox_processed"))
	switch {
	case errors.Is(err, sql.ErrNoRows): // all callers pause
		return nil
	case err == nil && len(s.Single) > 0: // it could not be begun, or would never be emptied
		return fmt.Errorf("%s is not both a partition of inbox_processed and a row of inbox_generations: restore what is missing", strings.Join(s.Single, ", "))
	}
	return err
}

// readCommitted is DB.in for a transaction that reads what others have committed while it waited
// for a lock, whatever the default of the database is.
func (db *DB[T]) readCommitted(ctx context.Context, do func(*transaction[T]) error) error {
	_, err := db.in(ctx, func(tx *transaction[T]) error {
		if _, err := tx.Exec(ctx, "SET TRANSACTION ISOLATION LEVEL READ COMMITTED"); err != nil {
			return err
		}
		return do(tx)
	})
	return err
}

// alone runs do in a transaction, unless another caller is at it or all callers pause. A lock that
// do does not get in time is a *BusyError, and then all callers pause.
func (db *DB[T]) alone(ctx context.Context, r Retention, do func(tx schemaTx) error) error {
	var busy error
	err := db.readCommitted(ctx, func(tx *transaction[T]) error {
		var mine bool
		err := tx.QueryRow(ctx, "SELECT true FROM @inbox_retention WHERE pause_until <= clock_timestamp() FOR UPDATE SKIP LOCKED", nil, &mine)
		if errors.Is(err, sql.ErrNoRows) {
			return nil
		}
		for _, s := range []string{fmt.Sprintf("SET LOCAL lock_timeout = %d", r.LockWait.Milliseconds()), "SAVEPOINT inbox_lock"} {
			if err == nil {
				_, err = tx.Exec(ctx, s)
			}
		}
		if err == nil {
			err = do(tx.schemaTx)
		}
		switch {
		case err == nil:
			_, err = tx.Exec(ctx, "UPDATE @inbox_retention SET failures = 0 WHERE failures > 0")
		case isBusy(err):
			busy = &BusyError{err}
			if _, err = tx.Exec(ctx, toSavepoint); err == nil {
				_, err = tx.Exec(ctx, `UPDATE @inbox_retention SET failures = failures + 1, pause_until = clock_timestamp() +
					least(interval '1 hour', $1::bigint * interval '60 microseconds' * power(2, least(failures, 20)))`, r.LockWait.Microseconds())
			}
		}
		return err
	})
	return cmp.Or(err, busy)
}

// toSavepoint undoes what alone has let do.
const toSavepoint = "ROLLBACK TO SAVEPOINT inbox_lock"

// isBusy reports that a lock was not free in time, or would never have been: another transaction waited
// for this one, too.
func isBusy(err error) bool { return sqlState(err) == "55P03" || sqlState(err) == "40P01" }

// turn begins a generation, and returns its number. While it holds the lock of inbox_processed, no
// transaction is open that has marked an event, and none can mark before the change is committed.
func (db *DB[T]) turn(ctx context.Context, r Retention) (began int64, err error) {
	err = db.alone(ctx, r, func(tx schemaTx) error {
		var state retentionState
		if err := state.read(ctx, tx); err != nil || state.Next == 0 {
			return err
		}
		if _, err := tx.Exec(ctx, "LOCK TABLE ONLY @inbox_processed IN SHARE ROW EXCLUSIVE MODE"); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, "UPDATE @inbox_generations SET ended_at = clock_timestamp() WHERE ended_at IS NULL"); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, "UPDATE @inbox_generations SET started_at = clock_timestamp(), ended_at = NULL WHERE generation = $1", state.Next)
		began = state.Next
		return err
	})
	if err != nil {
		return 0, err
	}
	return began, nil
}

// empty removes marks of the oldest expired generation. It returns the generation if no mark is
// left: it then waits for its turn. again reports whether there can be more to do for this caller.
func (db *DB[T]) empty(ctx context.Context, r Retention) (emptied int64, again bool, err error) {
	const part = 1000 // blocks, with some ten thousand marks
	err = db.alone(ctx, r, func(tx schemaTx) error {
		var generation, from, size int64
		var partition string
		var truncate bool
		err := tx.QueryRow(ctx, `SELECT g.generation, r.emptied_blocks, format('%I.%I', n.nspname, c.relname),
				r.emptied_blocks = 0 AND has_table_privilege(c.oid, 'TRUNCATE'),
				pg_relation_size(c.oid) / current_setting('block_size')::bigint
			FROM @inbox_retention r JOIN @inbox_generations g ON g.ended_at > '-infinity' AND g.ended_at <= clock_timestamp() - r.keep
				JOIN pg_inherits i ON i.inhparent = $1::text::regclass
				JOIN pg_class c ON c.oid = i.inhrelid AND c.relname = 'inbox_processed_' || g.generation
				JOIN pg_namespace n ON n.oid = c.relnamespace
			ORDER BY g.ended_at LIMIT 1`,
			[]any{tx.schema.table("inbox_processed")}, &generation, &from, &partition, &truncate, &size)
		if errors.Is(err, sql.ErrNoRows) { // another caller has done it
			return nil
		}
		again = err == nil
		if truncate {
			_, err = tx.Tx.Exec(ctx, "TRUNCATE "+partition) // an @ in the name stands for itself
			if isBusy(err) {                                // such as pg_dump, or a long handler
				truncate = false
				_, err = tx.Exec(ctx, toSavepoint)
			}
		}
		if err == nil && !truncate && from < size {
			_, err = tx.Exec(ctx, "DELETE FROM @inbox_processed WHERE generation = $1 AND ctid >= $2::text::tid AND ctid < $3::text::tid",
				generation, fmt.Sprintf("(%d,0)", from), fmt.Sprintf("(%d,0)", from+part))
			if err == nil {
				_, err = tx.Exec(ctx, "UPDATE @inbox_retention SET emptied_blocks = $1", from+part)
			}
			return err
		}
		if err == nil {
			_, err = tx.Exec(ctx, "UPDATE @inbox_generations SET started_at = '-infinity', ended_at = '-infinity' WHERE generation = $1", generation)
		}
		if err == nil {
			_, err = tx.Exec(ctx, "UPDATE @inbox_retention SET emptied_blocks = 0 WHERE emptied_blocks > 0")
		}
		emptied = generation
		return err
	})
	if err != nil {
		return 0, false, err
	}
	return emptied, again, nil
}

// deleteProcessed deletes old processed messages, some thousand in a transaction.
func (db *DB[T]) deleteProcessed(ctx context.Context, age time.Duration) (all int64, err error) {
	const batch = 5000
	for n := int64(batch); n == batch; all += n {
		err := db.readCommitted(ctx, func(tx *transaction[T]) (err error) {
			n, err = tx.Exec(ctx, `DELETE FROM @inbox_messages WHERE id = ANY (ARRAY(SELECT id FROM @inbox_messages
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
