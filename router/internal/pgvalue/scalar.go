package pgvalue

import (
	"encoding/base64"
	"encoding/hex"
	"errors"
	"math"
	"strconv"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/walpost/walpost/router/internal/connect"
)

func boolean(raw []byte) (any, error) {
	if len(raw) == 1 && (raw[0] == 't' || raw[0] == 'f') {
		return raw[0] == 't', nil
	}
	return nil, noValue(raw, "boolean")
}

func integer(bits int) func([]byte) (any, error) {
	return func(raw []byte) (any, error) {
		n, err := strconv.ParseInt(string(raw), 10, bits)
		if err != nil {
			return nil, noValue(raw, "integer of "+strconv.Itoa(bits)+" bits")
		}
		return n, nil
	}
}

// nan has the bits of Java's NaN, which differ from Go's.
var nan = math.Float64frombits(0x7ff8000000000000)

// double reads a text that Postgres prints as Java's Double.parseDouble does: a number that is too
// large is infinite.
func double(s string, bits int) (float64, bool) {
	switch s {
	case "NaN":
		return nan, true
	case "Infinity":
		return math.Inf(1), true
	case "-Infinity":
		return math.Inf(-1), true
	}
	for i := range len(s) { // no hexadecimal, no underscores, no "inf"
		if c := s[i]; (c < '0' || c > '9') && c != '+' && c != '-' && c != '.' && c != 'e' && c != 'E' {
			return 0, false
		}
	}
	f, err := strconv.ParseFloat(s, bits)
	return f, err == nil || errors.Is(err, strconv.ErrRange)
}

func float4(raw []byte) (any, error) {
	f, ok := double(string(raw), 32)
	if !ok {
		return nil, noValue(raw, "float4")
	}
	return float32(f), nil
}

func float8(raw []byte) (any, error) {
	f, ok := double(string(raw), 64)
	if !ok {
		return nil, noValue(raw, "float8")
	}
	return f, nil
}

// bitString is a boolean if the length is 1. Otherwise it is as many bytes as the highest set bit
// needs, with the lowest byte first.
func bitString(t pgType) *representation {
	length := t.mod
	if length < 0 && t.oid == pgtype.VarbitOID {
		length = math.MaxInt32
	}
	if length <= 1 {
		return plain(connect.Boolean, bit)
	}
	r := named(connect.Bytes, "io.debezium.data.Bits", littleEndian)
	r.schema.Params = []connect.Param{{Key: "length", Value: strconv.Itoa(int(length))}}
	return r
}

func bit(raw []byte) (any, error) {
	if len(raw) == 0 {
		return nil, errLeftOut
	}
	set := false
	for _, c := range raw {
		if c != '0' && c != '1' {
			return nil, noValue(raw, "bit")
		}
		set = set || c == '1'
	}
	return set, nil
}

func littleEndian(raw []byte) (any, error) {
	first := len(raw)
	for i, c := range raw {
		if c != '0' && c != '1' {
			return nil, noValue(raw, "bit string")
		}
		if c == '1' && first == len(raw) {
			first = i
		}
	}
	b := make([]byte, (len(raw)-first+7)/8)
	for i := first; i < len(raw); i++ {
		if n := len(raw) - 1 - i; raw[i] == '1' {
			b[n/8] |= 1 << (n % 8)
		}
	}
	return b, nil
}

func bytea(m Modes) *representation {
	decode := func(raw []byte) ([]byte, error) {
		if len(raw) < 2 || raw[0] != '\\' || raw[1] != 'x' {
			return nil, noValue(raw, "bytea in hex format")
		}
		b := make([]byte, hex.DecodedLen(len(raw)-2))
		if _, err := hex.Decode(b, raw[2:]); err != nil {
			return nil, noValue(raw, "bytea in hex format")
		}
		return b, nil
	}
	switch m.Binary {
	case "base64":
		return plain(connect.String, parseWith(decode, func(b []byte) any { return base64.StdEncoding.EncodeToString(b) }))
	case "base64-url-safe":
		return plain(connect.String, parseWith(decode, func(b []byte) any { return base64.URLEncoding.EncodeToString(b) }))
	case "hex":
		return plain(connect.String, parseWith(decode, func(b []byte) any { return hex.EncodeToString(b) }))
	}
	return plain(connect.Bytes, parseWith(decode, func(b []byte) any { return b }))
}
