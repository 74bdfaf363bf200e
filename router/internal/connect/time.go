package connect

import "strconv"

const millisOfDay = 24 * 60 * 60 * 1000

// javaMillis is java.util.Date.getTime for the value of a Date, Time or Timestamp.
func javaMillis(s *Schema, v int64) int64 {
	if s.Name == DateName {
		return v * millisOfDay
	}
	return v
}

// A civil is a point in time in UTC in Java's calendar, which is Julian before October 15, 1582.
type civil struct {
	year                           int64 // before 1 BC or of it, as in Java: without a sign
	month, day, weekday            int   // 1 to 12, 1 to 31, 0 for Sunday
	hour, minute, second, ofSecond int
}

const cutover = -141427 // the day of October 15, 1582

func javaCivil(millis int64) civil {
	days, rest := floorDiv(millis, millisOfDay)
	c := civil{
		hour: int(rest / 3_600_000), minute: int(rest / 60_000 % 60), second: int(rest / 1000 % 60), ofSecond: int(rest % 1000),
	}
	_, weekday := floorDiv(days+4, 7) // 1970-01-01 was a Thursday
	c.weekday = int(weekday)
	// Years from March on, so that the leap day is the last: http://howardhinnant.github.io/date_algorithms.html
	var year, ofYear int64
	if days >= cutover {
		era, ofEra := floorDiv(days+719468, 146097)
		y := (ofEra - ofEra/1460 + ofEra/36524 - ofEra/146096) / 365
		year, ofYear = y+era*400, ofEra-(365*y+y/4-y/100)
	} else {
		era, ofEra := floorDiv(days+719470, 1461)
		y := (ofEra - ofEra/1460) / 365
		year, ofYear = y+era*4, ofEra-365*y
	}
	month := (5*ofYear + 2) / 153
	c.day = int(ofYear - (153*month+2)/5 + 1)
	if c.month = int(month) + 3; c.month > 12 {
		c.month -= 12
		year++
	}
	if c.year = year; year <= 0 {
		c.year = 1 - year
	}
	return c
}

func floorDiv(a, b int64) (quotient, rest int64) {
	quotient, rest = a/b, a%b
	if rest < 0 {
		quotient, rest = quotient-1, rest+b
	}
	return quotient, rest
}

const (
	weekdays = "SunMonTueWedThuFriSat"
	months   = "JanFebMarAprMayJunJulAugSepOctNovDec"
)

// appendJavaDate appends java.util.Date.toString, in UTC: Thu Feb 29 12:34:56 UTC 2024.
func appendJavaDate(dst []byte, millis int64) []byte {
	c := javaCivil(millis)
	dst = append(dst, weekdays[3*c.weekday:3*c.weekday+3]...)
	dst = append(dst, ' ')
	dst = append(dst, months[3*c.month-3:3*c.month]...)
	dst = append(dst, ' ')
	dst = append(appendDigits(dst, int64(c.day), 2), ' ')
	dst = append(appendDigits(dst, int64(c.hour), 2), ':')
	dst = append(appendDigits(dst, int64(c.minute), 2), ':')
	dst = appendDigits(dst, int64(c.second), 2)
	dst = append(dst, " UTC "...)
	return strconv.AppendInt(dst, c.year, 10)
}

// appendHeaderDate appends a java.util.Date in UTC as Connect's Values.convertToString does. A
// point in time before January 2, 1970 is written as a time of day, midnight as a date, and the
// rest as a timestamp.
func appendHeaderDate(dst []byte, millis int64) []byte {
	c := javaCivil(millis)
	if millis >= millisOfDay {
		dst = append(appendDigits(dst, c.year, 4), '-')
		dst = append(appendDigits(dst, int64(c.month), 2), '-')
		dst = appendDigits(dst, int64(c.day), 2)
		if millis%millisOfDay == 0 {
			return dst
		}
		dst = append(dst, 'T')
	}
	dst = append(appendDigits(dst, int64(c.hour), 2), ':')
	dst = append(appendDigits(dst, int64(c.minute), 2), ':')
	dst = append(appendDigits(dst, int64(c.second), 2), '.')
	return append(appendDigits(dst, int64(c.ofSecond), 3), 'Z')
}

// appendDigits appends n, which must not be negative, with at least so many digits.
func appendDigits(dst []byte, n int64, digits int) []byte {
	var buf [20]byte
	s := strconv.AppendInt(buf[:0], n, 10)
	for range digits - len(s) {
		dst = append(dst, '0')
	}
	return append(dst, s...)
}
