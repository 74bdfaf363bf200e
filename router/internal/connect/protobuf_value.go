package connect

import (
	enc "encoding/binary"
	"math"
	"math/big"
	"strings"
)

// The types of Protobuf's encoding.
const (
	wireVarint = 0
	wireI64    = 1
	wireLen    = 2
	wireI32    = 5
)

func appendProtoTag(dst []byte, number, wire int) []byte {
	return enc.AppendUvarint(dst, uint64(number)<<3|uint64(wire))
}

// openProto begins a value with a length, which closeProto writes before what is appended from start on.
func openProto(dst []byte, number int) (_ []byte, start int) {
	dst = append(appendProtoTag(dst, number, wireLen), 0)
	return dst, len(dst)
}

func closeProto(dst []byte, start int) []byte {
	n := len(dst) - start
	var size [enc.MaxVarintLen64]byte
	k := enc.PutUvarint(size[:], uint64(n))
	dst = append(dst, size[1:k]...)
	copy(dst[start+k-1:], dst[start:start+n])
	copy(dst[start-1:], size[:k])
	return dst
}

// fields appends the fields of m, whose struct may be another one than s with the same name.
func (o *ProtobufOptions) fields(dst []byte, m *protoMessage, s *Schema, v any) (_ []byte, err error) {
	values, ok := v.([]any)
	if !ok || len(values) != len(s.Fields) {
		return dst, errShape(s, v)
	}
	found := 0
	for i := range m.fields {
		at := o.find(s, i, m.fields[i].name)
		if at < 0 {
			continue
		}
		found++
		if dst, err = o.field(dst, i+1, &m.fields[i], s.Fields[at].Schema, orDefault(s.Fields[at].Schema, values[at])); err != nil {
			return dst, err
		}
	}
	for i := 0; found < len(s.Fields) && i < len(s.Fields); i++ {
		f := s.Fields[i]
		list, empty := values[i].([]any)
		empty = empty && len(list) == 0 && f.Schema.Type == Array
		if orDefault(f.Schema, values[i]) != nil && !empty && !m.has(o.scrub(f.Name)) {
			return dst, throw("Cannot find field with name %s", f.Name)
		}
	}
	return dst, nil
}

// find returns the index of the field with a scrubbed name, which is probably i, or -1.
func (o *ProtobufOptions) find(s *Schema, i int, name string) int {
	if i < len(s.Fields) && o.scrub(s.Fields[i].Name) == name {
		return i
	}
	for i := range s.Fields {
		if o.scrub(s.Fields[i].Name) == name {
			return i
		}
	}
	return -1
}

func (m *protoMessage) has(name string) bool {
	for i := range m.fields {
		if m.fields[i].name == name {
			return true
		}
	}
	return false
}

func orDefault(s *Schema, v any) any {
	if v == nil && hasDefault(s) {
		return s.Default
	}
	return v
}

// field appends the field of a number. It appends nothing for a null.
func (o *ProtobufOptions) field(dst []byte, number int, f *protoField, s *Schema, v any) (_ []byte, err error) {
	switch v := v.(type) {
	case nil:
		return dst, nil
	case []any:
		if s.Type != Array {
			break
		}
		if len(v) == 0 {
			return dst, nil
		}
		if !f.repeated || o.kind(s.Elem) != f.kind || s.Elem.Type == Map {
			return dst, errOtherField(f)
		}
		packed := f.kind <= protoBool
		var start int
		if packed {
			dst, start = openProto(dst, number)
		}
		for _, elem := range v {
			switch {
			case elem == nil:
				return dst, throw("Repeated field %s has a null.", f.name)
			case packed:
				dst, err = appendProtoNumber(dst, s.Elem, elem)
			default:
				dst, err = o.one(dst, number, true, f, s.Elem, elem)
			}
			if err != nil {
				return dst, err
			}
		}
		if packed {
			dst = closeProto(dst, start)
		}
		return dst, nil
	case []Entry:
		if s.Type != Map {
			return dst, errShape(s, v)
		}
		if f.message == nil || !f.message.entry {
			return dst, errOtherField(f)
		}
		for _, e := range v {
			var start int
			dst, start = openProto(dst, number)
			if dst, err = o.field(dst, 1, &f.message.fields[0], s.Key, e.Key); err != nil {
				return dst, err
			}
			if dst, err = o.field(dst, 2, &f.message.fields[1], s.Elem, e.Value); err != nil {
				return dst, err
			}
			dst = closeProto(dst, start)
		}
		return dst, nil
	}
	if f.repeated || o.kind(s) != f.kind {
		return dst, errOtherField(f)
	}
	return o.one(dst, number, f.presence, f, s, v)
}

// errOtherField is the error for a struct whose name another struct has, with a field of another type.
func errOtherField(f *protoField) error { return throw("Field %s has another type.", f.name) }

// one appends a value that is not repeated, or an element of one that is.
func (o *ProtobufOptions) one(dst []byte, number int, presence bool, f *protoField, s *Schema, v any) (_ []byte, err error) {
	if f.kind < protoWrapped {
		return appendProtoScalar(dst, number, presence, s, v)
	}
	dst, start := openProto(dst, number)
	switch {
	case f.kind == protoMessageKind && f.message.entry:
		return dst, errOtherField(f)
	case f.kind == protoMessageKind:
		dst, err = o.fields(dst, f.message, s, v)
	case f.kind >= protoDecimal:
		dst, err = appendProtoLogical(dst, s, v)
	default:
		dst, err = appendProtoScalar(dst, 1, false, s, v)
	}
	if err != nil {
		return dst, err
	}
	return closeProto(dst, start), nil
}

// appendProtoScalar appends a field. Without presence it leaves out a zero.
func appendProtoScalar(dst []byte, number int, presence bool, s *Schema, v any) ([]byte, error) {
	zero, wire := false, wireVarint
	switch v := v.(type) {
	case string:
		if s.Type != String {
			return dst, errShape(s, v)
		}
		return appendProtoText(dst, number, presence, validText(v)), nil
	case []byte:
		if s.Type != Bytes {
			return dst, errShape(s, v)
		}
		if len(v) > 0 || presence {
			dst = enc.AppendUvarint(appendProtoTag(dst, number, wireLen), uint64(len(v)))
		}
		return append(dst, v...), nil
	case int64:
		zero = v == 0
	case float64:
		zero, wire = math.Float64bits(v) == 0, wireI64
	case float32:
		zero, wire = math.Float32bits(v) == 0, wireI32
	case bool:
		zero = !v
	}
	if zero && !presence {
		return dst, nil
	}
	return appendProtoNumber(appendProtoTag(dst, number, wire), s, v)
}

// appendProtoNumber appends a number or a boolean without its tag.
func appendProtoNumber(dst []byte, s *Schema, v any) ([]byte, error) {
	if v, ok := v.(int64); ok && s.Type >= Int8 && s.Type <= Int64 {
		return enc.AppendUvarint(dst, uint64(v)), nil
	}
	return appendFixed(dst, s, v)
}

// appendProtoText appends a field.
func appendProtoText[T string | []byte](dst []byte, number int, presence bool, text T) []byte {
	if len(text) == 0 && !presence {
		return dst
	}
	dst = enc.AppendUvarint(appendProtoTag(dst, number, wireLen), uint64(len(text)))
	return append(dst, text...)
}

// appendProtoInt appends a field of a logical type, and nothing for a zero.
func appendProtoInt(dst []byte, number int, v int64) []byte {
	if v == 0 {
		return dst
	}
	return enc.AppendUvarint(appendProtoTag(dst, number, wireVarint), uint64(v))
}

// precision is the number of digits of n.
func precision(n *big.Int) int {
	if n.Sign() == 0 {
		return 1
	}
	return len(strings.TrimPrefix(n.String(), "-"))
}

// appendProtoLogical appends the fields of a logical type.
func appendProtoLogical(dst []byte, s *Schema, v any) ([]byte, error) {
	if u, ok := v.(*Unscaled); ok && s.Name == DecimalName {
		b := TwosComplement(u.Value)
		dst = append(enc.AppendUvarint(appendProtoTag(dst, 1, wireLen), uint64(len(b))), b...)
		return appendProtoInt(appendProtoInt(dst, 2, int64(precision(u.Value))), 3, int64(u.Scale)), nil
	}
	n, ok := v.(int64)
	if !ok || s.Name == DecimalName {
		return dst, errShape(s, v)
	}
	switch s.Name {
	case DateName:
		year, month, day := javaDate(n)
		return appendProtoInt(appendProtoInt(appendProtoInt(dst, 1, year), 2, month), 3, day), nil
	case TimeName:
		if n < 0 || n > millisOfDay {
			return dst, throw("Time values must use number of millis greater than 0 and less than 86400000")
		}
		n %= millisOfDay
		dst = appendProtoInt(appendProtoInt(dst, 1, n/3_600_000), 2, n/60_000%60)
		return appendProtoInt(appendProtoInt(dst, 3, n/1000%60), 4, n%1000*1_000_000), nil
	}
	seconds, millis := FloorDiv(n, 1000)
	if seconds < -62_135_596_800 || seconds > 253_402_300_799 {
		return dst, throw("Timestamp is not valid. Seconds (%d) must be in range [-62,135,596,800, +253,402,300,799].", seconds)
	}
	return appendProtoInt(appendProtoInt(dst, 1, seconds), 2, millis*1_000_000), nil
}
