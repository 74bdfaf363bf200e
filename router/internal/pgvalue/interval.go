package pgvalue

import (
	"math"
	"strconv"
	"strings"

	"github.com/walpost/walpost/router/internal/connect"
)

// A span is an interval as PGInterval of the JDBC driver has it.
type span struct {
	years, months, days, hours, minutes int32
	seconds, micros                     int32
}

// readSpan reads an interval with IntervalStyle postgres: "-1 years +2 mons -04:05:06.789".
func readSpan(s string) (out span, ok bool) {
	fields := strings.Fields(strings.ReplaceAll(s, "+", " "))
	for i := 0; i < len(fields); i++ {
		if strings.IndexByte(fields[i], ':') >= 0 {
			if i != len(fields)-1 {
				return out, false
			}
			return out, out.clock(fields[i])
		}
		n, err := strconv.ParseInt(fields[i], 10, 32)
		if i++; err != nil || i == len(fields) {
			return out, false
		}
		switch unit := fields[i]; {
		case strings.HasPrefix(unit, "year"):
			out.years = int32(n)
		case strings.HasPrefix(unit, "mon"):
			out.months = int32(n)
		case strings.HasPrefix(unit, "day"):
			out.days = int32(n)
		default:
			return out, false
		}
	}
	return out, len(fields) > 0
}

func (out *span) clock(s string) bool {
	s, negative := strings.CutPrefix(s, "-")
	h, s, _ := strings.Cut(s, ":")
	m, sec, found := strings.Cut(s, ":")
	hours, err1 := strconv.ParseInt(h, 10, 32)
	minutes, err2 := strconv.ParseInt(m, 10, 32)
	seconds, ok := double(sec, 64)
	if err1 != nil || err2 != nil || !ok || !found || minutes < 0 || minutes > 59 || !(seconds >= 0 && seconds < 61) {
		return false
	}
	if negative {
		hours, minutes, seconds = -hours, -minutes, -seconds
	}
	out.hours, out.minutes = int32(hours), int32(minutes)
	total := int64(math.Floor(seconds*1_000_000 + 0.5))
	out.seconds, out.micros = int32(total/1_000_000), int32(total%1_000_000)
	return true
}

// fraction is PGInterval.getSeconds, including the rounding of a double.
func (out *span) fraction() float64 { return float64(out.seconds) + float64(out.micros)/1_000_000 }

// micros64 is Debezium's MicroDuration.durationMicros. A month has 30.4375 days. All steps are
// doubles, and each step rounds.
func (out *span) micros64() int64 {
	const daysPerMonth = 365.25 / 12.0
	n := float64(float64(out.years*12+out.months)*daysPerMonth) + float64(out.days)
	n = float64(n*24) + float64(out.hours)
	n = float64(n*60) + float64(out.minutes)
	n = float64(n*60) + out.fraction()
	switch n = float64(n * 1e6); {
	case n >= math.MaxInt64:
		return math.MaxInt64
	case n <= math.MinInt64:
		return math.MinInt64
	}
	return int64(n)
}

// iso is Debezium's Interval.toIsoString. Seconds have at most nine digits after the point; the
// others are cut off.
func (out *span) iso() string {
	seconds := strconv.FormatFloat(out.fraction(), 'f', -1, 64)
	if whole, fraction, ok := strings.Cut(seconds, "."); ok {
		fraction = strings.TrimRight(fraction[:min(len(fraction), 9)], "0")
		if seconds = whole; fraction != "" {
			seconds += "." + fraction
		}
	}
	if seconds == "-0" {
		seconds = "0"
	}
	b := make([]byte, 0, 40)
	b = append(b, 'P')
	for _, part := range []struct {
		n    int32
		unit string
	}{{out.years, "Y"}, {out.months, "M"}, {out.days, "DT"}, {out.hours, "H"}, {out.minutes, "M"}} {
		b = append(strconv.AppendInt(b, int64(part.n), 10), part.unit...)
	}
	return string(append(append(b, seconds...), 'S'))
}

func interval(m Modes) *representation {
	read := func(raw []byte) (span, error) {
		s, ok := readSpan(string(raw))
		if !ok {
			return s, noValue(raw, "interval that Debezium can read")
		}
		return s, nil
	}
	if m.Interval == "string" {
		return named(connect.String, "io.debezium.time.Interval", parseWith(read, func(s span) any { return s.iso() }))
	}
	return named(connect.Int64, "io.debezium.time.MicroDuration", parseWith(read, func(s span) any { return s.micros64() }))
}
