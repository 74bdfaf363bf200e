package walpost

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/checkpoint"
	"github.com/walpost/walpost/internal/command/backfill"
	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/internal/pg"
	"github.com/walpost/walpost/relay"
)

// RecoverOptions say how Recover closes a gap.
type RecoverOptions = backfill.RecoverOptions

// DefaultOverlap is the default of RecoverOptions.Overlap.
const DefaultOverlap = backfill.DefaultOverlap

var (
	// ErrNoGap means that there is nothing to recover.
	ErrNoGap = relay.ErrNoGap
	// ErrDeclined means that the user answered no to a question that Recover asked.
	ErrDeclined = relay.ErrDeclined
)

// Recover closes the gap that a lost slot or a changed publication left. If the slot is lost,
// Recover creates a new one. It publishes from the table the rows that may be missing from Kafka,
// with the header walpost.origin: recover. Run then continues from the slot. Recover asks before
// each step. If it is interrupted, the next call continues it. Until it has finished, Run refuses
// to start. published is the number of rows published by all calls together.
func Recover(ctx context.Context, cfg Config, opts RecoverOptions) (published uint64, err error) {
	if err := cfg.needsTable("recover", "If walpost run refuses to start because of a gap, the messages of this gap are lost. To continue after the gap, run "+
		fault.Command("run", "--accept-gap=<token>")+" with the token that walpost run prints."); err != nil {
		return 0, err
	}
	bound, _ := pg.ParseBound(cfg.Source.Snapshot) // another value is no bound
	cfg.Source.Snapshot, cfg.HaltLinger, cfg.AcceptGap = "initial", 0, ""
	wrong := cfg.Validate()
	r, err := prepare(cfg, wrong)
	if err != nil {
		return 0, err
	}
	cfg.Records.PayloadCheck = "none" // a row that is in Kafka may have fitted a former version
	second, _, err := cfg.router()    // the relay's own belongs to its loop
	if err != nil {
		return 0, err
	}
	what := backfill.Recovering{RecoverOptions: opts, Slot: r.cfg.Source.Slot, Bound: bound, Router: second, Messages: cfg.Source.Messages.On()}
	if cfg.Stdout == nil {
		to := cfg.sink()
		what.Kafka = &to.Config
		what.SetAside = func(ctx context.Context) (backfill.Aside, error) {
			at, err := r.elsewhere(ctx, opts.Say)
			return func(table, id string, unique bool) bool {
				place := at(table, id)
				return place.Name != "" && (unique || place.Parked && place.Open)
			}, err
		}
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
	if changed, err := r.changeStrategy(ctx, opts); changed || err != nil {
		return 0, err
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
	err = r.runLoop(ctx, loop)
	if former != "" && ctx.Err() == nil && (err == nil || errors.Is(err, ErrNoGap)) {
		opts.Say(fmt.Sprintf("walpost no longer reads slot %[1]s, but the slot still retains WAL. Drop it: SELECT pg_drop_replication_slot('%[1]s');", former))
	}
	if err != nil {
		return 0, err
	}
	if err := ctx.Err(); err != nil {
		return 0, fault.WithHint(fmt.Errorf("interrupted: %w", err), "If recover had begun to publish, walpost run refuses to start until recover is finished. To continue, run "+fault.Command("recover"))
	}
	return total(), nil
}

// CloseGap asks the relay to close the accepted gap with this token, because the gap's rows are in
// Kafka by now, or nobody needs them. It needs only the checkpoint store. The cleanup resumes once
// the relay has read the request.
func CloseGap(ctx context.Context, cfg Config, token string) error {
	r, err := New(cfg)
	if err != nil {
		return err
	}
	store, free, err := r.openStore()
	if err != nil {
		return err
	}
	defer free()
	stored, err := readStore(ctx, store.Load, r.cfg.Name)
	if err != nil {
		return err
	}
	var open []string
	if stored.Rec != nil {
		for _, a := range checkpoint.StillOpen(stored.Rec.Accepted, stored.Closed) {
			open = append(open, a.Token)
		}
	}
	if !slices.Contains(open, token) {
		hint := "The checkpoint has no accepted gap that is open."
		if len(open) > 0 {
			hint = "These gaps are open: " + strings.Join(open, ", ") + "."
		}
		return fault.Config(fmt.Errorf("%s has no open gap with the token %q", r.cfg.Name, token), hint)
	}
	limited, cancel := context.WithTimeoutCause(ctx, skipLimit, fmt.Errorf("the store has not accepted the request for %s", skipLimit))
	defer cancel()
	if err := store.Save(limited, checkpoint.CloseKey(r.cfg.Name, token), []byte(`{"version":1}`)); err != nil {
		return fmt.Errorf("write the request to close gap %s: %w", token, err)
	}
	return nil
}

// skipLimit is how long the store may take. Kafka does not answer, for example, while too few replicas are in sync.
var skipLimit = time.Minute

// SkipOptions say what happens to the event. With the zero value, it goes to the dead letter topic.
type SkipOptions struct {
	Discard bool   // give the event up: it is written nowhere
	Why     string // kept with the request, and logged
}

// Skip asks the next Run to skip the event that caused the halt with this token, and returns that
// halt. It needs only the checkpoint store, not the database or a running relay. If the token isn't
// from a halt of this relay, Skip returns a configuration error.
func Skip(ctx context.Context, cfg Config, token string, opts SkipOptions) (*checkpoint.Halt, error) {
	r, err := New(cfg)
	if err != nil {
		return nil, err
	}
	if cfg.claims() {
		return nil, fault.Config(fmt.Errorf("with source.poll.strategy %s the table says which events are delivered, so walpost skip has nothing to do", cfg.Source.Poll.Strategy),
			fmt.Sprintf("To give up an event, change its row, and start walpost again: UPDATE %s SET finished_at = now() WHERE <the column of the event id> = '<the id>';", r.rows.Names.Tables[0].SQL()))
	}
	store, free, err := r.openStore()
	if err != nil {
		return nil, err
	}
	defer free()
	stored, err := readStore(ctx, store.Load, r.cfg.Name)
	if err != nil {
		return nil, err
	}
	rec, halt := stored.Rec, stored.Halts[token]
	switch {
	case halt == nil:
		hint := "The checkpoint store has no halt of this relay. If walpost run has skipped the event, there is nothing to do. " +
			"If walpost dead list shows the token, the event does not halt the relay: use walpost dead retry. Otherwise check --name and the configuration. If the relay could not write its halt, its log says so: the relay writes the halt later, or at its next start."
		if len(stored.Halts) > 0 {
			hint = "The checkpoint store has these halts:"
			for _, h := range checkpoint.ByPlace(stored.Halts) {
				hint += fmt.Sprintf("\n%s: %s", h.Token, h.Event())
			}
		}
		return nil, fault.Config(fmt.Errorf("no halt of %s has the token %q, or the relay has already passed the event", r.cfg.Name, token), hint)
	case rec != nil && halt.Elsewhere(rec):
		return nil, fault.Config(fmt.Errorf("%s halted the relay when it read another source (server, timeline, database, slot, or source.kind), so the event halts nothing now", halt.Event()), "")
	case rec != nil && rec.Position > halt.Commit:
		return nil, fault.Config(fmt.Errorf("the checkpoint stands at %s: %s is delivered or skipped", rec.Position, halt.Event()), "")
	}
	halt.Time, halt.Discard, halt.Why = time.Now(), opts.Discard, opts.Why
	limited, cancel := context.WithTimeoutCause(ctx, skipLimit, fmt.Errorf("the store has not accepted the request for %s", skipLimit))
	defer cancel()
	if err := store.Save(limited, halt.SkipKey(), halt.Encode()); err != nil {
		return nil, fmt.Errorf("write %s: %w", strings.TrimPrefix(halt.SkipKey(), r.cfg.Name+"/"), err)
	}
	return halt, nil
}

// A namedStore is the store of a relay whose name is the default, which depends on the kind of source. If source.kind has changed and
// the relay has no record, it would begin anew, and what it had not delivered would be lost. So namedStore refuses that if the
// relay has a record under the default name of the other kind.
type namedStore struct {
	store
	r *Relay
}

func (s namedStore) Load(ctx context.Context, name string) (map[string][]byte, error) {
	values, err := s.store.Load(ctx, name)
	return s.known(ctx, name, values, err)
}

func (s namedStore) Look(ctx context.Context, name string) (map[string][]byte, error) {
	values, err := s.store.Look(ctx, name)
	return s.known(ctx, name, values, err)
}

// known is what a reading gave, if that is something, or if the relay has no other name.
func (s namedStore) known(ctx context.Context, name string, values map[string][]byte, err error) (map[string][]byte, error) {
	if err != nil || len(values) > 0 {
		return values, err
	}
	all, err := s.store.LookNames(ctx, s.r.database+".") // of all relays that have a default name
	if err != nil {
		return nil, err
	}
	names := map[string]bool{}
	for key := range all {
		of, _, _ := strings.Cut(key, "/")
		names[of] = true
	}
	for _, other := range slices.Sorted(maps.Keys(names)) {
		if !s.r.formerName(other) { // that relay can be of a newer version, whose records cannot be read here
			continue
		}
		stored, err := checkpoint.Read(other, all)
		if err != nil {
			return nil, err
		}
		rec := stored.Rec
		if rec == nil || !s.r.formerRecord(rec) || !s.r.sameRows(rec) {
			continue
		}
		return nil, fault.Config(fmt.Errorf("name is not set, so it is %s, and there is no checkpoint of this name. But checkpoint %s belongs to a relay of the same table with another source.kind, and its name is the default for that kind", name, rec.Key()),
			fmt.Sprintf("If that is this relay, and source.kind has changed: write name: %s, and run %s. If this is another relay, write name: %s.", other, fault.Command("recover"), name))
	}
	return values, nil
}

// sameRows reports whether a record under a former name can be of this relay's table.
func (r *Relay) sameRows(rec *checkpoint.Record) bool {
	if rec.Published == nil {
		return true
	}
	return slices.ContainsFunc(rec.Published.Tables, func(t cdc.PublishedTable) bool { return t.Name == r.rows.Names.Tables[0].String() })
}
