package router

import (
	"cmp"
	"encoding/hex"
	"strings"

	"github.com/walpost/walpost/cdc"
)

// A row is the values that a record is made of.
type row struct {
	values   []cdc.Value
	relation *cdc.Relation

	// The rest is for updates. The WAL does not have the large values that an update did not
	// change.
	old         *cdc.Row // the old row, or its key
	unavailable string   // the placeholder for a value that is missing
	binary      string   // binary.handling.mode
	problem     *Problem // a value is missing, and no placeholder is possible
}

// text returns the text of a column, or nil for NULL.
func (r *row) text(c *column) []byte {
	if text, sent := r.sent(c); sent {
		return text
	}
	return r.placeholder(c)
}

// sent returns the text of a column, or nil for NULL, and whether the server sent it.
func (r *row) sent(c *column) (text []byte, sent bool) {
	v := r.values[c.index]
	if !v.Unchanged {
		return v.Bytes, true
	}
	if r.old != nil && c.index < len(r.old.Values) && r.old.Values[c.index].Bytes != nil {
		return r.old.Values[c.index].Bytes, true // the replica identity is the whole row
	}
	return nil, false
}

// Type OIDs of Postgres' catalog (pg_type.dat). They never change.
const (
	oidBytea, oidInt4, oidText      = 17, 23, 25
	oidJSON, oidXML                 = 114, 142
	oidBPChar, oidVarchar, oidJSONB = 1042, 1043, 3802
	oidTimestamp, oidTimestamptz    = 1114, 1184
)

// placeholder returns what Debezium writes for a value that is not in the WAL.
func (r *row) placeholder(c *column) []byte {
	col := &r.relation.Columns[c.index]
	switch base := cmp.Or(col.BaseType, col.TypeOID); {
	case base == oidBytea && strings.HasPrefix(r.binary, "base64"):
		if !col.NotNull {
			return nil // Debezium has no text for its placeholder here and writes null
		}
	case base == oidBytea:
		value := []byte(r.unavailable)
		if digits, ok := strings.CutPrefix(r.unavailable, "hex:"); ok {
			if b, err := hex.DecodeString(digits); err == nil {
				value = b
			}
		}
		if r.binary == "hex" { // Debezium does not write the placeholder's digits
			return append([]byte{placeholderMark}, string([]rune(string(value)))...)
		}
		return append([]byte(`\x`), hex.EncodeToString(value)...)
	case base == oidText, base == oidVarchar, base == oidBPChar, base == oidJSON, base == oidJSONB, base == oidXML, col.BaseName == "citext":
		return []byte(r.unavailable)
	}
	r.problem = c.notSent()
	return nil
}

func (c *column) notSent() *Problem {
	return c.problem(ValueSent, nil, "column %s is a large value that the update did not change, so the WAL does not have it", c.name)
}

// placeholderMark starts a placeholder that replaces bytes in hexadecimal digits. No text in
// Postgres has this character.
const placeholderMark = 0

// passPlaceholders returns a parse that returns such a placeholder as it is.
func passPlaceholders(parse func([]byte) (any, error)) func([]byte) (any, error) {
	return func(raw []byte) (any, error) {
		if len(raw) > 0 && raw[0] == placeholderMark {
			return string(raw[1:]), nil
		}
		return parse(raw)
	}
}
