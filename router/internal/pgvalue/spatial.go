package pgvalue

import (
	"encoding/binary"
	"encoding/hex"
	"math"
	"strconv"
	"strings"

	"github.com/walpost/walpost/router/internal/connect"
)

func point() *representation {
	r := named(connect.Struct, "io.debezium.data.geometry.Point", func(raw []byte) (any, error) {
		s, ok := strings.CutPrefix(string(raw), "(")
		s, ok2 := strings.CutSuffix(s, ")")
		left, right, ok3 := strings.Cut(s, ",")
		x, ok4 := double(left, 64)
		y, ok5 := double(right, 64)
		if !ok || !ok2 || !ok3 || !ok4 || !ok5 {
			return nil, noValue(raw, "point")
		}
		wkb := make([]byte, 0, 21) // byte order, type 1, both coordinates
		wkb = append(wkb, 1, 1, 0, 0, 0)
		wkb = binary.LittleEndian.AppendUint64(wkb, math.Float64bits(x))
		wkb = binary.LittleEndian.AppendUint64(wkb, math.Float64bits(y))
		return []any{x, y, wkb, nil}, nil
	})
	r.schema.Doc = "Geometry (POINT)"
	r.schema.Fields = []connect.Field{
		{Name: "x", Schema: &connect.Schema{Type: connect.Float64}},
		{Name: "y", Schema: &connect.Schema{Type: connect.Float64}},
		{Name: "wkb", Schema: &connect.Schema{Type: connect.Bytes, Optional: true}},
		{Name: "srid", Schema: &connect.Schema{Type: connect.Int32, Optional: true}},
	}
	return r
}

// geometry is the extended well-known binary of PostGIS as it is, and the reference system that it
// names.
func geometry(name, doc string) *representation {
	r := named(connect.Struct, name, func(raw []byte) (any, error) {
		wkb := make([]byte, hex.DecodedLen(len(raw)))
		if _, err := hex.Decode(wkb, raw); err != nil || len(wkb) < 9 {
			return nil, nil
		}
		order := binary.ByteOrder(binary.LittleEndian)
		if wkb[0] == 0 {
			order = binary.BigEndian
		}
		var srid any
		if order.Uint32(wkb[1:])&0x20000000 != 0 {
			srid = int64(int32(order.Uint32(wkb[5:])))
		}
		return []any{wkb, srid}, nil
	})
	r.schema.Doc = doc
	r.schema.Fields = []connect.Field{
		{Name: "wkb", Schema: &connect.Schema{Type: connect.Bytes}},
		{Name: "srid", Schema: &connect.Schema{Type: connect.Int32, Optional: true}},
	}
	return r
}

// vector is a vector or a halfvec, whose numbers have half as many bits.
func vector(name string, typ connect.Type, number func([]byte) (any, error)) *representation {
	r := named(connect.Array, name, func(raw []byte) (any, error) {
		s, ok := strings.CutPrefix(string(raw), "[")
		s, ok2 := strings.CutSuffix(s, "]")
		if !ok || !ok2 {
			return nil, nil
		}
		out := make([]any, 0, strings.Count(s, ",")+1)
		for part := range strings.SplitSeq(s, ",") {
			n, err := number([]byte(strings.TrimSpace(part)))
			if err != nil {
				return nil, errLeftOut
			}
			out = append(out, n)
		}
		return out, nil
	})
	r.schema.Elem = &connect.Schema{Type: typ}
	return r
}

func sparsevec() *representation {
	r := named(connect.Struct, "io.debezium.data.SparseDoubleVector", func(raw []byte) (any, error) {
		list, size, ok := strings.Cut(string(raw), "/")
		dimensions, err := strconv.ParseInt(strings.TrimSpace(size), 10, 16)
		list, ok2 := strings.CutPrefix(strings.TrimSpace(list), "{")
		list, ok3 := strings.CutSuffix(list, "}")
		if !ok || err != nil || !ok2 || !ok3 {
			return nil, errLeftOut // a size that is no short among others
		}
		entries := []connect.Entry{}
		if list = strings.TrimSpace(list); list != "" {
			for part := range strings.SplitSeq(list, ",") {
				index, value, ok := strings.Cut(part, ":")
				i, err := strconv.ParseInt(strings.TrimSpace(index), 10, 16)
				f, ok2 := double(strings.TrimSpace(value), 64)
				if !ok || err != nil || !ok2 {
					return nil, errLeftOut
				}
				entries = append(entries, connect.Entry{Key: i, Value: f})
			}
		}
		asHashMap(entries, func(e *connect.Entry) uint32 { return uint32(e.Key.(int64)) }) //nolint:errcheck // made above
		return []any{dimensions, entries}, nil
	})
	r.schema.Doc = "Sparse double vector"
	r.schema.Fields = []connect.Field{
		{Name: "dimensions", Schema: &connect.Schema{Type: connect.Int16}},
		{Name: "vector", Schema: &connect.Schema{Type: connect.Map, Key: &connect.Schema{Type: connect.Int16}, Elem: &connect.Schema{Type: connect.Float64}}},
	}
	return r
}
