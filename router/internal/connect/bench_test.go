package connect

import (
	"strings"
	"testing"
)

const order = `{"id": "59a42efd-b015-44a9-9dde-cb36d9002425", "lines": [{"sku": "A-1", "count": 2, "price": 9.95}, {"sku": "B-22", "count": 1, "price": 100.5}], "customer": {"name": "Zoë Müller", "vip": true}, "note": null}`

// BenchmarkText is a payload of text through the converters that an EventRouter is used with.
func BenchmarkText(b *testing.B) {
	json := &Schema{Type: String, Optional: true, Name: "io.debezium.data.Json", Version: 1}
	for _, size := range []struct {
		name string
		text []byte
	}{{"order", []byte(order)}, {"64k", []byte(strings.Repeat(order, 300))}, {"plain64k", []byte(strings.Repeat("abcdefgh", 8192))}} {
		for i, c := range newConverters()[:4] {
			b.Run(converters[i]+"/"+size.name, func(b *testing.B) {
				b.ReportAllocs()
				b.SetBytes(int64(len(size.text)))
				var dst []byte
				for b.Loop() {
					out, _, err := c.(TextConverter).AppendText(dst[:0], "topic", json, size.text)
					if err != nil {
						b.Fatal(err)
					}
					dst = out
				}
			})
		}
	}
}

// BenchmarkExpand is table.expand.json.payload with a JsonConverter, as it is mostly used.
func BenchmarkExpand(b *testing.B) {
	for _, schemas := range []bool{false, true} {
		b.Run(map[bool]string{false: "json", true: "json with schemas"}[schemas], func(b *testing.B) {
			e, c := NewExpander(ExpandOptions{Payload: "payload"}), NewJSON(JSONOptions{Schemas: schemas})
			b.ReportAllocs()
			b.SetBytes(int64(len(order)))
			var dst []byte
			for b.Loop() {
				s, v, err := e.Expand(order)
				if err != nil {
					b.Fatal(err)
				}
				if dst, _, err = c.Append(dst[:0], "topic", s, v); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkNumbers(b *testing.B) {
	for name, f := range map[string]float64{"short": 9.95, "long": 0.1234567890123457, "exponent": 1e-10} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			var dst []byte
			for b.Loop() {
				dst = AppendDouble(dst[:0], f)
			}
		})
	}
}

// TestTextIsNotCopiedTwice: text goes to its place at once, with no memory but that.
func TestTextIsNotCopiedTwice(t *testing.T) {
	text := []byte(order)
	s := &Schema{Type: String}
	for i, c := range newConverters()[:4] {
		dst := make([]byte, 0, 2048)
		n := testing.AllocsPerRun(100, func() {
			if _, _, err := c.(TextConverter).AppendText(dst, "topic", s, text); err != nil {
				t.Fatal(err)
			}
		})
		if n > 0 {
			t.Errorf("%s: %v allocations", converters[i], n)
		}
	}
}

// TestSchemasAreKeptWithinBounds: a converter lives as long as the process, and some schemas are made for each value.
func TestSchemasAreKeptWithinBounds(t *testing.T) {
	c := NewJSON(JSONOptions{Schemas: true}).(*jsonConverter)
	e := NewExpander(ExpandOptions{Payload: "payload"})
	one := &Schema{Type: Int32}
	for range 3 * keptSchemas {
		for _, s := range []*Schema{one, {Type: Int64}} {
			if _, _, err := c.Append(nil, "topic", s, int64(1)); err != nil {
				t.Fatal(err)
			}
		}
		s, v, err := e.Expand(order)
		if err != nil {
			t.Fatal(err)
		}
		before := len(c.schemas)
		if _, _, err := c.Append(nil, "topic", s, v); err != nil {
			t.Fatal(err)
		}
		envelope := &Schema{Type: Struct, Fields: []Field{{"payload", s}}}
		if _, _, err := c.Append(nil, "topic", envelope, []any{v}); err != nil {
			t.Fatal(err)
		}
		if len(c.schemas) != before {
			t.Fatal("the schema of one value is kept")
		}
	}
	if n := len(c.schemas); n > keptSchemas {
		t.Errorf("%d schemas are kept", n)
	}
}
