package router

import (
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/walpost/walpost/cdc"
)

// A convert appends to dst what a converter makes of a column's text. It does not keep raw.
type convert func(dst, raw []byte) ([]byte, error)

// Type OIDs of Postgres' catalog (pg_type.dat); they never change.
const (
	oidBool, oidBytea, oidName                = 16, 17, 19
	oidInt8, oidInt2, oidInt4                 = 20, 21, 23
	oidText, oidOID, oidJSON, oidXML          = 25, 26, 114, 142
	oidFloat4, oidFloat8                      = 700, 701
	oidCIDR, oidMacaddr, oidInet, oidMacaddr8 = 650, 829, 869, 774
	oidBPChar, oidVarchar, oidDate, oidTime   = 1042, 1043, 1082, 1083
	oidTimestamp, oidTimestamptz, oidNumeric  = 1114, 1184, 1700
	oidUUID, oidJSONB                         = 2950, 3802
	firstUserOID                              = 16384
)

// use is what a value is converted for.
type use uint8

const (
	forRecord use = iota // key or value, by Connect's StringConverter
	forHeader            // by SimpleHeaderConverter
)

// converterFor chooses how a column becomes bytes. asIs says that the column's text is taken as it stands. A type that would
// come out differently from what the EventRouter gives is refused.
func converterFor(col *cdc.Column, u use) (c convert, asIs bool, err error) {
	oid := col.TypeOID
	if col.BaseType != 0 {
		oid = col.BaseType
	}
	switch oid {
	case oidText, oidVarchar, oidBPChar, oidName, oidJSON, oidJSONB, oidXML, oidUUID, oidInt2, oidInt4, oidInt8, oidOID,
		oidCIDR, oidInet, oidMacaddr, oidMacaddr8:
		return nil, true, nil
	case 3904, 3906, 3908, 3910, 3912, 3926: // the built-in ranges
		return nil, true, nil
	case oidBool:
		return boolean, false, nil
	case oidFloat4:
		return func(dst, raw []byte) ([]byte, error) { return javaFloat(dst, raw, 32) }, false, nil
	case oidFloat8:
		return func(dst, raw []byte) ([]byte, error) { return javaFloat(dst, raw, 64) }, false, nil
	case oidNumeric:
		if col.TypeMod >= 0 {
			return bigDecimal, false, nil
		}
		return nil, false, notYet(col, "numeric without precision and scale")
	case oidDate:
		return epochDays, false, nil
	case oidTime:
		return func(dst, raw []byte) ([]byte, error) { return clockTime(dst, raw, millis(col)) }, false, nil
	case oidTimestamp:
		return func(dst, raw []byte) ([]byte, error) {
			us, err := micros(raw)
			if millis(col) {
				us /= 1000
			}
			return strconv.AppendInt(dst, us, 10), err
		}, false, nil
	case oidTimestamptz:
		return func(dst, raw []byte) ([]byte, error) { return zoned(dst, raw, precision(col)) }, false, nil
	case oidBytea:
		if u == forHeader {
			return base64Bytes, false, nil
		}
		return nil, false, notYet(col, "bytea needs the binary converter, which is")
	}
	if oid >= firstUserOID && col.ElementType == 0 && (len(col.EnumLabels) > 0 || col.TypeName == "citext" || strings.HasSuffix(col.TypeName, ".citext")) {
		return nil, true, nil
	}
	return nil, false, notYet(col, "")
}

func notYet(col *cdc.Column, why string) error {
	name := col.TypeName
	if name == "" {
		name = fmt.Sprintf("type with OID %d", col.TypeOID)
	}
	if why == "" {
		why = "it is"
	}
	return fmt.Errorf("column %s is a %s: %s not supported yet (a column of type text, or a cast in a generated column, works)", col.Name, name, why)
}

// precision is the number of fraction digits of a time type: its typmod, 6 where it has none.
func precision(col *cdc.Column) int {
	if col.TypeMod < 0 || col.TypeMod > 6 {
		return 6
	}
	return int(col.TypeMod)
}

// millis says whether a time type is kept in milliseconds: Debezium's time.precision.mode adaptive.
func millis(col *cdc.Column) bool { return precision(col) <= 3 }

func boolean(dst, raw []byte) ([]byte, error) {
	switch string(raw) {
	case "t":
		return append(dst, "true"...), nil
	case "f":
		return append(dst, "false"...), nil
	}
	return dst, fmt.Errorf("%q is no boolean", raw)
}

func base64Bytes(dst, raw []byte) ([]byte, error) {
	if len(raw) < 2 || raw[0] != '\\' || raw[1] != 'x' {
		return dst, fmt.Errorf("%.20q is no bytea in hex format", raw)
	}
	b := make([]byte, hex.DecodedLen(len(raw)-2))
	if _, err := hex.Decode(b, raw[2:]); err != nil {
		return dst, fmt.Errorf("bytea: %w", err)
	}
	return base64.StdEncoding.AppendEncode(dst, b), nil
}

// javaFloat prints as Java's Double.toString and Float.toString do (JDK 19 and newer: the shortest digits that read back).
func javaFloat(dst, raw []byte, bits int) ([]byte, error) {
	f, err := strconv.ParseFloat(string(raw), bits)
	if err != nil && !math.IsInf(f, 0) {
		return dst, fmt.Errorf("%q is no float: %w", raw, err)
	}
	switch {
	case math.IsNaN(f):
		return append(dst, "NaN"...), nil
	case math.IsInf(f, 1):
		return append(dst, "Infinity"...), nil
	case math.IsInf(f, -1):
		return append(dst, "-Infinity"...), nil
	}
	if a := math.Abs(f); a != 0 && (a < 1e-3 || a >= 1e7) {
		s := strconv.FormatFloat(f, 'E', -1, bits) // 1E+07
		digits, exp, _ := strings.Cut(s, "E")
		if !strings.Contains(digits, ".") {
			digits += ".0"
		}
		n, _ := strconv.Atoi(exp) //nolint:errcheck // FormatFloat wrote it
		return append(dst, digits+"E"+strconv.Itoa(n)...), nil
	}
	s := strconv.FormatFloat(f, 'f', -1, bits)
	if !strings.Contains(s, ".") {
		s += ".0"
	}
	return append(dst, s...), nil
}

// bigDecimal prints as java.math.BigDecimal.toString does: plain, but with an exponent where more than six zeros would
// follow the point.
func bigDecimal(dst, raw []byte) ([]byte, error) {
	s := string(raw)
	if s == "NaN" || strings.HasSuffix(s, "Infinity") {
		return dst, fmt.Errorf("numeric %s has no decimal value", s)
	}
	sign, abs := "", s
	if strings.HasPrefix(s, "-") {
		sign, abs = "-", s[1:]
	}
	whole, frac, _ := strings.Cut(abs, ".")
	digits := strings.TrimLeft(whole+frac, "0")
	if digits == "" {
		digits = "0"
	}
	scale := len(frac)
	adjusted := len(digits) - 1 - scale
	if adjusted >= -6 {
		return append(dst, s...), nil
	}
	out := sign + digits[:1]
	if len(digits) > 1 {
		out += "." + digits[1:]
	}
	return append(dst, out+"E"+strconv.Itoa(adjusted)...), nil
}

// civil reads Postgres' ISO date, "2024-02-29" or "0044-03-15 BC", at the start of s, and returns what follows it.
func civil(s string) (year int, month time.Month, day int, rest string, err error) {
	if strings.HasPrefix(s, "infinity") || strings.HasPrefix(s, "-infinity") {
		return 0, 0, 0, "", fmt.Errorf("%s is not supported yet", s)
	}
	bad := fmt.Errorf("%q is no date in ISO format", s)
	parts := strings.SplitN(s, "-", 3)
	if len(parts) != 3 || len(parts[2]) < 2 {
		return 0, 0, 0, "", bad
	}
	y, err1 := strconv.Atoi(parts[0])
	m, err2 := strconv.Atoi(parts[1])
	d, err3 := strconv.Atoi(parts[2][:2])
	if err1 != nil || err2 != nil || err3 != nil {
		return 0, 0, 0, "", bad
	}
	rest, bc := strings.CutSuffix(parts[2][2:], " BC")
	if bc {
		y = 1 - y
	}
	return y, time.Month(m), d, rest, nil
}

func epochDays(dst, raw []byte) ([]byte, error) {
	y, m, d, _, err := civil(string(raw))
	return strconv.AppendInt(dst, time.Date(y, m, d, 0, 0, 0, 0, time.UTC).Unix()/86400, 10), err
}

// clock reads "12:34:56.123456" and returns it in microseconds.
func clock(s string) (int64, error) {
	hms, frac, _ := strings.Cut(s, ".")
	var h, m, sec int64
	if n, err := fmt.Sscanf(hms, "%d:%d:%d", &h, &m, &sec); n != 3 || err != nil {
		return 0, fmt.Errorf("%q is no time of day", s)
	}
	us, err := strconv.ParseInt((frac + "000000")[:6], 10, 64)
	if err != nil || len(frac) > 6 {
		return 0, fmt.Errorf("%q is no time of day", s)
	}
	return ((h*60+m)*60+sec)*1_000_000 + us, nil
}

func clockTime(dst, raw []byte, ms bool) ([]byte, error) {
	us, err := clock(string(raw))
	if ms {
		us /= 1000
	}
	return strconv.AppendInt(dst, us, 10), err
}

// instant reads a timestamp, or a timestamptz printed with TimeZone UTC ("2024-02-29 12:34:56.5+00").
func instant(raw []byte) (time.Time, error) {
	y, m, d, rest, err := civil(string(raw))
	if err != nil {
		return time.Time{}, err
	}
	rest, found := strings.CutPrefix(rest, " ")
	if !found {
		return time.Time{}, fmt.Errorf("%q is no timestamp in ISO format", raw)
	}
	us, err := clock(strings.TrimSuffix(rest, "+00"))
	return time.Date(y, m, d, 0, 0, 0, 0, time.UTC).Add(time.Duration(us) * time.Microsecond), err
}

func micros(raw []byte) (int64, error) {
	t, err := instant(raw)
	return t.UnixMicro(), err
}

// zoned prints a timestamptz as Debezium's ZonedTimestamp: in UTC, with exactly the digits of the column's precision.
func zoned(dst, raw []byte, digits int) ([]byte, error) {
	if s := string(raw); s == "infinity" || s == "-infinity" {
		return append(dst, raw...), nil
	}
	t, err := instant(raw)
	if err != nil {
		return dst, err
	}
	if t.Year() < 1 || t.Year() > 9999 {
		return dst, fmt.Errorf("%q: years outside 1 to 9999 are not supported yet", raw)
	}
	layout := "2006-01-02T15:04:05Z"
	if digits > 0 {
		layout = "2006-01-02T15:04:05." + "000000"[:digits] + "Z"
	}
	return t.AppendFormat(dst, layout), nil
}
