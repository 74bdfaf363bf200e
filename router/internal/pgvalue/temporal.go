package pgvalue

import (
	"bytes"
	"math"
	"math/bits"
	"slices"

	"github.com/walpost/walpost/router/internal/connect"
)

// precision is the number of fraction digits of a time type, and 6 if the column has none.
func precision(t pgType) int {
	if t.mod < 0 || t.mod > 6 {
		return 6
	}
	return int(t.mod)
}

func isInfinity(raw []byte) bool { return string(raw) == "infinity" || string(raw) == "-infinity" }

// The days at which java.sql.Date and java.sql.Timestamp have an infinity.
const (
	javaLast  = 106_751_991_166 // 292278994-08-16
	javaFirst = 106_748_361_128 // 292269055-12-02
)

// date is the number of days since 1970. For an infinity, it is the low 32 bits of Debezium's days.
func date(m Modes) *representation {
	read := func(raw []byte) (days int64, err error) {
		switch string(raw) {
		case "infinity":
			return -2_147_472_692, nil
		case "-infinity":
			return -2_147_472_691, nil
		}
		c, ok := readCivil(raw)
		days, valid := c.days()
		if !ok || c.clock || !valid {
			return 0, noValue(raw, "date in ISO format")
		}
		return days, nil
	}
	// An element of an array is a java.sql.Date first. It has no era, and the ten days that the
	// Gregorian calendar left out become later days.
	element := func(raw []byte) (days int64, err error) {
		switch string(raw) {
		case "infinity":
			return javaLast, nil
		case "-infinity":
			return javaFirst, nil
		}
		c, ok := readCivil(raw)
		if !ok || c.clock {
			return 0, noValue(raw, "date in ISO format")
		}
		return c.oldCalendarDays()
	}
	if m.Time == "isostring" {
		print := func(days int64) any { return dateText(days) + "Z" }
		parse := parseWith(read, print)
		r := named(connect.String, "io.debezium.time.IsoDate", func(raw []byte) (any, error) {
			switch string(raw) {
			case "infinity":
				return "-5877611-06-21Z", nil
			case "-infinity":
				return "-5877611-06-22Z", nil
			}
			return parse(raw)
		})
		r.element = parseWith(element, print)
		return r
	}
	name := "io.debezium.time.Date"
	if m.Time == "connect" {
		name = connect.DateName
	}
	r := named(connect.Int32, name, parseWith(read, func(days int64) any { return days }))
	r.element = parseWith(element, func(days int64) any { return int64(int32(days)) })
	return r
}

// oldCalendarDays are the days of a date in Java's old calendar, which ignores the era.
func (c civil) oldCalendarDays() (int64, error) {
	if c.bc {
		c.year = 1 - c.year
	} else if c.year == 1582 && c.month == 10 && c.day >= 5 && c.day < 15 {
		c.day += 10
	}
	days, valid := c.days()
	if !valid {
		return 0, errLeftOut
	}
	return days, nil
}

// timeOfDay is a time. The mode adaptive takes milliseconds if the column has no more than three
// digits.
func timeOfDay(t pgType, m Modes) *representation {
	name, typ, unit := "io.debezium.time.MicroTime", connect.Int64, int64(1)
	iso := false
	switch m.Time {
	case "", "adaptive":
		if precision(t) <= 3 {
			name, typ, unit = "io.debezium.time.Time", connect.Int32, 1000
		}
	case "connect":
		name, typ, unit = connect.TimeName, connect.Int32, 1000
	case "nanoseconds":
		name, unit = "io.debezium.time.NanoTime", -1000
	case "isostring":
		name, typ, iso = "io.debezium.time.IsoTime", connect.String, true
	}
	value := func(micros int64) any {
		switch {
		case iso:
			return clockText(micros%dayMicros, 0) + "Z"
		case unit < 0:
			return micros * -unit
		}
		return micros / unit
	}
	read := func(raw []byte) (int64, error) {
		c, ok := readCivil(raw)
		if !ok || c.date || c.zone != nil {
			return 0, noValue(raw, "time of day")
		}
		return c.micros, nil
	}
	r := named(typ, name, parseWith(read, value))
	// An element is a java.sql.Time first: milliseconds, and 24:00:00 is midnight.
	r.element = parseWith(read, func(micros int64) any { return value(micros % dayMicros / 1000 * 1000) })
	return r
}

// timetz is the time in UTC. An element of an array is a java.sql.Time first: it has whole seconds,
// and its time zone may have seconds.
func timetz() *representation {
	parse := func(raw []byte, seconds bool) (any, error) {
		c, ok := readCivil(raw)
		offset, parts, isZone := readZone(c.zone)
		if !ok || c.date || !isZone || max(offset, -offset) > 18*3600 { // the limit of Java; the limit of Postgres is lower
			return nil, noValue(raw, "time of day with a time zone")
		}
		if parts == 3 && !seconds {
			return nil, noValue(raw, "time of day that Debezium can read: its time zone has seconds")
		}
		_, micros := connect.FloorDiv(c.micros-offset*1_000_000, dayMicros)
		if seconds {
			micros = micros / 1_000_000 * 1_000_000
		}
		return clockText(micros, 0) + "Z", nil
	}
	r := named(connect.String, "io.debezium.time.ZonedTime", func(raw []byte) (any, error) { return parse(raw, false) })
	r.element = func(raw []byte) (any, error) { return parse(raw, true) }
	return r
}

// stamp is one form of a moment. ok is false if the form cannot hold the moment.
type stamp struct {
	name                    string
	typ                     connect.Type
	value                   func(moment) (v any, ok bool)
	infinity, minusInfinity any
}

// Debezium treats an infinity as a moment: the milliseconds that its JDBC driver has for it.
var (
	epochMillis = func(at moment) (any, bool) { return at.days*86_400_000 + at.micros/1000, true }
	stampMillis = stamp{"io.debezium.time.Timestamp", connect.Int64, epochMillis, int64(9_223_372_036_825_200), int64(-9_223_372_036_832_400)}
	stampDate   = stamp{connect.TimestampName, connect.Int64, epochMillis, int64(9_223_372_036_825_200), int64(-9_223_372_036_832_400)}
	stampMicros = stamp{"io.debezium.time.MicroTimestamp", connect.Int64, epochMicros, int64(9_223_372_036_825_200_000), int64(-9_223_372_036_832_400_000)}
	stampNanos  = stamp{"io.debezium.time.NanoTimestamp", connect.Int64, epochNanos, int64(math.MaxInt64), int64(math.MinInt64)}
	stampISO    = stamp{"io.debezium.time.IsoTimestamp", connect.String, func(at moment) (any, bool) { return at.text(0), true }, "+294247-01-10T04:00:25.2Z", "-290308-12-21T19:59:27.6Z"}
)

// epochMicros overflows as in Debezium: whole seconds stop at the largest number, and then the
// fraction wraps around.
func epochMicros(at moment) (any, bool) {
	seconds := at.days*86_400 + at.micros/1_000_000
	micros := seconds * 1_000_000
	if seconds > math.MaxInt64/1_000_000 {
		micros = math.MaxInt64
	} else if seconds < math.MinInt64/1_000_000 {
		micros = math.MinInt64
	}
	return micros + at.micros%1_000_000, true
}

func epochNanos(at moment) (any, bool) {
	const dayNanos = dayMicros * 1000
	high, low := bits.Mul64(uint64(max(at.days, -at.days)), dayNanos)
	if high != 0 || low > math.MaxInt64 {
		return nil, false
	}
	nanos, add := at.days*dayNanos, at.micros*1000
	return nanos + add, nanos <= math.MaxInt64-add
}

// stampOf returns the form for time.precision.mode.
func stampOf(t pgType, m Modes) stamp {
	switch m.Time {
	case "connect":
		return stampDate
	case "isostring":
		return stampISO
	case "microseconds":
		return stampMicros
	case "nanoseconds":
		return stampNanos
	}
	if precision(t) <= 3 {
		return stampMillis
	}
	return stampMicros
}

func timestamp(t pgType, m Modes) *representation {
	form := stampOf(t, m)
	read := func(shift func(c civil, days int64) int64) func(raw []byte) (any, error) {
		return func(raw []byte) (any, error) {
			if isInfinity(raw) {
				if raw[0] == '-' {
					return form.minusInfinity, nil
				}
				return form.infinity, nil
			}
			c, ok := readCivil(raw)
			if days, valid := c.days(); !ok || !c.date || !c.clock || c.zone != nil || !valid {
				return nil, noValue(raw, "timestamp in ISO format")
			} else if v, fits := form.value(normal(moment{shift(c, days), c.micros})); fits {
				return v, nil
			}
			return nil, nil
		}
	}
	r := named(form.typ, form.name, read(func(_ civil, days int64) int64 { return days }))
	r.element = read(julianDays) // an element is a java.sql.Timestamp first
	return r
}

var micros = timestamp(pgType{mod: -1}, Modes{Time: "microseconds"}).parse

// Micros returns the microseconds since 1970 of a timestamp, or of a timestamptz printed in UTC. An
// infinity is a moment, as in Debezium.
func Micros(raw []byte) (int64, error) {
	if before, after, zoned := bytes.Cut(raw, []byte("+00")); zoned {
		raw = slices.Concat(before, after)
	}
	v, err := micros(raw)
	if err != nil {
		return 0, err
	}
	return v.(int64), nil
}

// normal changes 24:00:00 into the start of the next day.
func normal(at moment) moment {
	if at.micros == dayMicros {
		return moment{at.days + 1, 0}
	}
	return at
}

// inUTC reads a timestamptz that is printed in UTC.
func inUTC(raw []byte) (c civil, days int64, err error) {
	c, ok := readCivil(raw)
	days, valid := c.days()
	if !ok || !c.date || string(c.zone) != "+00" || !valid {
		err = noValue(raw, "timestamp in ISO format in UTC")
	}
	return c, days, err
}

// timestamptz has exactly the digits of the column in every time.precision.mode.
func timestamptz(t pgType) *representation {
	digits := precision(t)
	r := named(connect.String, "io.debezium.time.ZonedTimestamp", func(raw []byte) (any, error) {
		if isInfinity(raw) {
			return string(raw), nil
		}
		c, days, err := inUTC(raw)
		if err != nil {
			return nil, err
		}
		return normal(moment{days, c.micros}).text(digits), nil
	})
	r.element = func(raw []byte) (any, error) { // an element is a java.sql.Timestamp first
		switch string(raw) {
		case "infinity":
			return "infinity", nil
		case "-infinity":
			return moment{javaFirst, 23 * 3_600_000_000}.text(digits), nil
		}
		c, days, err := inUTC(raw)
		if err == nil {
			days, err = c.oldCalendarDays()
		}
		if err != nil {
			return nil, err
		}
		return normal(moment{days, c.micros}).text(digits), nil
	}
	return r
}
