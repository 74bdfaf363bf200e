package pg

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/walpost/walpost/cdc"
)

// maxForks bounds a timeline history. Each promotion or point-in-time recovery adds one line.
const maxForks = 100_000

// A System is what a server says of itself on a replication connection.
type System struct {
	ID       string
	Timeline uint32
	History  []cdc.Fork
}

// Identify asks a replication connection who is on the other end, and where its history forked.
func Identify(ctx context.Context, conn *pgconn.PgConn) (System, error) {
	system, err := pglogrepl.IdentifySystem(ctx, conn)
	if err != nil {
		return System{}, answerFault(conn, "IDENTIFY_SYSTEM", err)
	}
	s := System{ID: system.SystemID, Timeline: uint32(system.Timeline)}
	if system.Timeline <= 1 {
		return s, nil
	}
	step := fmt.Sprintf("TIMELINE_HISTORY %d", s.Timeline)
	history, err := pglogrepl.TimelineHistory(ctx, conn, system.Timeline)
	if err != nil {
		return s, answerFault(conn, step, err)
	}
	if s.History, err = parseHistory(history.Content, s.Timeline); err != nil {
		return s, fmt.Errorf("%s: %w: %w", step, ErrAnswer, err)
	}
	return s, nil
}

// answerFault gives an error of a replication command its behaviour. If it isn't the server's and the connection still
// works, the answer could not be read.
func answerFault(conn *pgconn.PgConn, step string, err error) error {
	if SQLState(err) == "" && !conn.IsClosed() {
		err = fmt.Errorf("%w: %w", ErrAnswer, err)
	}
	return Classify(fmt.Errorf("%s: %w", step, err))
}

// parseHistory reads a timeline history file: a line "timeline<TAB>LSN<TAB>reason" for each older timeline, oldest first;
// empty lines and lines that start with # are comments. It is the format of Postgres' readTimeLineHistory.
func parseHistory(content []byte, current uint32) ([]cdc.Fork, error) {
	var forks []cdc.Fork
	for i, line := range strings.Split(string(content), "\n") {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		fields := strings.Fields(line)
		if len(fields) < 2 {
			return nil, fmt.Errorf("line %d of the history has no position", i+1)
		}
		timeline, err := strconv.ParseUint(fields[0], 10, 32)
		if err != nil {
			return nil, fmt.Errorf("line %d of the history has no timeline: %q", i+1, fields[0])
		}
		end, err := cdc.ParseLSN(fields[1])
		if err != nil {
			return nil, fmt.Errorf("line %d of the history: %w", i+1, err)
		}
		fork := cdc.Fork{Timeline: uint32(timeline), End: end}
		if len(forks) > 0 && forks[len(forks)-1].Timeline >= fork.Timeline || fork.Timeline >= current || fork.Timeline == 0 {
			return nil, fmt.Errorf("line %d of the history: timeline %d is out of order", i+1, fork.Timeline)
		}
		if forks = append(forks, fork); len(forks) > maxForks {
			return nil, fmt.Errorf("the history has more than %d lines", maxForks)
		}
	}
	if len(forks) == 0 {
		return nil, fmt.Errorf("the history of timeline %d is empty", current)
	}
	return forks, nil
}
