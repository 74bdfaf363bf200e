package inbox

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/walpost/walpost/internal/lib/anytx"
	"github.com/walpost/walpost/internal/lib/attempts"
	"github.com/walpost/walpost/internal/lib/backoff"
)

// A Worker handles stored messages. Any number of workers, in any number of processes, can share a
// consumer's messages. Each message is handled in the transaction that marks it as processed, so it
// takes effect exactly once, even if the process is killed.
//
// A Worker doesn't take a message while an earlier one with the same topic and key is pending,
// either being handled or waiting for its next attempt.
type Worker[T any] struct {
	DB       *DB[T]
	Consumer string // the name given to Store; each message has it as its Group

	// Handler writes the effect of a message. It can be the same function that Handler takes. While
	// Run is stopping, the handler's ctx ends after Grace.
	Handler HandlerFunc[T]

	// The fields down to Logger have the names, the meaning and the defaults of consumer.Config.

	Concurrency int // handlers at the same time, each in a transaction; 16 by default

	// Attempts is how many failures make a message dead; 8 by default. With Unlimited, only a
	// Permanent error does. A dead message no longer holds up its key. A failure that isn't the
	// message's fault doesn't count (see Retryable), nor does a process that is killed. After a
	// serialization failure or a deadlock, the transaction is repeated as in Once.
	Attempts int

	// HandlerTimeout ends the ctx of a handler; 1 minute by default. The first 5 failures of a
	// message because of a deadline don't count; later ones do.
	HandlerTimeout time.Duration

	// The pauses between attempts double from BackoffMin (200 ms by default) to BackoffMax (10 s by
	// default). Each is shortened at random by up to half.
	BackoffMin, BackoffMax time.Duration

	Grace time.Duration // how long handlers may go on after the end of Run's ctx; 10 s by default

	// Failed, if set, is called after each failed attempt, and each time the database couldn't be
	// used. Several goroutines may call it at the same time.
	Failed func(f Failure)

	Logger *slog.Logger // slog.Default() by default; slog.New(slog.DiscardHandler) is silent

	// Poll is the longest pause between two polls for messages; 1 s by default, and at most a day.
	// Store, RetryDead and RetryAllDead wake the Worker earlier with a Postgres notification, for
	// which the Worker opens a separate connection. This needs pgx, or database/sql with pgx's
	// driver, and no pooler such as PgBouncer in transaction mode. The log says whether
	// notifications arrive. If they don't, or one is lost, the Worker finds messages by polling.
	//
	// With a *pgxpool.Pool, this connection is opened like the pool's own, with its BeforeConnect.
	// Otherwise, it copies the configuration of an existing connection, so a password that has
	// expired since then may be refused.
	Poll time.Duration
}

// Unlimited, as the Attempts of a Worker or a consumer.Consumer, means that a message is retried
// however often it fails. A Permanent error still makes it dead.
const Unlimited = -1

// A Failure is a failed attempt.
type Failure struct {
	Message Message       // empty if no message had been taken
	Attempt int           // 1 is the first; 0 if the attempt does not count
	Err     error         // a panic is a *PanicError
	Dead    bool          // this was the last attempt
	Pause   time.Duration // until the next one
}

// Run handles messages until ctx ends. It then takes no more, and returns when all running handlers
// are done.
func (w *Worker[T]) Run(ctx context.Context) error {
	if err := w.check(); err != nil {
		return err
	}
	work, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(cmp.Or(w.Grace, 10*time.Second), cancel) })()
	r := &running[T]{Worker: w, wakes: make(chan struct{}, 1)}
	var all sync.WaitGroup
	all.Go(func() {
		for ctx.Err() == nil {
			r.wake()
			pause(ctx, w.poll()*2/3) // with its jitter, Poll at most
		}
	})
	all.Go(func() { r.listen(ctx) })
	for range cmp.Or(w.Concurrency, 16) {
		all.Go(func() {
			for failures := 0; ; {
				select {
				case <-ctx.Done():
					return
				case <-r.wakes:
				}
				m, err := r.drain(ctx, work)
				if err == nil {
					failures = 0
					continue
				}
				failures++
				f := Failure{Err: err, Pause: w.pause(failures)}
				if m != nil {
					f.Message = *m
				}
				r.report(f)
				pause(ctx, f.Pause)
				r.wake()
			}
		})
	}
	all.Wait()
	return nil
}

// A running is a Worker between the beginning and the end of Run.
type running[T any] struct {
	*Worker[T]
	wakes chan struct{} // each has one goroutine look for a message
	other throttle      // failures that do not count
}

// drain handles messages until it finds none, or ctx ends. With an error, it returns the message
// that it had taken.
func (w *running[T]) drain(ctx, work context.Context) (*Message, error) {
	lane := []byte{}
	for ctx.Err() == nil {
		m, err := w.one(work, &lane)
		switch {
		case err != nil:
			return m, err
		case m == nil && len(lane) == 0:
			return nil, nil
		case m == nil:
			lane = lane[:0] // once around
		}
	}
	return nil, nil
}

// wake has a goroutine look for a message, now or when it has time.
func (w *running[T]) wake() {
	select {
	case w.wakes <- struct{}{}:
	default: // one will look anyway
	}
}

func (w *Worker[T]) check() error {
	var wrong []error
	refuse := func(bad bool, format string, args ...any) {
		if bad {
			wrong = append(wrong, fmt.Errorf("inbox: Worker: "+format, args...))
		}
	}
	refuse(w.DB == nil, "DB: must be set")
	refuse(w.Handler == nil, "Handler: must be set")
	refuse(w.Concurrency < 0, "Concurrency: must not be negative (got %d)", w.Concurrency)
	refuse(w.Attempts < Unlimited, "Attempts: must not be negative, except for Unlimited (got %d)", w.Attempts)
	for name, d := range map[string]time.Duration{
		"HandlerTimeout": w.HandlerTimeout, "BackoffMin": w.BackoffMin, "BackoffMax": w.BackoffMax, "Grace": w.Grace, "Poll": w.Poll,
	} {
		refuse(d < 0, "%s: must not be negative (got %s)", name, d)
	}
	refuse(w.BackoffMax > 0 && w.BackoffMax < w.BackoffMin, "BackoffMax: must be at least BackoffMin (got %s and %s)", w.BackoffMax, w.BackoffMin)
	return errors.Join(append(wrong, check(w.Consumer))...)
}

func (w *Worker[T]) poll() time.Duration { return min(cmp.Or(w.Poll, time.Second), 24*time.Hour) }

// pause returns the pause after an attempt.
func (w *Worker[T]) pause(attempt int) time.Duration {
	low := cmp.Or(w.BackoffMin, 200*time.Millisecond)
	return backoff.Backoff{Min: low, Max: cmp.Or(w.BackoffMax, max(low, 10*time.Second))}.Pause(attempt)
}

// report logs a failure, and calls Failed.
func (w *running[T]) report(f Failure) {
	about := []any{"topic", f.Message.Topic, "partition", f.Message.Partition, "offset", f.Message.Offset, "id", f.Message.ID, "err", f.Err}
	switch {
	case f.Dead:
		w.logger().Error("a message is dead: it stays in inbox_messages, and its key goes on", append(about, "attempt", f.Attempt)...)
	case f.Attempt > 0:
		w.logger().Warn("handling a message failed", append(about, "attempt", f.Attempt)...)
	default:
		text := "handling fails, but not because of the message: the attempt does not count"
		if f.Message.ID == "" {
			text, about = "taking a message failed", []any{"err", f.Err}
		}
		if times := w.other.due(); times > 0 {
			w.logger().Error(text, append(about, "times", times)...)
		}
	}
	if w.Failed != nil {
		w.Failed(f)
	}
}

func (w *Worker[T]) logger() *slog.Logger {
	return cmp.Or(w.Logger, slog.Default()).With("consumer", w.Consumer)
}

// A throttle counts a fault that repeats.
type throttle struct {
	mu    sync.Mutex
	last  time.Time
	times int // since last
}

// due counts the fault. It returns how often it came since the last log line if another line is
// due, and 0 if not: there is at most one each minute.
func (t *throttle) due() (times int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.times++; time.Since(t.last) >= time.Minute {
		times, t.times, t.last = t.times, 0, time.Now()
	}
	return times
}

// claim locks the first pending message of a lane after the lane $2, if the message is due and not
// locked. It walks from lane to lane by the index, so its cost is the number of lanes that are
// locked or wait, not the number of their messages.
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
func (w *running[T]) one(ctx context.Context, lane *[]byte) (found *Message, err error) {
	var failed *Failure
	var failures attempts.Failures
	var id int64
	from := slices.Clone(*lane)
	try := 0
	err = w.DB.retry(ctx, func(tx *transaction[T]) error {
		var m Message
		var headers string
		found, failed, failures, try = nil, nil, attempts.Failures{}, try+1
		err := tx.QueryRow(ctx, claim, []any{w.Consumer, from}, &id, lane, &failures.All, &failures.Counted, &failures.Unclear,
			&m.ID, &m.Scope, &m.Topic, &m.Partition, &m.Offset, &m.Key, &m.Value, &headers, &m.Time)
		if errors.Is(err, sql.ErrNoRows) {
			return nil
		}
		if err == nil {
			if found = &m; m.Scope == m.Topic {
				m.Scope = ""
			}
			w.wake() // there may be more
			m.Group, m.Attempt = w.Consumer, failures.Counted+1
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
			ctx, cancel := context.WithTimeout(ctx, cmp.Or(w.HandlerTimeout, time.Minute))
			defer cancel()
			return w.Handler(ctx, own, m)
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
	if err == nil && failed != nil {
		w.report(*failed)
		if !failed.Dead {
			time.AfterFunc(failed.Pause, w.wake)
		}
	}
	return found, err
}

// failed says what a failure means.
func (w *Worker[T]) failed(m Message, failures *attempts.Failures, err error) *Failure {
	fault := failures.Add(err)
	f := &Failure{Message: m, Err: err, Pause: w.pause(failures.All)}
	if fault != attempts.Elsewhere {
		f.Attempt = failures.Counted
		f.Dead = fault == attempts.Permanent || w.Attempts != Unlimited && failures.Counted >= cmp.Or(w.Attempts, 8)
	}
	if f.Dead {
		f.Pause = 0
	}
	return f
}

// record writes a failed attempt, unless another worker has tried the message since.
func record(ctx context.Context, c anytx.Tx, id int64, f *Failure, all attempts.Failures) error {
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
