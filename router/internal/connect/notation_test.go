package connect

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math"
	"math/big"
	"strconv"
	"strings"
	"testing"
)

// The notation of schemas and values in testdata and on the way to Oracle.java is JSON.
//
// A schema: {"type":"INT32","optional":1,"name":…,"version":…,"doc":…,"params":[[key,value],…],"fields":[[name,schema],…],
// "elem":schema,"key":schema,"default":value}, or null for none.
//
// A value: null; a number for what is an int64; "1.5E10" for floats and, with its scale ("150E-2"), for decimals; true; "text"; hex
// for bytes; an array for arrays and structs; an array of pairs for maps.

func schemaNotation(s *Schema) string {
	if s == nil {
		return "null"
	}
	var b strings.Builder
	text := func(v any) string {
		var j bytes.Buffer
		e := json.NewEncoder(&j)
		e.SetEscapeHTML(false)
		if err := e.Encode(v); err != nil {
			panic(err)
		}
		return strings.TrimSuffix(j.String(), "\n")
	}
	fmt.Fprintf(&b, `{"type":"%s"`, s.Type)
	if s.Optional {
		b.WriteString(`,"optional":1`)
	}
	if s.Name != "" {
		b.WriteString(`,"name":` + text(s.Name))
	}
	if s.Version != 0 {
		fmt.Fprintf(&b, `,"version":%d`, s.Version)
	}
	if s.Doc != "" {
		b.WriteString(`,"doc":` + text(s.Doc))
	}
	if s.Params != nil {
		var ps [][2]string
		for _, p := range s.Params {
			ps = append(ps, [2]string{p.Key, p.Value})
		}
		b.WriteString(`,"params":` + text(ps))
	}
	if s.Key != nil {
		b.WriteString(`,"key":` + schemaNotation(s.Key))
	}
	if s.Elem != nil {
		b.WriteString(`,"elem":` + schemaNotation(s.Elem))
	}
	if s.Type == Struct {
		b.WriteString(`,"fields":[`)
		for i, f := range s.Fields {
			if i > 0 {
				b.WriteByte(',')
			}
			fmt.Fprintf(&b, `[%s,%s]`, text(f.Name), schemaNotation(f.Schema))
		}
		b.WriteByte(']')
	}
	if s.HasDefault {
		b.WriteString(`,"default":` + valueNotation(s, s.Default))
	}
	return b.String() + "}"
}

func valueNotation(s *Schema, v any) string {
	switch v := v.(type) {
	case nil:
		return "null"
	case int64:
		return strconv.FormatInt(v, 10)
	case bool:
		return strconv.FormatBool(v)
	case float64:
		return strconv.Quote(strings.ReplaceAll(strconv.FormatFloat(v, 'g', -1, 64), "Inf", "Infinity"))
	case float32:
		return strconv.Quote(strings.ReplaceAll(strconv.FormatFloat(float64(v), 'g', -1, 32), "Inf", "Infinity"))
	case string:
		return string(appendJSONString(nil, v))
	case []byte:
		return strconv.Quote(hex.EncodeToString(v))
	case *Unscaled:
		return fmt.Sprintf(`"%sE%d"`, v.Value, -v.Scale)
	case []any:
		var parts []string
		for i, e := range v {
			of := s.Elem
			if s.Type == Struct {
				of = s.Fields[i].Schema
			}
			parts = append(parts, valueNotation(of, e))
		}
		return "[" + strings.Join(parts, ",") + "]"
	case []Entry:
		var parts []string
		for _, e := range v {
			parts = append(parts, "["+valueNotation(s.Key, e.Key)+","+valueNotation(s.Elem, e.Value)+"]")
		}
		return "[" + strings.Join(parts, ",") + "]"
	}
	panic(fmt.Sprintf("%T", v))
}

type schemaJSON struct {
	Type     string
	Optional int
	Name     string
	Version  int32
	Doc      string
	Params   [][2]string
	Fields   [][2]json.RawMessage
	Elem     json.RawMessage
	Key      json.RawMessage
	Default  json.RawMessage
}

func parseSchema(t testing.TB, text []byte) *Schema {
	if len(text) == 0 || string(text) == "null" {
		return nil
	}
	var j schemaJSON
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&j); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	s := &Schema{Optional: j.Optional == 1, Name: j.Name, Version: j.Version, Doc: j.Doc}
	for i, n := range typeNames {
		if n == j.Type {
			s.Type = Type(i)
		}
	}
	if s.Type == 0 {
		t.Fatalf("%s: no type", text)
	}
	for _, p := range j.Params {
		s.Params = append(s.Params, Param{p[0], p[1]})
	}
	s.Elem, s.Key = parseSchema(t, j.Elem), parseSchema(t, j.Key)
	for _, f := range j.Fields {
		var name string
		if err := json.Unmarshal(f[0], &name); err != nil {
			t.Fatal(err)
		}
		s.Fields = append(s.Fields, Field{name, parseSchema(t, f[1])})
	}
	if j.Default != nil {
		s.HasDefault, s.Default = true, parseValue(t, s, j.Default)
	}
	return s
}

func parseValue(t testing.TB, s *Schema, text []byte) any {
	if string(text) == "null" {
		return nil
	}
	into := func(v any) {
		if err := json.Unmarshal(text, v); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
	}
	var str string
	switch {
	case s == nil || s.Type == String:
		into(&str)
		return str
	case s.Type == Bytes && s.Name == DecimalName:
		into(&str)
		digits, exp, _ := strings.Cut(str, "E")
		v, ok := new(big.Int).SetString(digits, 10)
		e, err := strconv.Atoi(exp)
		if !ok || err != nil {
			t.Fatalf("%s is no decimal", str)
		}
		return &Unscaled{Value: v, Scale: int32(-e)}
	case s.Type == Bytes:
		into(&str)
		b, err := hex.DecodeString(str)
		if err != nil {
			t.Fatal(err)
		}
		return b
	case s.Type == Float64 || s.Type == Float32:
		into(&str)
		bits := 64
		if s.Type == Float32 {
			bits = 32
		}
		f, err := strconv.ParseFloat(str, bits)
		if err != nil {
			t.Fatal(err)
		}
		switch {
		case bits == 32:
			return float32(f)
		case math.IsNaN(f):
			return javaNaN
		}
		return f
	case s.Type == Boolean:
		var v bool
		into(&v)
		return v
	case s.Type == Array || s.Type == Struct:
		var raw []json.RawMessage
		into(&raw)
		list := make([]any, 0, len(raw))
		for i, r := range raw {
			of := s.Elem
			if s.Type == Struct {
				of = s.Fields[i].Schema
			}
			list = append(list, parseValue(t, of, r))
		}
		return list
	case s.Type == Map:
		var raw [][2]json.RawMessage
		into(&raw)
		entries := make([]Entry, 0, len(raw))
		for _, r := range raw {
			entries = append(entries, Entry{parseValue(t, s.Key, r[0]), parseValue(t, s.Elem, r[1])})
		}
		return entries
	}
	var n int64
	into(&n)
	return n
}
