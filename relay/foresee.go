package relay

import (
	"context"
	"errors"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/checkpoint"
	"github.com/walpost/walpost/internal/advice"
	"github.com/walpost/walpost/relay/internal/badevent"
	"github.com/walpost/walpost/relay/internal/records"
)

// A Forecast is what a start would find.
type Forecast struct {
	Record *checkpoint.Record // the newest record; nil for none
	Found  cdc.Identity       // zero if a start would not look at the source
	// Accepted are the gaps that a person has accepted and not closed.
	Accepted []checkpoint.Accepted
}

// Foresee judges the checkpoint and the source as the next Run does, and returns the error that Run
// would end with. It changes nothing and takes no slot, so a relay may run at the same time. A
// missing slot is no error if no checkpoint knows it.
func Foresee(ctx context.Context, cfg Config, source Source, store Look) (f Forecast, err error) {
	defer func() { err = advice.Of(err) }()
	r := newOpener(cfg, source, store)
	for {
		stored, err := r.newest(ctx)
		if err != nil {
			return f, err
		}
		if f.Record = stored.Rec; f.Record != nil {
			f.Accepted = checkpoint.StillOpen(f.Record.Accepted, stored.Closed)
		}
		r.foreign = foreignTries // nothing is waited for
		if f.Found, err = r.foresee(ctx, stored); err == nil || ctx.Err() != nil {
			return f, err
		}
		// A relay that runs moves the record and then the slot, which is no gap.
		now, unread := r.newest(ctx)
		if unread != nil || records.Same(stored.Rec, now.Rec) {
			return f, errors.Join(err, unread)
		}
	}
}

func (r *opener) foresee(ctx context.Context, stored checkpoint.Stored) (found cdc.Identity, err error) {
	rec, err := r.plan(ctx, stored.Rec)
	if err != nil || rec.Intended() {
		return found, err
	}
	if found, err = r.look(ctx); err != nil {
		return found, err
	}
	start, err := checkpoint.Judge(rec, found)
	if errors.Is(err, checkpoint.ErrNoSlot) {
		return found, nil
	}
	if err != nil {
		return found, err
	}
	if _, keeps := r.source.(Keeper); keeps { // the table has what would halt the relay
		return found, nil
	}
	return found, r.cfg.Poison.Halted(&badevent.Names{Found: found}, stored.Halts, stored.Skips, start)
}
