// Package handover says whether relays of another number of shards still have parked keys. The relays
// that take over from them do not know these keys, and would deliver their later events first.
package handover

import (
	"context"
	"fmt"
	"strings"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/internal/parking"
)

// A Held says that a relay has parked keys, so no other relay may deliver its rows.
type Held struct {
	Slot   string // of the relay that waits
	Relay  string // the name of the relay that has parked keys
	Shard  cdc.Shard
	Counts parking.Counts
}

func (h *Held) Error() string {
	return fmt.Sprintf("slot %s waits to take over: relay %s has %d parked keys with %d events. "+
		"Let that relay run, and release them with \"walpost dead retry\" or give them up with \"walpost dead drop\" (\"walpost dead list\" shows them)",
		h.Slot, h.Relay, h.Counts.Keys, h.Counts.Events)
}

// Retryable is true: the relay goes on by itself when no key is parked any more.
func (*Held) Retryable() bool { return true }

// A Lot reads the topic of parked events from where the former Check ended. It must be used by one
// goroutine at a time.
type Lot struct {
	Read func(ctx context.Context, from int64, each func(*kgo.Record) bool) (next int64, err error)

	lots map[string]*parking.Lot // by the name of a relay
	next int64
}

// Check returns a *Held if a relay of another number of shards has parked keys. name is the name of
// the relay that takes over. The others have the same name but for the suffix of the shard.
func (l *Lot) Check(ctx context.Context, name string, found *cdc.Identity) error {
	base := strings.TrimSuffix(name, found.Shards.Own.Suffix())
	others := found.Shards.Others()
	for _, other := range others {
		if l.lots[base+other.Suffix()] == nil { // the lots lack what was read before
			l.lots, l.next = map[string]*parking.Lot{}, 0
			for _, other := range others {
				l.lots[base+other.Suffix()] = parking.New(base+other.Suffix(), false)
			}
			break
		}
	}
	next, err := l.Read(ctx, l.next, func(rec *kgo.Record) bool {
		it := parking.Read(rec)
		for _, lot := range l.lots {
			lot.Add(it)
		}
		return ctx.Err() == nil
	})
	if l.next = next; err != nil {
		l.lots = nil // the topic may have been made again
		return fault.Retry(fmt.Errorf("slot %s waits to take over: read the topic of parked events: %w", found.Slot, err))
	}
	for _, other := range others {
		if c := l.lots[base+other.Suffix()].Counts(); c.Events > 0 {
			return &Held{Slot: found.Slot, Relay: base + other.Suffix(), Shard: other.Shard, Counts: c}
		}
	}
	return nil
}
