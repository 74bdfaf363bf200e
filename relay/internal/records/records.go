package records

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/walpost/walpost/checkpoint"
)

// Newest loads what the store has of the relay of that name. If the store has lost its records, and
// loss is the token of that loss, there are none.
func Newest(ctx context.Context, store Store, name, loss string) (s checkpoint.Stored, err error) {
	values, err := store.Load(ctx, name)
	if lost, ok := errors.AsType[LostRecords](err); ok && lost.GapToken() == loss {
		return s, nil
	}
	if err != nil {
		return s, waitable(fmt.Errorf("read checkpoint: %w", err))
	}
	return checkpoint.Read(name, values)
}

// Same reports whether two records are equal in every field. A former holder of the slot may have
// moved nothing but Next or Copy.
func Same(a, b *checkpoint.Record) bool {
	if a == nil || b == nil {
		return a == b
	}
	return bytes.Equal(a.Encode(), b.Encode())
}
