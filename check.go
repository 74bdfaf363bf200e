package walpost

import (
	"context"
	"fmt"

	"github.com/walpost/walpost/doctor"
	"github.com/walpost/walpost/internal/pg"
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

// Check looks at every precondition of a run and changes nothing. It takes about a minute at the most.
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
		to := cfg.sink()
		run.Kafka = &to
	}
	found := doctor.Check(ctx, run)
	if ctx.Err() != nil {
		return nil, fmt.Errorf("interrupted before everything was checked: %w", context.Cause(ctx))
	}
	return found, nil
}

// advise is what a start logs of the doctor's warnings.
func advise(cfg *replication.Config) func(f *pg.Facts) []replication.Advice {
	return func(f *pg.Facts) (advice []replication.Advice) {
		for _, found := range doctor.Advise(cfg, f) {
			advice = append(advice, replication.Advice{Text: found.Why, Hint: found.FixText()})
		}
		return advice
	}
}

func (c *Config) checkpointTopic() string {
	if c.Checkpoint.Store == "kafka" {
		return c.Checkpoint.Topic
	}
	return ""
}

// SetupSQL is the SQL that makes what is missing for cfg. With a database that can be reached it leaves out what is there;
// otherwise it is for an empty one, and why says why. An error beside SQL is about what a setup cannot mend.
func SetupSQL(ctx context.Context, cfg Config) (sql string, why, err error) {
	r, err := prepare(cfg, cfg.ValidateDatabase())
	if err != nil {
		return "", nil, err
	}
	settings := r.source.Config()
	missing, why := r.source.Missing(ctx)
	if why != nil {
		missing = replication.FullSetup(*settings)
	}
	sql = replication.SetupSQL(*settings, missing)
	if err = missing.Err(); missing.Empty() {
		sql = "-- Everything is there.\n"
	}
	switch {
	case !missing.SlotByRun:
	case settings.Create:
		sql += "\n-- The first walpost run makes slot " + settings.Slot + ", together with its first checkpoint.\n"
	default:
		sql += "\n-- Slot " + settings.Slot + " is missing, and source.create is false: walpost setup --make-slot makes it.\n"
	}
	return sql, why, err
}

// Setup makes everything that is missing, or nothing, and returns what it made. Beside an error that is the slot at most that is
// missing then.
func Setup(ctx context.Context, cfg Config) (made []string, err error) {
	r, err := prepare(cfg, cfg.ValidateDatabase())
	if err != nil {
		return nil, err
	}
	return r.source.Apply(ctx)
}
