package walpost

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/walpost/walpost/checkpoint"
	"github.com/walpost/walpost/doctor"
	"github.com/walpost/walpost/inbox"
	"github.com/walpost/walpost/internal/advice"
	"github.com/walpost/walpost/internal/condition"
	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/internal/fix"
	"github.com/walpost/walpost/internal/lib/outboxtable"
	"github.com/walpost/walpost/internal/parking"
	"github.com/walpost/walpost/internal/statelog"
	"github.com/walpost/walpost/relay"
	"github.com/walpost/walpost/replication"
)

// A Finding is what Check found about one precondition.
type Finding = doctor.Finding

// The verdicts of a Finding.
const (
	OK   = doctor.OK
	Warn = doctor.Warn
	Fail = doctor.Fail
)

// Check examines every precondition of Run. It changes nothing, except that it writes a small
// object to the store of large values. It takes at most about a minute.
func Check(ctx context.Context, cfg Config) ([]Finding, error) {
	r, err := New(cfg)
	if err != nil {
		return nil, err
	}
	run := doctor.Run{
		Name: r.cfg.Name, Source: r.source, Router: r.router, Checkpoint: cfg.checkpointTopic(),
		Rows: r.rows,
	}
	if cfg.Stdout == nil {
		run.Kafka = new(cfg.sink())
		if cfg.exactlyOnce() {
			run.Kafka.TransactionalID = r.cfg.transactionalID()
		}
	}
	if r.schemas != nil {
		run.Reach = r.schemas.Reach
	}
	if cfg.Records.ClaimCheck.On() {
		run.TryStore = cfg.tryStore
	}
	r.checkPolling(&run)
	var start foreseen
	var wg sync.WaitGroup
	wg.Go(func() { start = r.foresee(ctx) })
	found := doctor.Check(ctx, run)
	wg.Wait()
	if ctx.Err() != nil {
		return nil, fmt.Errorf("interrupted before everything was checked: %w", context.Cause(ctx))
	}
	return start.among(found), nil
}

// A foreseen is how the next start judges the stored checkpoint.
type foreseen struct {
	relay.Forecast
	name   string // of the relay
	parked []parking.Stranger
	err    error
	unread bool // the store could not be read, so a checkpoint may exist
}

// foreseeWithin bounds foresee, which reads the store and looks at the source.
const foreseeWithin = 30 * time.Second

func (r *Relay) foresee(ctx context.Context) foreseen {
	ctx, cancel := context.WithTimeout(ctx, foreseeWithin)
	defer cancel()
	f := foreseen{name: r.cfg.Name}
	store, free, err := r.openStore()
	if f.err = err; err != nil {
		return f
	}
	defer free()
	source := r.reads()
	if r.polled == nil {
		quiet := *r.source.Config()
		quiet.Logger = slog.New(slog.DiscardHandler) // the doctor reports the warnings
		source = pgSource{replication.NewSource(quiet)}
	}
	cfg := r.loopConfig(r.snapshot(), 0)
	cfg.Logger = slog.New(slog.DiscardHandler)
	f.Forecast, f.err = relay.Foresee(ctx, cfg, source, func(ctx context.Context, name string) (map[string][]byte, error) {
		records, err := store.Look(ctx, name)
		f.unread = err != nil
		return records, err
	})
	anchored := f.err == nil && f.Record != nil && f.Record.Parking != nil
	if r.cfg.Stdout != nil || f.unread || !anchored && f.Found.SystemID == "" {
		return f
	}
	log := r.parkingLog()
	defer closeWithin(log.Close)
	others := cfg.Poison.Others(f.name, &f.Found)
	state, unread := log.Read(ctx, 0, func(rec *kgo.Record) bool {
		others.Add(parking.Read(rec))
		return ctx.Err() == nil
	})
	if unread != nil { // the doctor reports an error
		return f
	}
	if anchored {
		_, f.err = parking.Judge(r.cfg.Delivery.ParkingTopic, f.Record.Parking, state)
	}
	if f.Found.SystemID != "" {
		f.parked = others.Strangers()
	}
	return f
}

// among adds the finding about the checkpoint to what the doctor found. The doctor does not know the
// checkpoint. If a checkpoint exists, the doctor's advice about a slot that is gone, and about the
// rows from before the slot, is wrong.
func (f *foreseen) among(found []Finding) []Finding {
	refusal, gone := errors.AsType[*checkpoint.Refusal](f.err)
	gone = gone && refusal.NeedsSlot()
	found = slices.DeleteFunc(found, func(x Finding) bool {
		return (f.Record != nil || f.unread) && x.Name == "source.snapshot" || gone && x.Name == "slot"
	})
	failed := slices.ContainsFunc(found, func(x Finding) bool { return x.Verdict == Fail })
	for _, o := range f.parked {
		found = append(found, Finding{Side: doctor.Kafka, Name: "parked keys of " + o.Relay, Verdict: Warn, Why: o.String(), Fix: fix.ByWords(o.Hint())})
	}
	found = append(found, f.remembered()...)
	own := Finding{Side: doctor.Postgres, Name: "checkpoint", Verdict: OK}
	switch {
	case errors.As(f.err, new(*statelog.LostRecords)):
		return found // the doctor reports it
	case !errors.As(f.err, new(*condition.Finding)) && (fault.NeedsPerson(f.err) || fault.Misconfigured(f.err) || fault.Hint(f.err) != "" && !fault.Retryable(f.err)):
		own.Verdict, own.Why, own.Fix = Fail, f.err.Error(), fix.ByWords(fault.Hint(f.err))
	case f.err != nil:
		own.Verdict, own.Why = Warn, "not checked: whether the checkpoint fits the slot, and whether an event halted the relay"
		if !failed { // otherwise, the doctor says why
			own.Why += ": " + f.err.Error()
		}
		own.Fix = fix.ByWords("If this relay has run before, fix the cause and run walpost check again, before you create or drop a slot.")
	case f.Record != nil && f.Found.SlotFound.Exists:
		own.Why = fmt.Sprintf("the slot fits checkpoint %s at %s", f.Record.Key(), f.Record.Position)
	case f.Record != nil && f.Record.Polled != nil:
		own.Why = fmt.Sprintf("the database fits checkpoint %s", f.Record.Key())
	case f.Record != nil:
		own.Why = fmt.Sprintf("checkpoint %s records an unfinished copy of rows: walpost continues the copy with a new slot", f.Record.Key())
	case f.Found.SlotFound.Exists:
		own.Why = "no checkpoint of " + f.name + " is stored: walpost run starts at the position of the slot"
	default:
		own.Why = "no checkpoint of " + f.name + " is stored: the next walpost run is the first one"
	}
	return append([]Finding{own}, found...)
}

// remembered are findings about what the checkpoint remembers beside its position.
func (f *foreseen) remembered() (found []Finding) {
	for _, gap := range f.Accepted {
		found = append(found, Finding{
			Side: doctor.Postgres, Name: "accepted gap " + gap.Token, Verdict: Warn,
			Why: fmt.Sprintf("the gap was accepted on %s and is open, so the cleanup removes no rows: %s", gap.Time.UTC().Format(time.RFC3339), gap.Gap),
			Fix: fix.Fix{
				fix.Words("Find the rows that Kafka lacks, and publish them with the command that verify prints, until none is missing or not_confirmed:"), fix.Command(fault.Command("verify")),
				fix.Words("Then close the gap:"), fix.Command(advice.Close(gap.Token)),
			},
		})
	}
	if f.Record == nil {
		return found
	}
	renamed := func(was, is string) {
		found = append(found, Finding{
			Side: doctor.Postgres, Name: "renamed table " + is, Verdict: Warn,
			Why: fmt.Sprintf("table %s was named %s when the relay last looked at it: a relay that runs still delivers its rows under the former name", is, was),
			Fix: fix.ByWords("Start walpost run with the new name in source.table. A relay that runs with the former name halts at its next look at the table."),
		})
	}
	if f.Record.Published != nil {
		for _, was := range f.Record.Published.Tables {
			for _, is := range f.Found.Published.Tables {
				if was.OID == is.OID && was.Name != is.Name && f.Record.Database == f.Found.Database {
					renamed(was.Name, is.Name)
				}
			}
		}
	}
	if was, is := f.Record.Polled, f.Found.Polled; was != nil && is != nil && was.IsTable(is) && was.Table != is.Table {
		renamed(was.Table, is.Table)
	}
	return found
}

func (c *Config) checkpointTopic() string {
	if c.Checkpoint.Store == "kafka" {
		return c.Checkpoint.Topic
	}
	return ""
}

// SetupSQL returns the SQL that creates what is missing for cfg. If the database can be reached,
// the SQL leaves out what exists. Otherwise, the SQL is for an empty database, and why is the
// reason that it can't be reached. If SetupSQL returns both SQL and an error, the error is about a
// problem that setup can't repair.
func SetupSQL(ctx context.Context, cfg Config) (sql string, why, err error) {
	r, err := prepare(cfg, cfg.ValidateDatabase())
	if err != nil {
		return "", nil, err
	}
	if r.polled != nil {
		sql, _, why, err := r.pollSetup(ctx, false)
		if sql == "" {
			sql = "-- Everything is there.\n"
		}
		return sql, why, err
	}
	settings := r.source.Config()
	missing, why := r.source.Missing(ctx)
	if why != nil {
		missing = replication.FullSetup(*settings)
	}
	sql, slot := replication.SetupSQL(*settings, missing), "\n-- Slot "+settings.Slot+" is missing"
	if missing.Empty() {
		sql, slot = "-- Everything is there", " except slot "+settings.Slot
	}
	switch {
	case missing.SlotByRun && settings.Create:
		sql += slot + ". If this relay has run before, run walpost check first.\n-- Otherwise walpost run creates the slot, together with its first checkpoint.\n"
	case missing.SlotByRun:
		sql += slot + ". If this relay has run before, run walpost check first.\n-- Otherwise walpost setup --make-slot creates the slot, because source.create is false.\n"
	case missing.Empty():
		sql += ".\n"
	}
	return sql, why, missing.Err()
}

// Setup creates everything that is missing in one transaction, then the slot if SetupSlot is set,
// and returns what it created. After an error, either nothing was created, or only the slot is
// missing.
func Setup(ctx context.Context, cfg Config) (made []string, err error) {
	r, err := prepare(cfg, cfg.ValidateDatabase())
	if err != nil {
		return nil, err
	}
	if r.polled != nil {
		return r.applyPolling(ctx)
	}
	return r.source.Apply(ctx)
}

// Migrations are the forms that Migration and InboxMigration accept: "goose" is one file for goose,
// and "up" and "down" are the two files for golang-migrate and similar tools.
var Migrations = []string{"goose", "up", "down"}

// Migration returns the SQL that creates all outbox tables of cfg, or drops them, for a migration
// tool. It doesn't connect to the database. The migration doesn't contain the schema, the role and
// the publication, which Setup creates.
func Migration(cfg Config, form string) (string, error) {
	r, err := prepare(cfg, cfg.ValidateDatabase())
	if err != nil {
		return "", err
	}
	full := replication.FullSetup(*r.source.Config())
	if err := full.Err(); err != nil {
		return "", err
	}
	if len(full.Tables) == 0 {
		return "", fault.Config(errors.New("no table is configured: logical messages need no table"), "")
	}
	var tables []*outboxtable.Table
	for _, t := range full.Tables {
		tables = append(tables, &outboxtable.Table{
			Name: t, OrderColumn: cfg.Source.OrderColumn, TimeColumn: cfg.Source.TimeColumn, Partitioned: cfg.SetupPartitioned,
		})
	}
	if cfg.polls() {
		set := r.polling()
		tables[0].More, tables[0].Undo = set.Setup(nil), set.UndoSQL()
	}
	up, down := outboxtable.Migration("", "", tables...)
	return migration(form, outboxtable.Goose(tables...), up, down)
}

// InboxMigration is Migration for the tables of package inbox, in a schema ("" stands for the
// search_path). The SQL upgrades them from an earlier version to inbox.Version; from is 0 if they
// don't exist yet.
func InboxMigration(form, schema string, from int) (string, error) {
	if from < 0 || from >= inbox.Version {
		return "", fault.Config(fmt.Errorf("the version of the inbox's tables to start from must be 0 to %d (got %d)", inbox.Version-1, from), "")
	}
	s := inbox.Schema(schema)
	up, down := s.DDL(from)
	return migration(form, s.Goose(from), up, down)
}

// migration returns the text of a form. texts are in the order of Migrations.
func migration(form string, texts ...string) (string, error) {
	if i := slices.Index(Migrations, form); i >= 0 {
		return texts[i], nil
	}
	return "", fault.Config(fmt.Errorf("the form of a migration must be one of %v (got %q)", Migrations, form), "")
}
