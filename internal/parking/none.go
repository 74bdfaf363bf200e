package parking

import (
	"context"
	"fmt"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/walpost/walpost/internal/fault"
)

// None returns an error if the relay of a name has parked keys. The places of their events mean nothing to another source of the same
// rows, so the relay cannot change to it. read is relay.ParkingLog.Read.
func None(ctx context.Context, read func(ctx context.Context, from int64, each func(*kgo.Record) bool) (next int64, err error), name string) error {
	lot := New(name)
	_, err := read(ctx, 0, func(rec *kgo.Record) bool {
		lot.Add(Read(rec))
		return ctx.Err() == nil
	})
	if err != nil {
		return fmt.Errorf("read the topic of parked events: %w", err)
	}
	if c := lot.Counts(); c.Events > 0 {
		return fault.Config(fmt.Errorf("relay %s has %d parked keys with %d events, and parked keys cannot be moved to another source", name, c.Keys, c.Events),
			"Change the configuration back and start walpost run. Then release the keys with \"walpost dead retry\" or give them up with \"walpost dead drop\" (\"walpost dead list\" shows them), and change the source.")
	}
	return nil
}
