package connect

import (
	"encoding/base64"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// NewString returns Kafka Connect's StringConverter. It writes Java's toString of a value, and null
// for null. It differs from Java in two cases:
//   - For a byte[] (bit(n), and the number in a VariableScaleDecimal), Java prints an address that
//     changes each time, such as "[B@6d06d69c". This converter prints base64.
//   - Java prints a java.util.Date in the time zone of the worker. This converter prints UTC.
func NewString() Converter { return stringConverter{java} }

// NewSimpleHeader returns Kafka Connect's SimpleHeaderConverter, the default for headers. It writes
// the text of Values.convertToString, and null for null. Dates and times are in UTC; in Connect
// they are in the time zone of the worker.
func NewSimpleHeader() Converter { return stringConverter{simple} }

// A stringConverter writes values as text.
type stringConverter struct{ *style }

func (c stringConverter) Append(dst []byte, _ string, s *Schema, v any) (out []byte, null bool, err error) {
	if v == nil {
		return dst, true, nil
	}
	if out, err = c.append(dst, s, v, nil, false); err != nil {
		return dst, false, err
	}
	return questionMarks(out, len(dst)), false, nil
}

func (stringConverter) AppendText(dst []byte, _ string, _ *Schema, text []byte) (out []byte, null bool, err error) {
	return append(dst, text...), false, nil
}

// A style is a way to write values as text: as Java's toString, or as Connect's Values.append.
type style struct {
	comma, colon string // between the elements of a list or map; between a key and its value
	date         func(dst []byte, millis int64) []byte
	isSimple     bool // Values.append: it quotes the texts and bytes within another value
}

var (
	java   = &style{comma: ", ", colon: "=", date: appendJavaDate}
	simple = &style{comma: ",", colon: ":", date: appendHeaderDate, isSimple: true}
)

// append appends the text of v. embedded means that v is a part of another value. parent is the
// schema of the struct around v, or nil.
func (st *style) append(dst []byte, s *Schema, v any, parent *Schema, embedded bool) ([]byte, error) {
	if v == nil {
		return append(dst, "null"...), nil
	}
	s = schemaOf(s)
	switch v := v.(type) {
	case string:
		switch {
		case s.Type != String:
		case st.isSimple && embedded:
			return appendQuoted(dst, v), nil
		default:
			return append(dst, v...), nil
		}
	case []byte:
		switch {
		case st.isSimple && embedded:
			return appendJSONBytes(dst, v), nil
		case st.isSimple || isByteArray(s, parent):
			return base64.StdEncoding.AppendEncode(dst, v), nil
		}
		return fmt.Appendf(dst, "java.nio.HeapByteBuffer[pos=0 lim=%d cap=%[1]d]", len(v)), nil
	case int64:
		switch s.Name {
		case DateName, TimeName, TimestampName:
			return st.date(dst, javaMillis(s, v)), nil
		}
		return strconv.AppendInt(dst, v, 10), nil
	case float64:
		return appendDouble(dst, v), nil
	case float32:
		return appendFloat(dst, v), nil
	case bool:
		return strconv.AppendBool(dst, v), nil
	case *Unscaled:
		return v.append(dst), nil
	case []any:
		switch {
		case s.Type == Array:
			return st.appendList(dst, s, v)
		case s.Type == Struct && len(v) == len(s.Fields):
			return st.appendStruct(dst, s, v)
		}
	case []Entry:
		if s.Type == Map {
			return st.appendMap(dst, s, v)
		}
	}
	return dst, errShape(s, v)
}

func (st *style) appendList(dst []byte, s *Schema, list []any) (_ []byte, err error) {
	dst = append(dst, '[')
	for i, elem := range list {
		if i > 0 {
			dst = append(dst, st.comma...)
		}
		if dst, err = st.append(dst, s.Elem, elem, nil, true); err != nil {
			return dst, err
		}
	}
	return append(dst, ']'), nil
}

func (st *style) appendMap(dst []byte, s *Schema, entries []Entry) (_ []byte, err error) {
	dst = append(dst, '{')
	for i, e := range entries {
		if i > 0 {
			dst = append(dst, st.comma...)
		}
		if dst, err = st.append(dst, s.Key, e.Key, nil, true); err != nil {
			return dst, err
		}
		dst = append(dst, st.colon...)
		if dst, err = st.append(dst, s.Elem, e.Value, nil, true); err != nil {
			return dst, err
		}
	}
	return append(dst, '}'), nil
}

// appendStruct appends a struct. Values.append writes the default of a field that is null.
// Connect's Struct.toString leaves the field out, even if it has a default.
func (st *style) appendStruct(dst []byte, s *Schema, values []any) (_ []byte, err error) {
	if !st.isSimple {
		dst = append(dst, "Struct"...)
	}
	dst = append(dst, '{')
	first := true
	for i, f := range s.Fields {
		v := values[i]
		if v == nil && !st.isSimple {
			continue
		}
		if !first {
			dst = append(dst, ',')
		}
		first = false
		if st.isSimple {
			dst = appendQuoted(dst, f.Name)
		} else {
			dst = append(dst, f.Name...)
		}
		if v == nil && f.Schema != nil && f.Schema.HasDefault {
			v = f.Schema.Default
		}
		if dst, err = st.append(append(dst, st.colon...), f.Schema, v, s, true); err != nil {
			return dst, err
		}
	}
	return append(dst, '}'), nil
}

// appendQuoted quotes s as Values.escape does. Only the quote and the backslash have escapes.
func appendQuoted(dst []byte, s string) []byte {
	dst = append(dst, '"')
	for i := range len(s) {
		if s[i] == '"' || s[i] == '\\' {
			dst = append(dst, '\\')
		}
		dst = append(dst, s[i])
	}
	return append(dst, '"')
}

// questionMarks writes ? for each half of a surrogate pair in b from start on, because UTF-8 cannot
// express it (see surrogate).
func questionMarks(b []byte, start int) []byte {
	to := start
	for i := start; i < len(b); i++ {
		if b[i] == 0xED && surrogate(b[i:]) {
			if to == start { // this is the first half
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

// validText is questionMarks of a text.
func validText(text string) string {
	if strings.IndexByte(text, 0xED) < 0 {
		return text
	}
	return string(questionMarks([]byte(text), 0))
}

// surrogate reports whether b starts with half of a surrogate pair. A JSON document can have one as
// an escape, and a string in Java can contain it. A string here has the three bytes that UTF-8
// would have for it.
func surrogate(b []byte) bool {
	return len(b) >= 3 && b[0] == 0xED && b[1] >= 0xA0 && b[1] <= 0xBF && b[2] >= 0x80 && b[2] <= utf8.RuneSelf+0x3F
}
