package walpost

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/walpost/walpost/doctor"
	"github.com/walpost/walpost/internal/fix"
	"github.com/walpost/walpost/replication"
	"github.com/walpost/walpost/slot"
)

// A Finding is what Check found about one precondition.
type Finding = doctor.Finding

// The verdicts of a Finding.
const (
	OK   = doctor.OK
	Warn = doctor.Warn
	Fail = doctor.Fail
)

// postgresTimeout bounds what is asked of the database; what is asked of Kafka is bounded by CheckKafka.
const postgresTimeout = 30 * time.Second

// Check looks at every precondition of a run and changes nothing. Both sides are looked at at once, and whatever one of them does,
// the other is reported wholly. It takes about a minute at the most.
func Check(ctx context.Context, cfg Config) ([]Finding, error) {
	r, err := New(cfg)
	if err != nil {
		return nil, err
	}
	var all sync.WaitGroup
	var database, clock, rows, kafka []Finding
	var want doctor.Expected
	var known sync.WaitGroup // want
	known.Go(func() { want.DatabaseAhead, clock = r.databaseClock(ctx) })
	known.Go(func() {
		want.Topics, rows = r.sample(ctx)
		for _, t := range cfg.knownTopics() {
			if _, ok := want.Topics[t]; !ok {
				want.Topics[t] = doctor.Traffic{}
			}
		}
	})
	all.Go(func() { database = r.examine(ctx) })
	if cfg.Stdout == nil {
		all.Go(func() {
			kafka = doctor.CheckKafka(ctx, cfg.sink(), cfg.checkpointTopic(), r.cfg.Name, func() doctor.Expected {
				known.Wait()
				return want
			})
		})
	}
	known.Wait()
	all.Wait()
	if ctx.Err() != nil {
		return nil, fmt.Errorf("interrupted before all was looked at: %w", context.Cause(ctx))
	}
	return slices.Concat(database, clock, rows, kafka), nil
}

// words is a fix that is text already.
func words(text string) fix.Fix {
	if text == "" {
		return nil
	}
	return fix.Fix{fix.Words(text)}
}

// examine is what the source finds of the database.
func (r *Relay) examine(ctx context.Context) (found []Finding) {
	ctx, cancel := context.WithTimeout(ctx, postgresTimeout)
	defer cancel()
	for _, f := range r.source.Examine(ctx) {
		verdict := doctor.Verdict(f.Level)
		if f.Level == replication.Fail {
			verdict = Fail
		}
		found = append(found, Finding{Side: doctor.Postgres, Name: f.Name, Verdict: verdict, Why: f.Detail, Fix: words(f.Fix)})
	}
	return found
}

// databaseClock compares the database's clock with this machine's: how far it is ahead, nil where that is not known. A
// database that cannot be reached is found by examine.
func (r *Relay) databaseClock(ctx context.Context) (ahead *time.Duration, found []Finding) {
	ctx, cancel := context.WithTimeout(ctx, sampleTime)
	defer cancel()
	reader := r.slotReader()
	defer reader.Close()
	if _, err := reader.Read(ctx); err != nil { // opens the connection
		return nil, nil
	}
	h, err := reader.Read(ctx)
	if err != nil {
		return nil, nil
	}
	return &h.ClockSkew, []Finding{judgeClock(h.ClockSkew, h.RoundTrip/2+time.Millisecond)}
}

// judgeClock judges how far the database's clock is ahead of ours, which is known within a bound.
func judgeClock(ahead, within time.Duration) Finding {
	where := "ahead of"
	if ahead < 0 {
		where = "behind"
	}
	f := Finding{
		Side: doctor.Postgres, Name: "clock", Verdict: OK,
		Why: fmt.Sprintf("the database's is %.3fs %s this machine's (within %s)", ahead.Abs().Seconds(), where, within.Round(time.Millisecond)),
	}
	if ahead.Abs() > slot.MaxClockSkew+within {
		f.Verdict, f.Fix = Warn, words("Set the clocks of the database and of this machine (NTP): ages and latencies are off by that.")
	}
	return f
}

// knownTopics are the topics that can be told without a row.
func (c *Config) knownTopics() []string {
	if t := c.Router.TopicReplacement; t != "" && !strings.ContainsAny(t, `$\`) {
		return []string{t}
	}
	return nil
}

func (c *Config) checkpointTopic() string {
	if c.Checkpoint.Store == "kafka" {
		return c.Checkpoint.Topic
	}
	return ""
}

// SetupSQL is the SQL that makes what is missing for cfg. With a database that can be reached it leaves out what is there;
// otherwise it is for an empty one, and why says why.
func SetupSQL(ctx context.Context, cfg Config) (sql string, why, err error) {
	r, err := New(cfg)
	if err != nil {
		return "", nil, err
	}
	settings := cfg.replication()
	missing, why := r.source.Missing(ctx)
	if why != nil {
		missing = replication.FullSetup(settings)
	}
	sql = replication.SetupSQL(settings, missing)
	if settings.SlotWithSnapshot {
		sql += "\n-- The slot is made by walpost run, together with the snapshot of the rows that are there (source.snapshot: initial).\n"
	}
	return sql, why, nil
}

// Setup makes what is missing, as far as the role may, and returns what it made, also with an error.
func Setup(ctx context.Context, cfg Config) (made []string, err error) {
	r, err := New(cfg)
	if err != nil {
		return nil, err
	}
	return r.source.Apply(ctx)
}
