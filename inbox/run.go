package inbox

import (
	"context"
	"math/rand/v2"
	"time"
)

// A HandlerError wraps the error that a handler returned, its panic as a *PanicError, or the
// server's error for the COMMIT of the handler's work. Other errors aren't the event's fault: the
// database can't be reached, or the caller's context has ended.
type HandlerError struct{ Err error }

func (e *HandlerError) Error() string { return e.Err.Error() }
func (e *HandlerError) Unwrap() error { return e.Err }

// Once calls fn in its own transaction, unless the consumer has already processed the event of m
// (see the function Once). It reports whether this call committed fn's effect. If fn fails or
// panics, Once rolls back, so nothing of fn's work remains, and returns a *HandlerError. The next
// delivery calls fn again.
//
// A serialization failure or a deadlock isn't the event's fault. Once then repeats the transaction,
// so fn can be called several times, and its effects outside the transaction must be safe to
// repeat.
//
// If the connection is lost during the commit, the server may have committed. Once returns the
// error, and another call finds out.
func (db *DB[T]) Once(ctx context.Context, consumer string, m Message, fn func(ctx context.Context, tx T) error) (bool, error) {
	fresh := false
	err := db.retry(ctx, func(tx *transaction[T]) (err error) {
		if fresh, err = mark(ctx, tx, consumer, m); err != nil || !fresh {
			return err
		}
		return handled(tx.handle(ctx, fn))
	})
	return fresh && err == nil, err
}

// handled gives the error of a handler its type.
func handled(err error) error {
	if err != nil {
		return &HandlerError{err}
	}
	return nil
}

// maxTries is how often a transaction is tried that meets serialization failures or deadlocks.
const maxTries = 10

// isConflict reports a serialization failure or a deadlock.
func isConflict(err error) bool {
	state := sqlState(err)
	return state == "40001" || state == "40P01"
}

// retry runs do in a transaction, and again after a serialization failure or a deadlock.
func (db *DB[T]) retry(ctx context.Context, do func(*transaction[T]) error) error {
	for attempt := 1; ; attempt++ {
		done := false
		lost, err := db.in(ctx, func(tx *transaction[T]) error {
			err := do(tx)
			done = err == nil
			return err
		})
		if isConflict(err) && attempt < maxTries && ctx.Err() == nil {
			pause(ctx, time.Millisecond<<attempt)
			continue
		}
		return blame(err, lost, done)
	}
}

// blame says whose fault an error is. do ended well before the commit if done is set.
func blame(err error, lost, done bool) error {
	handler, isHandler := err.(*HandlerError) //nolint:errorlint // only the error that handle made, not what a handler returned
	switch {
	case err != nil && !lost && done:
		return &HandlerError{err}
	case isHandler && lost:
		return handler.Err
	}
	return err
}

// pause waits for a random time around d, or for the end of ctx.
func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(jitter(d))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// jitter returns a random time between the half of d and one and a half of d.
func jitter(d time.Duration) time.Duration {
	return d/2 + rand.N(d+1)
}
