package relay

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/checkpoint"
	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/relay/internal/records"
)

// A Forecast is what a start would find.
type Forecast struct {
	Record *checkpoint.Record // the newest record; nil for none
	Slot   cdc.SlotState      // zero if a start would not look at the slot
}

// A Look is Store.Load without an effect.
type Look func(ctx context.Context, name string) (map[string][]byte, error)

// Load is the Look.
func (l Look) Load(ctx context.Context, name string) (map[string][]byte, error) { return l(ctx, name) }

// Save does nothing.
func (Look) Save(context.Context, string, []byte) error { return nil }

// Foresee judges the checkpoint and the source as the next Run does, and returns the error that Run
// would end with. It changes nothing and takes no slot, so a relay may run at the same time. A
// missing slot is no error if no checkpoint knows it.
func Foresee(ctx context.Context, cfg Config, source Source, store Look) (f Forecast, err error) {
	r := New(cfg, source, nil, nil, store)
	for {
		stored, err := r.newest(ctx)
		if err != nil {
			return f, err
		}
		f.Record = stored.Rec
		r.foreign = foreignTries // nothing is waited for
		if f.Slot, err = r.foresee(ctx, stored); err == nil || ctx.Err() != nil {
			return f, err
		}
		// A relay that runs moves the record and then the slot, which is no gap.
		now, unread := r.newest(ctx)
		if unread != nil || records.Same(stored.Rec, now.Rec) {
			return f, errors.Join(err, unread)
		}
	}
}

func (r *Relay) foresee(ctx context.Context, stored records.Stored) (slot cdc.SlotState, err error) {
	rec, err := r.plan(ctx, stored.Rec)
	if err != nil || intended(rec) {
		return slot, err
	}
	found, err := r.look(ctx)
	if err != nil {
		return slot, err
	}
	slot = found.SlotFound
	start, err := checkpoint.Judge(rec, found)
	if errors.Is(err, checkpoint.ErrNoSlot) {
		return slot, nil
	}
	if err != nil {
		return slot, err
	}
	for _, h := range checkpoint.ByPlace(stored.Halts) {
		letter, asked := r.cfg.Poison.IsTopic(h.Topic), stored.Skips[h.Token]
		if letter && asked != nil && !asked.Discard && asked.Time.Before(h.Time) {
			asked = nil // the halt is at the letter that the request made
		}
		reason, poison := cmp.Or(h.Reason, cdc.Unroutable), &r.cfg.Poison
		if h.Commit >= start && asked == nil && !poison.Buries(reason, h.Topic) && (h.Keyless || !poison.Parks(reason, h.Topic)) {
			bad := &BadEvent{Commit: h.Commit, Token: h.Token, Letter: letter}
			return slot, fault.Person(fmt.Errorf("%s halted the relay: %s", h.Event(), h.Error), bad.Hint(), bad.Commands()...)
		}
	}
	return slot, nil
}
