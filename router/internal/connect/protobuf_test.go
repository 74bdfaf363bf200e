package connect

import (
	"bytes"
	enc "encoding/binary"
	"errors"
	"flag"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/bufbuild/protocompile"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"
)

var protobufOracle = registryConverter{
	file: "protobuf.txt", common: "wrappers.proto",
	class: "io.confluent.connect.protobuf.ProtobufConverter", provider: "io.confluent.kafka.schemaregistry.protobuf.ProtobufSchemaProvider",
	classPath: flag.String("oracle.protobuf", "", "with -oracle: the class path of Confluent's ProtobufConverter"),
	names:     []string{"protobuf", "optional", "wrappers", "scrub", "subject"},
	options:   []string{"", "optional.for.nullables=true", "wrapper.for.nullables=true", "scrub.invalid.names=true", recordNames},
	make: func(o RegistryOptions, option string) Converter {
		return NewProtobuf(ProtobufOptions{
			RegistryOptions: o, Optional: option == "optional.for.nullables=true", Wrappers: option == "wrapper.for.nullables=true",
			Scrub: option == "scrub.invalid.names=true",
		})
	},
	corners: cornerProtobuf, random: validNames,
}

// validNames is a generator whose names Protobuf allows, mostly. Many of them are equal.
func validNames(seed uint64) generator {
	g := newGenerator(seed)
	g.words = []string{"a", "b", "c", "a_b", "payload.a", "x.y.b", "_d", "e_1", "A", "é", "my-field."}
	return g
}

func TestGoldensOfProtobuf(t *testing.T) { protobufOracle.goldens(t) }
func TestProtobufAtRandom(t *testing.T)  { protobufOracle.atRandom(t) }

// Half of a surrogate pair is no text of Protobuf or Avro. Java writes a question mark, which is shorter.
func TestTextsAreValid(t *testing.T) {
	for _, text := range []string{"\xed\xa0\xbd", "é\xed\xa0\xbdx", strings.Repeat("x", 125) + "\xed\xb8\x80", strings.Repeat("y", 126) + "\xed\xb8\x80"} {
		want := strings.NewReplacer("\xed\xa0\xbd", "?", "\xed\xb8\x80", "?").Replace(text)
		o, s := RegistryOptions{Registry: &schemaIDs{}, Subjects: "topic"}, &Schema{Type: Struct, Name: "payload", Fields: []Field{{"s", &Schema{Type: String}}}}
		for _, v := range []any{text, want} {
			b, _, err := NewProtobuf(ProtobufOptions{RegistryOptions: o}).Append(nil, "topic", s, []any{v})
			if err != nil || !bytes.Equal(b[6:], protowire.AppendString([]byte{0x0a}, want)) {
				t.Errorf("Protobuf, %q: %q, %v", v, b, err)
			}
			if b, _, err = NewAvro(o).Append(nil, "topic", s, []any{v}); err != nil || !bytes.Equal(b[5:], append(enc.AppendVarint(nil, int64(len(want))), want...)) {
				t.Errorf("Avro, %q: %q, %v", v, b, err)
			}
		}
	}
}

// All values that are no structs have one schema, and each type has its record.
func TestProtobufHasASubjectForEachRecord(t *testing.T) {
	ids := &schemaIDs{}
	c := NewProtobuf(ProtobufOptions{RegistryOptions: RegistryOptions{Registry: ids, Subjects: "record"}})
	for _, v := range []struct {
		s *Schema
		v any
	}{{&Schema{Type: String}, "x"}, {&Schema{Type: Int32}, int64(1)}, {&Schema{Type: Boolean}, true}} {
		if _, _, err := c.Append(nil, "topic", v.s, v.v); err != nil {
			t.Fatal(err)
		}
	}
	if got := strings.Join(ids.subjects, " "); got != "google.protobuf.StringValue google.protobuf.Int32Value google.protobuf.BoolValue" {
		t.Error(got)
	}
}

// TestProtobufIsReadByAnotherImplementation: protocompile takes the schemas, and protobuf-go reads from the bytes what was written.
func TestProtobufIsReadByAnotherImplementation(t *testing.T) {
	g := validNames(3)
	read, refused := 0, 0
	for range 1000 {
		s := g.schema(3)
		v := g.value(s)
		for _, o := range []ProtobufOptions{{}, {Optional: true}, {Wrappers: true}, {Scrub: true, Optional: true, Wrappers: true}} {
			ids := &schemaIDs{}
			o.RegistryOptions = RegistryOptions{Registry: ids, Subjects: "topic"}
			b, null, err := NewProtobuf(o).Append(nil, "topic", s, v)
			if err != nil {
				refused++
				continue
			}
			if null != (v == nil) {
				t.Fatalf("%v: null is %t", v, null)
			}
			if null || logical(s) && s.Type < Array { // Confluent's converter gives a logical value a schema with no message for it
				continue
			}
			m := dynamicpb.NewMessage(protoDescriptor(t, ids.texts[0], &b))
			if err := (proto.UnmarshalOptions{}).Unmarshal(b, m); err != nil {
				t.Fatalf("%s: %x: %v", ids.texts[0], b, err)
			}
			if s.Type == Struct {
				err = o.sameProto(m, s, v)
			} else {
				err = o.sameProtoField(m, m.Descriptor().Fields().ByNumber(1), &Schema{Type: s.Type}, v)
			}
			if err != nil || len(m.GetUnknown()) > 0 {
				t.Fatalf("%s\n%s\n%v: %v", ids.texts[0], schemaNotation(s), m, err)
			}
			read++
		}
	}
	t.Logf("%d values, %d refused", read, refused)
	if read < 1000 {
		t.Errorf("only %d values", read)
	}
}

// protoDescriptor compiles a schema, and takes the frame and the index of the message from b.
func protoDescriptor(t *testing.T, text string, b *[]byte) protoreflect.MessageDescriptor {
	t.Helper()
	if strings.Contains(text, "confluent.field_meta") { // ProtobufData does not import the file of this option
		text = strings.Replace(text, "\n\nmessage", "\nimport \"confluent/meta.proto\";\n\nmessage", 1)
	}
	compiler := protocompile.Compiler{Resolver: protocompile.WithStandardImports(&protocompile.SourceResolver{
		Accessor: protocompile.SourceAccessorFromMap(map[string]string{
			"it.proto": text, "confluent/meta.proto": metaProto, "confluent/type/decimal.proto": decimalProto,
			"google/type/date.proto": dateProto, "google/type/timeofday.proto": timeProto,
		}),
	})}
	files, err := compiler.Compile(t.Context(), "it.proto")
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	at := 0
	switch rest := (*b)[5:]; rest[0] {
	case 0:
		*b = rest[1:]
	default: // one index
		at, *b = int(rest[1]/2), rest[2:]
	}
	return files[0].Messages().Get(at)
}

const (
	metaProto = `syntax = "proto3"; package confluent; import "google/protobuf/descriptor.proto";
message Meta { string doc = 1; map<string, string> params = 2; repeated string tags = 3; }
extend google.protobuf.FieldOptions { Meta field_meta = 1088; }`
	decimalProto = `syntax = "proto3"; package confluent.type; message Decimal { bytes value = 1; uint32 precision = 2; int32 scale = 3; }`
	dateProto    = `syntax = "proto3"; package google.type; message Date { int32 year = 1; int32 month = 2; int32 day = 3; }`
	timeProto    = `syntax = "proto3"; package google.type; message TimeOfDay { int32 hours = 1; int32 minutes = 2; int32 seconds = 3; int32 nanos = 4; }`
)

// sameProto compares a message with a struct, whose fields may be some of the message's.
func (o *ProtobufOptions) sameProto(m protoreflect.Message, s *Schema, v any) error {
	for i, f := range s.Fields {
		v := orDefault(f.Schema, v.([]any)[i])
		d := m.Descriptor().Fields().ByName(protoreflect.Name(o.scrub(f.Name)))
		if d == nil {
			if list, ok := v.([]any); v != nil && !(ok && len(list) == 0) {
				return fmt.Errorf("no field %s", f.Name)
			}
			continue
		}
		if err := o.sameProtoField(m, d, f.Schema, v); err != nil {
			return fmt.Errorf("%s: %w", f.Name, err)
		}
	}
	return nil
}

func (o *ProtobufOptions) sameProtoField(m protoreflect.Message, d protoreflect.FieldDescriptor, s *Schema, v any) error {
	if d.HasPresence() && m.Has(d) != (v != nil) {
		return fmt.Errorf("presence %t of %v", m.Has(d), v)
	}
	if v == nil {
		if !m.Has(d) {
			return nil
		}
		return fmt.Errorf("%v for a null", m.Get(d))
	}
	got := m.Get(d)
	switch v := v.(type) {
	case []Entry:
		if got.List().Len() != len(v) {
			return fmt.Errorf("%d entries", got.List().Len())
		}
		for i, e := range v {
			m := got.List().Get(i).Message()
			if err := errors.Join(o.sameProtoField(m, m.Descriptor().Fields().Get(0), s.Key, e.Key), o.sameProtoField(m, m.Descriptor().Fields().Get(1), s.Elem, e.Value)); err != nil {
				return err
			}
		}
		return nil
	case []any:
		if s.Type != Array {
			break
		}
		if got.List().Len() != len(v) {
			return fmt.Errorf("%d elements", got.List().Len())
		}
		for i, elem := range v {
			if err := o.sameProtoValue(got.List().Get(i), d, s.Elem, elem); err != nil {
				return err
			}
		}
		return nil
	}
	return o.sameProtoValue(got, d, s, v)
}

func (o *ProtobufOptions) sameProtoValue(got protoreflect.Value, d protoreflect.FieldDescriptor, s *Schema, v any) error {
	if d.Message() != nil {
		m := got.Message()
		field := func(n protoreflect.FieldNumber) protoreflect.Value { return m.Get(m.Descriptor().Fields().ByNumber(n)) }
		switch name := m.Descriptor().FullName(); {
		case s.Type == Struct && s.Name != DecimalName:
			return o.sameProto(m, s, v)
		case s.Name == DecimalName:
			u := v.(*Unscaled)
			digits := uint64(len(strings.TrimPrefix(u.Value.String(), "-")))
			if !bytes.Equal(field(1).Bytes(), TwosComplement(u.Value)) || field(2).Uint() != digits || field(3).Int() != int64(u.Scale) {
				return fmt.Errorf("%v for %v", m, u)
			}
			return nil
		case s.Name == DateName:
			if year, month, day := javaDate(v.(int64)); field(1).Int() != year || field(2).Int() != month || field(3).Int() != day {
				return fmt.Errorf("%v for %v", m, v)
			}
			return nil
		case s.Name == TimeName:
			if ms := ((field(1).Int()*60+field(2).Int())*60+field(3).Int())*1000 + field(4).Int()/1e6; ms != v.(int64)%millisOfDay {
				return fmt.Errorf("%v for %v", m, v)
			}
			return nil
		case name == "google.protobuf.Timestamp":
			if ms := field(1).Int()*1000 + field(2).Int()/1e6; ms != v.(int64) {
				return fmt.Errorf("%v for %v", m, v)
			}
			return nil
		}
		got = field(1) // a wrapper
	}
	same := false
	switch v := v.(type) {
	case string:
		same = got.String() == v
	case []byte:
		same = bytes.Equal(got.Bytes(), v)
	case int64:
		same = got.Int() == v
	case bool:
		same = got.Bool() == v
	case float64:
		same = math.Float64bits(got.Float()) == math.Float64bits(v)
	case float32:
		same = float32(got.Float()) == v || v != v
	}
	if !same {
		return fmt.Errorf("%v for %v", got, v)
	}
	return nil
}
