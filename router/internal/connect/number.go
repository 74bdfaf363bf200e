package connect

import (
	"math"
	"math/big"
	"slices"
	"strconv"
)

// appendDouble appends the text of Java's Double.toString: the shortest digits that read back as f.
// Debezium's images run Java 21. Java 18 and older print more digits of some numbers:
// testdata/numbers.txt has examples.
func appendDouble(dst []byte, f float64) []byte { return appendJava(dst, f, 64) }

// appendFloat appends the text of Java's Float.toString.
func appendFloat(dst []byte, f float32) []byte { return appendJava(dst, float64(f), 32) }

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
	dst = strconv.AppendFloat(dst, f, 'e', -1, bits) // 1e+07, 4.9e-324
	dst = nearest(dst, start, f, bits)
	if a := math.Abs(f); a == 0 || a >= 1e-3 && a < 1e7 {
		return positional(dst, start)
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

// nearest replaces the digits in dst from start on. If several numbers have the same number of
// digits, Java takes the nearest one, and the even one of two that are equally near. Java also
// takes two digits instead of one if the second digit need not be 0.
func nearest(dst []byte, start int, f float64, bits int) []byte {
	first := start
	if dst[first] == '-' {
		first++
	}
	last := first // digit
	if dst[first+1] == '.' {
		for last = first + 2; dst[last+1] != 'e'; last++ {
		}
		if (dst[last]-'0')%2 == 0 {
			return dst
		}
	}
	var buf [32]byte
	other := strconv.AppendFloat(buf[:0], f, 'e', max(last-first-1, 1), bits)
	if string(other) == string(dst[start:]) {
		return dst
	}
	if back, err := strconv.ParseFloat(string(other), bits); err == nil && back == f {
		return append(dst[:start], other...)
	}
	if last == first {
		dst = slices.Insert(dst, first+1, '.', '0')
	}
	return dst
}

// positional changes 1.2345e+03 in dst from start on into 1234.5.
func positional(dst []byte, start int) []byte {
	var buf [32]byte
	digits, rest := buf[:0], dst[start:]
	if rest[0] == '-' {
		start, rest = start+1, rest[1:]
	}
	for i, c := range rest {
		if c == 'e' {
			rest = rest[i:]
			break
		}
		if c != '.' {
			digits = append(digits, c)
		}
	}
	if len(digits) == 2 && digits[1] == '0' { // which nearest left for the other form
		digits = digits[:1]
	}
	exponent := int(rest[3] - '0') // of one digit in this range
	dst = dst[:start]
	if rest[1] == '-' {
		dst = append(append(dst, "0.00"[:1+exponent]...), digits...)
		return dst
	}
	for len(digits) < exponent+2 {
		digits = append(digits, '0')
	}
	dst = append(append(dst, digits[:exponent+1]...), '.')
	return append(dst, digits[exponent+1:]...)
}

// String is java.math.BigDecimal.toString. It has an exponent if the scale is negative, or if more
// than five zeros would follow the point.
func (u *Unscaled) String() string { return string(u.append(nil)) }

// append appends the text of String to dst.
func (u *Unscaled) append(dst []byte) []byte {
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
			dst = slices.Insert(dst, start, []byte("00000000")[:zeros]...)
		}
		return slices.Insert(dst, len(dst)-int(u.Scale), '.')
	}
	if digits > 1 {
		dst = slices.Insert(dst, start+1, '.')
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

// TwosComplement is Java's BigInteger.toByteArray: the fewest bytes with a sign bit, big-endian.
func TwosComplement(n *big.Int) []byte {
	if n.Sign() >= 0 {
		return n.FillBytes(make([]byte, n.BitLen()/8+1))
	}
	inverse := new(big.Int).Not(n) // -n-1 has the inverse bits of n
	out := inverse.FillBytes(make([]byte, inverse.BitLen()/8+1))
	for i := range out {
		out[i] = ^out[i]
	}
	return out
}
