package connect

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"strconv"
	"strings"
	"testing"
)

// TestLimitsOfJackson: what is beyond them stays text, as it does in Debezium (checked where -oracle is given).
func TestLimitsOfJackson(t *testing.T) {
	nested := func(n int) string { return strings.Repeat(`{"a":`, n-1) + "{}" + strings.Repeat("}", n-1) }
	arrays := func(n int) string { return `{"a":` + strings.Repeat("[", n-1) + "1" + strings.Repeat("]", n-1) + "}" }
	long := strings.Repeat("é", 25_000)
	cases := []struct {
		name, text string
		expands    bool
	}{
		{"1000 levels of objects", nested(1000), true},
		{"1001 levels of objects", nested(1001), false},
		{"1000 levels of arrays", arrays(1000), true},
		{"1001 levels of arrays", arrays(1001), false},
		{"200000 levels", strings.Repeat(`[`, 200_000), false},
		{"a number of 1000 digits", `{"a":0.` + strings.Repeat("1", 999) + "}", true},
		{"a number of 1001 digits", `{"a":1.` + strings.Repeat("1", 1000) + "}", false},
		{"a number of 1001 digits, one zero", `{"a":-0.` + strings.Repeat("1", 1000) + "}", true},
		{"a number of 1002 digits, one zero", `{"a":0.` + strings.Repeat("1", 1001) + "}", false},
		{"an exponent that counts", `{"a":1.` + strings.Repeat("1", 997) + "e-100}", false},
		{"an exponent that just counts", `{"a":1.` + strings.Repeat("1", 997) + "e-10}", true},
		{"a zero and an exponent", `{"a":0e` + strings.Repeat("1", 1000) + "}", true},
		{"a zero and too much of an exponent", `{"a":0e` + strings.Repeat("1", 1001) + "}", false},
		{"a zero with all", `{"a":0.` + strings.Repeat("1", 998) + "e10}", false},
		{"an exponent of many digits", `{"a":1e` + strings.Repeat("0", 990) + "1}", true},
		{"a name of 50000 characters", `{"` + long + long + `":1}`, true},
		{"a name of 50001 characters", `{"` + long + long + `x":1}`, false},
		{"a name of 25000 characters beyond U+FFFF", `{"` + strings.Repeat("😀", 25_000) + `":1}`, true},
		{"a name of 25001 characters beyond U+FFFF", `{"` + strings.Repeat("😀", 25_001) + `":1}`, false},
		{"a name of 50001 characters, one an escape", `{"` + long + long + `\n":1}`, false},
		{"a string of 200000 characters", `{"a":"` + strings.Repeat(long, 8) + `"}`, true},
	}
	var asked []string
	for _, c := range cases {
		s, v, err := (&Expander{Payload: "payload"}).Expand(c.text)
		if (err == nil) != c.expands {
			t.Errorf("%s: expanded %v (%.100v)", c.name, err == nil, err)
		}
		if err == nil {
			for _, conv := range newConverters()[:4] {
				if _, _, err := conv.Append(nil, "topic", s, v); err != nil {
					t.Errorf("%s: %v", c.name, err)
				}
			}
		}
		asked = append(asked, expandQuestion{"ignore", "none", c.text}.oracle())
	}
	if *oracle == "" {
		return
	}
	for i, java := range ask(t, asked) {
		us, _ := ourExpansion(&Expander{Payload: "payload"}, cases[i].text)
		for k := range java {
			// Jackson writes no more than 1000 levels; we do.
			if java[k] != us[k] && !java[k].failed() {
				t.Errorf("%s: %s: Debezium %.100s, we %.100s", cases[i].name, expandAnswers[k], java[k], us[k])
			}
			if java[k].failed() {
				t.Logf("%s: %s: Debezium fails: %s", cases[i].name, expandAnswers[k], java[k])
			}
		}
	}
}

// TestExpansionIsBounded: objects that have nothing in common make a value with the product of their number and their members.
func TestExpansionIsBounded(t *testing.T) {
	var b strings.Builder
	b.WriteString(`{"a":[`)
	for i := range 50_000 {
		fmt.Fprintf(&b, `{"m%d":1},`, i)
	}
	b.WriteString(`{}]}`)
	deep := strings.ReplaceAll(strings.ReplaceAll(b.String(), `{"m`, `{"o":{"m`), `:1}`, `:1}}`)
	var names strings.Builder
	names.WriteString(`{"a":[`)
	for i := range 300 {
		fmt.Fprintf(&names, `{"%d%s":1},`, i, strings.Repeat("x", 1000))
	}
	names.WriteString(`{}]}`)
	path := strings.Repeat(`{"`+strings.Repeat("x", 1000)+`":`, 999) + "1" + strings.Repeat("}", 999)
	for _, text := range []string{b.String(), deep, names.String(), path} {
		if _, _, err := (&Expander{Payload: "payload"}).Expand(text); err == nil || !strings.Contains(err.Error(), "too many different members") {
			t.Errorf("%.40s… is expanded, %v", text, err)
		}
	}
}

// essence is a document without what the options of the expansion drop and add: nulls and empty arrays in objects; numbers as Java
// prints them.
func essence(v any) any {
	switch v := v.(type) {
	case map[string]any:
		maps.DeleteFunc(v, func(_ string, e any) bool {
			list, ok := e.([]any)
			return e == nil || ok && len(list) == 0
		})
		for k, e := range v {
			v[k] = essence(e)
		}
	case []any:
		for i, e := range v {
			v[i] = essence(e)
		}
	case json.Number:
		if n, err := strconv.ParseInt(string(v), 10, 64); err == nil {
			return strconv.FormatInt(n, 10)
		}
		f, _ := strconv.ParseFloat(string(v), 64) //nolint:errcheck // beyond the range it is an infinity
		if math.IsInf(f, 0) {
			return string(appendDouble(nil, f))
		}
		return "double " + string(appendDouble(nil, f))
	}
	return v
}

func essenceOf(t *testing.T, text string) string {
	d := json.NewDecoder(strings.NewReader(text))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	b, err := json.Marshal(essence(v))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestExpansionLosesNothing: whatever Debezium would lose, and whatever had to be merged, all of the document is in the value.
func TestExpansionLosesNothing(t *testing.T) {
	g := newGenerator(5)
	expanded := 0
	for range 30_000 {
		q := g.expandQuestion()
		q.names = "none"
		o := q.options()
		o.EmptyStrings = g.IntN(2) == 1
		s, v, err := o.Expand(q.text)
		if err != nil || s == nil {
			continue
		}
		expanded++
		b, _, err := NewJSON(JSONOptions{}).Append(nil, "topic", s, v)
		if err != nil {
			t.Fatalf("%s: %v", q.golden(), err)
		}
		if had, has := essenceOf(t, q.text), essenceOf(t, string(b)); had != has {
			t.Fatalf("%s\n becomes %s\n had %s\n has %s", q.golden(), b, had, has)
		}
	}
	if expanded < 10_000 {
		t.Errorf("only %d documents were expanded", expanded)
	}
}
