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
	year                           int64 // without a sign before 1 AD, as in Java
	month, day, weekday            int   // 1 to 12, 1 to 31, 0 for Sunday
	hour, minute, second, ofSecond int
}

const cutover = -141427 // the day of October 15, 1582

func javaCivil(millis int64) civil {
	days, rest := FloorDiv(millis, millisOfDay)
	c := civil{
		hour: int(rest / 3_600_000), minute: int(rest / 60_000 % 60), second: int(rest / 1000 % 60), ofSecond: int(rest % 1000),
	}
	_, weekday := FloorDiv(days+4, 7) // 1970-01-01 was a Thursday
	year, month, day := julian(days)
	if days >= cutover {
		year, month, day = Civil(days)
	}
	if year <= 0 {
		year = 1 - year
	}
	c.year, c.month, c.day, c.weekday = year, int(month), int(day), int(weekday)
	return c
}

// Civil is the date of a number of days since 1970-01-01 in the Gregorian calendar. Year 0 is 1 BC.
func Civil(days int64) (year, month, day int64) {
	era, ofEra := FloorDiv(days+719_468, 146_097)
	y := (ofEra - ofEra/1460 + ofEra/36_524 - ofEra/146_096) / 365
	return fromMarch(y+era*400, ofEra-(365*y+y/4-y/100))
}

// julian is Civil for the Julian calendar.
func julian(days int64) (year, month, day int64) {
	era, ofEra := FloorDiv(days+719_470, 1461)
	y := (ofEra - ofEra/1460) / 365
	return fromMarch(y+era*4, ofEra-365*y)
}

// fromMarch is the date of a day of a year that begins on March 1, so that its leap day is the last
// (http://howardhinnant.github.io/date_algorithms.html).
func fromMarch(year, ofYear int64) (_, month, day int64) {
	shifted := (5*ofYear + 2) / 153
	day = ofYear - (153*shifted+2)/5 + 1
	if month = shifted + 3; month > 12 {
		return year + 1, month - 12, day
	}
	return year, month, day
}

// FloorDiv is a divided by b > 0, rounded down, and the rest, which is 0 or more.
func FloorDiv(a, b int64) (quotient, rest int64) {
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
	dst = append(AppendPadded(dst, int64(c.day), 2), ' ')
	dst = append(AppendPadded(dst, int64(c.hour), 2), ':')
	dst = append(AppendPadded(dst, int64(c.minute), 2), ':')
	dst = AppendPadded(dst, int64(c.second), 2)
	dst = append(dst, " UTC "...)
	return strconv.AppendInt(dst, c.year, 10)
}

// appendHeaderDate appends a java.util.Date in UTC as Connect's Values.convertToString does. A
// point in time before January 2, 1970 is written as a time of day, midnight as a date, and the
// rest as a timestamp.
func appendHeaderDate(dst []byte, millis int64) []byte {
	c := javaCivil(millis)
	if millis >= millisOfDay {
		dst = append(AppendPadded(dst, c.year, 4), '-')
		dst = append(AppendPadded(dst, int64(c.month), 2), '-')
		dst = AppendPadded(dst, int64(c.day), 2)
		if millis%millisOfDay == 0 {
			return dst
		}
		dst = append(dst, 'T')
	}
	dst = append(AppendPadded(dst, int64(c.hour), 2), ':')
	dst = append(AppendPadded(dst, int64(c.minute), 2), ':')
	dst = append(AppendPadded(dst, int64(c.second), 2), '.')
	return append(AppendPadded(dst, int64(c.ofSecond), 3), 'Z')
}

// AppendPadded appends n, which must not be negative, with zeros up to a number of digits.
func AppendPadded(dst []byte, n int64, digits int) []byte {
	var buf [20]byte
	s := strconv.AppendInt(buf[:0], n, 10)
	for range digits - len(s) {
		dst = append(dst, '0')
	}
	return append(dst, s...)
}
