// Package records knows what a checkpoint store has of a relay: its record, the events that halted it,
// and the requests to pass over some of them.
package records

import (
	"context"
	"fmt"
	"time"

	"github.com/walpost/walpost/checkpoint"
	"github.com/walpost/walpost/internal/fault"
)

// A Store keeps checkpoint records: small values under keys of the form name/epoch.holder. One
// goroutine at a time calls its methods, which may take long. A Store that cannot be read gives an
// error, never an empty answer. A Store that has lost records gives an error too if it has no
// record of name under a number. That error needs a person, and is a LostRecords.
type Store interface {
	// Load returns every record whose key starts with name + "/". The answer is true of some moment
	// after the call began.
	Load(ctx context.Context, name string) (map[string][]byte, error)
	// Save makes a record durable before it returns. A nil value removes the key.
	Save(ctx context.Context, key string, value []byte) error
}

// A Look is Store.Load without an effect.
type Look func(ctx context.Context, name string) (map[string][]byte, error)

// Load is the Look.
func (l Look) Load(ctx context.Context, name string) (map[string][]byte, error) { return l(ctx, name) }

// Save does nothing.
func (Look) Save(context.Context, string, []byte) error { return nil }

// LostRecords is the error of a Store that cannot tell whether it had a checkpoint.
type LostRecords interface {
	error
	// GapToken names this one loss. As Config.AcceptGap it says that a person has decided to go on
	// without a checkpoint.
	GapToken() string
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

// waitable makes err, an error of the store, one that is waited out, unless err says otherwise by
// its behaviour.
func waitable(err error) error {
	err = StoreError{err}
	if fault.NeedsPerson(err) || fault.Misconfigured(err) || fault.Retryable(err) {
		return err
	}
	return fault.Retry(err)
}

// SaveLimit bounds one write: while the topic lacks in-sync replicas, the Kafka client would wait for ever.
const SaveLimit = time.Minute

// Save writes value under rec's key, or removes it if value is nil, within SaveLimit.
func Save(ctx context.Context, store Store, rec *checkpoint.Record, value []byte) error {
	ctx, cancel := context.WithTimeout(ctx, SaveLimit)
	defer cancel()
	return SaveWaiting(ctx, store, rec, value)
}

// SaveWaiting is Save without a limit.
func SaveWaiting(ctx context.Context, store Store, rec *checkpoint.Record, value []byte) error {
	if err := store.Save(ctx, rec.HolderKey(), value); err != nil {
		return waitable(fmt.Errorf("write checkpoint %s: %w", rec.Key(), err))
	}
	return nil
}
