package pgvalue

import (
	"bytes"
	"fmt"
	"strings"
	"time"

	"github.com/walpost/walpost/router/internal/connect"
)

// A moment is a date and a time of day in Java's calendar without a limit (proleptic Gregorian;
// year 0 is 1 BC).
type moment struct {
	days   int64 // since 1970-01-01
	micros int64 // of the day; 24:00:00 is the whole day
}

const dayMicros = 86_400_000_000

// readDate reads a date such as "2024-02-29" and returns the rest of the text. The caller reads "
// BC" at the end.
func readDate(s []byte) (year, month, day int64, rest []byte, ok bool) {
	year, s, ok = readInt(s, 4, 7)
	if !ok || len(s) < 6 || s[0] != '-' || s[3] != '-' {
		return 0, 0, 0, nil, false
	}
	month, _, ok = readInt(s[1:3], 2, 2)
	if !ok || month < 1 || month > 12 {
		return 0, 0, 0, nil, false
	}
	day, _, ok = readInt(s[4:6], 2, 2)
	return year, month, day, s[6:], ok && day >= 1 && day <= 31 && year >= 1
}

// readClock reads a time such as "12:34:56.123456", up to 24:00:00, in microseconds. It returns the
// rest of the text.
func readClock(s []byte) (micros int64, rest []byte, ok bool) {
	if len(s) < 8 || s[2] != ':' || s[5] != ':' {
		return 0, nil, false
	}
	h, _, ok1 := readInt(s[:2], 2, 2)
	m, _, ok2 := readInt(s[3:5], 2, 2)
	sec, _, ok3 := readInt(s[6:8], 2, 2)
	if !ok1 || !ok2 || !ok3 || m > 59 || sec > 59 {
		return 0, nil, false
	}
	micros = ((h*60+m)*60 + sec) * 1_000_000
	if s = s[8:]; len(s) > 1 && s[0] == '.' {
		before := len(s) - 1
		var fraction int64
		if fraction, s, ok = readInt(s[1:], 1, 6); !ok {
			return 0, nil, false
		}
		for n := before - len(s); n < 6; n++ {
			fraction *= 10
		}
		micros += fraction
	}
	return micros, s, micros <= dayMicros
}

// readInt reads a number with at least least and at most most digits.
func readInt(s []byte, least, most int) (n int64, rest []byte, ok bool) {
	i := 0
	for ; i < len(s) && i < most && s[i] >= '0' && s[i] <= '9'; i++ {
		n = n*10 + int64(s[i]-'0')
	}
	return n, s[i:], i >= least
}

// A civil is what Postgres prints of a date, a time or a timestamp.
type civil struct {
	date, clock      bool // which parts are there
	year, month, day int64
	bc               bool   // before 1 AD: the year is 0 or less
	micros           int64  // of the day
	zone             []byte // the offset from UTC, if one is there
}

func readCivil(raw []byte) (c civil, ok bool) {
	s, bc := bytes.CutSuffix(raw, []byte(" BC"))
	if len(s) > 2 && s[2] != ':' {
		c.year, c.month, c.day, s, c.date = readDate(s)
		if c.bc = bc; bc {
			c.year = 1 - c.year
		}
		if len(s) == 0 || !c.date || s[0] != ' ' {
			return c, len(s) == 0 && c.date
		}
		s = s[1:]
	}
	c.micros, s, c.clock = readClock(s)
	if len(s) > 0 {
		c.zone = s
	}
	return c, c.clock && (c.date || !bc)
}

// days are those since 1970-01-01. valid is false if the month does not have the day.
func (c *civil) days() (days int64, valid bool) {
	at := midnight(c.year, c.month, c.day)
	return at.Unix() / 86_400, at.Day() == int(c.day)
}

func midnight(year, month, day int64) time.Time {
	return time.Date(int(year), time.Month(month), int(day), 0, 0, 0, 0, time.UTC)
}

// readZone reads an offset from UTC such as +05:30, in seconds. It has up to three parts.
func readZone(s []byte) (offset int64, parts int, ok bool) {
	if len(s) == 0 || s[0] != '+' && s[0] != '-' {
		return 0, 0, false
	}
	unit, rest := int64(3600), s[1:]
	for ; unit > 0; unit /= 60 {
		part, after, two := readInt(rest, 2, 2)
		if !two || part > 59 {
			return 0, 0, false
		}
		offset += part * unit
		parts++
		if rest = after; len(rest) == 0 {
			break
		}
		if rest[0] != ':' {
			return 0, 0, false
		}
		rest = rest[1:]
	}
	if s[0] == '-' {
		offset = -offset
	}
	return offset, parts, unit > 0
}

// julianDays are the days since 1970-01-01 of a date, which are days in the Gregorian calendar. Before 1582-10-15
// the old calendar of Java, which java.sql.Timestamp uses, is Julian.
func julianDays(c civil, days int64) int64 {
	if days >= -141427 { // 1582-10-15
		return days
	}
	year := c.year
	if c.month <= 2 {
		year--
	}
	four, ofFour := connect.FloorDiv(year, 4)
	return four*1461 + ofFour*365 + (153*((c.month+9)%12)+2)/5 + c.day - 1 - 719_470
}

// dateText is a date as Java's ISO_LOCAL_DATE prints it: +10000-01-01, -0043-03-15.
func dateText(days int64) string {
	year, month, day := connect.Civil(days)
	sign := ""
	switch {
	case year > 9999:
		sign = "+"
	case year < 0:
		sign, year = "-", -year
	}
	return fmt.Sprintf("%s%04d-%02d-%02d", sign, year, month, day)
}

// clockText has hours, minutes, seconds and so many digits of the fraction; with 0, as many as needed.
func clockText(micros int64, digits int) string {
	seconds, fraction := micros/1_000_000, micros%1_000_000
	text := fmt.Sprintf("%02d:%02d:%02d.%06d", seconds/3600, seconds/60%60, seconds%60, fraction)
	switch {
	case digits > 0:
		return text[:len(text)-6+digits]
	case fraction == 0:
		return text[:len(text)-len(".000000")]
	}
	return strings.TrimRight(text, "0")
}

// text is a moment as Java's ISO_INSTANT prints it.
func (at moment) text(digits int) string {
	return dateText(at.days) + "T" + clockText(at.micros, digits) + "Z"
}
