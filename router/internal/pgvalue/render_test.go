package pgvalue

import (
	"fmt"
	"math"
	"strings"

	"github.com/walpost/walpost/router/internal/connect"
)

// renderSchema and renderValue print what testdata/debezium/Oracle.java prints.
func renderSchema(s *connect.Schema) string {
	var b strings.Builder
	b.WriteString(string(s.Type))
	if s.Optional {
		b.WriteByte('?')
	}
	if s.Name != "" {
		b.WriteString(" " + s.Name)
	}
	if s.Version != 0 {
		fmt.Fprintf(&b, "/%d", s.Version)
	}
	if s.Doc != "" {
		b.WriteString(" doc=" + quote(s.Doc))
	}
	for _, p := range s.Params {
		b.WriteString(" " + quote(p.Key) + "=" + quote(p.Value))
	}
	switch s.Type { //nolint:exhaustive // the others have nothing below them
	case connect.Array:
		b.WriteString(" <" + renderSchema(s.Elem) + ">")
	case connect.Map:
		b.WriteString(" <" + renderSchema(s.Key) + ", " + renderSchema(s.Elem) + ">")
	case connect.Struct:
		fields := make([]string, len(s.Fields))
		for i, f := range s.Fields {
			fields[i] = f.Name + ": " + renderSchema(f.Schema)
		}
		b.WriteString(" {" + strings.Join(fields, ", ") + "}")
	}
	if s.HasDefault {
		b.WriteString(" default " + renderValue(s, s.Default))
	}
	return b.String()
}

func renderValue(s *connect.Schema, v any) string {
	if v == nil {
		return "null"
	}
	var parts []string
	switch s.Type {
	case connect.Int8, connect.Int16, connect.Int32, connect.Int64:
		n, bits := v.(int64), map[connect.Type]int{connect.Int8: 8, connect.Int16: 16, connect.Int32: 32, connect.Int64: 64}[s.Type]
		if n<<(64-bits)>>(64-bits) != n {
			return fmt.Sprintf("%d does not fit into %d bits", n, bits)
		}
		return fmt.Sprint(n)
	case connect.Float32:
		f := v.(float32)
		if f != f {
			return "f32 7fc00000" // Java knows one NaN
		}
		return fmt.Sprintf("f32 %08x", math.Float32bits(f))
	case connect.Float64:
		f := v.(float64)
		if f != f {
			return "f64 7ff8000000000000"
		}
		return fmt.Sprintf("f64 %016x", math.Float64bits(f))
	case connect.Boolean:
		return fmt.Sprint(v.(bool))
	case connect.String:
		return quote(v.(string))
	case connect.Bytes:
		if s.Name == connect.DecimalName {
			d := v.(*connect.Unscaled)
			return fmt.Sprintf("%de%d", d.Value, -d.Scale)
		}
		return fmt.Sprintf("x'%x'", v.([]byte))
	case connect.Array:
		for _, e := range v.([]any) {
			parts = append(parts, renderValue(s.Elem, e))
		}
		return "[" + strings.Join(parts, ", ") + "]"
	case connect.Map:
		for _, e := range v.([]connect.Entry) {
			parts = append(parts, renderValue(s.Key, e.Key)+" => "+renderValue(s.Elem, e.Value))
		}
		return "<" + strings.Join(parts, ", ") + ">"
	case connect.Struct:
		for i, f := range s.Fields {
			parts = append(parts, f.Name+": "+renderValue(f.Schema, v.([]any)[i]))
		}
		return "{" + strings.Join(parts, ", ") + "}"
	}
	return fmt.Sprintf("no type: %s", s.Type)
}

func quote(s string) string {
	var b strings.Builder
	b.WriteByte('"')
	for i := range len(s) {
		switch c := s[i]; {
		case c == '"' || c == '\\':
			b.WriteByte('\\')
			b.WriteByte(c)
		case c < ' ':
			fmt.Fprintf(&b, "\\x%02x", c)
		default:
			b.WriteByte(c)
		}
	}
	return b.String() + `"`
}
