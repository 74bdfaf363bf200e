package parking

import (
	"context"
	"fmt"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/fault"
)

// A Log is the topic of parked events as None reads it: see relay.ParkingLog.
type Log interface {
	Read(ctx context.Context, from int64, each func(*kgo.Record) bool) (cdc.LogState, error)
}

// None returns an error if the relay of a name has parked keys, or had some by the anchor of its checkpoint, nil for none, and the
// topic has lost them. The places of their events mean nothing to another source of the same rows, so the relay cannot change to it.
func None(ctx context.Context, log Log, topic, name string, anchor *cdc.Anchor) error {
	backlog := New(name)
	state, err := log.Read(ctx, 0, func(rec *kgo.Record) bool {
		backlog.Add(Read(rec))
		return ctx.Err() == nil
	})
	if err != nil {
		return fmt.Errorf("read the topic of parked events: %w", err)
	}
	if _, err := Judge(topic, anchor, state); err != nil {
		return fault.Person(err, "Change the configuration back and start walpost run, which prints how to go on. Then change the source.")
	}
	if c := backlog.Counts(); c.Events > 0 {
		return fault.Config(fmt.Errorf("relay %s has %d parked keys with %d events, and parked keys cannot be moved to another source", name, c.Keys, c.Events),
			"Change the configuration back and start walpost run. Then release the keys with \"walpost dead retry\" or give them up with \"walpost dead drop\" (\"walpost dead list\" shows them), and change the source.")
	}
	return nil
}
