package connect

import (
	enc "encoding/binary"
	"errors"
	"math"
)

// NewAvro returns a converter that writes Avro in the wire format of Confluent's registry: a zero
// byte, the id of the schema in four bytes, and the value. The schemas are those of Confluent's
// AvroData, of which Apicurio has a copy, with its default options. A null is null for Kafka, also if
// it has a schema.
//
// It differs if one name stands for two different structs in one schema, because a registry refuses
// such a schema. AvroData writes it, or fails later. Here the value is an error.
func NewAvro(o RegistryOptions) Converter {
	var p avroPrinter
	return &avroConverter{newRegistered(o, "AVRO", p.schema)}
}

type avroConverter struct{ *registered }

func (c *avroConverter) Append(dst []byte, topic string, s *Schema, v any) (out []byte, null bool, err error) {
	if s == nil && v == nil {
		return dst, true, nil
	}
	a, err := c.schema(s)
	if err != nil {
		return dst, false, err
	}
	if v == nil {
		if !s.Optional {
			return dst, false, errAvroNull
		}
		return dst, true, nil
	}
	if out, err = c.frame(dst, topic, a); err != nil {
		return dst, false, err
	}
	if s == nil {
		text, ok := v.(string)
		if !ok {
			return dst, false, errShape(schemaless, v)
		}
		return appendAnything(out, text), false, nil
	}
	if values, ok := v.([]any); ok && s.Type == Struct && len(values) == len(s.Fields) { // a record is never in a union here
		out, err = appendAvroStruct(out, s, values)
	} else {
		out, err = appendAvro(out, s, v)
	}
	if err != nil {
		return dst, false, err
	}
	return out, false, nil
}

func (c *avroConverter) AppendText(dst []byte, topic string, s *Schema, text []byte) (out []byte, null bool, err error) {
	if s == nil || s.Type != String {
		return c.Append(dst, topic, s, string(text))
	}
	if out, err = c.open(dst, topic, s); err != nil {
		return dst, false, err
	}
	out = appendBranch(out, s)
	return append(enc.AppendVarint(out, int64(len(text))), text...), false, nil
}

var errAvroNull = errors.New("Found null value for non-optional schema") //nolint:staticcheck // Confluent's words

// hasDefault reports whether a null becomes a default. Then null is the second branch of the union.
func hasDefault(s *Schema) bool { return s.HasDefault && s.Default != nil }

// appendBranch appends the number of the branch that is not null.
func appendBranch(dst []byte, s *Schema) []byte {
	switch {
	case !s.Optional:
		return dst
	case hasDefault(s):
		return append(dst, 0)
	}
	return append(dst, 2)
}

// appendFixed appends a floating-point number or a boolean, which Avro and Protobuf encode alike.
func appendFixed(dst []byte, s *Schema, v any) ([]byte, error) {
	switch v := v.(type) {
	case float64:
		if s.Type == Float64 {
			return enc.LittleEndian.AppendUint64(dst, math.Float64bits(v)), nil
		}
	case float32:
		if s.Type == Float32 {
			return enc.LittleEndian.AppendUint32(dst, math.Float32bits(v)), nil
		}
	case bool:
		if s.Type == Boolean {
			if v {
				return append(dst, 1), nil
			}
			return append(dst, 0), nil
		}
	}
	return dst, errShape(s, v)
}

// appendAvro appends v in Avro's binary encoding.
func appendAvro(dst []byte, s *Schema, v any) (_ []byte, err error) {
	if v == nil {
		switch {
		case !s.Optional:
			return dst, errAvroNull
		case hasDefault(s):
			return append(dst, 2), nil
		}
		return append(dst, 0), nil
	}
	dst = appendBranch(dst, s)
	switch v := v.(type) {
	case string:
		if s.Type == String {
			v = validText(v)
			return append(enc.AppendVarint(dst, int64(len(v))), v...), nil
		}
	case int64:
		if s.Type >= Int8 && s.Type <= Int64 {
			if s.Name == TimeName && (v < 0 || v > millisOfDay) {
				return dst, throw("Kafka Connect Time type should not have any date fields set to non-zero values.")
			}
			return enc.AppendVarint(dst, v), nil
		}
	case float64, float32, bool:
		return appendFixed(dst, s, v)
	case []byte:
		if s.Type == Bytes {
			return append(enc.AppendVarint(dst, int64(len(v))), v...), nil
		}
	case *Unscaled:
		if s.Name == DecimalName {
			return appendAvroDecimal(dst, s, v)
		}
	case []any:
		switch {
		case s.Type == Array:
			dst = appendBlock(dst, len(v))
			for _, elem := range v {
				if dst, err = appendAvro(dst, s.Elem, elem); err != nil {
					return dst, err
				}
			}
			return append(dst, 0), nil
		case s.Type == Struct && len(v) == len(s.Fields):
			return appendAvroStruct(dst, s, v)
		}
	case []Entry:
		if s.Type == Map { // a map and an array of entries have the same encoding
			dst = appendBlock(dst, len(v))
			for _, e := range v {
				if dst, err = appendAvro(dst, s.Key, e.Key); err != nil {
					return dst, err
				}
				if dst, err = appendAvro(dst, s.Elem, e.Value); err != nil {
					return dst, err
				}
			}
			return append(dst, 0), nil
		}
	}
	return dst, errShape(s, v)
}

func appendAvroStruct(dst []byte, s *Schema, values []any) (_ []byte, err error) {
	for i, f := range s.Fields {
		v := values[i]
		if v == nil && hasDefault(f.Schema) {
			v = f.Schema.Default
		}
		if dst, err = appendAvro(dst, f.Schema, v); err != nil {
			return dst, err
		}
	}
	return dst, nil
}

// appendBlock appends the number of elements in the only block of an array or a map. A zero ends it.
func appendBlock(dst []byte, n int) []byte {
	if n == 0 {
		return dst
	}
	return enc.AppendVarint(dst, int64(n))
}

func appendAvroDecimal(dst []byte, s *Schema, u *Unscaled) ([]byte, error) {
	scale, err := decimalScale(s)
	if err != nil {
		return dst, err
	}
	if scale != u.Scale {
		return dst, throw("Decimal value has mismatching scale for given Decimal schema. Schema has scale %d, value has scale %d.", scale, u.Scale)
	}
	b := TwosComplement(u.Value)
	return append(enc.AppendVarint(dst, int64(len(b))), b...), nil
}

// appendAnything appends a text without a schema.
func appendAnything(dst []byte, text string) []byte {
	dst = append(dst, 0, 0, 0, 0, 0, 0, 2) // of nine optional fields, string is the seventh
	dst = append(enc.AppendVarint(dst, int64(len(text))), text...)
	return append(dst, 0, 0)
}
