package walpost

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/walpost/walpost/checkpoint"
	"github.com/walpost/walpost/internal/backfill"
	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/relay"
	"github.com/walpost/walpost/router"
)

// RecoverOptions say how a gap is closed.
type RecoverOptions = backfill.RecoverOptions

// DefaultOverlap is the default of RecoverOptions.Overlap.
const DefaultOverlap = backfill.DefaultOverlap

var (
	// ErrNoGap says that there is nothing to recover.
	ErrNoGap = relay.ErrNoGap
	// ErrDeclined says that a question of Recover was answered with no.
	ErrDeclined = relay.ErrDeclined
)

// Recover closes the gap that a lost slot or a changed publication left. It makes a new slot where the old one is lost, and
// publishes from the table what may be missing in Kafka, with the header walpost.origin: recover. Run then goes on from the
// slot. Recover asks before each step. If it is interrupted, at any moment, the next call goes on; until it is finished, Run
// refuses. published is the number of rows, over all calls.
func Recover(ctx context.Context, cfg Config, opts RecoverOptions) (published uint64, err error) {
	if err := cfg.needsTable("recover", "If a gap is the reason, its messages are lost. To go on behind it, run "+
		fault.Command("run", "--accept-gap=<token>")+" with the token that walpost run prints without it."); err != nil {
		return 0, err
	}
	cfg.Source.Create, cfg.Source.Snapshot, cfg.HaltLinger, cfg.AcceptGap = true, "initial", 0, ""
	wrong := cfg.Validate()
	r, err := prepare(cfg, wrong)
	if err != nil {
		return 0, err
	}
	second, err := router.New(cfg.routing()) // the relay's own belongs to its loop
	if err != nil {
		return 0, fault.Config(err, "")
	}
	what := backfill.Recovering{RecoverOptions: opts, Slot: r.cfg.Source.Slot, Router: second, Messages: cfg.Source.Messages.On()}
	if cfg.Stdout == nil {
		to := cfg.sink()
		what.Kafka = &to.Config
	}
	tables := r.tables()
	tables.TimeColumn = cfg.Source.TimeColumn
	copying, total := backfill.Recover(tables, what)
	if cfg.Checkpoint.Store == "file" {
		// A relay holds the file until it ends. The person who calls Recover need not wait for that.
		store, free, err := r.openStore()
		if err != nil {
			return 0, err
		}
		_, err = store.Load(ctx, r.cfg.Name)
		free()
		if err != nil {
			return 0, err
		}
	}
	former, err := r.formerSlot(ctx)
	if err != nil {
		return 0, err
	}
	loop, _, free, err := r.open(ctx, copying, 0)
	if err != nil {
		return 0, err
	}
	defer free()
	if err := loop.Run(ctx); err != nil {
		return 0, err
	}
	if former != "" && ctx.Err() == nil {
		opts.Say(fmt.Sprintf("walpost does not read slot %[1]s any more, and the slot holds WAL. Drop it: SELECT pg_drop_replication_slot('%[1]s');", former))
	}
	if err := ctx.Err(); err != nil {
		return 0, fault.WithHint(fmt.Errorf("interrupted: %w", err), "If recover had begun to publish, walpost run refuses to start until recover is finished. To continue, run "+fault.Command("recover"))
	}
	return total(), nil
}

// skipLimit is how long the store may take. Kafka does not answer, for example, while too few replicas are in sync.
var skipLimit = time.Minute

// SkipOptions say what becomes of the event. The zero value has it written to the topic of dead letters.
type SkipOptions struct {
	Discard bool   // give the event up: it is written nowhere
	Why     string // kept with the request, and logged
}

// Skip asks the next Run to pass over the one event that a halt named by token, and returns that event. It needs the checkpoint store and
// neither the database nor a running relay. A token that no halt of this relay gave is an error of the configuration.
func Skip(ctx context.Context, cfg Config, token string, opts SkipOptions) (*checkpoint.Halt, error) {
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
		hint := "The checkpoint store has no halt of this relay. If walpost run has passed over the event, there is nothing to do. " +
			"If walpost dead list shows the token, the event halts nothing: use walpost dead retry. Otherwise check --name and the configuration. If the relay could not write its halt, its log says so: the relay writes the halt later, or at its next start."
		if len(halts) > 0 {
			hint = "The checkpoint store has these halts:"
			for _, h := range checkpoint.ByPlace(halts) {
				hint += fmt.Sprintf("\n%s: %s", h.Token, h.Event())
			}
		}
		return nil, fault.Config(fmt.Errorf("no halt of %s gave the token %q, or the relay is past its event", r.cfg.Name, token), hint)
	case rec != nil && rec.LSN > halt.Commit:
		return nil, fault.Config(fmt.Errorf("the checkpoint stands at %s: %s is delivered or passed over", rec.LSN, halt.Event()), "")
	}
	halt.Time, halt.Discard, halt.Why = time.Now(), opts.Discard, opts.Why
	limited, cancel := context.WithTimeoutCause(ctx, skipLimit, fmt.Errorf("the store has not accepted the request for %s", skipLimit))
	defer cancel()
	if err := store.Save(limited, halt.SkipKey(), halt.Encode()); err != nil {
		return nil, fmt.Errorf("write %s: %w", strings.TrimPrefix(halt.SkipKey(), r.cfg.Name+"/"), err)
	}
	return halt, nil
}
