// Package pgoutputtest writes pgoutput messages as the server does, for what recordings do not hold. Tests only.
package pgoutputtest

import (
	"encoding/binary"
	"time"

	"github.com/walpost/walpost/cdc"
)

// U16, U32 and U64 append a number.
func U16(b []byte, v int) []byte    { return binary.BigEndian.AppendUint16(b, uint16(v)) }
func U32(b []byte, v int) []byte    { return binary.BigEndian.AppendUint32(b, uint32(v)) }
func U64(b []byte, v uint64) []byte { return binary.BigEndian.AppendUint64(b, v) }

// At is when all transactions commit.
var At = time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC)

// Begin begins the transaction that commits at commit.
func Begin(commit cdc.LSN) []byte {
	return U32(U64(U64([]byte{'B'}, uint64(commit)), micros(At)), 77)
}

// Commit ends the transaction that commits at commit.
func Commit(commit, end cdc.LSN) []byte {
	return U64(U64(U64([]byte{'C', 0}, uint64(commit)), uint64(end)), micros(At))
}

// micros is a time as the protocol has it: microseconds since 2000.
func micros(t time.Time) uint64 { return uint64(t.UnixMicro() - 946_684_800_000_000) }

// Relation describes the table public.t. Its first column is the key.
func Relation(oid int, columns ...string) []byte {
	b := append(U32([]byte{'R'}, oid), "public\x00t\x00d"...)
	b = U16(b, len(columns))
	for i, name := range columns {
		flags := byte(0)
		if i == 0 {
			flags = 1
		}
		b = append(append(b, flags), name...)
		b = U32(U32(append(b, 0), 25), -1)
	}
	return b
}

// Insert inserts a row of texts.
func Insert(oid int, values ...string) []byte {
	return tuple(append(U32([]byte{'I'}, oid), 'N'), values...)
}

// tuple appends a row of texts.
func tuple(b []byte, values ...string) []byte {
	b = U16(b, len(values))
	for _, v := range values {
		b = append(U32(append(b, 't'), len(v)), v...)
	}
	return b
}
