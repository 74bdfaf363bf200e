package connect

import (
	"cmp"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

const (
	avroSpace    = "io.confluent.connect.avro" // the namespace of names that AvroData makes up
	anythingName = avroSpace + ".Anything"
	unnamed      = avroSpace + ".ConnectDefault"
)

// anything is the schema of a value that has none.
const anything = `{"type":"record","name":"Anything","namespace":"` + avroSpace + `","fields":[` +
	`{"name":"boolean","type":["null","boolean"],"default":null},{"name":"bytes","type":["null","bytes"],"default":null},` +
	`{"name":"double","type":["null","double"],"default":null},{"name":"float","type":["null","float"],"default":null},` +
	`{"name":"int","type":["null","int"],"default":null},{"name":"long","type":["null","long"],"default":null},` +
	`{"name":"string","type":["null","string"],"default":null},{"name":"array","type":["null",{"type":"array","items":"Anything"}],"default":null},` +
	`{"name":"map","type":["null",{"type":"array","items":{"type":"record","name":"MapEntry","fields":[` +
	`{"name":"key","type":"Anything"},{"name":"value","type":"Anything"}]}}],"default":null}]}`

var avroTypes = [...]string{
	Int8: "int", Int16: "int", Int32: "int", Int64: "long", Float32: "float", Float64: "double", Boolean: "boolean",
	String: "string", Bytes: "bytes", Array: "array", Map: "map", Struct: "record",
}

var avroLogical = map[string]string{DecimalName: "decimal", DateName: "date", TimeName: "time-millis", TimestampName: "timestamp-millis"}

// An avroPrinter writes schemas as Avro's Java library prints those that AvroData makes.
type avroPrinter struct {
	schemaText
	named   []avroNamed // the records that are written, and may be referred to
	space   string      // the namespace of the record around
	unnamed int
}

type avroNamed struct {
	name   string
	schema *Schema
}

// schema returns the text, which is valid until the next call, and the full name of a record.
func (p *avroPrinter) schema(s *Schema) (text []byte, record string, err error) {
	if s == nil {
		return []byte(anything), anythingName, nil
	}
	p.out, p.named, p.space, p.unnamed = p.out[:0], p.named[:0], "", 0
	write := p.write
	if s.Type == Struct { // Debezium's value is a record with the schema of its own
		write, record = p.base, cmp.Or(s.Name, unnamed)
	}
	err = write(s)
	clear(p.named)
	return p.out, record, err
}

// A schemaText is a schema as JSON in the making.
type schemaText struct{ out []byte }

func (p *schemaText) text(s string)      { p.out = append(p.out, s...) }
func (p *schemaText) name(key, s string) { p.key(key); p.quote(s) }
func (p *schemaText) number(key string, n int) {
	p.key(key)
	p.out = strconv.AppendInt(p.out, int64(n), 10)
}

// key begins a member.
func (p *schemaText) key(key string) {
	if p.out[len(p.out)-1] != '{' {
		p.text(",")
	}
	p.quote(key)
	p.text(":")
}

// quote differs from appendJSONString: Jackson escapes a character above U+FFFF only if it writes UTF-8.
func (p *schemaText) quote(s string) {
	p.text(`"`)
	for _, r := range s {
		if r < utf8.RuneSelf {
			p.out = AppendJSONByte(p.out, byte(r))
		} else {
			p.out = utf8.AppendRune(p.out, r)
		}
	}
	p.text(`"`)
}

// write writes a schema, as a union with null if it is optional.
func (p *avroPrinter) write(s *Schema) error {
	if !s.Optional {
		return p.base(s)
	}
	open, end := `["null",`, `]`
	if hasDefault(s) {
		open, end = `[`, `,"null"]`
	}
	p.text(open)
	err := p.base(s)
	p.text(end)
	return err
}

func (p *avroPrinter) base(s *Schema) error {
	if s.Type == 0 || int(s.Type) >= len(avroTypes) {
		return throw("Unknown schema type: %s", s.Type)
	}
	if s.Type == Struct {
		return p.record(s, p.nameOf(s), false)
	}
	if s.Type < Array && !hasProps(s) {
		p.quote(avroTypes[s.Type])
		return nil
	}
	p.text(`{"type":`)
	var err error
	switch {
	case s.Type < Array:
		p.quote(avroTypes[s.Type])
	case s.Type == Array:
		p.text(`"array","items":`)
		err = p.write(s.Elem)
	case isEntries(s):
		p.text(`"array","items":`)
		of := &Schema{Type: Struct, Name: s.Name, Fields: []Field{{"key", s.Key}, {"value", s.Elem}}}
		err = p.record(of, cmp.Or(s.Name, avroSpace+".MapEntry"), true)
	default:
		p.text(`"map","values":`)
		err = p.write(s.Elem)
	}
	if err == nil {
		err = p.props(s)
	}
	p.text("}")
	return err
}

// isEntries reports whether a map is an array of records, because Avro's maps have texts as keys.
func isEntries(s *Schema) bool { return s.Type == Map && (s.Key.Type != String || s.Key.Optional) }

// nameOf returns the full name of a struct's record. Structs without a name are one record if they are
// equal.
func (p *avroPrinter) nameOf(s *Schema) string {
	if s.Name != "" {
		return s.Name
	}
	for _, n := range p.named {
		if n.schema.Name == "" && sameStruct(n.schema, s) {
			return n.name
		}
	}
	if p.unnamed++; p.unnamed == 1 {
		return unnamed
	}
	return unnamed + strconv.Itoa(p.unnamed)
}

// record writes a struct or the entries of a map, or a reference to the same one that is written already.
func (p *avroPrinter) record(s *Schema, name string, entries bool) error {
	for _, n := range p.named {
		if n.name != name {
			continue
		}
		if !sameStruct(n.schema, s) {
			return throw("Can't redefine: %s", name)
		}
		if space, short := splitAvroName(name); space == p.space {
			name = short
		}
		p.quote(name)
		return nil
	}
	p.named = append(p.named, avroNamed{name, s})
	err := p.fields(s, name)
	switch {
	case err != nil:
	case !entries:
		err = p.props(s)
	case s.Name != "":
		p.text(`,"connect.internal.type":"MapEntry"`)
	}
	p.text("}")
	return err
}

// sameStruct compares structs of one name, whether they are optional or not.
func sameStruct(a, b *Schema) bool {
	if a.Optional != b.Optional {
		c := *b
		c.Optional = a.Optional
		b = &c
	}
	return a.Version == b.Version && equal(a, b)
}

// fields writes a record up to its properties.
func (p *avroPrinter) fields(s *Schema, full string) error {
	space, name := splitAvroName(full)
	if err := validAvroName(name); err != nil {
		return err
	}
	p.text(`{"type":"record"`)
	p.name("name", name)
	if space != p.space {
		p.name("namespace", space)
	}
	p.text(`,"fields":[`)
	around := p.space
	p.space = space
	for i, f := range s.Fields {
		if err := validAvroName(f.Name); err != nil {
			return err
		}
		if i > 0 {
			p.text(",")
		}
		p.text(`{"name":`)
		p.quote(f.Name)
		p.text(`,"type":`)
		if err := p.write(f.Schema); err != nil {
			return err
		}
		switch {
		case hasDefault(f.Schema):
			p.key("default")
			if err := p.value(f.Schema, f.Schema.Default); err != nil {
				return err
			}
		case f.Schema.Optional:
			p.text(`,"default":null`)
		}
		p.text("}")
	}
	p.space = around
	p.text("]")
	return nil
}

// hasProps reports whether props writes anything.
func hasProps(s *Schema) bool {
	return s.Name != "" || s.Version != 0 || s.Doc != "" || len(s.Params) > 0 || hasDefault(s) || s.Type == Int8 || s.Type == Int16
}

// props writes what a schema has beside its type and its parts.
func (p *avroPrinter) props(s *Schema) error {
	if s.Name == DecimalName {
		scale, err := decimalScale(s)
		if err != nil {
			return err
		}
		p.number("scale", int(scale))
		p.number("precision", avroPrecision(s))
	}
	if s.Doc != "" {
		p.name("connect.doc", s.Doc)
	}
	if s.Version != 0 {
		p.number("connect.version", int(s.Version))
	}
	if len(s.Params) > 0 {
		p.key("connect.parameters")
		for i, param := range s.Params {
			p.text(map[bool]string{true: "{", false: ","}[i == 0])
			p.quote(param.Key)
			p.text(":")
			p.quote(param.Value)
		}
		p.text("}")
	}
	if hasDefault(s) {
		p.key("connect.default")
		if err := p.value(s, s.Default); err != nil {
			return err
		}
	}
	if s.Name != "" {
		p.name("connect.name", s.Name)
	}
	if s.Type == Int8 || s.Type == Int16 {
		p.name("connect.type", jsonTypes[s.Type])
	}
	if kind := avroLogical[s.Name]; kind != "" {
		p.name("logicalType", kind)
	}
	return nil
}

// avroPrecision is the number of digits of a decimal, which AvroData needs and Connect does not have.
func avroPrecision(s *Schema) int {
	for _, param := range s.Params {
		if n, err := strconv.Atoi(param.Value); err == nil && param.Key == "connect.decimal.precision" {
			return n
		}
	}
	return 64
}

// value writes a default as JSON.
func (p *avroPrinter) value(s *Schema, v any) (err error) {
	switch v := v.(type) {
	case nil:
		p.text("null")
	case string:
		p.quote(v)
	case int64:
		p.out = strconv.AppendInt(p.out, v, 10)
	case float64:
		p.out = appendJSONNumber(p.out, v, 64)
	case float32:
		p.out = appendJSONNumber(p.out, float64(v), 32)
	case bool:
		p.out = strconv.AppendBool(p.out, v)
	case []byte:
		p.latin(v)
	case *Unscaled:
		p.latin(TwosComplement(v.Value))
	case []any:
		open, end := "[", "]"
		if s.Type == Struct {
			open, end = "{", "}"
		}
		p.text(open)
		for i, elem := range v {
			if i > 0 {
				p.text(",")
			}
			of := s.Elem
			if s.Type == Struct {
				p.quote(s.Fields[i].Name)
				p.text(":")
				of = s.Fields[i].Schema
			}
			if err := p.value(of, elem); err != nil {
				return err
			}
		}
		p.text(end)
	case []Entry:
		open, colon, end := "{", ":", "}"
		if isEntries(s) {
			open, colon, end = "[[", ",", "]]"
		}
		p.text(open)
		for i, e := range v {
			if i > 0 {
				p.text(map[bool]string{true: "],[", false: ","}[isEntries(s)])
			}
			if err := p.value(s.Key, e.Key); err != nil {
				return err
			}
			p.text(colon)
			if err := p.value(s.Elem, e.Value); err != nil {
				return err
			}
		}
		if len(v) == 0 && isEntries(s) { // no entry
			p.out, end = p.out[:len(p.out)-1], "]"
		}
		p.text(end)
	default:
		err = errShape(s, v)
	}
	return err
}

// latin writes bytes as a text of the characters with these numbers.
func (p *avroPrinter) latin(b []byte) {
	runes := make([]rune, len(b))
	for i := range b {
		runes[i] = rune(b[i])
	}
	p.quote(string(runes))
}

func splitAvroName(full string) (space, name string) {
	dot := strings.LastIndexByte(full, '.')
	if dot < 0 {
		return "", full
	}
	return full[:dot], full[dot+1:]
}

// validAvroName is the check of Avro's Java library, which allows every letter. It does not check
// namespaces.
func validAvroName(name string) error {
	if name == "" {
		return throw("Empty name")
	}
	for i, r := range name {
		letter := r == '_' || r <= 0xFFFF && unicode.IsLetter(r)
		switch {
		case i == 0 && !letter:
			return throw("Illegal initial character: %s", name)
		case !letter && !(r <= 0xFFFF && unicode.Is(unicode.Nd, r)):
			return throw("Illegal character in: %s", name)
		}
	}
	return nil
}
