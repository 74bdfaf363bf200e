package connect

import (
	"strings"
	"testing"
)

// TestWhatIsFixed spells out what becomes of documents that Debezium makes no use of; where it does, testdata/expand.txt is the judge.
func TestWhatIsFixed(t *testing.T) {
	for _, c := range []struct {
		names      NameAdjustment
		text, want string // without schemas; "" for text
		schema     string // a piece of the schema
	}{
		{"none", `[1,2]`, `[1,2]`, `"type":"array"`},
		{"none", `{"a":9223372036854775808}`, "", ""},
		{"none", `{"a":[{"k":1},{"k":3000000000}]}`, `{"a":[{"k":1},{"k":3000000000}]}`, `{"type":"int64","optional":true,"field":"k"}`},
		{"none", `{"a":[{"k":1},{"k":"x"}]}`, "", ""},
		{"none", `{"a":[{"k":1},{"m":2}]}`, `{"a":[{"k":1,"m":null},{"k":null,"m":2}]}`, `"optional":false,"name":"payload.a"`},
		{"none", `{"a":[{"o":{"x":1}},{"o":{"y":2}}]}`, `{"a":[{"o":{"x":1,"y":null}},{"o":{"x":null,"y":2}}]}`, ""},
		{"none", `{"a":[{"k":1},{"m":2},null]}`, `{"a":[{"k":1,"m":null},{"k":null,"m":2},null]}`, `"optional":true,"name":"payload.a"`},
		{"none", `[[{},{"a":1}],[null]]`, "", ""},
		{"none", `{"a":[[{"x":1}],[{"y":2}]]}`, "", ""},
		{"none", `{"a":[[1],[null]]}`, `{"a":[[1],[null]]}`, ""},
		{"avro", `{"a-b":1}`, `{"a_b":1}`, ""},
		{"avro", `{"a-b":1,"a_b":2}`, "", ""},
		{"avro", `{"a_b":[1],"a-b":[]}`, `{"a_b":[1]}`, ""},
		{"avro_unicode", `{"ſ":1,"é":2,"\t":3,"日":4}`, `{"_u17f":1,"_u00e9":2,"_u009":3,"_u65e5":4}`, ""},
	} {
		s, v, err := (&Expander{Payload: "payload", FieldNames: c.names}).Expand(c.text)
		if c.want == "" {
			if err == nil {
				t.Errorf("%s is expanded", c.text)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", c.text, err)
			continue
		}
		out, _, err := NewJSON(JSONOptions{}).Append(nil, "topic", s, v)
		if string(out) != c.want || err != nil {
			t.Errorf("%s: %s, want %s (%v)", c.text, out, c.want, err)
		}
		out, _, err = NewJSON(JSONOptions{Schemas: true}).Append(nil, "topic", s, v)
		if !strings.Contains(string(out), c.schema) || err != nil {
			t.Errorf("%s: %s, want %s in it (%v)", c.text, out, c.schema, err)
		}
	}
}
