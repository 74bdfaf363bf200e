package cleanup

import (
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/condition"
	"github.com/walpost/walpost/internal/fix"
	"github.com/walpost/walpost/internal/lib/pgname"
	"github.com/walpost/walpost/internal/pg"
)

// isTime reports whether a column can be the time column.
func isTime(c *cdc.Column) bool {
	return slices.Contains([]uint32{pgtype.TimestamptzOID, pgtype.TimestampOID, pgtype.DateOID}, c.TypeOID)
}

// hasTime reports whether the table has the time column, with a type of time.
func (s *Settings) hasTime(t *pg.TableFacts) bool {
	at := t.Relation.Index(s.TimeColumn)
	return at >= 0 && isTime(&t.Relation.Columns[at])
}

// fitsRange reports whether the table is partitioned as the mode needs it.
func (s *Settings) fitsRange(t *pg.TableFacts) bool {
	return s.Mode != DropPartitions || t.RangeColumn == s.TimeColumn
}

// Conditions judges the definition of a table whose rows are to be removed, and reports whether there is no Fail. filter is the row
// filter of the publication, "" for none. A pass of the cleanup and walpost check share this list.
func (s *Settings) Conditions(l *condition.List, t *pg.TableFacts, filter string) bool {
	name, table, column := "cleanup of "+t.Table.String(), t.Table.SQL(), s.TimeColumn
	switch at := t.Relation.Index(column); {
	case at < 0:
		l.Fail(name, fix.Fix{
			fix.Words("Set source.time_column to the column with the time when a row was written, or:"),
			fix.SQL(fmt.Sprintf("ALTER TABLE %s ADD COLUMN %s timestamptz NOT NULL DEFAULT now();", table, pgname.QuoteIdent(column))),
		}, "%s has no column %s (source.time_column)", t.Table, column)
	case !isTime(&t.Relation.Columns[at]):
		l.Fail(name, fix.ByWords("Set source.time_column to a timestamptz, timestamp or date."),
			"source.time_column: column %s of %s is a %s", column, t.Table, t.Relation.Columns[at].TypeName)
	case !s.fitsRange(t):
		l.Fail(name, fix.ByWords("walpost setup --partitioned prints the SQL for a table of this kind. Or set cleanup.mode to delete."),
			"cleanup.mode drop_partitions needs a table with PARTITION BY RANGE (%s), and %s is not partitioned in this way", column, t.Table)
	case filter != "":
		// A row that the filter leaves out was not delivered. A row that an UPDATE brought in was not delivered either, if the
		// publication has inserts only.
		l.Fail(name, fix.ByWords("Set cleanup.mode to none, and remove old rows with a job of your own."),
			"publication %s has a row filter for %s (%s): walpost cannot tell which rows were delivered, and removes none", s.Publication, t.Table, filter)
	case s.Mode != DropPartitions && !t.IndexedBy(column):
		how := " CONCURRENTLY"
		if t.Partitioned() {
			how = "" // Postgres refuses it there
		}
		l.Warn("index for the "+name, fix.BySQL(fmt.Sprintf("CREATE INDEX%s ON %s (%s);", how, table, pgname.QuoteIdent(column))),
			"no index of %s begins with %s: each pass of the cleanup reads the whole table", t.Table, column)
		return true
	default:
		return true
	}
	return false
}

// Conditions judges whether an archive can take rows, in the order in which a person should repair it. role is walpost's.
func (a *Archive) Conditions(l *condition.List, role string) {
	table, quoted := a.Table.SQL(), pgname.QuoteIdent(role)
	fail := func(by fix.Fix, why string, args ...any) {
		l.Fail("archive of "+a.Of.String(), by, "archive table %s %s: old rows are not removed", a.Table, fmt.Sprintf(why, args...))
	}
	if !a.Exists {
		fail(fix.Fix{fix.Words("walpost setup prints the SQL:"), fix.SQL(fmt.Sprintf("CREATE TABLE %s (LIKE %s); GRANT INSERT ON %s TO %s;", table, a.Of.SQL(), table, quoted))},
			"does not exist")
		return
	}
	if len(a.Unfit) > 0 {
		fail(fix.ByWords("Name an ordinary logged table in cleanup.archive_table."), "cannot take rows: %s is not an ordinary logged table", strings.Join(a.Unfit, ", "))
	}
	if len(a.Published) > 0 {
		fail(fix.ByWords("Publish the outbox with a separate publication FOR TABLE, or move the archive to a schema that is not published."),
			"is published (%s): Postgres would send each archived row to walpost again", strings.Join(a.Published, ", "))
	}
	if len(a.Missing) > 0 {
		fail(fix.BySQL(fmt.Sprintf("ALTER TABLE %s ADD COLUMN %s;", table, strings.Join(a.Missing, ", ADD COLUMN "))),
			"does not fit: it needs %s as in %s", strings.Join(a.Missing, ", "), a.Of)
	}
	if len(a.Required) > 0 {
		drops := make([]string, len(a.Required))
		for i, name := range a.Required {
			drops[i] = "ALTER COLUMN " + pgname.QuoteIdent(name) + " DROP NOT NULL"
		}
		fail(fix.BySQL(fmt.Sprintf("ALTER TABLE %s %s;", table, strings.Join(drops, ", "))),
			"does not fit: %s is NOT NULL there, but can be NULL or missing in %s", strings.Join(a.Required, ", "), a.Of)
	}
	if !a.MayUse || !a.MayInsert {
		fail(fix.BySQL(fmt.Sprintf("GRANT USAGE ON SCHEMA %s TO %s; GRANT INSERT ON %s TO %[2]s;", pgname.QuoteIdent(a.Table.Schema), quoted, table)),
			"may not be written by role %s", role)
	}
}

// text is a finding on one line, for the log and the status of the cleanup.
func text(f *condition.Finding) string { return f.Why + "; " + f.FixText() }
