package router

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/walpost/walpost/cdc"
)

// withObject is a table with a column headers and a column x of a type.
func withObject(typ, x string) *cdc.Relation {
	return table("id uuid", "aggregate_type text", "aggregate_id text", "payload jsonb", "headers "+typ, "x "+x)
}

func TestEachFieldOfAnObjectIsAHeader(t *testing.T) {
	for _, c := range []struct {
		name    string
		change  func(*Config)
		typ     string
		headers string
		x       string
		want    string // the headers behind id, or "!" and a part of the error
	}{
		{name: "texts, in the order of the object", headers: `{"b": "1", "aa": "ä \" \\ \n\u0001", "": ""}`, want: ` b:"1" aa:"ä \" \\ \n\x01" :""`},
		{name: "other values are their JSON", headers: `{"a": 1.50, "b": true, "c": {"d": [1, "{"]}, "e": null}`, want: ` a:"1.50" b:"true" c:"{\"d\": [1, \"{\"]}" e:null`},
		{name: "an escaped name", headers: `{"a\"\\b": "1"}`, want: ` a"\b:"1"`},
		{name: "NULL", headers: null},
		{name: "the null of JSON", headers: "null"},
		{name: "no field", headers: "{}"},
		{name: "json with spaces", typ: "json", headers: " {\n\"a\" : \"1\" , \"b\":\"2\" } ", want: ` a:"1" b:"2"`},
		{name: "text", typ: "text", headers: `{"a":"1"}`, want: ` a:"1"`},
		{name: "a domain of text", typ: "varchar", headers: `{"a":"1"}`, want: ` a:"1"`},
		{name: "an array", headers: `["a"]`, want: `!router.table.fields.additional.placement: column headers is not a JSON object`},
		{name: "a text", headers: `"a"`, want: `!column headers is not a JSON object`},
		{name: "no JSON", typ: "text", headers: `{"a":}`, want: `!column headers is not a JSON object`},
		{name: "an empty text", typ: "text", headers: "", want: `!column headers is not a JSON object`},
		{name: "two objects", typ: "text", headers: `{} {}`, want: `!column headers is not a JSON object`},
		{name: "one name twice", typ: "json", headers: `{"a": "1", "\u0061": "2"}`, want: `!column headers has the header "a" twice`},
		{name: "a name twice that the event has", typ: "json", headers: `{"id": "1", "id": "2"}`, want: `!column headers has the header "id" twice`},
		{
			name: "one name twice, beside a column that is NULL", change: func(c *Config) { c.AdditionalPlacement = "x:header:a,headers:headers" },
			typ: "json", headers: `{"a": "1", "a": "2"}`, x: null, want: `!column headers has the header "a" twice`,
		},
		{
			name: "one name twice, beside a column that is not", change: func(c *Config) { c.AdditionalPlacement = "x:header:a,headers:headers" },
			typ: "json", headers: `{"a": "1", "a": "2"}`, x: "x", want: `!column headers has the header "a" twice`,
		},
		{name: "as many as possible", headers: objectOf(1000), want: headersOf(1000)},
		{name: "too many", headers: objectOf(1001), want: `!column headers has more than 1000 headers`},
		{name: "the character U+0000", typ: "text", headers: `{"a": "\u0000"}`, want: `!column headers: header "a" has the character U+0000`},
		{name: "half a name", typ: "text", headers: `{"\ud800": "1"}`, want: `!column headers: the name "\ud800" has half of a surrogate pair`},
		{name: "id is the event's", headers: `{"id": "mine", "a": "1"}`, want: ` a:"1"`},
		{name: "names of walpost", headers: `{"walpost.origin": "replay", "walpost": "1"}`, want: ` walpost:"1"`},
		{
			name: "a column takes precedence, wherever it is placed", change: func(c *Config) { c.AdditionalPlacement = "headers:headers,x:header:a" },
			headers: `{"b": "2", "a": "of the object"}`, x: "of the column", want: ` a:"of the column" b:"2"`,
		},
		{
			name: "a column that is NULL does not", change: func(c *Config) { c.AdditionalPlacement = "x:header:a,headers:headers" },
			headers: `{"b": "2", "a": "of the object"}`, x: null, want: ` a:"of the object" b:"2"`,
		},
		{
			name: "and is a null without the object", change: func(c *Config) { c.AdditionalPlacement = "x:header:a,headers:headers" },
			headers: `{"b": "2"}`, x: null, want: ` a:null b:"2"`,
		},
		{
			name: "two objects, of which the first takes precedence", change: func(c *Config) { c.AdditionalPlacement = "x:headers,headers:headers" },
			headers: `{"a": "1", "b": "2", "c": "3"}`, x: `{"a": "x", "b": null}`, want: ` a:"x" b:null c:"3"`,
		},
		{
			name: "inserted and dropped headers", change: func(c *Config) {
				c.Headers = []HeaderStep{{Insert: "first", Value: "1", BeforeID: true}, {Insert: "last", Value: "2"}, {Drop: []string{"secret"}}}
			}, headers: `{"a": "1", "first": "a", "last": "b", "secret": "c"}`, want: ` a:"1" last:"2"`,
		},
		{
			name: "extended headers", change: func(c *Config) { c.ExtendedHeaders, c.TopicPrefix = true, "shop" },
			headers: `{"__debezium.context.taskId": "a"}`,
		},
		{name: "a converter of JSON", change: func(c *Config) { c.Header = Converter{Name: "json", NullDefault: true} }, headers: `{"a": "1", "b": 2, "c": null}`, want: ` a:"\"1\"" b:"\"2\"" c:"null"`},
		{
			name: "a column that is NULL, with a converter of JSON", change: func(c *Config) {
				c.AdditionalPlacement = "x:header:a,headers:headers"
				c.Header = Converter{Name: "json", NullDefault: true}
			}, headers: `{"a": "1"}`, x: null, want: ` a:"\"1\""`,
		},
		{name: "an envelope beside it", change: func(c *Config) {
			c.AdditionalPlacement += ",x:envelope"
			jsonValues(c)
		}, headers: `{"a": "1"}`, x: "1", want: ` a:"1"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg := DefaultConfig()
			cfg.AdditionalPlacement = "headers:headers"
			if c.change != nil {
				c.change(&cfg)
			}
			r, err := New(cfg)
			if err != nil {
				t.Fatal(err)
			}
			r.SetRunID(runID)
			typ := c.typ
			if typ == "" {
				typ = "jsonb"
			}
			rel := withObject(typ, "text")
			if needs, err := r.Needs(rel); err != nil || !slices.Contains(needs, "headers") {
				t.Fatalf("needs %q, %v", needs, err)
			}
			ev := insert(rel, "u-1", "order", "k", "1", c.headers, c.x)
			for range 3 { // the room for headers is learned
				var rec cdc.Record
				ok, err := r.Route(ev, &rec)
				if part, bad := strings.CutPrefix(c.want, "!"); bad {
					var row *RowError
					if !errors.As(err, &row) || !strings.Contains(err.Error(), part) || rec.EventID != "u-1" || row.Problems[0].Column != "headers" || string(rec.Key) != "k" {
						t.Errorf("error %v, want one with %q", err, part)
					}
					continue
				}
				if err != nil || !ok {
					t.Fatalf("routed %t, %v", ok, err)
				}
				if got := behindID(&rec); got != c.want {
					t.Errorf("\n got %s\nwant %s", got, c.want)
				}
				before := show(&rec)
				for _, v := range ev.Row.Values {
					for i := range v.Bytes {
						v.Bytes[i] = '#'
					}
				}
				if got := show(&rec); got != before {
					t.Errorf("the record changed with the event's buffer: %s", got)
				}
				ev = insert(rel, "u-1", "order", "k", "1", c.headers, c.x)
			}
		})
	}
}

// objectOf is an object with n fields.
func objectOf(n int) string {
	fields := make([]string, n)
	for i := range fields {
		fields[i] = fmt.Sprintf(`"h%d": "%d"`, i, i)
	}
	return "{" + strings.Join(fields, ", ") + "}"
}

// headersOf shows the headers of objectOf.
func headersOf(n int) (headers string) {
	for i := range n {
		headers += fmt.Sprintf(` h%d:"%d"`, i, i)
	}
	return headers
}

// An object fills the header of a column that is NULL, once.
func TestTheFirstObjectFillsAColumnThatIsNull(t *testing.T) {
	cfg := DefaultConfig()
	cfg.AdditionalPlacement = "x:header:a,headers:headers,more:headers"
	r, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	rel := table("id uuid", "aggregate_type text", "aggregate_id text", "payload jsonb", "headers jsonb", "more jsonb", "x text")
	var rec cdc.Record
	ok, err := r.Route(insert(rel, "u-1", "order", "k", "1", `{"a": "first"}`, `{"a": "second"}`, null), &rec)
	if got := behindID(&rec); !ok || err != nil || got != ` a:"first"` {
		t.Errorf("%s, %v", got, err)
	}
}

// Who writes a header that is in no record learns of it.
func TestHeadersLeftOutAreRemarked(t *testing.T) {
	cfg := DefaultConfig()
	cfg.AdditionalPlacement = "x:header:eventType,headers:headers"
	cfg.Headers = []HeaderStep{{Drop: []string{"secret"}}}
	r, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	var rec cdc.Record
	for _, headers := range []string{`{"a": "1"}`, `{"secret": "dropped on purpose"}`, `{"id": "1"}`, `{"eventType": "1", "walpost.origin": "2"}`} {
		if _, err := r.Route(insert(withObject("jsonb", "text"), "u-1", "order", "k", "1", headers, "Placed"), &rec); err != nil {
			t.Fatal(err)
		}
	}
	told := ""
	r.Remarks(func(what string, severe bool, count uint64, last string) {
		told += fmt.Sprintln(what, severe, count, last)
	})
	if want := "header of an object left out false 3 event \"u-1\" of public.outbox: \"walpost.origin\" in column headers\n"; told != want {
		t.Errorf("%swant %s", told, want)
	}
}

// behindID shows the headers behind the header id.
func behindID(rec *cdc.Record) string {
	i := slices.IndexFunc(rec.Headers, func(h cdc.Header) bool { return h.Key == "id" })
	none := cdc.Record{}
	all := none
	all.Headers = rec.Headers[i+1:]
	return strings.TrimPrefix(show(&all), show(&none))
}

// An object is read as encoding/json reads it.
func TestAnObjectIsReadAsJSONIs(t *testing.T) {
	cfg := DefaultConfig()
	cfg.AdditionalPlacement = "headers:headers"
	r, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	rel := withObject("json", "text")
	word := rapid.StringOfN(rapid.SampledFrom([]rune("ab\\\"/{}[],: \n\u00e9\u2028\U0001F600<")), 0, 5, -1)
	value := rapid.OneOf(rapid.Map(word, func(s string) any { return s }), rapid.SampledFrom([]any{nil, true, 1.5, -7, []any{"]", map[string]any{"}": "{"}}}))
	rapid.Check(t, func(t *rapid.T) {
		object := rapid.MapOfN(word, value, 0, 20).Draw(t, "object")
		text, err := json.Marshal(object)
		if err != nil {
			t.Fatal(err)
		}
		if rapid.Bool().Draw(t, "indented") {
			text, _ = json.MarshalIndent(object, " ", "\t")
		}
		want := ""
		for _, name := range slices.Sorted(maps.Keys(object)) { // as json.Marshal sorts
			var header cdc.Header
			switch v := object[name].(type) {
			case nil:
			case string:
				header.Value = []byte(v)
			default:
				if i := strings.Index(string(text), "\n"); i < 0 {
					header.Value, _ = json.Marshal(v)
				} else {
					header.Value, _ = json.MarshalIndent(v, " \t", "\t")
				}
			}
			if header.Key = name; name != "id" {
				want += behindID(&cdc.Record{Headers: []cdc.Header{{Key: "id"}, header}})
			}
		}
		var rec cdc.Record
		if ok, err := r.Route(insert(rel, "u-1", "order", "k", "1", string(text), null), &rec); !ok || err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		if got := behindID(&rec); got != want {
			t.Fatalf("%s\n got %s\nwant %s", text, got, want)
		}
	})
}

func TestTheColumnOfAnObject(t *testing.T) {
	for _, c := range []struct {
		typ, placement, want string
	}{
		{"jsonb", "headers:headers", "id aggregate_type aggregate_id payload headers"},
		{"bpchar", "headers:Headers ", "id aggregate_type aggregate_id payload headers"},
		{"uuid", "headers:headers", "!router.table.fields.additional.placement: column headers is a uuid, and a JSON object of headers needs a column of the type jsonb, json or text"},
		{"hstore", "headers:headers", "!column headers is a hstore"},
		{"jsonb", "nope:headers", "id aggregate_type aggregate_id payload nope"}, // a table can get it later
	} {
		cfg := DefaultConfig()
		cfg.AdditionalPlacement = c.placement
		r, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		needs, err := r.Needs(withObject(c.typ, "text"))
		if part, bad := strings.CutPrefix(c.want, "!"); bad && (err == nil || !strings.Contains(err.Error(), part)) || !bad && (err != nil || strings.Join(needs, " ") != c.want) {
			t.Errorf("%s as %s: needs %q, %v", c.typ, c.placement, needs, err)
		}
	}
	cfg := DefaultConfig()
	cfg.AdditionalPlacement = "headers:headers:x"
	if _, err := New(cfg); err == nil || !strings.Contains(err.Error(), "the placement headers has no alias") {
		t.Errorf("an alias: %v", err)
	}
	for _, missing := range []string{"error", "ignore"} { // the WAL from before the column
		cfg.AdditionalPlacement, cfg.AdditionalMissing = "headers:headers", missing
		r, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		var rec cdc.Record
		if ok, err := r.Route(insert(outbox, "u-1", "order", "k", "P", "1"), &rec); !ok || err != nil || behindID(&rec) != "" {
			t.Errorf("a table without the column, and %s: %s, %v", missing, show(&rec), err)
		}
		if _, err := r.Route(insert(withObject("jsonb", "text"), "u-2", "order", "k", "1", null, null), &rec); err != nil { // has the column
			t.Fatal(err)
		}
		told := ""
		r.Remarks(func(what string, severe bool, count uint64, last string) {
			told += fmt.Sprintln(what, severe, count, last)
		})
		want := "row without a column of the placement headers false 1 event \"u-1\" of public.outbox: no column headers\n"
		if missing == "ignore" {
			want = ""
		}
		if told != want {
			t.Errorf("additional.missing %s: remarks %q, want %q", missing, told, want)
		}
	}
}

// The WAL does not have a large value that an update did not change, and no placeholder is an object.
func TestAnObjectThatAnUpdateDidNotSend(t *testing.T) {
	cfg := DefaultConfig()
	cfg.Updates, cfg.AdditionalPlacement = true, "headers:headers"
	r, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	rel := table("id uuid key", "aggregate_type text", "aggregate_id text", "payload jsonb", "headers jsonb")
	is := []string{"u-2", "order", "k", "1", "~"}
	var rec cdc.Record
	var bad *RowError
	_, err = r.Route(updated(rel, []string{"u-1", null, null, null, null}, is), &rec)
	if !errors.As(err, &bad) || bad.Problems[0].Rule != ValueSent || bad.Problems[0].Column != "headers" {
		t.Errorf("without the old row: %v", err)
	}
	ok, err := r.Route(updated(rel, []string{"u-1", "order", "k", "1", `{"a": "1"}`}, is), &rec)
	if !ok || err != nil || behindID(&rec) != ` a:"1"` {
		t.Errorf("with the old row: %s, %v", show(&rec), err)
	}
}
