package pgvalue

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/walpost/walpost/router/internal/connect"
)

// readInterval reads an interval with IntervalStyle postgres: "-1 years +2 mons -04:05:06.789". The hours must fit
// into PGInterval of the JDBC driver.
func readInterval(raw []byte) (out pgtype.Interval, err error) {
	if err = out.Scan(string(raw)); err != nil || out.Microseconds/microsPerHour != int64(int32(out.Microseconds/microsPerHour)) {
		err = noValue(raw, "interval that Debezium can read")
	}
	return out, err
}

const microsPerHour = 3_600_000_000

// seconds is PGInterval.getSeconds, including the rounding of a double.
func seconds(in pgtype.Interval) float64 {
	return float64(in.Microseconds/1_000_000%60) + float64(in.Microseconds%1_000_000)/1_000_000
}

// durationMicros is Debezium's MicroDuration.durationMicros. A month has 30.4375 days. All steps are
// doubles, and each step rounds.
func durationMicros(in pgtype.Interval) any {
	const daysPerMonth = 365.25 / 12.0
	n := float64(float64(in.Months)*daysPerMonth) + float64(in.Days)
	n = float64(n*24) + float64(in.Microseconds/microsPerHour)
	n = float64(n*60) + float64(in.Microseconds/60_000_000%60)
	n = float64(n*60) + seconds(in)
	switch n = float64(n * 1e6); {
	case n >= math.MaxInt64:
		return int64(math.MaxInt64)
	case n <= math.MinInt64:
		return int64(math.MinInt64)
	}
	return int64(n)
}

// isoInterval is Debezium's Interval.toIsoString. Seconds have at most nine digits after the point; the
// others are cut off.
func isoInterval(in pgtype.Interval) any {
	text := strconv.FormatFloat(seconds(in), 'f', -1, 64)
	if whole, fraction, ok := strings.Cut(text, "."); ok {
		text = strings.TrimSuffix(whole+"."+strings.TrimRight(fraction[:min(len(fraction), 9)], "0"), ".")
	}
	if text == "-0" {
		text = "0"
	}
	return fmt.Sprintf("P%dY%dM%dDT%dH%dM%sS", in.Months/12, in.Months%12, in.Days, in.Microseconds/microsPerHour, in.Microseconds/60_000_000%60, text)
}

func interval(m Modes) *representation {
	if m.Interval == "string" {
		return named(connect.String, "io.debezium.time.Interval", parseWith(readInterval, isoInterval))
	}
	return named(connect.Int64, "io.debezium.time.MicroDuration", parseWith(readInterval, durationMicros))
}
