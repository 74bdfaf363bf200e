package connect

import (
	"math"
	"math/big"
	"strconv"
)

// FormatDouble is Double.toString of Java 19 and newer: the shortest digits that read back as f. Debezium's images run Java 21. Older
// Javas print more digits of some numbers; testdata/java/older.txt has examples.
func FormatDouble(f float64) string { return string(AppendDouble(nil, f)) }

// FormatFloat is Float.toString of Java 19 and newer.
func FormatFloat(f float32) string { return string(AppendFloat(nil, f)) }

// AppendDouble appends FormatDouble's text to dst.
func AppendDouble(dst []byte, f float64) []byte { return appendJava(dst, f, 64) }

// AppendFloat appends FormatFloat's text to dst.
func AppendFloat(dst []byte, f float32) []byte { return appendJava(dst, float64(f), 32) }

func appendJava(dst []byte, f float64, bits int) []byte {
	switch {
	case math.IsNaN(f):
		return append(dst, "NaN"...)
	case math.IsInf(f, 1):
		return append(dst, "Infinity"...)
	case math.IsInf(f, -1):
		return append(dst, "-Infinity"...)
	}
	start := len(dst)
	if a := math.Abs(f); a == 0 || a >= 1e-3 && a < 1e7 {
		dst = strconv.AppendFloat(dst, f, 'f', -1, bits)
		for _, c := range dst[start:] {
			if c == '.' {
				return dst
			}
		}
		return append(dst, '.', '0')
	}
	dst = strconv.AppendFloat(dst, f, 'e', -1, bits) // 1e+07, 4.9e-324
	sign := start
	if f < 0 {
		sign++
	}
	if dst[sign+1] == 'e' {
		// Java wants two digits: of the numbers with two that read back as f it takes the nearest, which need not end with 0.
		dst = strconv.AppendFloat(dst[:start], f, 'e', 1, bits)
	}
	// In place, for the exponent only gets shorter: E for e, no plus, no leading zero.
	e := len(dst) - 1
	for dst[e] != 'e' {
		e--
	}
	dst[e] = 'E'
	from, to := e+1, e+1
	switch dst[from] {
	case '+':
		from++
	case '-':
		from, to = from+1, to+1
	}
	if dst[from] == '0' {
		from++
	}
	return append(dst[:to], dst[from:]...)
}

// String is java.math.BigDecimal.toString: plain, but with an exponent where the scale is negative or more than five zeros would
// follow the point before the first digit.
func (u *Unscaled) String() string { return string(u.Append(nil)) }

// Append appends String's text to dst.
func (u *Unscaled) Append(dst []byte) []byte {
	start := len(dst)
	dst = u.Value.Append(dst, 10)
	if u.Scale == 0 {
		return dst
	}
	if dst[start] == '-' {
		start++
	}
	digits := len(dst) - start
	exponent := int64(digits) - 1 - int64(u.Scale)
	if u.Scale > 0 && exponent >= -6 {
		zeros := int(u.Scale) - digits + 1 // before the digits, so that one stands before the point
		if zeros > 0 {
			dst = insert(dst, start, "00000000"[:zeros])
		}
		return insert(dst, len(dst)-int(u.Scale), ".")
	}
	if digits > 1 {
		dst = insert(dst, start+1, ".")
	}
	if exponent != 0 {
		dst = append(dst, 'E')
		if exponent > 0 {
			dst = append(dst, '+')
		}
		dst = strconv.AppendInt(dst, exponent, 10)
	}
	return dst
}

func insert(dst []byte, at int, s string) []byte {
	dst = append(dst, s...)
	copy(dst[at+len(s):], dst[at:])
	copy(dst[at:], s)
	return dst
}

// twosComplement is java.math.BigInteger.toByteArray: big-endian, as short as a sign bit allows.
func twosComplement(v *big.Int) []byte {
	if v.Sign() >= 0 {
		b := v.Bytes()
		if len(b) == 0 || b[0]&0x80 != 0 {
			b = append([]byte{0}, b...)
		}
		return b
	}
	// -v-1 has the inverse bits of v.
	b := new(big.Int).Not(v).Bytes()
	for i := range b {
		b[i] = ^b[i]
	}
	if len(b) == 0 || b[0]&0x80 == 0 {
		b = append([]byte{0xff}, b...)
	}
	return b
}
