package records

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/walpost/walpost/checkpoint"
)

// Stored is what the store has of a relay.
type Stored struct {
	Rec   *checkpoint.Record          // the newest record; nil for none
	Older []string                    // keys of records that are of no use any more
	Halts map[string]*checkpoint.Halt // events that halted a relay, by token
	Skips map[string]*checkpoint.Halt // those of them that a person wants passed over
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

// NewRunID makes a UUID of version 7 (RFC 9562). Debezium makes one at each start of its task.
// walpost makes one with the first checkpoint record only, because a new one would make a second
// delivery differ from the first.
func NewRunID(now time.Time) string {
	var b [16]byte
	binary.BigEndian.PutUint64(b[:], uint64(now.UnixMilli())<<16)
	rand.Read(b[6:]) // crypto/rand documents that it never fails
	b[6] = b[6]&0x0f | 0x70
	b[8] = b[8]&0x3f | 0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}
