package connect

import (
	"encoding/json"
	"testing"
	"unicode/utf8"
)

// FuzzExpand: no text makes Expand panic; what it expands is written by all converters, as valid JSON by JsonConverter.
func FuzzExpand(f *testing.F) {
	for i, text := range append(cornerDocuments, cornerNames...) {
		f.Add(text, uint8(i))
	}
	f.Fuzz(func(t *testing.T, text string, options uint8) {
		o := &Expander{
			Payload: "payload", NullBytes: options&1 == 1, EmptyStrings: options>>1&1 == 1, FieldNames: []NameAdjustment{"none", "avro", "avro_unicode"}[options>>2%3], Text: options>>4&1 == 1,
		}
		s, v, err := o.Expand(text)
		if err != nil {
			s, v = &Schema{Type: String}, text
		}
		for i, c := range newConverters()[:5] {
			out, null, err := c.Append([]byte("before"), "topic", s, v)
			if err != nil || null {
				t.Fatalf("%s: null %v: %v", converters[i], null, err)
			}
			if string(out[:6]) != "before" {
				t.Fatalf("%s: %s", converters[i], out)
			}
			if out = out[6:]; i >= 2 && (!json.Valid(out) || !utf8.Valid(out)) {
				t.Fatalf("%s: %q is not valid", converters[i], out)
			}
		}
	})
}

// FuzzJSONString: any bytes become a valid JSON string, which is the text where they are UTF-8.
func FuzzJSONString(f *testing.F) {
	for _, p := range pieces {
		f.Add(p + "x" + p)
	}
	f.Add("\xed\xa0\xbd\xff\xc0\x80")
	f.Fuzz(func(t *testing.T, text string) {
		out, _, err := NewJSON(JSONOptions{}).Append(nil, "topic", schemaless, text)
		if err != nil || !json.Valid(out) || !utf8.Valid(out) {
			t.Fatalf("%q: %q %v", text, out, err)
		}
		var back string
		if err := json.Unmarshal(out, &back); err != nil || utf8.ValidString(text) && back != text {
			t.Fatalf("%q becomes %q, which is %q: %v", text, out, back, err)
		}
	})
}
