package connect

import (
	"strconv"
	"time"
)

const millisOfDay = 24 * 60 * 60 * 1000

// javaMillis is java.util.Date.getTime for the value of a Date, Time or Timestamp.
func javaMillis(s *Schema, v int64) int64 {
	if s.Name == DateName {
		return v * millisOfDay
	}
	return v
}

// Civil is the date of a number of days since 1970-01-01 in the Gregorian calendar. Year 0 is 1 BC.
func Civil(days int64) (year, month, day int64) {
	y, m, d := time.Unix(days*86_400, 0).UTC().Date()
	return int64(y), int64(m), int64(d)
}

// julian is Civil for the Julian calendar. It counts years from March 1, so that the leap day is
// the last day (http://howardhinnant.github.io/date_algorithms.html).
func julian(days int64) (year, month, day int64) {
	era, ofEra := FloorDiv(days+719_470, 1461)
	year = (ofEra - ofEra/1460) / 365
	ofYear := ofEra - 365*year
	year += era * 4
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

// javaDate is Civil for Java's calendar, which is Julian before October 15, 1582. A year before 1 AD has
// no sign.
func javaDate(days int64) (year, month, day int64) {
	const cutover = -141427 // the day of October 15, 1582
	year, month, day = Civil(days)
	if days < cutover {
		year, month, day = julian(days)
	}
	if year <= 0 {
		year = 1 - year
	}
	return year, month, day
}

// appendJavaDate appends java.util.Date.toString, in UTC: Thu Feb 29 12:34:56 UTC 2024.
func appendJavaDate(dst []byte, millis int64) []byte {
	days, _ := FloorDiv(millis, millisOfDay)
	year, month, day := javaDate(days)
	at := time.UnixMilli(millis).UTC()
	dst = at.AppendFormat(dst, "Mon ")
	dst = append(dst, time.Month(month).String()[:3]...)
	dst = AppendPadded(append(dst, ' '), day, 2)
	return strconv.AppendInt(at.AppendFormat(dst, " 15:04:05 UTC "), year, 10)
}

// appendHeaderDate appends a java.util.Date in UTC as Connect's Values.convertToString does. A
// point in time before January 2, 1970 is written as a time of day, midnight as a date, and the
// rest as a timestamp.
func appendHeaderDate(dst []byte, millis int64) []byte {
	layout := "2006-01-02T15:04:05.000Z"
	switch {
	case millis < millisOfDay:
		layout = "15:04:05.000Z"
	case millis%millisOfDay == 0:
		layout = time.DateOnly
	}
	return time.UnixMilli(millis).UTC().AppendFormat(dst, layout)
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
