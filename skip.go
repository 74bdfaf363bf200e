package walpost

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/walpost/walpost/checkpoint"
	"github.com/walpost/walpost/internal/fault"
)

// Skip asks the next Run to pass over the one event that a halt named by token, and returns that event. It needs the checkpoint store and
// neither the database nor a running relay. A token that no halt of this relay gave is an error of the configuration.
func Skip(ctx context.Context, cfg Config, token string) (*checkpoint.Halt, error) {
	r, err := New(cfg)
	if err != nil {
		return nil, err
	}
	store, free, err := r.openStore()
	if err != nil {
		return nil, err
	}
	defer free()
	values, err := store.Load(ctx, r.cfg.Name)
	if err != nil {
		return nil, fmt.Errorf("read checkpoint: %w", err)
	}
	rec, _, err := checkpoint.Newest(r.cfg.Name, values)
	if err != nil {
		return nil, err
	}
	halts, _, err := checkpoint.Halts(r.cfg.Name, values)
	if err != nil {
		return nil, err
	}
	halt := halts[token]
	switch {
	case halt == nil:
		hint := "The checkpoint store knows no halt of this relay. Check --name and the configuration. " +
			"A relay that halted while the store could not be written says so in its log: it writes the halt later, or at its next start."
		if len(halts) > 0 {
			hint = "The halts that it knows:"
			for _, h := range checkpoint.ByPlace(halts) {
				hint += fmt.Sprintf("\n%s: %s", h.Token, h.Event())
			}
		}
		return nil, fault.Config(fmt.Errorf("no halt of %s gave the token %q, or the relay is past its event", r.cfg.Name, token), hint)
	case rec != nil && rec.LSN > halt.Commit:
		return nil, fault.Config(fmt.Errorf("the checkpoint stands at %s: %s is delivered or passed over", rec.LSN, halt.Event()), "")
	}
	halt.Time = time.Now()
	if err := store.Save(ctx, halt.SkipKey(), halt.Encode()); err != nil {
		return nil, fmt.Errorf("write %s: %w", strings.TrimPrefix(halt.SkipKey(), r.cfg.Name+"/"), err)
	}
	return halt, nil
}
