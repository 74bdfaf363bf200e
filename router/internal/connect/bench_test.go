package connect

import (
	"fmt"
	"strings"
	"testing"
)

const order = `{"id": "59a42efd-b015-44a9-9dde-cb36d9002425", "lines": [{"sku": "A-1", "count": 2, "price": 9.95}, {"sku": "B-22", "count": 1, "price": 100.5}], "customer": {"name": "Zoë Müller", "vip": true}, "note": null}`

// BenchmarkText is a payload of text through the converters that an EventRouter is used with.
func BenchmarkText(b *testing.B) {
	json := &Schema{Type: String, Optional: true, Name: "io.debezium.data.Json", Version: 1}
	for _, size := range []struct {
		name string
		text string
	}{{"order", order}, {"64k", strings.Repeat(order, 300)}, {"plain64k", strings.Repeat("abcdefgh", 8192)}} {
		for i, c := range newConverters()[:4] {
			b.Run(converters[i]+"/"+size.name, func(b *testing.B) {
				b.ReportAllocs()
				b.SetBytes(int64(len(size.text)))
				var dst []byte
				for b.Loop() {
					out, _, err := c.Append(dst[:0], "topic", json, size.text)
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
			e, c := (&Expander{Payload: "payload"}), NewJSON(JSONOptions{Schemas: schemas})
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
				dst = appendDouble(dst[:0], f)
			}
		})
	}
}

// TestTextIsNotCopiedTwice: text goes to its place at once, with no memory but that.
func TestTextIsNotCopiedTwice(t *testing.T) {
	var text any = order
	s := &Schema{Type: String}
	for i, c := range newConverters()[:4] {
		dst := make([]byte, 0, 2048)
		n := testing.AllocsPerRun(100, func() {
			if _, _, err := c.Append(dst, "topic", s, text); err != nil {
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
	e := (&Expander{Payload: "payload"})
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
		envelope := &Schema{Type: Struct, Fields: []Field{{"payload", s}}, Passing: s.Passing}
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

// TestEmptyArrayInEnvelope: the one value without a schema may become a field.
func TestEmptyArrayInEnvelope(t *testing.T) {
	s, v, err := (&Expander{Payload: "payload"}).Expand("[]")
	if err != nil || s != nil {
		t.Fatal(s, v, err)
	}
	envelope := &Schema{Type: Struct, Fields: []Field{{"payload", s}}}
	want := []string{
		`Struct{payload=[]}`, `{"payload":"[]"}`, `{"payload":"[]"}`,
		`{"schema":{"type":"struct","fields":[{"type":"string","optional":true,"field":"payload"}],"optional":false},"payload":{"payload":"[]"}}`,
	}
	for i, c := range newConverters()[:4] {
		if out, _, err := c.Append(nil, "topic", envelope, []any{v}); string(out) != want[i] || err != nil {
			t.Errorf("%s: %s, want %s (%v)", converters[i], out, want[i], err)
		}
	}
}

// TestOptionalStringKeepsEmptyArrays: table.json.payload.empty.array.behavior, which Debezium has since 3.7.
func TestOptionalStringKeepsEmptyArrays(t *testing.T) {
	e, c := (&Expander{Payload: "payload", EmptyStrings: true}), NewJSON(JSONOptions{Schemas: true})
	for _, q := range []struct{ text, want string }{
		{`{"a":[]}`, `{"schema":{"type":"struct","fields":[{"type":"array","items":{"type":"string","optional":true},"optional":true,"field":"a"}],"optional":true,"name":"payload"},"payload":{"a":[]}}`},
		{`[]`, `{"schema":{"type":"array","items":{"type":"string","optional":true},"optional":true},"payload":[]}`},
		{`{"a":[{"k":[]},{"k":[1]}]}`, `{"schema":{"type":"struct","fields":[{"type":"array","items":{"type":"struct","fields":[{"type":"array","items":{"type":"int32","optional":true},"optional":true,"field":"k"}],"optional":false,"name":"payload.a"},"optional":true,"field":"a"}],"optional":true,"name":"payload"},"payload":{"a":[{"k":[]},{"k":[1]}]}}`},
	} {
		s, v, err := e.Expand(q.text)
		if err != nil {
			t.Fatal(err)
		}
		if out, _, err := c.Append(nil, "topic", s, v); string(out) != q.want || err != nil {
			t.Errorf("%s: %s (%v)", q.text, out, err)
		}
	}
}

// BenchmarkBadDocument is what a megabyte of somebody else's costs.
func BenchmarkBadDocument(b *testing.B) {
	e := (&Expander{Payload: "payload", FieldNames: "avro"})
	fields := func(n int, format string) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, format, i)
		}
		return strings.TrimSuffix(b.String(), ",")
	}
	for name, text := range map[string]string{
		"members":          "{" + fields(100_000, `"m%d":1,`) + "}",
		"empty arrays":     "{" + fields(50_000, `"m%d":1,`) + "," + fields(50_000, `"n%d":[],`) + "}",
		"same name":        "{" + strings.Repeat(`"a":1,`, 200_000) + `"a":1}`,
		"arrays of arrays": "[" + strings.TrimSuffix(strings.Repeat(`[[[[1]]]],`, 100_000), ",") + "]",
		"reversed":         "[" + strings.TrimSuffix(strings.Repeat("{"+fields(1000, `"m%d":1,`)+"},{\"m999\":1},", 100), ",") + "]",
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(len(text)))
			for b.Loop() {
				if _, _, err := e.Expand(text); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
