package doctor

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/walpost/walpost/internal/condition"
	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/internal/fix"
	"github.com/walpost/walpost/internal/pg"
	"github.com/walpost/walpost/replication"
)

// examineWithin bounds an examination: two connections, of which each may try several hosts, some twenty short questions and a pause.
const examineWithin = 30 * time.Second

// walPause is how far apart the two looks at the WAL are, from which its rate is taken.
const walPause = 2 * time.Second

// An examination collects what a doctor finds of a database.
type examination struct {
	condition.List
	cfg   *replication.Config
	f     *pg.Facts
	makes bool // a run would make the slot
	settings
}

// checkPostgres looks at every precondition in the database and does not stop at the first problem. If the server does not answer
// within a time, or until ctx ends, this is a finding. pause is between the two looks at the WAL.
func checkPostgres(parent context.Context, cfg *replication.Config, within, pause time.Duration) []Finding {
	began := time.Now()
	ctx, cancel := context.WithTimeout(parent, within)
	defer cancel()
	x := &examination{cfg: cfg, List: condition.List{Side: Postgres}}
	// fail says what went wrong in a step, and whether it was only that nobody answered.
	fail := func(name string, err error) {
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			x.Fail(name, fix.ByWords("Check whether the server is overloaded or stopped (its log, its load), and whether the network drops packets."),
				"no answer within %s, and the rest was not checked: %s", time.Since(began).Round(time.Second), err)
			return
		}
		x.Fail(name, fix.ByWords(fault.Hint(err)), "%s", err)
	}
	sql, err := cfg.Connection().ConnectSQL(ctx)
	if err != nil {
		fail("connection", err)
		return x.Found
	}
	defer pg.Close(sql)
	x.OK("connection", "connected to %s", pg.Endpoint(sql))
	f, err := cfg.Names().Describe(ctx, sql)
	if err != nil {
		fail("catalog", err)
		return x.Found
	}
	x.f, x.makes, x.Provider = f, f.Slot == nil && cfg.Create, f.Server.Provider
	stream, err := cfg.Connection().ConnectReplication(ctx)
	if err != nil {
		fail("replication connection", err)
		if ctx.Err() != nil {
			return x.Found
		}
	} else {
		pg.Close(stream)
		x.OK("replication connection", "a connection in replication mode is accepted")
		f.Streams = true
	}
	x.Found = append(x.Found, cfg.Conditions(f, x.makes)...)
	if f.Server.Version < pg.MinVersion {
		return x.Found
	}
	if err := x.examineSettings(ctx, sql, pause); err != nil {
		fail("settings", err)
		return x.Found
	}
	if x.makes && !failed(x.Found) {
		if err := cfg.RefuseRows(ctx, sql, f); err != nil {
			fail("source.snapshot", err)
		}
	}
	return x.Found
}

func failed(found []Finding) bool {
	return slices.ContainsFunc(found, func(f Finding) bool { return f.Verdict == Fail })
}
