package router

import (
	"cmp"
	"encoding/hex"
	"strings"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/router/internal/connect"
)

// A row is the values that a record is made of.
type row struct {
	values   []cdc.Value
	relation *cdc.Relation
	buf      []byte // the bytes of the record so far

	// The rest is for updates. The WAL does not have the large values that an update did not
	// change.
	old         *cdc.Row // the old row, or its key
	unavailable string   // the placeholder for a value that is missing
	binary      string   // binary.handling.mode
	problem     *Problem // a value is missing, and no placeholder is possible
}

// text returns the text of a column, or nil for NULL.
func (r *row) text(c *column) []byte {
	v := r.values[c.index]
	if !v.Unchanged {
		return v.Bytes
	}
	if r.old != nil && c.index < len(r.old.Values) && r.old.Values[c.index].Bytes != nil {
		return r.old.Values[c.index].Bytes // the replica identity is the whole row
	}
	return r.placeholder(c)
}

// convert appends to the row's buffer the bytes that a converter makes of a value, and returns them. It returns nil if
// Kafka gets a null.
func (r *row) convert(conv connect.Converter, topic string, s *connect.Schema, v any) ([]byte, error) {
	start := len(r.buf)
	out, null, err := conv.Append(r.buf, topic, s, v)
	if err != nil || null {
		return nil, err
	}
	r.buf = out
	return out[start:len(out):len(out)], nil
}

// placeholder returns what Debezium writes for a value that is not in the WAL.
func (r *row) placeholder(c *column) []byte {
	col := &r.relation.Columns[c.index]
	switch base := cmp.Or(col.BaseType, col.TypeOID); {
	case base == pgtype.ByteaOID && strings.HasPrefix(r.binary, "base64"):
		if !col.NotNull {
			return nil // Debezium has no text for its placeholder here and writes null
		}
	case base == pgtype.ByteaOID && r.binary == "bytes":
		value := []byte(r.unavailable)
		if digits, ok := strings.CutPrefix(r.unavailable, "hex:"); ok {
			if b, err := hex.DecodeString(digits); err == nil {
				value = b
			}
		}
		return append([]byte(`\x`), hex.EncodeToString(value)...)
	case base == pgtype.TextOID, base == pgtype.VarcharOID, base == pgtype.BPCharOID, base == pgtype.JSONOID, base == pgtype.JSONBOID, base == pgtype.XMLOID, col.BaseName == "citext":
		return []byte(r.unavailable)
	}
	r.problem = c.problem(ValueSent, nil, "column %s is a large value that the update did not change, so the WAL does not have it", c.name)
	return nil
}
