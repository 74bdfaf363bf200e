package connect

import "testing"

// Documents with which Debezium's outbox lost events or its task died, by its issue. testdata/expand.txt has what 3.6.1 makes of many more.
func TestDocumentsThatOnceStoppedDebezium(t *testing.T) {
	for _, c := range []struct{ issue, text, ignored, bytes string }{
		{"DBZ-5367, an empty array before one of objects", `{"a":[{"b":[]},{"b":[{"x":1}]}]}`, `{"a":[{"b":[]},{"b":[{"x":1}]}]}`, `{"a":[{"b":[]},{"b":[{"x":1}]}]}`},
		{"DBZ-5367, no element at all", `{"a":[{"b":[]}],"c":1}`, `{"a":[{}],"c":1}`, `{"a":[{}],"c":1}`},
		{"DBZ-5475, an array of numbers of two types", `{"a":[1,2.0,3.0]}`, "", ""},
		{"DBZ-5654, a nested payload", `{"a":{"b":{"c":[{"d":[{"e":1}]}]}}}`, `{"a":{"b":{"c":[{"d":[{"e":1}]}]}}}`, `{"a":{"b":{"c":[{"d":[{"e":1}]}]}}}`},
		{"DBZ-5796, null", `{"a":1,"b":null}`, `{"a":1}`, `{"a":1,"b":null}`},
	} {
		for nulls, want := range map[bool]string{false: c.ignored, true: c.bytes} {
			s, v, err := NewExpander(ExpandOptions{Payload: "payload", NullBytes: nulls}).Expand(c.text)
			if want == "" { // it stays text, and is delivered as text
				if err == nil {
					t.Errorf("%s: %s is expanded", c.issue, c.text)
				}
				continue
			}
			if err != nil {
				t.Errorf("%s: %s: %v", c.issue, c.text, err)
				continue
			}
			if out, _, err := NewJSON(JSONOptions{}).Append(nil, "topic", s, v); string(out) != want || err != nil {
				t.Errorf("%s: %s with null as bytes %t: %s, want %s (%v)", c.issue, c.text, nulls, out, want, err)
			}
		}
	}
}
