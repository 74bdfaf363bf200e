package cdc

import (
	"fmt"
	"strconv"
	"strings"
)

// An LSN is a place in a server's WAL. LSNs of two servers (another system identifier, or a forked
// timeline) must not be compared.
type LSN uint64

// String prints an LSN as Postgres does: "16/B374D848". The zero LSN is "0/0".
func (l LSN) String() string { return fmt.Sprintf("%X/%X", uint32(l>>32), uint32(l)) }

// ParseLSN reads the text of String, also with small letters and leading zeros. Each half has one to
// eight digits, as in Postgres' pg_lsn_in.
func ParseLSN(s string) (LSN, error) {
	high, low, ok := strings.Cut(s, "/")
	if ok && len(high) <= 8 && len(low) <= 8 {
		hi, errHigh := strconv.ParseUint(high, 16, 32)
		lo, errLow := strconv.ParseUint(low, 16, 32)
		if errHigh == nil && errLow == nil {
			return LSN(hi)<<32 | LSN(lo), nil
		}
	}
	return 0, fmt.Errorf("%q is not an LSN (two hexadecimal numbers, as in 16/B374D848)", s)
}

// MarshalText returns the text of String. In JSON an LSN is text, because many readers lose the low
// bits of a number.
func (l LSN) MarshalText() ([]byte, error) { return []byte(l.String()), nil }

// UnmarshalText is ParseLSN.
func (l *LSN) UnmarshalText(text []byte) (err error) {
	v, err := ParseLSN(string(text))
	if err == nil {
		*l = v
	}
	return err
}

// A Position is a place in what one source gives. Only the source gives it a meaning: everybody else
// orders and compares the positions of one source, and prints them. 0 is none.
//
// A position is either an LSN or a number by which the source counts, and it's printed as what it is.
// So a number is never shown as an LSN, nor read as one.
type Position uint64

// numbered marks the positions that are numbers.
const numbered = 1 << 63

// MaxLSN is the largest LSN that can be a position. The WAL of no server gets that long.
const MaxLSN LSN = numbered - 1

// Position returns the place in the WAL as a position of a source that reads the WAL.
func (l LSN) Position() Position {
	if l > MaxLSN {
		panic("cdc: LSN " + l.String() + " is out of range")
	}
	return Position(l)
}

// Numbered returns the position of a source that counts, n being at least 1. It is 0 for 0.
func Numbered(n uint64) Position {
	switch {
	case n >= numbered:
		panic(fmt.Sprintf("cdc: number %d is out of range", n))
	case n == 0:
		return 0
	}
	return numbered | Position(n)
}

// IsNumber reports whether p is a number, and so no LSN.
func (p Position) IsNumber() bool { return p >= numbered }

// LSN returns the place in the WAL, for the source that made p of it. It is 0 for 0, and panics for a
// number.
func (p Position) LSN() LSN {
	if p.IsNumber() {
		panic("cdc: position " + p.String() + " is not an LSN")
	}
	return LSN(p)
}

// Number returns the number, for the source that made p of it. It is 0 for 0, and panics for an LSN.
func (p Position) Number() uint64 {
	if p != 0 && !p.IsNumber() {
		panic("cdc: position " + p.String() + " is not a number")
	}
	return uint64(p &^ numbered)
}

// String prints an LSN as Postgres does, and a number in decimal. The zero Position is "0".
func (p Position) String() string {
	if p.IsNumber() || p == 0 {
		return strconv.FormatUint(p.Number(), 10)
	}
	return p.LSN().String()
}

// Log names p for log lines.
func (p Position) Log() (key, text string) {
	if p.IsNumber() || p == 0 {
		return "position", p.String()
	}
	return "lsn", p.String()
}

// ParsePosition reads the text of String.
func ParsePosition(s string) (Position, error) {
	if strings.Contains(s, "/") {
		l, err := ParseLSN(s)
		if err == nil && l > MaxLSN {
			err = fmt.Errorf("LSN %s is out of range", s)
		}
		return Position(l), err
	}
	n, err := strconv.ParseUint(s, 10, 63)
	if err != nil {
		return 0, fmt.Errorf("%q is not a position (an LSN, as in 16/B374D848, or a number)", s)
	}
	return Numbered(n), nil
}

// MarshalText returns the text of String.
func (p Position) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// UnmarshalText is ParsePosition.
func (p *Position) UnmarshalText(text []byte) error {
	v, err := ParsePosition(string(text))
	if err == nil {
		*p = v
	}
	return err
}
