package connect

import (
	"errors"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// A protoKind is the type of a field.
type protoKind uint8

const (
	protoDouble protoKind = iota
	protoFloat
	protoInt64
	_
	protoInt32
	_
	protoBool
	protoString
	protoBytes
	protoWrapped // protoWrapped + protoDouble is google.protobuf.DoubleValue, and so on

	protoDecimal protoKind = iota + 8
	protoDate
	protoTime
	protoTimestamp
	protoMessageKind // a message of the schema itself
)

// protoTypes are the kinds with their names and the files that define them. The scalar types have the order of their wrappers in
// wrappers.proto.
var protoTypes = [protoMessageKind]struct{ name, file string }{
	protoDouble: {"double", ""}, protoFloat: {"float", ""}, protoInt64: {"int64", ""}, protoInt32: {"int32", ""},
	protoBool: {"bool", ""}, protoString: {"string", ""}, protoBytes: {"bytes", ""},
	protoWrapped + protoDouble: {"google.protobuf.DoubleValue", protoWrappers}, protoWrapped + protoFloat: {"google.protobuf.FloatValue", protoWrappers},
	protoWrapped + protoInt64: {"google.protobuf.Int64Value", protoWrappers}, protoWrapped + protoInt32: {"google.protobuf.Int32Value", protoWrappers},
	protoWrapped + protoBool: {"google.protobuf.BoolValue", protoWrappers}, protoWrapped + protoString: {"google.protobuf.StringValue", protoWrappers},
	protoWrapped + protoBytes: {"google.protobuf.BytesValue", protoWrappers},
	protoDecimal:              {"confluent.type.Decimal", "confluent/type/decimal.proto"}, protoDate: {"google.type.Date", "google/type/date.proto"},
	protoTime: {"google.type.TimeOfDay", "google/type/timeofday.proto"}, protoTimestamp: {"google.protobuf.Timestamp", "google/protobuf/timestamp.proto"},
}

const protoWrappers = "google/protobuf/wrappers.proto"

// wrappersProto is the schema of a value that is no struct: wrappers.proto, as ProtobufSchema prints it.
var wrappersProto = []byte(`syntax = "proto3";
package google.protobuf;

option java_package = "com.google.protobuf";
option java_outer_classname = "WrappersProto";
option java_multiple_files = true;
option go_package = "google.golang.org/protobuf/types/known/wrapperspb";
option cc_enable_arenas = true;
option objc_class_prefix = "GPB";
option csharp_namespace = "Google.Protobuf.WellKnownTypes";

message DoubleValue {
  double value = 1 [json_name = "value"];
}
message FloatValue {
  float value = 1 [json_name = "value"];
}
message Int64Value {
  int64 value = 1 [json_name = "value"];
}
message UInt64Value {
  uint64 value = 1 [json_name = "value"];
}
message Int32Value {
  int32 value = 1 [json_name = "value"];
}
message UInt32Value {
  uint32 value = 1 [json_name = "value"];
}
message BoolValue {
  bool value = 1 [json_name = "value"];
}
message StringValue {
  string value = 1 [json_name = "value"];
}
message BytesValue {
  bytes value = 1 [json_name = "value"];
}
`)

var protoScalars = [...]protoKind{
	Int8: protoInt32, Int16: protoInt32, Int32: protoInt32, Int64: protoInt64, Float32: protoFloat, Float64: protoDouble,
	Boolean: protoBool, String: protoString, Bytes: protoBytes,
}

// A protoMessage is a message that ProtobufData makes of a struct, or of the entries of a map.
type protoMessage struct {
	name   string
	entry  bool // of a map
	fields []protoField
	nested []*protoMessage
}

// A protoField has the number of its place.
type protoField struct {
	name               string
	kind               protoKind
	repeated, presence bool          // presence: the field is optional, so a zero is written
	message            *protoMessage // of protoMessageKind
	of                 *Schema       // whose parameters it shows; valid while the schema is printed
}

// A protoPrinter writes schemas as ProtobufSchema prints those that ProtobufData makes.
type protoPrinter struct {
	schemaText
	o       *ProtobufOptions
	pool    []*protoMessage
	used    int // of the pool
	unnamed int
	imports []string
	long    map[string]string // of suffixed
}

// schema returns the text, which is valid until the next call, and the full name of the message.
func (p *protoPrinter) schema(s *Schema) (text []byte, record string, err error) {
	if s == nil {
		return nil, "", errors.New("a value without a schema has no Protobuf schema")
	}
	if s.Type < Array {
		return wrappersProto, protoTypes[protoWrapped+protoScalars[s.Type]].name, nil
	}
	record, m, err := p.tree(s)
	if err != nil {
		return nil, "", err
	}
	p.out = append(p.out[:0], "syntax = \"proto3\";\n"...)
	if space, _ := splitAvroName(record); space != "" {
		p.line(0, "package ", space, ";")
	}
	if len(p.imports) > 0 {
		p.text("\n")
	}
	for _, file := range p.imports {
		p.line(0, `import "`, file, `";`)
	}
	p.text("\n")
	p.message(m, 0)
	return p.out, record, nil
}

// tree returns the message of a struct, with its full name. The message is valid until the next call.
func (p *protoPrinter) tree(s *Schema) (full string, m *protoMessage, err error) {
	if s.Type != Struct {
		return "", nil, throw("Unsupported root schema of type %s", s.Type)
	}
	p.used, p.unnamed, p.imports = 0, 0, p.imports[:0]
	full = strings.TrimRight(p.nameOr(s), ".")
	if p.o.Scrub {
		parts := strings.Split(full, ".")
		for i := range parts {
			parts[i] = scrubProtoName(parts[i])
		}
		full = strings.Join(parts, ".")
	}
	_, name := splitAvroName(full)
	m = p.new(name)
	return full, m, p.define(m, s.Fields, false)
}

func (p *protoPrinter) new(name string) *protoMessage {
	if p.used == len(p.pool) {
		p.pool = append(p.pool, &protoMessage{})
	}
	m := p.pool[p.used]
	p.used++
	m.name, m.entry, m.fields, m.nested = name, false, m.fields[:0], m.nested[:0]
	return m
}

// nameOr returns the name of a schema, or one that ProtobufData makes up.
func (p *protoPrinter) nameOr(s *Schema) string {
	if s.Name != "" {
		return s.Name
	}
	p.unnamed++
	return "ConnectDefault" + strconv.Itoa(p.unnamed)
}

// define adds fields to a message.
func (p *protoPrinter) define(m *protoMessage, fields []Field, entry bool) error {
	m.entry = entry
	for i := range fields {
		s := fields[i].Schema
		f := protoField{name: p.o.scrub(fields[i].Name), repeated: s.Type == Array || s.Type == Map}
		f.presence = p.o.Optional && s.Optional && !f.repeated && !entry
		if s.Type == Array {
			s = s.Elem
		}
		f.kind, f.of = p.o.kind(s), s
		var err error
		if f.kind == protoMessageKind {
			f.message, err = p.nestedMessage(m, f.name, s)
		} else if file := protoTypes[f.kind].file; file != "" && !slices.Contains(p.imports, file) {
			p.imports = append(p.imports, file)
		} else if file == "" && f.repeated && hasDefault(s) {
			err = throw("Repeated fields cannot have default values.")
		}
		if err != nil {
			return err
		}
		m.fields = append(m.fields, f)
	}
	return m.check()
}

// nestedMessage returns the message of a struct or a map in m. Structs with one name are one message, the first one. A struct with the
// name of m is m.
func (p *protoPrinter) nestedMessage(m *protoMessage, field string, s *Schema) (*protoMessage, error) {
	if s.Type == Array {
		return nil, throw("Array cannot be nested")
	}
	_, name := splitAvroName(p.nameOr(s))
	name = p.o.scrub(name)
	if s.Type == Map {
		n := p.new(protoEntryName(name))
		err := p.define(n, []Field{{"key", s.Key}, {"value", s.Elem}}, true)
		m.nested = append(m.nested, n)
		return n, err
	}
	if name == field {
		name = p.suffixed(name)
	}
	if name == m.name {
		return m, nil
	}
	for _, n := range m.nested {
		if n.name == name && !n.entry {
			return n, nil
		}
	}
	n := p.new(name)
	err := p.define(n, s.Fields, false)
	m.nested = append(m.nested, n)
	return n, err
}

// suffixed is the name of a message with the name of a field. The next event probably has it, too.
func (p *protoPrinter) suffixed(name string) string {
	long, ok := p.long[name]
	if !ok {
		if len(p.long) >= keptSchemas || p.long == nil {
			p.long = map[string]string{}
		}
		long = name + "Message"
		p.long[strings.Clone(name)] = long
	}
	return long
}

// check refuses names that Protobuf does not allow.
func (m *protoMessage) check() error {
	if err := validProtoName(m.name); err != nil {
		return err
	}
	for i := range m.fields {
		if err := validProtoName(m.fields[i].name); err != nil {
			return err
		}
		for k := range m.fields[:i] {
			if m.fields[k].name == m.fields[i].name {
				return throw("%q is already defined in %q.", m.fields[i].name, m.name)
			}
		}
		for _, n := range m.nested {
			if n.name == m.fields[i].name {
				return throw("%q is already defined in %q.", n.name, m.name)
			}
		}
	}
	for i, n := range m.nested {
		for _, other := range m.nested[:i] {
			if n.name == other.name {
				return throw("%q is already defined in %q.", n.name, m.name)
			}
		}
	}
	return nil
}

// line writes a line.
func (p *protoPrinter) line(depth int, parts ...string) {
	p.indent(depth)
	for _, part := range parts {
		p.text(part)
	}
	p.text("\n")
}

func (p *protoPrinter) indent(depth int) {
	for range depth {
		p.text("  ")
	}
}

func (p *protoPrinter) message(m *protoMessage, depth int) {
	p.indent(depth)
	p.text("message ")
	p.text(m.name)
	if len(m.fields) == 0 {
		p.text(" {}\n")
		return
	}
	p.text(" {\n")
	for i := range m.fields {
		f := &m.fields[i]
		p.indent(depth + 1)
		switch {
		case f.repeated:
			p.text("repeated ")
		case f.presence:
			p.text("optional ")
		}
		if f.message != nil {
			p.text(f.message.name)
		} else {
			p.text(protoTypes[f.kind].name)
		}
		p.text(" ")
		p.text(f.name)
		p.text(" = ")
		p.out = strconv.AppendInt(p.out, int64(i+1), 10)
		p.params(f.of, depth+1)
		p.text(";\n")
	}
	if len(m.nested) > 0 {
		p.line(depth)
	}
	for _, n := range m.nested {
		p.message(n, depth+1)
	}
	p.line(depth, "}")
}

// params writes what Connect has and Protobuf has not.
func (p *protoPrinter) params(s *Schema, depth int) {
	n := 0
	param := func(first, a, second, b string) {
		if n++; n == 1 {
			p.text(" [(confluent.field_meta) = {\n")
			p.line(depth+1, "params: [")
		} else {
			p.text(",\n")
		}
		p.line(depth+2, "{")
		p.line(depth+3, first, `: "`, a, `",`)
		p.line(depth+3, second, `: "`, b, `"`)
		p.indent(depth + 2)
		p.text("}")
	}
	switch {
	case s.Name == DecimalName:
		for _, name := range [...][2]string{{"connect.decimal.precision", "precision"}, {"scale", "scale"}} {
			for i := range s.Params {
				if s.Params[i].Key == name[0] {
					param("value", s.Params[i].Value, "key", name[1])
				}
			}
		}
	case s.Type == Int8 || s.Type == Int16:
		param("key", "connect.type", "value", jsonTypes[s.Type])
	}
	if n > 0 {
		p.text("\n")
		p.line(depth+1, "]")
		p.indent(depth)
		p.text("}]")
	}
}

// protoEntryName is the name of the message of a map's entries.
func protoEntryName(name string) string {
	if !strings.Contains(name, "_") {
		return name + "Entry"
	}
	var b strings.Builder
	for word := range strings.SplitSeq(name, "_") {
		if word != "" {
			b.WriteString(strings.ToUpper(word[:1]) + strings.ToLower(word[1:]))
		}
	}
	return b.String() + "Entry"
}

// scrubProtoName is scrub.invalid.names.
func scrubProtoName(name string) string {
	if name == "" || validProtoName(name) == nil && name[0] != '_' {
		return name
	}
	name = url.QueryEscape(name)
	name = strings.ReplaceAll(name, "~", "%7E") // which java.net.URLEncoder escapes
	name = strings.ReplaceAll(name, "%2A", "*") // which it does not
	if name[0] >= '0' && name[0] <= '9' || name[0] == '_' {
		name = "x" + name
	}
	return strings.Map(func(r rune) rune {
		if protoLetter(r) || r >= '0' && r <= '9' {
			return r
		}
		return '_'
	}, name)
}

func (o *ProtobufOptions) scrub(name string) string {
	if o.Scrub {
		return scrubProtoName(name)
	}
	return name
}

func protoLetter(r rune) bool { return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r == '_' }

func validProtoName(name string) error {
	for i, r := range name {
		if !protoLetter(r) && (i == 0 || r < '0' || r > '9') {
			return throw("%q is not a valid identifier.", name)
		}
	}
	if name == "" {
		return throw("Missing name.")
	}
	return nil
}
