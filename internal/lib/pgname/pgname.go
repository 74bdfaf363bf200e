// Package pgname reads and quotes the names of SQL: tables, columns, literals.
package pgname

import (
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// maxLength is NAMEDATALEN - 1. Postgres cuts longer names silently; here they are errors.
const maxLength = 63

// SplitName reads names with dots between them. A name is folded to lower case unless it is in double
// quotes, as in public."orderEvents". A quote in a quoted name is doubled.
func SplitName(s string) (names []string, err error) {
	for rest := s; ; rest = rest[1:] {
		var name string
		if name, rest, err = cut(rest); err != nil {
			return nil, err
		}
		names = append(names, name)
		if rest == "" {
			return names, nil
		}
		if rest[0] != '.' {
			return nil, fmt.Errorf("%q stands where a dot or the end was expected", rest)
		}
	}
}

// cut returns the first name in s and the rest. Only letters of ASCII are folded, as in Postgres with
// the encoding UTF8.
func cut(s string) (name, rest string, err error) {
	if strings.HasPrefix(s, `"`) {
		var b strings.Builder
		for i := 1; i < len(s); i++ {
			if s[i] != '"' {
				b.WriteByte(s[i])
				continue
			}
			if i+1 < len(s) && s[i+1] == '"' {
				b.WriteByte('"')
				i++
				continue
			}
			name, rest = b.String(), s[i+1:]
			return name, rest, CheckName(name)
		}
		return "", "", errors.New("a quote is not closed")
	}
	end := 0
	for end < len(s) {
		c := s[end]
		letter := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c == '_' || c >= utf8.RuneSelf
		if !letter && (end == 0 || c != '$' && (c < '0' || c > '9')) {
			break
		}
		end++
	}
	name = strings.Map(func(r rune) rune {
		if r >= 'A' && r <= 'Z' {
			return r + 'a' - 'A'
		}
		return r
	}, s[:end])
	if name == "" && s != "" && s[0] != '.' {
		return "", "", fmt.Errorf("%q must be in double quotes", s)
	}
	if end < len(s) && s[end] != '.' {
		return "", "", fmt.Errorf("a name with %q in it must be in double quotes", firstRune(s[end:]))
	}
	return name, s[end:], CheckName(name)
}

// firstRune is the first character of s.
func firstRune(s string) string {
	_, n := utf8.DecodeRuneInString(s)
	return s[:n]
}

// CheckName returns why a name is not valid.
func CheckName(name string) error {
	switch {
	case name == "":
		return errors.New("a name is empty")
	case len(name) > maxLength:
		return fmt.Errorf("a name is longer than %d bytes", maxLength)
	case !utf8.ValidString(name) || strings.ContainsRune(name, 0):
		return errors.New("a name is not valid UTF-8")
	}
	return nil
}

// QuoteIdent returns a name in double quotes.
func QuoteIdent(name string) string { return `"` + strings.ReplaceAll(name, `"`, `""`) + `"` }

// QuoteIfNeeded returns a name that SplitName reads as the same name, quoted only if it must be.
func QuoteIfNeeded(name string) string {
	if got, rest, err := cut(name); err == nil && rest == "" && got == name {
		return name
	}
	return QuoteIdent(name)
}

// A Table is the name of a table as the catalog has it: unquoted, in its own case.
type Table struct{ Schema, Name string }

// ParseTable reads a table's name as SQL does: schema.table or table (then in public), each folded
// to lower case unless it is in double quotes, as in public."orderEvents". A quote inside quotes is
// doubled.
func ParseTable(s string) (Table, error) {
	parts, err := SplitName(s)
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

// CutName is the beginning of a name, in whole letters, so that a suffix of this length fits behind it.
func CutName(name string, suffix int) string {
	return strings.ToValidUTF8(name[:min(len(name), maxLength-suffix)], "")
}

// Archive is the table that takes the old rows of t: the configured one, or <table>_archive in t's schema
// if configured is empty or no table name.
func (t Table) Archive(configured string) Table {
	if a, err := ParseTable(configured); err == nil && configured != "" {
		return a
	}
	return Table{t.Schema, t.Name + "_archive"}
}

// OID is an expression of SQL: the oid of the relation, or NULL. Unlike to_regclass, it needs no right on the schema.
func (t Table) OID() string {
	return "(SELECT c.oid FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = " + QuoteLiteral(t.Schema) + " AND c.relname = " + QuoteLiteral(t.Name) + ")"
}

// String is the table as SQL would write it: quoted only where it must be.
func (t Table) String() string {
	return QuoteIfNeeded(t.Schema) + "." + QuoteIfNeeded(t.Name)
}

// SQL is the table, quoted.
func (t Table) SQL() string { return QuoteIdent(t.Schema) + "." + QuoteIdent(t.Name) }

// QuoteLiteral writes a string constant that means the same whatever standard_conforming_strings
// says.
func QuoteLiteral(s string) string {
	s = strings.ReplaceAll(s, "'", "''")
	if strings.Contains(s, `\`) {
		return ` E'` + strings.ReplaceAll(s, `\`, `\\`) + `'`
	}
	return "'" + s + "'"
}

// MaxPrefix bounds the prefix of logical messages, which walpost's messages name. Postgres has no bound.
const MaxPrefix = 200

// IsPrefix reports whether walpost accepts the prefix of logical messages. The empty one means none.
func IsPrefix(p string) bool {
	return len(p) <= MaxPrefix && utf8.ValidString(p) && !strings.ContainsFunc(p, unicode.IsControl)
}
