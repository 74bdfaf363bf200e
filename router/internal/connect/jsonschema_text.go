package connect

import (
	"errors"
	"math"
	"math/big"
	"slices"
	"strconv"
	"strings"
	"unicode/utf16"
)

// A jsonSchemaPrinter writes schemas as the libraries of JsonSchemaConverter print those that
// JsonSchemaData makes.
type jsonSchemaPrinter struct {
	schemaText
	json   *jsonConverter // of the values
	closed bool
	places []place // of the members of the objects that are being written
}

// A place is where a member stands in an object whose members java.util.HashMap puts in order.
type place struct {
	member int
	hash   uint32
}

// noIndex is the index of a schema that is not a field's.
const noIndex = -1

// schema returns the text, which is valid until the next call, and the title.
func (p *jsonSchemaPrinter) schema(s *Schema) (text []byte, title string, err error) {
	if s == nil {
		return nil, "", errSchemaless
	}
	if !s.Optional {
		title = s.Name
	}
	p.out, p.places = p.out[:0], p.places[:0]
	err = p.write(s, noIndex)
	return p.out, title, err
}

// write writes a schema, as a choice with null if it is optional.
func (p *jsonSchemaPrinter) write(s *Schema, index int) error {
	if !s.Optional {
		return p.base(s, index)
	}
	p.text("{")
	if index != noIndex {
		p.number("connect.index", index)
	}
	p.key("oneOf")
	p.text(`[{"type":"null"},`)
	err := p.base(s, noIndex)
	p.text("]}")
	return err
}

func (p *jsonSchemaPrinter) base(s *Schema, index int) error {
	kind, connectType := "string", ""
	switch {
	case s.Type == 0 || int(s.Type) >= len(jsonTypes):
		return throw("Unsupported type %s", s.Type)
	case s.Type <= Int64:
		kind, connectType = "integer", jsonTypes[s.Type]
	case s.Type == Float32:
		kind, connectType = "number", "float32"
	case s.Type == Float64:
		kind, connectType = "number", "float64"
	case s.Type == Boolean:
		kind = "boolean"
	case s.Type == Bytes:
		connectType = "bytes"
		if s.Name == DecimalName && p.json.o.NumericDecimals {
			kind = "number"
		}
	case s.Type == Array:
		kind = "array"
	case s.Type == Map:
		kind, connectType = "object", "map"
		if isEntries(s) {
			kind = "array"
		}
	case s.Type == Struct:
		kind = "object"
	}
	p.text("{")
	if s.Type != Boolean {
		p.name("type", kind)
	}
	if s.Type == Struct && p.closed {
		p.key("additionalProperties")
		p.text("false")
	}
	if s.Name != "" {
		p.name("title", s.Name)
	}
	if s.Doc != "" {
		p.name("description", s.Doc)
	}
	if hasDefault(s) {
		p.key("default")
		if err := p.value(s, s.Default); err != nil {
			return err
		}
	}
	p.props(s, connectType, index)
	if s.Type == Boolean { // the only type that everit-json-schema writes here
		p.name("type", kind)
	}
	err := p.parts(s)
	p.text("}")
	return err
}

// parts writes the schemas that a schema consists of.
func (p *jsonSchemaPrinter) parts(s *Schema) error {
	switch {
	case s.Type == Array:
		p.key("items")
		return p.write(s.Elem, noIndex)
	case isEntries(s):
		p.key("items")
		p.text(`{"type":"object"`)
		err := p.fields([]Field{{"key", s.Key}, {"value", s.Elem}})
		p.text("}")
		return err
	case s.Type == Map:
		p.key("additionalProperties")
		return p.write(s.Elem, noIndex)
	}
	return p.fields(s.Fields)
}

func (p *jsonSchemaPrinter) fields(fields []Field) error {
	if len(fields) == 0 {
		return nil
	}
	p.key("properties")
	p.text("{")
	from := len(p.places)
	for i := range fields {
		p.place(i, fields[i].Name)
	}
	p.order(from, grown(16, len(fields)))
	for k := range fields {
		i := p.places[from+k].member
		p.key(fields[i].Name)
		if err := p.write(fields[i].Schema, i); err != nil {
			return err
		}
	}
	p.places = p.places[:from]
	p.text("}")
	return nil
}

// props writes what Connect has and JSON Schema has not.
func (p *jsonSchemaPrinter) props(s *Schema, connectType string, index int) {
	from, n := len(p.places), 0
	for i, has := range [...]bool{connectType != "", s.Version != 0, len(s.Params) > 0, index != noIndex} {
		if has {
			p.place(i, jsonSchemaProps[i])
			n++
		}
	}
	p.order(from, 16)
	p.order(from, grown(1, n))
	for k := range n {
		i := p.places[from+k].member
		switch name := jsonSchemaProps[i]; i {
		case 0:
			p.name(name, connectType)
		case 1:
			p.number(name, int(s.Version))
		case 2:
			p.key(name)
			p.params(s.Params)
		case 3:
			p.number(name, index)
		}
	}
	p.places = p.places[:from]
}

var jsonSchemaProps = [...]string{"connect.type", "connect.version", "connect.parameters", "connect.index"}

func (p *jsonSchemaPrinter) params(params []Param) {
	p.text("{")
	from := len(p.places)
	for i := range params {
		p.place(i, params[i].Key)
	}
	p.order(from, grown(16, len(params)))
	p.order(from, grown(1, len(params)))
	for _, at := range p.places[from:] {
		p.name(params[at.member].Key, params[at.member].Value)
	}
	p.places = p.places[:from]
	p.text("}")
}

// value writes a default.
func (p *jsonSchemaPrinter) value(s *Schema, v any) (err error) {
	switch v := v.(type) {
	case string:
		p.quote(v)
	case float64:
		return p.decimal(v, string(appendDouble(nil, v)))
	case float32:
		return p.decimal(float64(v), string(appendFloat(nil, v)))
	case []any:
		if s.Type != Array {
			return errNoDefault
		}
		p.text("[")
		for i, elem := range v {
			if i > 0 {
				p.text(",")
			}
			if elem == nil && hasDefault(s.Elem) {
				elem = s.Elem.Default
			}
			if err := p.value(s.Elem, elem); err != nil {
				return err
			}
		}
		p.text("]")
	case []Entry:
		return errNoDefault
	default:
		if u, ok := v.(*Unscaled); ok && p.json.o.NumericDecimals {
			return p.decimal(0, u.String())
		}
		p.out, err = p.json.append(p.out, s, v)
	}
	return err
}

// errNoDefault is for defaults that Debezium does not have.
var errNoDefault = errors.New("a default of a map or a struct has no JSON Schema")

// decimal writes a number, which goes through org.json and java.math.BigDecimal.
func (p *jsonSchemaPrinter) decimal(f float64, text string) error {
	if math.IsNaN(f) || math.IsInf(f, 0) {
		return throw("JSON does not allow non-finite numbers.")
	}
	digits, exponent, scientific := strings.Cut(text, "E")
	whole, fraction, point := strings.Cut(digits, ".")
	if !scientific && point {
		fraction = strings.TrimRight(fraction, "0")
	}
	u := Unscaled{Value: new(big.Int), Scale: int32(len(fraction))}
	u.Value.SetString(whole+fraction, 10)
	if scientific {
		n, err := strconv.Atoi(exponent)
		if err != nil {
			return err
		}
		u.Scale -= int32(n)
	}
	p.out = u.append(p.out)
	return nil
}

// place adds a member with a name.
func (p *jsonSchemaPrinter) place(member int, name string) {
	hash := uint32(0)
	for _, r := range name {
		if high, low := utf16.EncodeRune(r); r > 0xFFFF {
			hash = hash*31 + uint32(high)
			r = low
		}
		hash = hash*31 + uint32(r)
	}
	p.places = append(p.places, place{member, hash ^ hash>>16})
}

// order puts the places in the order of a HashMap with a table of this size. Those with one place in
// the table keep their order. A HashMap that is a copy of another one needs both calls.
func (p *jsonSchemaPrinter) order(from, table int) {
	slices.SortStableFunc(p.places[from:], func(a, b place) int {
		return int(a.hash&uint32(table-1)) - int(b.hash&uint32(table-1))
	})
}

// grown is the size of the table of a HashMap with n entries that began with another size. It is also
// the one of a copy, which begins with 1, since Java 19.
func grown(size, n int) int {
	for n > size*3/4 {
		size *= 2
	}
	return size
}
