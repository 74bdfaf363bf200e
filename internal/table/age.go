package table

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/internal/lib/pgname"
	"github.com/walpost/walpost/internal/pg"
)

// AgeUnknown says, for people, why nothing tells which rows are older than since; "" if something does.
func (t *Table) AgeUnknown(since time.Time, timeColumn string) string {
	switch {
	case since.IsZero():
		return "it is unknown when the first missing event was written"
	case !t.reader.commits && timeColumn == "":
		return "the age of the rows is unknown (set source.time_column)"
	}
	return ""
}

// age is the time at which a row was written: its commit time if the server keeps these, else its timeColumn. It is "" if nothing tells.
func (t *Table) age(timeColumn string) (expression string, err error) {
	switch {
	case t.reader.commits:
		return commitTimestamp, nil
	case timeColumn == "":
		return "", nil
	}
	return t.column(timeColumn)
}

// AgeError is by how much a row can look older than it is: a time without a zone is read as UTC, and a session may be 12 hours west of it. A
// date also leaves out the time of day.
func (t *Table) AgeError(timeColumn string) time.Duration {
	i := t.Relation.Index(timeColumn)
	if t.reader.commits || i < 0 {
		return 0
	}
	switch t.Relation.Columns[i].BaseName {
	case "timestamp":
		return 12 * time.Hour
	case "date":
		return 36 * time.Hour
	}
	return 0
}

// TellsAge returns an error if nothing tells when the rows were written.
func (t *Table) TellsAge(timeColumn string) error {
	if t.reader.commits || timeColumn != "" {
		return nil
	}
	return fault.Config(errors.New("the time at which a row was written is unknown: track_commit_timestamp is off, and source.time_column is not set"),
		"Set source.time_column to the column with the time of the insert, or pass ids instead of times.")
}

// Statistics are what the server's statistics tell of a table. They may be a little old.
type Statistics struct {
	Rows    int64 // about as many rows as the table has
	Updated bool  // rows were updated, or the server does not count updates
}

// Statistics reads them, of all partitions together.
func (t *Table) Statistics(ctx context.Context) (Statistics, error) {
	return pg.Row[Statistics](ctx, t.reader.conn, "read the statistics of "+t.String(), fmt.Sprintf(`SELECT
 coalesce(sum(greatest(c.reltuples, s.n_live_tup, 0)), 0)::bigint AS rows, coalesce(sum(s.n_tup_upd), 0) > 0 OR current_setting('track_counts') <> 'on' AS updated
 FROM (SELECT %[1]d::oid AS relid UNION SELECT relid FROM pg_partition_tree(%[1]d::oid) WHERE isleaf) r
 JOIN pg_class c ON c.oid = r.relid AND c.relkind = 'r' LEFT JOIN pg_stat_all_tables s ON s.relid = r.relid`, t.Relation.ID))
}

// Cuts reports whether Selection.Since leaves out every older row of the table, because the age of each row is known.
func (t *Table) Cuts(ctx context.Context, since time.Time, timeColumn string) (bool, error) {
	young, err := t.since(&Selection{Since: since, TimeColumn: timeColumn})
	if err != nil || young == "" {
		return false, err
	}
	return t.aged(ctx, young, timeColumn)
}

// Oldest returns the time of the oldest row of sel: its commit time, or its TimeColumn if that is a timestamptz. known is false if the
// time of a row is not known. The time is zero if there is no row.
func (t *Table) Oldest(ctx context.Context, sel Selection) (oldest time.Time, known bool, err error) {
	if i := t.Relation.Index(sel.TimeColumn); !t.reader.commits && (i < 0 || t.Relation.Columns[i].BaseName != "timestamptz") {
		return oldest, false, nil
	}
	age, err := t.age(sel.TimeColumn)
	if err != nil {
		return oldest, false, err
	}
	where, _, err := t.where(&sel)
	if err != nil {
		return oldest, false, err
	}
	found, err := pg.Row[struct {
		Known  bool
		Oldest *int64
	}](ctx, t.reader.conn, "look at the age of the rows of "+t.String(), fmt.Sprintf("SELECT coalesce(bool_and(isfinite(%[1]s) IS TRUE), true) AS known, min(%[2]s) FILTER (WHERE isfinite(%[1]s)) AS oldest FROM %[3]s WHERE %[4]s",
		age, pg.Micros(age), t.from(), strings.Join(where, " AND ")))
	if err == nil && found.Oldest != nil {
		oldest = time.UnixMicro(*found.Oldest).UTC()
	}
	return oldest, found.Known, err
}

// Timed reports whether the server keeps the commit time of every row that Since and Behind of sel do not leave out.
func (t *Table) Timed(ctx context.Context, sel Selection) (bool, error) {
	if !t.reader.commits {
		return false, nil
	}
	where, _, err := t.where(&Selection{Since: sel.Since, Behind: sel.Behind})
	if err != nil {
		return false, err
	}
	return t.aged(ctx, strings.Join(where, " AND "), "")
}

// aged reports whether every row that a condition selects has an age.
func (t *Table) aged(ctx context.Context, condition, timeColumn string) (bool, error) {
	age, err := t.age(timeColumn)
	if err != nil {
		return false, err
	}
	unknown, err := pg.Row[struct{ Found bool }](ctx, t.reader.conn, "look at the age of the rows of "+t.String(),
		fmt.Sprintf("SELECT EXISTS (SELECT FROM %s WHERE %s AND %s AND %s IS NULL) AS found", t.from(), t.kept(), condition, age))
	return !unknown.Found, err
}

// Holes counts the numbers of an integer column that no row has. It begins behind the largest number that was committed before
// since, and ends at the largest number, or at the last one that the column's sequence gave. If the holes cannot be counted,
// unknown says why, for people.
func (t *Table) Holes(ctx context.Context, column string, since time.Time, timeColumn string) (holes int64, unknown string, err error) {
	c, err := t.column(column)
	if err != nil {
		return 0, "", err
	}
	switch oid := t.Relation.Columns[t.Relation.Index(column)].TypeOID; oid {
	case 20, 21, 23: // int8, int2, int4
	default:
		return 0, "column " + column + " is not an integer", nil
	}
	young, err := t.since(&Selection{Since: since, TimeColumn: timeColumn})
	if err != nil || young == "" {
		return 0, t.AgeUnknown(since, timeColumn), err
	}
	type counts struct {
		Before, Last *int64
		Rows         int64
	}
	n, err := pg.Row[counts](ctx, t.reader.conn, "count the holes of "+column, fmt.Sprintf(`WITH b AS (SELECT max(%[1]s) AS before FROM %[2]s WHERE NOT %[3]s)
 SELECT b.before, (SELECT count(*) FROM %[2]s WHERE %[1]s > b.before) AS rows,
 greatest((SELECT max(%[1]s) FROM %[2]s), (SELECT CASE WHEN has_sequence_privilege(s.oid, 'SELECT, USAGE') THEN pg_sequence_last_value(s.oid::regclass) END
  FROM pg_class s WHERE s.oid = pg_get_serial_sequence(%[4]s, %[5]s)::regclass)) AS last FROM b`,
		c, t.from(), young, pgname.QuoteLiteral(t.SQL()), pgname.QuoteLiteral(column)))
	if err != nil || n.Before == nil || n.Last == nil {
		return 0, "no row in the table is older than the gap", err
	}
	return max(*n.Last-*n.Before-n.Rows, 0), "", nil
}
