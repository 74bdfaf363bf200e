package pgvalue

import (
	"cmp"
	"maps"
	"slices"
	"unicode/utf16"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/walpost/walpost/router/internal/connect"
)

func hstore(m Modes) *representation {
	if m.HStore == "map" {
		r := plain(connect.Map, parseWith(readHStore, func(entries []connect.Entry) any { return entries }))
		r.schema.Key, r.schema.Elem = &connect.Schema{Type: connect.String}, &connect.Schema{Type: connect.String, Optional: true}
		return r
	}
	return named(connect.String, "io.debezium.data.Json", parseWith(readHStore, func(entries []connect.Entry) any {
		b := append(make([]byte, 0, 32*len(entries)+2), '{')
		for i, e := range entries {
			if i > 0 {
				b = append(b, ',')
			}
			b = append(appendJSON(b, e.Key.(string)), ':') //nolint:errcheck // readHStore made it
			if e.Value == nil {
				b = append(b, "null"...)
			} else {
				b = appendJSON(b, e.Value.(string)) //nolint:errcheck // readHStore made it
			}
		}
		return string(append(b, '}'))
	}))
}

// readHStore reads a text such as `"a"=>"1", "b"=>NULL`. The entries have the order of Java's
// HashMap, into which they come in the order of Postgres.
func readHStore(raw []byte) ([]connect.Entry, error) {
	var pairs pgtype.Hstore
	if err := pairs.Scan(string(raw)); err != nil {
		return nil, noValue(raw, "hstore")
	}
	entries := make([]connect.Entry, 0, len(pairs))
	for _, key := range slices.SortedFunc(maps.Keys(pairs), func(a, b string) int { return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(a, b)) }) {
		e := connect.Entry{Key: key}
		if value := pairs[key]; value != nil {
			e.Value = *value
		}
		entries = append(entries, e)
	}
	asHashMap(entries, func(e *connect.Entry) uint32 { return stringHash(e.Key.(string)) }) //nolint:errcheck // made above
	return entries, nil
}

// asHashMap puts entries into the order in which a java.util.HashMap returns them. They must be in
// the order of their insertion into the empty map. The order is by bucket, and within a bucket by
// insertion. (If a bucket of a table with 64 or more has nine or more entries, Java makes a tree of
// them. Its order can be different.)
func asHashMap(entries []connect.Entry, hash func(*connect.Entry) uint32) {
	size := uint32(16)
	for n := len(entries); n > int(size/4*3); {
		size *= 2
	}
	bucket := func(e connect.Entry) uint32 {
		h := hash(&e)
		return (h ^ h>>16) & (size - 1)
	}
	slices.SortStableFunc(entries, func(a, b connect.Entry) int { return cmp.Compare(bucket(a), bucket(b)) })
}

// stringHash is Java's String.hashCode.
func stringHash(s string) (h uint32) {
	for _, r := range s {
		if r > 0xffff {
			high, low := utf16.EncodeRune(r)
			h = (h*31+uint32(high))*31 + uint32(low)
			continue
		}
		h = h*31 + uint32(r)
	}
	return h
}

// appendJSON appends a string as Jackson writes it to characters: what is not ASCII has no escape.
func appendJSON(b []byte, s string) []byte {
	b = append(b, '"')
	for i := range len(s) {
		b = connect.AppendJSONByte(b, s[i])
	}
	return append(b, '"')
}
