package connect

import (
	"encoding/base64"
	"math"
	"strconv"
)

// JSONOptions are the options of Kafka Connect's JsonConverter. In Connect, Schemas and
// ReplaceNullWithDefault are true by default.
type JSONOptions struct {
	Schemas                bool // schemas.enable
	NumericDecimals        bool // decimal.format: numeric
	ReplaceNullWithDefault bool // replace.null.with.default
}

// NewJSON returns Kafka Connect's JsonConverter.
//
// A null that has a schema is not null for Kafka: it is the text null, or, with Schemas, an
// envelope whose payload is null. A null without a schema is null for Kafka.
func NewJSON(o JSONOptions) Converter {
	return &jsonConverter{o: o, schemas: make(map[*Schema][]byte)}
}

type jsonConverter struct {
	o          JSONOptions
	schemas    map[*Schema][]byte // {"schema":…,"payload": of each schema seen
	registered bool               // it writes as JsonSchemaConverter does
}

// keptSchemas is the number of schemas that a converter remembers (schemas.cache.size in Connect).
const keptSchemas = 1000

func (c *jsonConverter) Append(dst []byte, _ string, s *Schema, v any) (out []byte, null bool, err error) {
	if s == nil && v == nil {
		return dst, true, nil
	}
	out = dst
	if c.o.Schemas {
		if out, err = c.appendEnvelope(dst, s); err != nil {
			return dst, false, err
		}
	}
	if out, err = c.append(out, s, v); err != nil {
		return dst, false, err
	}
	if c.o.Schemas {
		out = append(out, '}')
	}
	return out, false, nil
}

func (c *jsonConverter) AppendText(dst []byte, topic string, s *Schema, text []byte) (out []byte, null bool, err error) {
	if s != nil && (s.Type != String || logical(s)) {
		return c.Append(dst, topic, s, string(text))
	}
	out = dst
	if c.o.Schemas {
		if out, err = c.appendEnvelope(dst, s); err != nil {
			return dst, false, err
		}
	}
	out = appendJSONString(out, text)
	if c.o.Schemas {
		out = append(out, '}')
	}
	return out, false, nil
}

// appendEnvelope appends the text before the payload.
func (c *jsonConverter) appendEnvelope(dst []byte, s *Schema) ([]byte, error) {
	if s == nil {
		return append(dst, `{"schema":null,"payload":`...), nil
	}
	if text, ok := c.schemas[s]; ok {
		return append(dst, text...), nil
	}
	start := len(dst)
	dst, err := c.appendSchema(append(dst, `{"schema":`...), s, nil)
	if err != nil {
		return dst, err
	}
	dst = append(dst, `,"payload":`...)
	if keep(s) {
		if len(c.schemas) >= keptSchemas {
			clear(c.schemas)
		}
		c.schemas[s] = append([]byte(nil), dst[start:]...)
	}
	return dst, nil
}

// keep reports whether s can occur again: neither s nor a field of s was made for one value.
func keep(s *Schema) bool {
	for _, f := range s.Fields {
		if f.Schema != nil && f.Schema.passing {
			return false
		}
	}
	return !s.passing
}

func logical(s *Schema) bool {
	switch s.Name {
	case DecimalName, DateName, TimeName, TimestampName:
		return true
	}
	return false
}

// append appends v as JSON.
func (c *jsonConverter) append(dst []byte, s *Schema, v any) (_ []byte, err error) {
	if v == nil {
		switch {
		case s == nil:
			return append(dst, "null"...), nil
		case s.HasDefault && s.Default != nil && c.o.ReplaceNullWithDefault:
			return c.append(dst, s, s.Default)
		case s.Optional:
			return append(dst, "null"...), nil
		}
		return dst, throw("Conversion error: null value for field that is required and has no default value")
	}
	s = schemaOf(s)
	if logical(s) {
		return c.appendLogical(dst, s, v)
	}
	switch v := v.(type) {
	case string:
		if s.Type == String {
			return appendJSONString(dst, v), nil
		}
	case int64:
		if s.Type >= Int8 && s.Type <= Int64 {
			return strconv.AppendInt(dst, v, 10), nil
		}
	case float64:
		if s.Type == Float64 {
			return appendJSONNumber(dst, v, 64), nil
		}
	case float32:
		if s.Type == Float32 {
			return appendJSONNumber(dst, float64(v), 32), nil
		}
	case bool:
		if s.Type == Boolean {
			return strconv.AppendBool(dst, v), nil
		}
	case []byte:
		if s.Type == Bytes {
			return appendJSONBytes(dst, v), nil
		}
	case []any:
		if s.Type == Array {
			return c.appendArray(dst, s, v)
		}
		if s.Type == Struct {
			return c.appendStruct(dst, s, v)
		}
	case []Entry:
		if s.Type == Map {
			return c.appendMap(dst, s, v)
		}
	}
	return dst, errShape(s, v)
}

func (c *jsonConverter) appendLogical(dst []byte, s *Schema, v any) ([]byte, error) {
	if s.Name == DecimalName {
		u, ok := v.(*Unscaled)
		if !ok {
			return dst, errShape(s, v)
		}
		if c.o.NumericDecimals {
			return u.append(dst), nil
		}
		scale, err := decimalScale(s)
		if err != nil {
			return dst, err
		}
		if scale != u.Scale {
			return dst, throw("Decimal value has mismatching scale for given Decimal schema. Schema has scale %d, value has scale %d.", scale, u.Scale)
		}
		return appendJSONBytes(dst, TwosComplement(u.Value)), nil
	}
	n, ok := v.(int64)
	if !ok {
		return dst, errShape(s, v)
	}
	if s.Name == TimeName && (n < 0 || n > millisOfDay) {
		return dst, throw("Kafka Connect Time type should not have any date fields set to non-zero values.")
	}
	return strconv.AppendInt(dst, n, 10), nil
}

func decimalScale(s *Schema) (int32, error) {
	for _, p := range s.Params {
		if p.Key == "scale" {
			n, err := strconv.ParseInt(p.Value, 10, 32)
			if err != nil {
				return 0, throw("Invalid scale parameter found in Decimal schema: %s", p.Value)
			}
			return int32(n), nil
		}
	}
	return 0, throw("Invalid Decimal schema: scale parameter not found.")
}

func (c *jsonConverter) appendArray(dst []byte, s *Schema, list []any) (_ []byte, err error) {
	dst = append(dst, '[')
	for i, elem := range list {
		if i > 0 {
			dst = append(dst, ',')
		}
		if dst, err = c.append(dst, s.Elem, elem); err != nil {
			return dst, err
		}
	}
	return append(dst, ']'), nil
}

// appendMap appends a map with string keys as an object, and every other map as an array of pairs. With
// registered, a key that may be null is no string, and a pair is an object.
func (c *jsonConverter) appendMap(dst []byte, s *Schema, entries []Entry) (_ []byte, err error) {
	if c.registered && isEntries(s) {
		return c.appendPairs(dst, s, entries)
	}
	object := s.Key.Type == String
	open, end := byte('['), byte(']')
	if object {
		open, end = '{', '}'
	}
	dst = append(dst, open)
	for i, e := range entries {
		if i > 0 {
			dst = append(dst, ',')
		}
		if !object {
			dst = append(dst, '[')
		}
		if object && e.Key == nil && (!s.Key.HasDefault || s.Key.Default == nil || !c.o.ReplaceNullWithDefault) && s.Key.Optional {
			dst = append(dst, `"null"`...)
		} else if dst, err = c.append(dst, s.Key, e.Key); err != nil {
			return dst, err
		}
		if object {
			dst = append(dst, ':')
		} else {
			dst = append(dst, ',')
		}
		if dst, err = c.append(dst, s.Elem, e.Value); err != nil {
			return dst, err
		}
		if !object {
			dst = append(dst, ']')
		}
	}
	return append(dst, end), nil
}

func (c *jsonConverter) appendPairs(dst []byte, s *Schema, entries []Entry) (_ []byte, err error) {
	dst = append(dst, '[')
	for i, e := range entries {
		if i > 0 {
			dst = append(dst, ',')
		}
		if dst, err = c.append(append(dst, `{"key":`...), s.Key, e.Key); err != nil {
			return dst, err
		}
		if dst, err = c.append(append(dst, `,"value":`...), s.Elem, e.Value); err != nil {
			return dst, err
		}
		dst = append(dst, '}')
	}
	return append(dst, ']'), nil
}

func (c *jsonConverter) appendStruct(dst []byte, s *Schema, values []any) (_ []byte, err error) {
	if len(values) != len(s.Fields) {
		return dst, errShape(s, values)
	}
	dst = append(dst, '{')
	for i, f := range s.Fields {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(appendJSONString(dst, f.Name), ':')
		if dst, err = c.append(dst, f.Schema, values[i]); err != nil {
			return dst, err
		}
	}
	return append(dst, '}'), nil
}

func appendJSONBytes(dst, b []byte) []byte {
	dst = base64.StdEncoding.AppendEncode(append(dst, '"'), b)
	return append(dst, '"')
}

// appendJSONNumber appends Java's text of f. It quotes the text if JSON has no such number.
func appendJSONNumber(dst []byte, f float64, bits int) []byte {
	if math.IsNaN(f) || math.IsInf(f, 0) {
		return append(appendJava(append(dst, '"'), f, bits), '"')
	}
	return appendJava(dst, f, bits)
}
