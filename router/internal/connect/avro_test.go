package connect

import (
	enc "encoding/binary"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/twmb/avro"
)

// schemaIDs is a registry: its ids are the places of the schemas.
type schemaIDs struct {
	texts    []string
	subjects []string
	err      error
}

func (r *schemaIDs) SchemaID(subject, schema, _ string, _, _ bool) (uint32, error) {
	if r.err != nil {
		return 0, r.err
	}
	r.subjects, r.texts = append(r.subjects, subject), append(r.texts, schema)
	return uint32(len(r.texts)), nil
}

// TestAvroIsReadByAnotherImplementation: the schemas are valid, and the bytes are values of them.
func TestAvroIsReadByAnotherImplementation(t *testing.T) {
	g := newGenerator(3)
	ids := &schemaIDs{}
	read, refused := 0, map[string]int{}
	for range 6000 {
		s := g.schema(3)
		v := g.value(s)
		b, null, err := NewAvro(RegistryOptions{Registry: ids, Subjects: "topic"}).Append(nil, "topic", s, v)
		if err != nil {
			refused[strings.SplitN(err.Error(), ":", 2)[0]]++
			continue
		}
		if null != (v == nil) {
			t.Fatalf("%v: null is %t", v, null)
		}
		if null {
			continue
		}
		text := ids.texts[enc.BigEndian.Uint32(b[1:])-1]
		if strings.Contains(text, `"default":"NaN"`) || strings.Contains(text, `Infinity"`) ||
			strings.Contains(text, `"scale":-`) { // Java writes them, and this library does not take them
			continue
		}
		schema, err := avro.Parse(text, avro.WithLaxNames(nil))
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		var into any
		if rest, err := schema.Decode(b[5:], &into); err != nil || len(rest) > 0 {
			t.Fatalf("%s: %x: %d bytes left, %v", text, b, len(rest), err)
		}
		read++
	}
	if read < 1000 {
		t.Errorf("only %d values", read)
	}
	for why := range refused {
		switch why {
		case "Illegal initial character", "Illegal character in", "Can't redefine", "Decimal value has mismatching scale for given Decimal schema. Schema has scale -1, value has scale 0.":
		default:
			if !strings.HasPrefix(why, "Decimal value has mismatching scale") {
				t.Errorf("%d times: %s", refused[why], why)
			}
		}
	}
}

func TestSubjectsOfAvro(t *testing.T) {
	record := &Schema{Type: Struct, Name: "shop.Order", Fields: []Field{{"a", &Schema{Type: Int32}}}}
	for _, c := range []struct {
		o      RegistryOptions
		schema *Schema
		value  any
		want   string
	}{
		{RegistryOptions{Subjects: "topic"}, &Schema{Type: String}, "v", "orders-value"},
		{RegistryOptions{Subjects: "topic", Key: true}, &Schema{Type: String}, "v", "orders-key"},
		{RegistryOptions{Subjects: "record"}, record, []any{int64(1)}, "shop.Order"},
		{RegistryOptions{Subjects: "topic_record"}, record, []any{int64(1)}, "orders-shop.Order"},
		{RegistryOptions{Subjects: "record"}, nil, "[]", "io.confluent.connect.avro.Anything"},
		{RegistryOptions{Subjects: "record"}, &Schema{Type: String}, "v", "the schema is none"},
	} {
		ids := &schemaIDs{}
		c.o.Registry = ids
		_, _, err := NewAvro(c.o).Append(nil, "orders", c.schema, c.value)
		if got := fmt.Sprint(ids.subjects, err); !strings.Contains(got, c.want) {
			t.Errorf("%+v: %s, want %s", c.o, got, c.want)
		}
	}
}

// TestAvroAsksOnce: the registry is asked once for each topic and schema, and again after an error.
func TestAvroAsksOnce(t *testing.T) {
	ids := &schemaIDs{err: errors.New("down")}
	c := NewAvro(RegistryOptions{Registry: ids, Subjects: "topic"})
	s, e := &Schema{Type: String}, NewExpander(ExpandOptions{Payload: "payload"})
	for range 2 {
		if _, _, err := c.AppendText(nil, "a", s, []byte("x")); !errors.Is(err, ids.err) {
			t.Fatal(err)
		}
	}
	ids.err = nil
	for range 3 {
		for _, topic := range []string{"a", "b"} {
			if b, _, err := c.AppendText(nil, topic, s, []byte("x")); err != nil || string(b) != fmt.Sprintf("\x00\x00\x00\x00%c\x02x", b[4]) {
				t.Fatalf("%q, %v", b, err)
			}
			for _, text := range []string{`{"a":1}`, `{"a":"x"}`} {
				schema, v, err := e.Expand(text)
				if err != nil {
					t.Fatal(err)
				}
				if _, _, err := c.Append(nil, topic, schema, v); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	if len(ids.texts) != 6 {
		t.Errorf("asked %d times", len(ids.texts))
	}
}

// A schema that has no id yet gets one later.
func TestTheID0IsNotRemembered(t *testing.T) {
	ids := &laterIDs{}
	c, s := NewAvro(RegistryOptions{Registry: ids, Subjects: "topic"}), &Schema{Type: String}
	for want := range 3 {
		ids.id = uint32(want)
		if b, _, err := c.AppendText(nil, "a", s, []byte("x")); err != nil || b[4] != byte(min(want, 1)) {
			t.Errorf("%q, %v", b, err)
		}
	}
}

type laterIDs struct{ id uint32 }

func (r *laterIDs) SchemaID(string, string, string, bool, bool) (uint32, error) { return r.id, nil }

// TestConvertersWithARegistryNeedNoMemory: an event costs nothing but the place of its bytes.
func TestConvertersWithARegistryNeedNoMemory(t *testing.T) {
	o := RegistryOptions{Registry: &schemaIDs{}, Subjects: "topic"}
	t.Run("avro", func(t *testing.T) { needsNoMemory(t, NewAvro(o)) })
	t.Run("json_schema", func(t *testing.T) { needsNoMemory(t, NewJSONSchema(JSONSchemaOptions{RegistryOptions: o})) })
	t.Run("protobuf", func(t *testing.T) { needsNoMemory(t, NewProtobuf(ProtobufOptions{RegistryOptions: o})) })
}

func needsNoMemory(t *testing.T, c Converter) {
	text, dst := []byte(order), make([]byte, 0, 2048)
	e := NewExpander(ExpandOptions{Payload: "payload"})
	s := &Schema{Type: String, Optional: true, Name: "io.debezium.data.Json", Version: 1}
	expanded, v, err := e.Expand(order)
	if err != nil {
		t.Fatal(err)
	}
	for name, f := range map[string]func() error{
		"text": func() error { _, _, err := c.AppendText(dst, "topic", s, text); return err },
		"number": func() error {
			_, _, err := c.Append(dst, "topic", &Schema{Type: Float64}, math.Pi)
			return err
		},
		"record": func() error { _, _, err := c.Append(dst, "topic", expanded, v); return err },
	} {
		n := testing.AllocsPerRun(100, func() {
			if err := f(); err != nil {
				t.Fatal(err)
			}
		})
		if limit := map[string]float64{"number": 1}[name]; n > limit { // the value
			t.Errorf("%s: %v allocations", name, n)
		}
		t.Logf("%s: %v allocations", name, n)
	}
}
