package pgvalue

import (
	"regexp"
	"strings"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/walpost/walpost/router/internal/connect"
)

// defaultOf is the default that Debezium makes from the text that pg_get_expr prints for a column.
// Debezium does not evaluate the expression. For a literal it takes the first text in quotes, so a
// literal with a quote in it is cut off there. For the call of a function it has one value per type
// (now() is 1970). Every other expression, and every other type, gives no default.
func defaultOf(t pgType, m Modes, v *representation, expr string) (value any, ok bool) {
	if t.element != nil {
		return nil, false
	}
	if len(t.labels) > 0 {
		return enumDefault(expr)
	}
	generated, hasDefault := generatedDefaults[t.oid]
	if !hasDefault {
		return nil, false
	}
	if _, isText := texts[t.oid]; !isText || t.oid == pgtype.UUIDOID {
		expr = javaTrim(expr)
	}
	s, ok := literal(expr, generated)
	switch t.oid {
	case pgtype.IntervalOID:
		if s == "epoch" || strings.HasPrefix(expr, "NULL::") {
			s, ok = "00:00:00", true
		}
	case pgtype.TimeOID:
		if s == "24:00:00" {
			return endOfDay(m, v)
		}
	}
	if !ok {
		return nil, false
	}
	switch t.oid {
	case pgtype.BitOID:
		if len(s) == 1 && v.schema.Type == connect.Boolean {
			return s == "1", true
		} else if len(s) == 1 {
			return []byte{map[bool]byte{true: 1}[s == "1"]}, true
		}
		return bitsDefault(v, s)
	case pgtype.VarbitOID:
		return bitsDefault(v, s)
	case pgtype.BoolOID:
		return strings.EqualFold(s, "true"), true
	case pgtype.NumericOID:
		if v.schema.Type == connect.Struct {
			return nil, false
		}
		return parsed(v.element, s)
	case pgtype.Float4OID, pgtype.Float8OID:
		return parsed(v.parse, javaTrim(s))
	case pgtype.Int2OID, pgtype.Int4OID, pgtype.Int8OID, pgtype.IntervalOID, pgtype.TimeOID:
		return parsed(v.parse, s)
	case pgtype.UUIDOID:
		s = strings.ToLower(s)
		return s, uuid.MatchString(s)
	case pgtype.DateOID, pgtype.TimestampOID, pgtype.TimestamptzOID:
		return temporalDefault(t, m, s)
	}
	return s, true // a text
}

// generatedDefaults are the values for the call of a function, by the types that have defaults.
var generatedDefaults = map[uint32]string{
	pgtype.BitOID: "00", pgtype.VarbitOID: "0", pgtype.BoolOID: "false",
	pgtype.TextOID: "", pgtype.VarcharOID: "", pgtype.BPCharOID: "", pgtype.XMLOID: "", pgtype.JSONOID: "{}", pgtype.JSONBOID: "{}",
	pgtype.NumericOID: "0.0", pgtype.Float4OID: "0.0", pgtype.Float8OID: "0.0", pgtype.Int2OID: "0", pgtype.Int4OID: "0", pgtype.Int8OID: "0",
	pgtype.UUIDOID: "00000000-0000-0000-0000-000000000000", pgtype.IntervalOID: "epoch", pgtype.TimeOID: "00:00:00",
	pgtype.DateOID: "1970-01-01", pgtype.TimestampOID: "1970-01-01", pgtype.TimestamptzOID: "1970-01-01",
}

// bitsDefault reads every character that is not 1 as 0, even in an expression.
func bitsDefault(v *representation, s string) (any, bool) {
	if v.schema.Type == connect.Boolean {
		return parsed(v.parse, s)
	}
	return parsed(v.parse, strings.Map(func(r rune) rune {
		if r == '1' {
			return r
		}
		return '0'
	}, s))
}

// javaTrim is Java's String.trim.
func javaTrim(s string) string { return strings.TrimFunc(s, func(r rune) bool { return r <= ' ' }) }

func parsed(parse func([]byte) (any, error), s string) (any, bool) {
	v, err := parse([]byte(s))
	return v, err == nil && v != nil
}

// literal is the text of a literal. For the call of a function it is generated.
func literal(expr, generated string) (string, bool) {
	if call.MatchString(expr) {
		return generated, true
	}
	switch strings.ToLower(expr) {
	case "current_timestamp", "current_time", "current_date", "localtime", "localtimestamp":
		return generated, true
	}
	if !strings.Contains(expr, "'") {
		return expr, !strings.HasPrefix(expr, "NULL::")
	}
	if m := firstQuoted.FindStringSubmatch(expr); m != nil {
		return m[1], true
	}
	return "", false
}

// Debezium's patterns. In Java a dot matches every character but the end of a line.
var (
	firstQuoted = regexp.MustCompile(`'([^\n\r\x{85}\x{2028}\x{2029}]*?)'`)                   // '(.*?)'
	call        = regexp.MustCompile(`^[(]?[A-Za-z0-9_.]+\([^\n\r\x{85}\x{2028}\x{2029}]*\)`) // ^[(]?[A-Za-z0-9_.]+\((?:.+(?:, ?.+)*)?\)
	uuid        = regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)           // as Postgres prints it
)

// enumDefault reads 'label'::type. Quotes in the label stay doubled.
func enumDefault(expr string) (any, bool) {
	cast := strings.LastIndex(expr, "::")
	if cast < 2 || expr[0] != '\'' || expr[cast-1] != '\'' {
		return nil, false
	}
	return expr[1 : cast-1], true
}

// In a default, unlike in a value, the ends of Java's calendar stand for infinity.
const (
	lastYear   = 999_999_999
	lastDigits = "23:59:59.999999999"
)

// endOfDay is 24:00:00, which Java's time of day does not have.
func endOfDay(m Modes, v *representation) (any, bool) {
	switch m.Time {
	case "isostring":
		return lastDigits + "Z", true
	case "nanoseconds":
		return int64(dayMicros*1000 - 1), true
	}
	return parsed(v.parse, "23:59:59.999999")
}

func temporalDefault(t pgType, m Modes, s string) (any, bool) {
	if s == "infinity" || s == "-infinity" {
		return endOfTime(t, m, s[0] == '-')
	}
	at, ok := readAny(s)
	if !ok {
		return nil, false
	}
	switch t.oid {
	case pgtype.DateOID:
		if m.Time == "isostring" {
			return dateText(at.days) + "Z", true
		}
		return int64(int32(at.days)), true
	case pgtype.TimestamptzOID:
		return at.text(precision(t)), true
	}
	return stampOf(t, m).value(at)
}

func endOfTime(t pgType, m Modes, first bool) (any, bool) {
	at, iso := moment{midnight(lastYear, 12, 31).Unix() / 86_400, dayMicros - 1}, "+999999999-12-31T"+lastDigits+"Z"
	if first {
		at, iso = moment{midnight(-lastYear, 1, 1).Unix() / 86_400, 0}, "-999999999-01-01T00:00:00Z"
	}
	switch {
	case t.oid == pgtype.DateOID && m.Time == "isostring":
		return dateText(at.days) + "Z", true
	case t.oid == pgtype.DateOID:
		return int64(int32(at.days)), true
	case t.oid == pgtype.TimestamptzOID:
		return nil, false
	case m.Time == "isostring":
		return iso, true
	}
	if s := stampOf(t, m); s.name == stampMicros.name {
		return s.value(at)
	}
	return nil, false // the value overflows
}

// readAny reads a date, a timestamp or a timestamptz as a moment in UTC.
func readAny(s string) (at moment, ok bool) {
	c, ok := readCivil([]byte(s))
	days, valid := c.days()
	if !ok || !c.date || !valid {
		return at, false
	}
	offset := int64(0)
	if c.zone != nil {
		offset, _, ok = readZone(c.zone)
	}
	shift, micros := connect.FloorDiv(c.micros-offset*1_000_000, dayMicros)
	return moment{days + shift, micros}, ok
}
