package connect

import (
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

const (
	upperHex = "0123456789ABCDEF"
	controls = "\b\f\n\r\t" // the control characters that have a short escape
	escapes  = "bfnrt"
)

// appendJSONString appends s as a JSON string with the escapes that Jackson writes. Control
// characters have the short escapes or \u001F. A character above U+FFFF has a pair of \u escapes.
// Bytes that are not UTF-8 become U+FFFD, as in Java.
func appendJSONString(dst []byte, s string) []byte {
	dst = append(dst, '"')
	start := 0 // of what was not yet appended
	for i := 0; i < len(s); {
		b := s[i]
		if b < utf8.RuneSelf {
			if b >= 0x20 && b != '"' && b != '\\' {
				i++
				continue
			}
			dst = AppendJSONByte(append(dst, s[start:i]...), b)
			i++
			start = i
			continue
		}
		r, n := decode(s[i:])
		if invalid := r == utf8.RuneError && n == 1; invalid || r > 0xFFFF || utf16.IsSurrogate(r) {
			dst = append(dst, s[start:i]...)
			if invalid {
				dst = append(dst, "\uFFFD"...)
			} else if high, low := utf16.EncodeRune(r); r > 0xFFFF {
				dst = appendUnit(appendUnit(dst, high), low)
			} else {
				dst = appendUnit(dst, r)
			}
			start = i + n
		}
		i += n
	}
	dst = append(dst, s[start:]...)
	return append(dst, '"')
}

// AppendJSONByte appends one byte of a JSON string, with the escape that Jackson writes for a
// character of ASCII. Other bytes stay as they are.
func AppendJSONByte(dst []byte, b byte) []byte {
	switch b {
	case '"', '\\':
		return append(dst, '\\', b)
	}
	if i := strings.IndexByte(controls, b); i >= 0 {
		return append(dst, '\\', escapes[i])
	}
	if b < ' ' {
		return append(dst, '\\', 'u', '0', '0', upperHex[b>>4], upperHex[b&0xf])
	}
	return append(dst, b)
}

// appendUnit appends one unit of UTF-16 as an escape.
func appendUnit(dst []byte, u rune) []byte {
	return append(dst, '\\', 'u', upperHex[u>>12&0xf], upperHex[u>>8&0xf], upperHex[u>>4&0xf], upperHex[u&0xf])
}
