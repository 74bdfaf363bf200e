package replication

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// maxIdentifier is Postgres' NAMEDATALEN less one. Postgres cuts longer names silently; here they are errors.
const maxIdentifier = 63

// A Table is the name of a table as the catalog has it: unquoted, in its own case.
type Table struct{ Schema, Name string }

// ParseTable reads a table's name as SQL does: schema.table or table (then in public), each folded to lower case unless
// it is in double quotes, as in public."orderEvents". A quote inside quotes is doubled.
func ParseTable(s string) (Table, error) {
	var parts []string
	rest := s
	for {
		part, after, err := identifier(rest)
		if err != nil {
			return Table{}, fmt.Errorf("%q is not a table name: %w", s, err)
		}
		parts = append(parts, part)
		if after == "" {
			break
		}
		if after[0] != '.' {
			return Table{}, fmt.Errorf("%q is not a table name: %q stands where a dot or the end was expected", s, after)
		}
		rest = after[1:]
	}
	switch len(parts) {
	case 1:
		return Table{"public", parts[0]}, nil
	case 2:
		return Table{parts[0], parts[1]}, nil
	}
	return Table{}, fmt.Errorf("%q is not a table name: it has %d parts; write schema.table", s, len(parts))
}

// identifier cuts one SQL identifier off the front of s. Only ASCII letters are folded, as Postgres does in UTF8 databases.
func identifier(s string) (name, rest string, err error) {
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
			return name, rest, checkIdentifier(name)
		}
		return "", "", fmt.Errorf("a quote is not closed")
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
	return name, s[end:], checkIdentifier(name)
}

func firstRune(s string) string {
	_, n := utf8.DecodeRuneInString(s)
	return s[:n]
}

func checkIdentifier(name string) error {
	switch {
	case name == "":
		return fmt.Errorf("a name is empty")
	case len(name) > maxIdentifier:
		return fmt.Errorf("a name is longer than %d bytes", maxIdentifier)
	case !utf8.ValidString(name) || strings.ContainsRune(name, 0):
		return fmt.Errorf("a name is not valid UTF-8")
	}
	return nil
}

// String is the table as SQL would write it: quoted only where it must be.
func (t Table) String() string { return maybeQuote(t.Schema) + "." + maybeQuote(t.Name) }

// SQL is the table, quoted.
func (t Table) SQL() string { return quoteIdent(t.Schema) + "." + quoteIdent(t.Name) }

func maybeQuote(name string) string {
	if got, rest, err := identifier(name); err == nil && rest == "" && got == name {
		return name
	}
	return quoteIdent(name)
}

func quoteIdent(name string) string { return `"` + strings.ReplaceAll(name, `"`, `""`) + `"` }

// quoteLiteral writes a string constant that means the same whatever standard_conforming_strings says.
func quoteLiteral(s string) string {
	s = strings.ReplaceAll(s, "'", "''")
	if strings.Contains(s, `\`) {
		return ` E'` + strings.ReplaceAll(s, `\`, `\\`) + `'`
	}
	return "'" + s + "'"
}
