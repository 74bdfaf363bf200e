package connect

import (
	"encoding/base64"
	"strconv"
	"unicode/utf8"
)

// NewString returns Kafka Connect's StringConverter: Java's toString of every value, and null of null. It differs from Java, where
// Java's text is no use, in this only:
//
//   - Of a byte[] (bit(n), and the number in a VariableScaleDecimal) Java prints an address, "[B@6d06d69c", another one each
//     time. Here it is base64.
//   - java.util.Date prints in the time zone of the worker. Here it is UTC.
func NewString() TextConverter { return stringConverter{} }

type stringConverter struct{}

func (stringConverter) Append(dst []byte, _ string, s *Schema, v any) (out []byte, null bool, err error) {
	if v == nil {
		return dst, true, nil
	}
	start := len(dst)
	out, err = appendJavaString(dst, s, nil, v)
	if err != nil {
		return dst, false, err
	}
	return questionMarks(out, start), false, nil
}

func (stringConverter) AppendText(dst []byte, _ string, _ *Schema, text []byte) (out []byte, null bool, err error) {
	return append(dst, text...), false, nil
}

// appendJavaString appends v.toString(). parent is the schema of the struct around v, or nil.
func appendJavaString(dst []byte, s, parent *Schema, v any) ([]byte, error) {
	if v == nil {
		return append(dst, "null"...), nil
	}
	s, err := schemaOf(s, v)
	if err != nil {
		return dst, err
	}
	switch v := v.(type) {
	case string:
		if s.Type == String {
			return append(dst, v...), nil
		}
	case int64:
		switch s.Name {
		case DateName, TimeName, TimestampName:
			return appendJavaDate(dst, javaMillis(s, v)), nil
		}
		return strconv.AppendInt(dst, v, 10), nil
	case float64:
		return AppendDouble(dst, v), nil
	case float32:
		return AppendFloat(dst, v), nil
	case bool:
		return strconv.AppendBool(dst, v), nil
	case *Unscaled:
		return v.Append(dst), nil
	case []byte:
		if isByteArray(s, parent) {
			return base64.StdEncoding.AppendEncode(dst, v), nil
		}
		dst = append(dst, "java.nio.HeapByteBuffer[pos=0 lim="...)
		dst = strconv.AppendInt(dst, int64(len(v)), 10)
		dst = append(dst, " cap="...)
		dst = strconv.AppendInt(dst, int64(len(v)), 10)
		return append(dst, ']'), nil
	case []any:
		if s.Type == Array {
			return appendJavaList(dst, s, v)
		}
		if s.Type == Struct {
			return appendJavaStruct(dst, s, v)
		}
	case []Entry:
		if s.Type == Map {
			return appendJavaMap(dst, s, v)
		}
	}
	return dst, errShape(s, v)
}

func appendJavaList(dst []byte, s *Schema, list []any) (_ []byte, err error) {
	dst = append(dst, '[')
	for i, elem := range list {
		if i > 0 {
			dst = append(dst, ", "...)
		}
		if dst, err = appendJavaString(dst, s.Elem, nil, elem); err != nil {
			return dst, err
		}
	}
	return append(dst, ']'), nil
}

func appendJavaMap(dst []byte, s *Schema, entries []Entry) (_ []byte, err error) {
	dst = append(dst, '{')
	for i, e := range entries {
		if i > 0 {
			dst = append(dst, ", "...)
		}
		if dst, err = appendJavaString(dst, s.Key, nil, e.Key); err != nil {
			return dst, err
		}
		dst = append(dst, '=')
		if dst, err = appendJavaString(dst, s.Elem, nil, e.Value); err != nil {
			return dst, err
		}
	}
	return append(dst, '}'), nil
}

// appendJavaStruct appends a struct as Connect's Struct.toString does: without fields that are
// null, even if they have a default.
func appendJavaStruct(dst []byte, s *Schema, values []any) (_ []byte, err error) {
	if len(values) != len(s.Fields) {
		return dst, errShape(s, values)
	}
	dst = append(dst, "Struct{"...)
	first := true
	for i, f := range s.Fields {
		if values[i] == nil {
			continue
		}
		if !first {
			dst = append(dst, ',')
		}
		first = false
		dst = append(append(dst, f.Name...), '=')
		if dst, err = appendJavaString(dst, f.Schema, s, values[i]); err != nil {
			return dst, err
		}
	}
	return append(dst, '}'), nil
}

// questionMarks writes ? for each half of a surrogate pair in b from start on, because UTF-8 cannot
// express it (see surrogate).
func questionMarks(b []byte, start int) []byte {
	to := start
	for i := start; i < len(b); i++ {
		if b[i] == 0xED && surrogate(b[i:]) {
			if to == start { // the first
				to = i
			}
			b[to] = '?'
			to++
			i += 2
			continue
		}
		if to != start {
			b[to] = b[i]
			to++
		}
	}
	if to == start {
		return b
	}
	return b[:to]
}

// surrogate reports whether b starts with half of a surrogate pair. A JSON document can have one as
// an escape, and a string in Java can contain it. A string here has the three bytes that UTF-8
// would have for it.
func surrogate(b []byte) bool {
	return len(b) >= 3 && b[0] == 0xED && b[1] >= 0xA0 && b[1] <= 0xBF && b[2] >= 0x80 && b[2] <= utf8.RuneSelf+0x3F
}
