package poll

import (
	"fmt"
	"slices"
	"strings"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/condition"
	"github.com/walpost/walpost/internal/fix"
	"github.com/walpost/walpost/internal/lib/pgname"
)

// claimColumns are the columns by which workers share a table.
var claimColumns = []struct{ name, base, definition string }{
	{"claimed_by", "text", "text"},
	{"claimed_until", "timestamptz", "timestamptz"},
	{"attempts", "int4", "integer NOT NULL DEFAULT 0"},
	{"last_error", "text", "text"},
	{"next_attempt_at", "timestamptz", "timestamptz"},
	{"finished_at", "timestamptz", "timestamptz"},
}

// workerColumns are the names of the columns, as a list in SQL.
func workerColumns() string {
	names := make([]string, len(claimColumns))
	for i, c := range claimColumns {
		names[i] = pgname.QuoteLiteral(c.name)
	}
	return "ARRAY[" + strings.Join(names, ", ") + "]"
}

// The conditions of the indexes that polling needs: of the rows that are not finished, and of all rows.
const (
	openRows = "(finished_at IS NULL)"
	allRows  = ""
)

// hasIndex is the SQL condition that the table has an index of these rows that begins with these columns.
func hasIndex(table uint32, rows string, columns ...string) string {
	names := make([]string, len(columns))
	for i, c := range columns {
		names[i] = pgname.QuoteLiteral(c)
	}
	return fmt.Sprintf(`EXISTS (SELECT FROM pg_index i WHERE i.indrelid = %d AND i.indisvalid AND coalesce(pg_get_expr(i.indpred, i.indrelid), '') = '%s'
  AND ARRAY[%s] = (SELECT array_agg(a.attname::text ORDER BY k.n) FROM unnest(i.indkey::int2[]) WITH ORDINALITY k (at, n) JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.at WHERE k.n <= %d))`,
		table, rows, strings.Join(names, ", "), len(columns))
}

// withoutClaims is rel without the columns of the workers, which are no part of the event.
func withoutClaims(rel *cdc.Relation) *cdc.Relation {
	ofWorkers := func(c cdc.Column) bool {
		for _, k := range claimColumns {
			if k.name == c.Name {
				return true
			}
		}
		return false
	}
	without := *rel
	without.Columns = slices.DeleteFunc(slices.Clone(rel.Columns), ofWorkers)
	return &without
}

// claimColumnsSQL adds the columns that rel does not have; a nil rel has none. It is "" for nothing.
func (s *Settings) claimColumnsSQL(rel *cdc.Relation) string {
	var add []string
	for _, c := range claimColumns {
		if rel == nil || rel.Index(c.name) < 0 {
			add = append(add, "ADD COLUMN "+c.name+" "+c.definition)
		}
	}
	if len(add) == 0 {
		return ""
	}
	return fmt.Sprintf("ALTER TABLE %s %s;", s.Table.SQL(), strings.Join(add, ", "))
}

// claimIndexSQL makes the indexes for the rows that are not finished. keyColumn is "" for no key.
func (s *Settings) claimIndexSQL(how, keyColumn string, f *Facts) (sql []string) {
	make := func(columns string) {
		sql = append(sql, fmt.Sprintf("CREATE INDEX%s ON %s (%s) WHERE finished_at IS NULL;", how, s.Table.SQL(), columns))
	}
	order := pgname.QuoteIdent(s.OrderColumn)
	if f == nil || !f.OpenByOrder {
		make(order)
	}
	if keyColumn != "" && (f == nil || !f.OpenByKey) {
		make(pgname.QuoteIdent(keyColumn) + ", " + order)
	}
	return sql
}

// claimingRights is the SQL of the rights that a worker needs beside reading.
func (s *Settings) claimingRights(role string) string {
	names := make([]string, len(claimColumns))
	for i, c := range claimColumns {
		names[i] = c.name
	}
	sql := fmt.Sprintf("GRANT UPDATE (%s) ON %s TO %s;", strings.Join(names, ", "), s.Table.SQL(), pgname.QuoteIdent(role))
	if s.Strategy == Delete {
		sql += fmt.Sprintf("\nGRANT DELETE ON %s TO %s;", s.Table.SQL(), pgname.QuoteIdent(role))
	}
	return sql
}

// claimNeeds judges what claiming needs.
func (s *Settings) claimNeeds(l *condition.List, f *Facts) {
	t, rel := &f.Table, f.Table.Relation
	const columns = "columns of workers"
	if sql := s.claimColumnsSQL(rel); sql != "" {
		l.Unmet(condition.Start, columns, fix.BySQL(sql), "table %s lacks columns that source.poll.strategy %s needs", t.Table, s.Strategy)
		return
	}
	for _, c := range claimColumns {
		if column := &rel.Columns[rel.Index(c.name)]; column.BaseName != c.base || column.Generated {
			l.Unmet(condition.Misconfigured, columns, fix.ByWords("Rename the column: walpost writes the state of each row into a column of this name. Or use source.poll.strategy cursor."),
				"column %s of %s has the type %s, and source.poll.strategy %s needs %s", c.name, t.Table, column.TypeName, s.Strategy, c.definition)
		}
	}
	if i := rel.Index(s.Key(rel)); i >= 0 && slices.Contains([]string{"json", "xml", "point"}, rel.Columns[i].BaseName) {
		l.Unmet(condition.Misconfigured, "key column", fix.ByWords("Set table.field.event.key to a column of another type, such as text."),
			"column %s of %s has the type %s, which has no equality operator, so walpost cannot keep a key's events in order", s.Key(rel), t.Table, rel.Columns[i].TypeName)
	}
	if t.Readable && !(f.Updatable && (f.Deletable || s.Strategy != Delete)) {
		what := "update the columns of workers in"
		if f.Updatable {
			what = "delete from"
		}
		l.Unmet(condition.Privilege, "writing "+t.Table.String(), fix.BySQL(s.claimingRights(f.Server.Role)), "role %s may not %s %s", f.Server.Role, what, t.Table)
	}
}

// missingIndexes is the SQL of the indexes that the table does not have, "" for none. Without them each
// look reads all rows.
func (s *Settings) missingIndexes(f *Facts) string { return strings.Join(s.indexSQL(f), "\n") }
