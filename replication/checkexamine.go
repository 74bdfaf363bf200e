package replication

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/internal/pg"
)

// examineWithin bounds an examination: three connections, of which each may try several hosts, some twenty short questions and a pause.
const examineWithin = 30 * time.Second

// Examine looks at every precondition, does not stop at the first problem, and changes nothing. It is what a person asks
// when something does not work. A server that does not answer is a finding
// after half a minute, or when the time that ctx gives is over.
func (s *Source) Examine(ctx context.Context) []Finding {
	return s.examine(ctx, examineWithin, walPause)
}

// examine ends after within; pause is between the two looks at the WAL.
func (s *Source) examine(parent context.Context, within, pause time.Duration) (found []Finding) {
	began := time.Now()
	ctx, cancel := context.WithTimeout(parent, within)
	defer cancel()
	// fail says what went wrong in a step, and whether it was only that nobody answered.
	fail := func(name string, err error) {
		f := Finding{Name: name, Level: Fail, Detail: err.Error(), Fix: fault.Hint(err)}
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			f.Detail = fmt.Sprintf("no answer within %s, and nothing after it was looked at: %s", time.Since(began).Round(time.Second), err)
			f.Fix = "See whether the server is overloaded or stopped (its log, its load), and whether something on the way drops packets."
		}
		found = append(found, f)
	}
	sql, err := s.cfg.Connection().ConnectSQL(ctx)
	if err != nil {
		fail("connection", err)
		return found
	}
	defer pg.Close(sql)
	found = append(found, Finding{Name: "connection", Level: OK, Detail: "connected to " + endpoint(sql)})
	f, err := s.cfg.Names().Describe(ctx, sql)
	if err != nil {
		fail("catalog", err)
		return found
	}
	stream, err := s.cfg.Connection().ConnectReplication(ctx)
	if err != nil {
		fail("replication connection", err)
		if ctx.Err() != nil {
			return found
		}
	} else {
		pg.Close(stream)
		found = append(found, Finding{Name: "replication connection", Level: OK, Detail: "a connection in replication mode is accepted"})
		f.Streams = true
	}
	makes := f.Slot == nil && s.cfg.Create
	judged := s.cfg.judge(f, makes)
	for i := range judged {
		if j := &judged[i]; j.behave == lostEvents && f.Publication != nil {
			j.Fix = s.cfg.afterLoss(f, j)
		}
	}
	found, err = s.cfg.doctor(ctx, sql, f, makes, pause, append(found, judged...))
	if err != nil {
		fail("settings", err)
		return found
	}
	if makes && !s.cfg.SnapshotChosen && !slices.ContainsFunc(found, func(f Finding) bool { return f.Level == Fail }) {
		if err := s.cfg.refuseRows(ctx, sql, f); err != nil {
			fail("source.snapshot", err)
		}
	}
	return found
}

func endpoint(conn *pgconn.PgConn) string {
	if c := conn.Conn(); c != nil && c.RemoteAddr() != nil && c.RemoteAddr().String() != "" {
		return c.RemoteAddr().String()
	}
	return "Postgres"
}
