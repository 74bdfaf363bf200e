package pg

import (
	"context"
	"fmt"
	"strconv"
	"strings"

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
	var s System
	fields, err := command(ctx, conn, "IDENTIFY_SYSTEM", 4)
	if err != nil {
		return s, err
	}
	s.ID = string(fields[0])
	timeline, err := strconv.ParseUint(string(fields[1]), 10, 32)
	if err != nil || timeline == 0 {
		return s, fmt.Errorf("IDENTIFY_SYSTEM: %w: timeline %q", ErrAnswer, fields[1])
	}
	s.Timeline = uint32(timeline)
	if s.Timeline == 1 {
		return s, nil
	}
	step := fmt.Sprintf("TIMELINE_HISTORY %d", s.Timeline)
	if fields, err = command(ctx, conn, step, 2); err != nil {
		return s, err
	}
	if s.History, err = parseHistory(fields[1], s.Timeline); err != nil {
		return s, fmt.Errorf("%s: %w: %w", step, ErrAnswer, err)
	}
	return s, nil
}

// command runs a replication command that answers with one row of so many columns.
func command(ctx context.Context, conn *pgconn.PgConn, sql string, columns int) ([][]byte, error) {
	results, err := conn.Exec(ctx, sql).ReadAll()
	if err != nil {
		return nil, Classify(fmt.Errorf("%s: %w", sql, err))
	}
	if len(results) != 1 || len(results[0].Rows) != 1 || len(results[0].Rows[0]) < columns {
		return nil, fmt.Errorf("%s: %w: not one row of %d columns", sql, ErrAnswer, columns)
	}
	return results[0].Rows[0], nil
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
		end, err := cdc.ParsePosition(fields[1])
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
