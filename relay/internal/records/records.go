package records

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/walpost/walpost/checkpoint"
)

// Stored is what the store has of a relay.
type Stored struct {
	Rec   *checkpoint.Record          // the newest record; nil for none
	Older []string                    // keys of records that are of no use any more
	Halts map[string]*checkpoint.Halt // events that halted a relay, by token
	Skips map[string]*checkpoint.Halt // those of them that a person wants passed over
	// Closed are the tokens of accepted gaps that a person has closed.
	Closed []string
}

// Newest loads what the store has of the relay of that name. If the store has lost its records, and
// loss is the token of that loss, there are none.
func Newest(ctx context.Context, store Store, name, loss string) (s Stored, err error) {
	values, err := store.Load(ctx, name)
	if lost, ok := errors.AsType[LostRecords](err); ok && lost.GapToken() == loss {
		return s, nil
	}
	if err != nil {
		return s, Waitable(fmt.Errorf("read checkpoint: %w", err))
	}
	if s.Rec, s.Older, err = checkpoint.Newest(name, values); err != nil {
		keys := slices.Sorted(maps.Keys(values))
		return s, fmt.Errorf("read checkpoint, records %q: %w", keys, err)
	}
	s.Closed = checkpoint.Closed(name, values)
	if s.Halts, s.Skips, err = checkpoint.Halts(name, values); err != nil {
		return s, fmt.Errorf("read checkpoint: %w", err)
	}
	return s, nil
}

// Same reports whether two records are equal in every field. A former holder of the slot may have
// moved nothing but Next or Copy.
func Same(a, b *checkpoint.Record) bool {
	if a == nil || b == nil {
		return a == b
	}
	return bytes.Equal(a.Encode(), b.Encode())
}
