package connect

import (
	"encoding/base64"
	"strconv"
)

// NewSimpleHeader returns Kafka Connect's SimpleHeaderConverter, the default for headers. It writes
// the text of Values.convertToString, and null for null. Dates and times are in UTC; in Connect
// they are in the time zone of the worker.
func NewSimpleHeader() TextConverter { return simpleHeader{} }

type simpleHeader struct{}

func (simpleHeader) Append(dst []byte, _ string, s *Schema, v any) (out []byte, null bool, err error) {
	if v == nil {
		return dst, true, nil
	}
	start := len(dst)
	out, err = appendSimple(dst, s, v, false)
	if err != nil {
		return dst, false, err
	}
	return questionMarks(out, start), false, nil
}

func (simpleHeader) AppendText(dst []byte, _ string, _ *Schema, text []byte) (out []byte, null bool, err error) {
	return append(dst, text...), false, nil
}

// appendSimple appends the text of Values.append. embedded means that v is a part of another value.
// Then texts are quoted.
func appendSimple(dst []byte, s *Schema, v any, embedded bool) (_ []byte, err error) {
	if v == nil {
		return append(dst, "null"...), nil
	}
	if s, err = schemaOf(s, v); err != nil {
		return dst, err
	}
	switch v := v.(type) {
	case string:
		if s.Type != String {
			break
		}
		if !embedded {
			return append(dst, v...), nil
		}
		return appendQuoted(dst, v), nil
	case []byte:
		if !embedded {
			return base64.StdEncoding.AppendEncode(dst, v), nil
		}
		dst = base64.StdEncoding.AppendEncode(append(dst, '"'), v)
		return append(dst, '"'), nil
	case int64:
		switch s.Name {
		case DateName, TimeName, TimestampName:
			return appendHeaderDate(dst, javaMillis(s, v)), nil
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
	case []any:
		if s.Type == Array {
			return appendSimpleList(dst, s, v)
		}
		if s.Type == Struct {
			return appendSimpleStruct(dst, s, v)
		}
	case []Entry:
		if s.Type == Map {
			return appendSimpleMap(dst, s, v)
		}
	}
	return dst, errShape(s, v)
}

func appendSimpleList(dst []byte, s *Schema, list []any) (_ []byte, err error) {
	dst = append(dst, '[')
	for i, elem := range list {
		if i > 0 {
			dst = append(dst, ',')
		}
		if dst, err = appendSimple(dst, s.Elem, elem, true); err != nil {
			return dst, err
		}
	}
	return append(dst, ']'), nil
}

func appendSimpleMap(dst []byte, s *Schema, entries []Entry) (_ []byte, err error) {
	dst = append(dst, '{')
	for i, e := range entries {
		if i > 0 {
			dst = append(dst, ',')
		}
		if dst, err = appendSimple(dst, s.Key, e.Key, true); err != nil {
			return dst, err
		}
		dst = append(dst, ':')
		if dst, err = appendSimple(dst, s.Elem, e.Value, true); err != nil {
			return dst, err
		}
	}
	return append(dst, '}'), nil
}

// appendSimpleStruct appends a struct with all fields. A field that is null has its default.
func appendSimpleStruct(dst []byte, s *Schema, values []any) (_ []byte, err error) {
	if len(values) != len(s.Fields) {
		return dst, errShape(s, values)
	}
	dst = append(dst, '{')
	for i, f := range s.Fields {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(appendQuoted(dst, f.Name), ':')
		v := values[i]
		if v == nil && f.Schema != nil && f.Schema.HasDefault {
			v = f.Schema.Default
		}
		if dst, err = appendSimple(dst, f.Schema, v, true); err != nil {
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
