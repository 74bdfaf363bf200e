package doctor

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/internal/fix"
	"github.com/walpost/walpost/internal/pg"
	"github.com/walpost/walpost/internal/table"
	"github.com/walpost/walpost/replication"
	"github.com/walpost/walpost/router"
	"github.com/walpost/walpost/sink"
	"github.com/walpost/walpost/slot"
)

// A Run is what is to be checked: the parts of a run, none of which has begun.
type Run struct {
	Name   string // the relay's
	Source *replication.Source
	Router *router.Router
	Kafka  *sink.Config // nil if records go elsewhere
	// Reach asks the schema registry; nil without one.
	Reach func(ctx context.Context) error
	// TryStore writes to the store of records.claim_check; nil without one.
	TryStore func(ctx context.Context) error
	// Postgres replaces checkPostgres for a source that has no slot; nil otherwise. It calls more with the
	// server and the table, because what a cleanup needs does not depend on the source.
	Postgres func(ctx context.Context, more func(context.Context, *pgconn.PgConn, *pg.Facts) []Finding) []Finding
	// Checkpoint is the topic of the checkpoints, or empty.
	Checkpoint string
	Rows       table.Source // the tables' rows
	// Retries says what happens to a row that cannot be published before its event goes where Kafka's
	// settings say, and Retried when walpost does not read such a row again; "" for a source that reads
	// each row once.
	Retries, Retried string
}

// Check looks at every precondition of a run and changes nothing, except that TryStore writes. It examines both sides at the
// same time. If one side is down, the report of the other side is still complete. It takes about a
// minute at the most.
func Check(ctx context.Context, run Run) []Finding {
	var all, known sync.WaitGroup
	var database, clock, rows, kafka, registry, store []Finding
	var want expectation // known guards it
	all.Go(func() { clock = databaseClock(ctx, run.Source) })
	known.Go(func() {
		want.topics, rows = checkRows(ctx, &run)
		want.patterns = run.Router.TopicPatterns()
		if only := want.patterns[0]; len(want.patterns) == 1 && !strings.Contains(only, "*") && len(want.topics) == 0 {
			want.topics[only] = topicTraffic{}
		}
	})
	all.Go(func() {
		if run.Postgres != nil {
			database = run.Postgres(ctx, func(ctx context.Context, conn *pgconn.PgConn, f *pg.Facts) []Finding {
				return checkCleanup(ctx, conn, run.Source.Config(), f)
			})
		} else {
			database = checkPostgres(ctx, run.Source.Config(), examineWithin, walPause)
		}
	})
	if run.Kafka != nil {
		all.Go(func() {
			kafka = checkKafka(ctx, *run.Kafka, run.Checkpoint, run.Name, func() expectation {
				known.Wait()
				return want
			})
		})
	}
	if run.Reach != nil {
		all.Go(func() { registry = checkRegistry(run.Reach(ctx)) })
	}
	if run.TryStore != nil {
		all.Go(func() { store = checkStore(run.TryStore(ctx)) })
	}
	known.Wait()
	all.Wait()
	return slices.Concat(database, clock, rows, kafka, registry, store)
}

// checkRegistry judges the answer of the schema registry.
func checkRegistry(err error) []Finding {
	f := Finding{Side: Registry, Name: "connection", Verdict: OK, Why: "the schema registry answers, and accepts the login"}
	if err != nil {
		f.Verdict, f.Why = Fail, err.Error()
		f.Fix = fix.ByWords(cmp.Or(fault.Hint(err), "Start the registry, or correct schema_registry.urls and schema_registry.tls. walpost run waits for it."))
	}
	return []Finding{f}
}

// checkStore judges an attempt to write to the store.
func checkStore(err error) []Finding {
	f := Finding{Side: Store, Name: "records.claim_check", Verdict: OK, Why: "walpost can write to the store of large values"}
	if err != nil {
		f.Verdict, f.Why = Fail, err.Error()
		f.Fix = fix.ByWords(cmp.Or(fault.Hint(err), "Start the store, or correct records.claim_check. walpost run waits for it."))
	}
	return []Finding{f}
}

// databaseClock compares the database's clock with this machine's clock. It finds nothing if the database cannot be reached, which
// checkPostgres reports.
func databaseClock(ctx context.Context, source *replication.Source) []Finding {
	ctx, cancel := context.WithTimeout(ctx, sampleTime)
	defer cancel()
	cfg := source.Config()
	reader := slot.NewReader(cfg.Connection(), cfg.Slot)
	defer reader.Close()
	if _, err := reader.Read(ctx, false); err != nil { // opens the connection
		return nil
	}
	h, err := reader.Read(ctx, false)
	if err != nil {
		return nil
	}
	return []Finding{judgeClock(h.ClockSkew, h.RoundTrip/2+time.Millisecond)}
}

// judgeClock judges how far the database's clock is ahead of ours, which is known within a bound.
func judgeClock(ahead, within time.Duration) Finding {
	direction := "ahead of"
	if ahead < 0 {
		direction = "behind"
	}
	f := Finding{
		Side: Postgres, Name: "clock", Verdict: OK,
		Why: fmt.Sprintf("the database's clock is %.3fs %s this machine's clock (within %s)", ahead.Abs().Seconds(), direction, within.Round(time.Millisecond)),
	}
	if ahead.Abs() > slot.MaxClockSkew+within {
		f.Verdict, f.Fix = Warn, fix.ByWords("Set the clocks of the database and of this machine (NTP). Ages and latencies are off by the difference.")
	}
	return f
}
