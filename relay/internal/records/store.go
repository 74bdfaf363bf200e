// Package records knows what a checkpoint store has of a relay: its record, the events that halted it,
// and the requests to pass over some of them.
package records

import (
	"context"

	"github.com/walpost/walpost/internal/fault"
)

// A Store keeps values under keys, as relay.Store says.
type Store interface {
	Load(ctx context.Context, name string) (map[string][]byte, error)
	Save(ctx context.Context, key string, value []byte) error
}

// Exclusive lets one goroutine at a time into a Store, because a Store need not stand more.
type Exclusive struct {
	store Store
	busy  chan struct{} // holds a token while a goroutine uses the store
}

// NewExclusive returns the Exclusive of store.
func NewExclusive(store Store) *Exclusive {
	return &Exclusive{store: store, busy: make(chan struct{}, 1)}
}

// Alone runs use while no other goroutine uses the store.
func (e *Exclusive) Alone(ctx context.Context, use func(Store) error) error {
	select {
	case e.busy <- struct{}{}:
		defer func() { <-e.busy }()
		return use(e.store)
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (e *Exclusive) Load(ctx context.Context, name string) (values map[string][]byte, err error) {
	err = e.Alone(ctx, func(s Store) (err error) {
		values, err = s.Load(ctx, name)
		return err
	})
	return values, err
}

func (e *Exclusive) Save(ctx context.Context, key string, value []byte) error {
	return e.Alone(ctx, func(s Store) error { return s.Save(ctx, key, value) })
}

// A StoreError is an error of the store of checkpoints, and not of the source.
type StoreError struct{ error }

func (e StoreError) Unwrap() error { return e.error }

// Waitable makes err, an error of the store, one that is waited out, unless err says otherwise by
// its behaviour.
func Waitable(err error) error {
	err = StoreError{err}
	if fault.NeedsPerson(err) || fault.Misconfigured(err) || fault.Retryable(err) {
		return err
	}
	return fault.Retry(err)
}
