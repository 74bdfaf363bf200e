package pgvalue

import (
	"bytes"
	"sort"
	"unicode/utf16"

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
// HashMap.
func readHStore(raw []byte) ([]connect.Entry, error) {
	var entries []connect.Entry
	for s := raw; len(s) > 0; {
		key, rest, ok := quoted(s)
		if !ok || !bytes.HasPrefix(rest, []byte("=>")) {
			return nil, noValue(raw, "hstore")
		}
		e := connect.Entry{Key: key}
		if s = rest[2:]; bytes.HasPrefix(s, []byte("NULL")) {
			s = s[4:]
		} else {
			value, rest, ok := quoted(s)
			if !ok {
				return nil, noValue(raw, "hstore")
			}
			e.Value, s = value, rest
		}
		entries = append(entries, e)
		if len(s) == 0 {
			break
		}
		if !bytes.HasPrefix(s, []byte(", ")) || len(s) == 2 {
			return nil, noValue(raw, "hstore")
		}
		s = s[2:]
	}
	asHashMap(entries, func(e *connect.Entry) uint32 { return stringHash(e.Key.(string)) }) //nolint:errcheck // made above
	return entries, nil
}

func quoted(s []byte) (text string, rest []byte, ok bool) {
	if len(s) == 0 || s[0] != '"' {
		return "", nil, false
	}
	end := bytes.IndexAny(s[1:], `"\`) + 1
	if end > 0 && s[end] == '"' {
		return string(s[1:end]), s[end+1:], true
	}
	b, rest, ok := unquote(s, nil)
	return string(b), rest, ok
}

// unquote appends to b the text between the quote at the start of s and the next one, without its
// backslashes.
func unquote(s, b []byte) (text, rest []byte, ok bool) {
	for i := 1; i < len(s); i++ {
		switch s[i] {
		case '"':
			return b, s[i+1:], true
		case '\\':
			if i++; i == len(s) {
				return nil, nil, false
			}
		}
		b = append(b, s[i])
	}
	return nil, nil, false
}

// asHashMap puts entries into the order in which a java.util.HashMap returns them. They must be in
// the order of their insertion into the empty map. The order is by bucket, and within a bucket by
// insertion. (If a bucket of a table with 64 or more has nine or more entries, Java makes a tree of
// them. Its order can be different.)
func asHashMap(entries []connect.Entry, hash func(*connect.Entry) uint32) {
	if len(entries) < 2 {
		return
	}
	type hashed struct {
		h uint32
		e connect.Entry
	}
	all := make([]hashed, len(entries))
	for i := range entries {
		h := hash(&entries[i])
		all[i] = hashed{h ^ h>>16, entries[i]}
	}
	size := uint32(16)
	for n := len(all); n > int(size/4*3); {
		size *= 2
	}
	sort.SliceStable(all, func(i, j int) bool { return all[i].h&(size-1) < all[j].h&(size-1) })
	for i := range all {
		entries[i] = all[i].e
	}
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
