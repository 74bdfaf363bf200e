package walpost

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"hash/fnv"

	"github.com/walpost/walpost/internal/backfill"
	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/relay"
	"github.com/walpost/walpost/sink"
)

// ReplayOptions say which rows are published once more, and how. ReplayFilter says which.
type (
	ReplayOptions = backfill.ReplayOptions
	ReplayFilter  = backfill.Filter
)

// A ReplayReport says what Replay has published.
type ReplayReport = backfill.ReplayReport

// Replay publishes rows of the tables once more, with the header walpost.origin: replay. A relay may run meanwhile. Replay changes
// neither the slot nor the checkpoint. How far it is, it keeps in the file opts.State. An interrupted Replay goes on there, and the
// file is removed at the end.
func Replay(ctx context.Context, cfg Config, opts ReplayOptions) (*ReplayReport, error) {
	cfg.Delivery.OnPoison = relay.Policies{relay.DefaultPolicy: relay.PolicyHalt} // a replay writes no dead letters
	wrong := cfg.Validate()
	cfg.target(&wrong, "--to-topic", opts.ToTopic)
	r, err := prepare(cfg, wrong)
	if err != nil {
		return nil, err
	}
	rec, err := r.remembered(ctx)
	if err != nil {
		return nil, err
	}
	if rec != nil {
		r.router.SetRunID(rec.RunID)
	}
	what := backfill.Replaying{
		ReplayOptions: opts, Router: r.router, Window: cfg.Delivery.Window, Grace: cfg.ShutdownGrace,
		Sink: func() (relay.Sink, error) { to, _, err := r.openSink(); return to, err },
	}
	if cfg.Stdout == nil {
		to := cfg.sink()
		what.Kafka = &to.Config
	}
	state := sink.NewFileStore(cmp.Or(opts.State, r.replayState(&opts)))
	const key = "replay/state"
	what.Load = func() ([]byte, error) {
		look := state.Load
		if opts.DryRun {
			look = state.Look // without the lock, which makes a file
		}
		values, err := look(ctx, "replay")
		return values[key], stateError(err)
	}
	what.Save = func(value []byte) error {
		if value == nil {
			return stateError(state.Remove())
		}
		return stateError(state.Save(ctx, key, value))
	}
	tables := r.tables()
	tables.TimeColumn = cfg.Source.TimeColumn
	defer state.Close() //nolint:errcheck // the lock ends with it
	return backfill.Replay(ctx, tables, what)
}

func stateError(err error) error {
	if err == nil {
		return nil
	}
	return fault.WithHint(fmt.Errorf("the state of the replay: %w", err), cmp.Or(fault.Hint(err), "Name a file in a folder that can be written with --state."))
}

// replayState names the file of a replay by what it publishes, so that the same call finds it again.
func (r *Relay) replayState(opts *ReplayOptions) string {
	h := fnv.New32a()
	_ = json.NewEncoder(h).Encode([]any{r.cfg.Name, r.rows.Names.Tables, opts.Filter, opts.ToTopic}) // it never fails
	return fmt.Sprintf("walpost-replay-%08x.json", h.Sum32())
}
