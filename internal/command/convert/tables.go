package convert

import (
	"fmt"
	"regexp"
	"regexp/syntax"
	"slices"
	"strings"

	"github.com/walpost/walpost/internal/javaregex"
	"github.com/walpost/walpost/internal/lib/pgname"
)

// A table is a table that the connector captures.
type table struct{ schema, name string }

// sql is the table's name in SQL and in walpost.yaml.
func (t table) sql() string {
	return pgname.QuoteIfNeeded(t.schema) + "." + pgname.QuoteIfNeeded(t.name)
}

// parseTable reads schema.table as SQL does: folded to lower case unless in double quotes.
func parseTable(s string) (table, bool) {
	names, err := pgname.SplitName(strings.TrimSpace(s))
	if err != nil || len(names) != 2 {
		return table{}, false
	}
	return table{names[0], names[1]}, true
}

// expressions splits a list of regular expressions as Debezium does: a comma does not end an item behind a backslash.
func expressions(text string) (all []string) {
	start := 0
	add := func(end int) {
		if part := strings.TrimSpace(text[start:end]); part != "" {
			all = append(all, strings.ReplaceAll(part, `\,`, ","))
		}
		start = end + 1
	}
	for i := 0; i < len(text); i++ {
		switch text[i] {
		case '\\':
			i++
		case ',':
			add(i)
		}
	}
	if start < len(text) {
		add(len(text))
	}
	return all
}

// literalNames is the one text that a regular expression stands for, as names between dots:
// public.outbox, public\.outbox, ^public[.]outbox$.
func literalNames(re string) ([]string, bool) {
	var b strings.Builder
	parts, ok := sequence(re)
	for _, part := range parts {
		ok = ok && writeLiteral(&b, part)
	}
	return strings.Split(b.String(), "."), ok
}

// writeLiteral writes the one text that a regular expression stands for. A dot without a backslash
// matches any character, but nobody means that by public.outbox.
func writeLiteral(b *strings.Builder, re *syntax.Regexp) bool {
	switch re.Op {
	case syntax.OpLiteral:
		b.WriteString(string(re.Rune))
		return re.Flags&syntax.FoldCase == 0
	case syntax.OpAnyCharNotNL:
		b.WriteByte('.')
		return true
	case syntax.OpCapture, syntax.OpConcat:
		return !slices.ContainsFunc(re.Sub, func(sub *syntax.Regexp) bool { return !writeLiteral(b, sub) })
	default:
		return false
	}
}

const include = "table.include.list"

var plainName = regexp.MustCompile(`^[\w.-]+$`)

// byServer is the advice where only the server knows the tables.
func byServer(r *report) string {
	var names []any
	for _, option := range []string{"database.user", "database.hostname", "database.dbname"} {
		if name, known := r.in.ByName[option].Plain(); known && plainName.MatchString(name) {
			names = append(names, name)
		}
	}
	dsn := "postgres://…"
	if len(names) == 3 {
		port, _ := r.in.ByName["database.port"].Plain()
		if port = strings.TrimSpace(port); port != "" && plainName.MatchString(port) {
			names[1] = fmt.Sprintf("%s:%s", names[1], port)
		}
		dsn = fmt.Sprintf("postgres://%s@%s/%s", names...)
	}
	return "convert again with --dsn " + dsn + ", or name the outbox with --table schema.table"
}

// captured are the tables that the connector captures.
type captured struct {
	*report
	tables []table
	note   string // follows the tables in the report
}

// capturedTables finds the tables that the connector captures.
func capturedTables(r *report, o Options) *captured {
	c := &captured{report: r}
	expr, ok := r.literal(include)
	switch {
	case len(o.Tables) > 0:
		for _, s := range o.Tables {
			t, ok := parseTable(s)
			if !ok {
				c.bad(include, "--table must be schema.table (got %s)", s)
				continue
			}
			c.tables = append(c.tables, t)
		}
		c.note = " (by --table)"
	case o.Catalog != nil:
		c.ask(o.Catalog)
	case ok:
		c.includeList(expr)
		c.leaveOut()
	case !c.in.Has(include):
		c.bad(include, "without it, only the server knows which tables the connector captures: %s", byServer(c.report))
	}
	if expr, ok := c.literal("table.exclude.list"); ok {
		c.idle("table.exclude.list", "walpost reads only the tables that are named (and not %s)", expr)
	}
	c.schemaFilters()
	return c
}

func (c *captured) tableField() string {
	if len(c.tables) == 1 {
		return "source.table"
	}
	return "source.tables"
}

func (c *captured) includeList(expr string) {
	wrong := ""
	for _, one := range expressions(expr) {
		names, ok := literalNames(one)
		switch {
		case !ok:
			wrong = "only the server knows which tables " + one + " selects: " + byServer(c.report)
		case len(names) != 2 || names[0] == "" || names[1] == "":
			wrong = one + " is no table: Debezium's Postgres connector needs schema.table"
		case !slices.Contains(c.tables, table{names[0], names[1]}):
			c.tables = append(c.tables, table{names[0], names[1]})
		}
	}
	switch {
	case wrong != "":
		c.tables = nil
		c.bad(include, "%s", wrong)
	case len(c.tables) == 0:
		c.bad(include, "names no table")
	case slices.ContainsFunc(c.tables, func(t table) bool { return strings.ToLower(t.sql()) != t.sql() }):
		c.note = " (Debezium ignores the case of letters, and walpost does not: walpost check says whether the table exists)"
	}
}

// reportTables reports the tables that the predicates leave.
func (c *captured) reportTables() {
	if c.done[include] || len(c.tables) == 0 {
		if !c.done[include] && c.in.Has(include) {
			c.idle(include, "the predicates exclude all its tables")
		}
		return
	}
	text := make([]string, len(c.tables))
	for i, t := range c.tables {
		text[i] = t.sql()
	}
	if len(c.tables) > 1 && c.note == "" {
		c.note = " (Debezium ignores a table that does not exist, and walpost refuses it: --dsn leaves it out)"
	}
	c.mapped(include, c.tableField(), "%s%s", strings.Join(text, ", "), c.note)
}

// patterns are the regular expressions of one of Debezium's lists. Debezium ignores the case of
// letters.
func patterns(r *report, option string) (all []*javaregex.Regexp) {
	expr, _ := r.literal(option)
	for _, one := range expressions(expr) {
		re, err := javaregex.CompileFold(one)
		if err != nil {
			r.bad(option, "%v: name the outbox with --table schema.table", err)
			return nil
		}
		all = append(all, re)
	}
	return all
}

func matchAny(all []*javaregex.Regexp, s string) bool {
	return slices.ContainsFunc(all, func(re *javaregex.Regexp) bool {
		ok, _ := re.Matches(s)
		return ok
	})
}

// schemaFilters checks that the lists of schemas include the tables.
func (c *captured) schemaFilters() {
	for option, want := range map[string]bool{"schema.include.list": true, "schema.exclude.list": false} {
		if !c.in.Has(option) {
			continue
		}
		all := patterns(c.report, option)
		other := slices.IndexFunc(c.tables, func(t table) bool { return matchAny(all, t.schema) != want })
		switch {
		case c.done[option]:
		case other >= 0:
			c.bad(option, "contradicts table.include.list: with both options, the connector does not capture %s", c.tables[other].sql())
		default:
			c.idle(option, "walpost reads only the tables that are named")
		}
	}
}
