package replication

import (
	"fmt"
	"strings"

	"github.com/walpost/walpost/internal/pgname"
)

// A Table is the name of a table as the catalog has it: unquoted, in its own case.
type Table struct{ Schema, Name string }

// ParseTable reads a table's name as SQL does: schema.table or table (then in public), each folded
// to lower case unless it is in double quotes, as in public."orderEvents". A quote inside quotes is
// doubled.
func ParseTable(s string) (Table, error) {
	parts, err := pgname.Split(s)
	if err != nil {
		return Table{}, fmt.Errorf("%q is not a table name: %w", s, err)
	}
	switch len(parts) {
	case 1:
		return Table{"public", parts[0]}, nil
	case 2:
		return Table{parts[0], parts[1]}, nil
	}
	return Table{}, fmt.Errorf("%q is not a table name: it has %d parts; write schema.table", s, len(parts))
}

// String is the table as SQL would write it: quoted only where it must be.
func (t Table) String() string {
	return pgname.QuoteIfNeeded(t.Schema) + "." + pgname.QuoteIfNeeded(t.Name)
}

// SQL is the table, quoted.
func (t Table) SQL() string { return quoteIdent(t.Schema) + "." + quoteIdent(t.Name) }

func quoteIdent(name string) string { return pgname.Quote(name) }

// quoteLiteral writes a string constant that means the same whatever standard_conforming_strings
// says.
func quoteLiteral(s string) string {
	s = strings.ReplaceAll(s, "'", "''")
	if strings.Contains(s, `\`) {
		return ` E'` + strings.ReplaceAll(s, `\`, `\\`) + `'`
	}
	return "'" + s + "'"
}
