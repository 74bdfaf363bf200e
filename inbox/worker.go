package inbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/walpost/walpost/internal/anytx"
	"github.com/walpost/walpost/internal/backoff"
)

// A Worker handles stored messages. Any number of workers of any number of processes share the
// messages of a consumer. Each message is handled in the transaction that marks it as processed, so
// its effect happens exactly once, even if the process is killed.
//
// A message is not taken while an earlier one with the same topic and key is pending: while that one
// is handled, and while it waits for its next attempt.
type Worker[T any] struct {
	DB       *DB[T]
	Consumer string

	// Handle writes the effect of a message in tx. It does not end tx. If it returns an error or
	// panics, its work is rolled back, and the message gets another attempt. ctx ends when Run has
	// waited for Grace.
	Handle func(ctx context.Context, tx T, m Message) error

	Concurrency int // handlers at the same time; 1 by default

	// Attempts is how many failures that count a message has before it is dead: 0 means that only a
	// Permanent error gives it up. A dead message no longer holds up its key. A failure that is not the
	// message's fault does not count (see Retryable), and a process that is killed uses up no attempt.
	// A serialization failure or a deadlock is repeated as in Once.
	Attempts int

	// HandlerTimeout ends the ctx of Handle; 1 minute by default. Only the first 5 failures because of
	// a deadline do not count.
	HandlerTimeout time.Duration

	// The pause after a failed attempt doubles from BackoffMin (1 s by default) to BackoffMax (5 min by
	// default). Chance takes away up to a half of it.
	BackoffMin, BackoffMax time.Duration

	Poll  time.Duration // the pause after finding no message; 1 s by default
	Grace time.Duration // how long handlers may go on after the end of Run's ctx; 30 s by default

	// Failed, if it is set, is called after each failed attempt, and each time that the database
	// could not be used. Several goroutines call it.
	Failed func(f Failure)
}

// A Failure is a failed attempt.
type Failure struct {
	Message Message       // empty if no message had been taken
	Attempt int           // 1 is the first; 0 if the attempt does not count
	Err     error         // a panic is a *PanicError
	Dead    bool          // this was the last attempt
	Pause   time.Duration // until the next one
}

// Run handles messages until ctx ends. It then takes no more, and returns when the handlers that
// have begun are done.
func (w *Worker[T]) Run(ctx context.Context) error {
	if w.DB == nil || w.Handle == nil || w.Attempts < 0 || w.Concurrency < 0 {
		return errors.New("inbox: a Worker needs DB and Handle, and its numbers must not be negative")
	}
	if err := check(w.Consumer); err != nil {
		return err
	}
	work, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(or(w.Grace, 30*time.Second), cancel) })()
	var wg sync.WaitGroup
	for range max(w.Concurrency, 1) {
		wg.Go(func() {
			lane := []byte{}
			for failures := 0; ctx.Err() == nil; {
				m, err := w.one(work, &lane)
				switch {
				case err != nil:
					wait := w.pause(failures + 1)
					if w.Failed != nil {
						f := Failure{Err: err, Pause: wait}
						if m != nil {
							f.Message = *m
						}
						w.Failed(f)
					}
					pause(ctx, wait)
					failures++
					continue
				case m == nil && len(lane) > 0:
					lane = lane[:0] // once around
				case m == nil:
					pause(ctx, or(w.Poll, time.Second))
				}
				failures = 0
			}
		})
	}
	wg.Wait()
	return nil
}

func or(d, byDefault time.Duration) time.Duration {
	if d <= 0 {
		return byDefault
	}
	return d
}

// pause returns the pause after an attempt.
func (w *Worker[T]) pause(attempt int) time.Duration {
	return backoff.Backoff{Min: or(w.BackoffMin, time.Second), Max: or(w.BackoffMax, 5*time.Minute)}.Pause(attempt)
}

// claim locks the first pending message of a lane after the lane $2, if the message is due and not
// locked. It walks from lane to lane by the index, so its cost is the number of lanes that are locked
// or wait, not the number of their messages.
const claim = `WITH RECURSIVE heads AS (
	(SELECT lane, id FROM @inbox_messages
		WHERE consumer = $1 AND state = 'pending' AND lane > $2 ORDER BY lane, id LIMIT 1)
	UNION ALL
	SELECT n.lane, n.id FROM heads h CROSS JOIN LATERAL (SELECT lane, id FROM @inbox_messages
		WHERE consumer = $1 AND state = 'pending' AND lane > h.lane ORDER BY lane, id LIMIT 1) n
)
SELECT m.* FROM heads h CROSS JOIN LATERAL (
	SELECT id, lane, failures, attempts, unclear, event_id, scope, topic, partition, "offset", key, value, coalesce(headers, 'null')::text, time
	FROM @inbox_messages WHERE id = h.id AND state = 'pending' AND next_attempt_at <= clock_timestamp()
	FOR UPDATE SKIP LOCKED) m
LIMIT 1`

// one handles a message of a lane after *lane, and sets *lane. It returns the message, or nil if it
// found none. Its error is not the message's fault.
func (w *Worker[T]) one(ctx context.Context, lane *[]byte) (found *Message, err error) {
	var failed *Failure
	var failures Failures
	var id int64
	from := slices.Clone(*lane)
	try := 0
	err = w.DB.retry(ctx, func(tx *transaction[T]) error {
		var m Message
		var headers string
		found, failed, failures, try = nil, nil, Failures{}, try+1
		err := tx.QueryRow(ctx, claim, []any{w.Consumer, from}, &id, lane, &failures.All, &failures.Counted, &failures.Unclear,
			&m.ID, &m.Scope, &m.Topic, &m.Partition, &m.Offset, &m.Key, &m.Value, &headers, &m.Time)
		if errors.Is(err, sql.ErrNoRows) {
			return nil
		}
		if err == nil {
			if found = &m; m.Scope == m.Topic {
				m.Scope = ""
			}
			m.Headers, err = readHeaders(headers)
		}
		if err == nil {
			_, err = tx.Exec(ctx, "SAVEPOINT inbox_handler")
		}
		if err == nil { // before the handler: if it commits by mistake, it does not get the message again
			_, err = tx.Exec(ctx, "UPDATE @inbox_messages SET state = 'processed', processed_at = clock_timestamp() WHERE id = $1", id)
		}
		if err != nil {
			return fmt.Errorf("take a message: %w", err)
		}
		err = tx.handle(ctx, func(ctx context.Context, own T) error {
			ctx, cancel := context.WithTimeout(ctx, or(w.HandlerTimeout, time.Minute))
			defer cancel()
			return w.Handle(ctx, own, m)
		})
		if err == nil { // the handler's deferred constraints must not fail at the COMMIT
			_, err = tx.Exec(ctx, "SET CONSTRAINTS ALL IMMEDIATE")
			if errors.Is(err, sql.ErrTxDone) && ctx.Err() == nil {
				err = errEnded
			}
		}
		if err == nil || isConflict(err) && try < maxTries {
			return err
		}
		_, broken := tx.Exec(ctx, "ROLLBACK TO SAVEPOINT inbox_handler")
		if broken != nil && ctx.Err() != nil {
			return fmt.Errorf("message %s: %w", m.ID, err)
		}
		failed = w.failed(m, &failures, err)
		if broken != nil { // the handler left rows open, or its own deadline has closed the connection
			return fmt.Errorf("message %s: %w", m.ID, err)
		}
		return record(ctx, tx, id, failed, failures)
	})
	if err != nil && failed != nil {
		err = w.DB.retry(ctx, func(tx *transaction[T]) error { return record(ctx, tx, id, failed, failures) })
	}
	if err == nil && failed != nil && w.Failed != nil {
		w.Failed(*failed)
	}
	return found, err
}

// failed says what a failure means.
func (w *Worker[T]) failed(m Message, failures *Failures, err error) *Failure {
	fault := failures.Add(err)
	f := &Failure{Message: m, Err: err, Pause: w.pause(failures.All)}
	if fault != FaultElsewhere {
		f.Attempt = failures.Counted
		f.Dead = fault == FaultPermanent || w.Attempts > 0 && failures.Counted >= w.Attempts
	}
	if f.Dead {
		f.Pause = 0
	}
	return f
}

// record writes a failed attempt, unless another worker has tried the message since.
func record(ctx context.Context, c anytx.Tx, id int64, f *Failure, all Failures) error {
	state := "pending"
	if f.Dead {
		state = "dead"
	}
	_, err := c.Exec(ctx, `UPDATE @inbox_messages SET failures = $2, attempts = $3, unclear = $4, last_error = $5, state = $6,
		next_attempt_at = clock_timestamp() + $7::bigint * interval '1 microsecond'
		WHERE id = $1 AND state = 'pending' AND failures < $2`,
		id, all.All, all.Counted, all.Unclear, asText(f.Err), state, f.Pause.Microseconds())
	return err
}

// asText returns an error as Postgres can store it.
func asText(err error) string {
	text := strings.ReplaceAll(strings.ToValidUTF8(err.Error(), "�"), "\x00", "�")
	return strings.ToValidUTF8(text[:min(len(text), 4000)], "")
}
