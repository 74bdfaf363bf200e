package router

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/walpost/walpost/cdc"
)

func message(content string) *cdc.Event {
	return &cdc.Event{
		Kind: cdc.Message, LSN: 0x16B3748, Time: committed,
		Row: cdc.Row{Relation: cdc.Messages("outbox"), Values: []cdc.Value{{Bytes: []byte(content)}}},
	}
}

// TestAMessageGivesTheRecordOfTheSameRow: the oracle is the row of a table with columns of the same types.
func TestAMessageGivesTheRecordOfTheSameRow(t *testing.T) {
	texts := table("id text", "aggregate_type text", "aggregate_id text", "payload text")
	with := func(column string) *cdc.Relation {
		return table("id text", "aggregate_type text", "aggregate_id text", "payload text", column)
	}
	const same = `{"id":"u-1","aggregate_type":"order","aggregate_id":"4711","payload":{"a":1}`
	row := []string{"u-1", "order", "4711", `{"a":1}`}
	for _, c := range []struct {
		name    string
		change  func(*Config)
		content string
		rel     *cdc.Relation
		row     []string
	}{
		{"plain", nil, same + "}", texts, row},
		{"white space around everything", nil, " {\n\t\"id\" : \"u-1\" , \"aggregate_type\":\"order\"\r, \"aggregate_id\" :\"4711\",\"payload\"\n:\n{\"a\":1} }\n", texts, row},
		{"nested JSON stays byte for byte", nil, `{"id":"u-1","aggregate_type":"order","aggregate_id":"4711","payload": { "b" : 1.00 , "b":[ "}\"]" ,1e400]} }`, texts, []string{"u-1", "order", "4711", `{ "b" : 1.00 , "b":[ "}\"]" ,1e400]}`}},
		{"a text with escapes", nil, `{"id":"u-1","aggregate_type":"order","aggregate_id":"k\"\\\u00e9\ud83d\ude00","payload":"{\"a\":1}\n"}`, texts, []string{"u-1", "order", "k\"\\é😀", "{\"a\":1}\n"}},
		{"an escaped name", nil, `{"\u0069d":"u-1","aggregate_type":"order","aggregate_id":"4711","payload":{"a":1}}`, texts, row},
		{"numbers and words are their text", nil, `{"id":-17,"aggregate_type":true,"aggregate_id":1.50,"payload":[]}`, texts, []string{"-17", "true", "1.50", "[]"}},
		{"null", nil, `{"id":null,"aggregate_type":"order","aggregate_id":null,"payload":null}`, texts, []string{null, "order", null, null}},
		{"empty texts", nil, `{"id":"","aggregate_type":"order","aggregate_id":"","payload":""}`, texts, []string{"", "order", "", ""}},
		{"fields that no option names", nil, same + `,"other":{"id":"x"},"payload ":1,"ID":2}`, texts, row},
		{"a NULL type is refused as a row is", nil, `{"id":"u-1","aggregate_type":null,"aggregate_id":"k","payload":1}`, texts, []string{"u-1", null, "k", "1"}},
		{"so is a topic that Kafka does not allow", nil, `{"id":"u-1","aggregate_type":"or der","aggregate_id":"k","payload":1}`, texts, []string{"u-1", "or der", "k", "1"}},
		{"other columns", func(c *Config) {
			c.EventID, c.EventKey, c.RouteBy, c.Payload = "event", "key", "type", "body"
		}, `{"event":"u-1","key":"4711","type":"order","body":"x","id":2}`, table("event text", "key text", "type text", "body text"), []string{"u-1", "4711", "order", "x"}},
		{"a header", func(c *Config) { c.AdditionalPlacement = "x:header:y" }, same + `,"x":"é"}`, with("x text"), append(row[:4:4], "é")},
		{"a header of null", func(c *Config) { c.AdditionalPlacement = "x:header:y" }, same + `,"x":null}`, with("x text"), append(row[:4:4], null)},
		{"a missing header is null, if missing ones are ignored", func(c *Config) { c.AdditionalPlacement, c.AdditionalMissing = "x:header", "ignore" }, same + `}`, with("x text"), append(row[:4:4], null)},
		{"an object of headers", func(c *Config) { c.AdditionalPlacement = "x:headers" }, same + `,"x": {"a" : "\u00e9", "b":{"c" :1}} }`, with("x json"), append(row[:4:4], `{"a" : "\u00e9", "b":{"c" :1}}`)},
		{"an object of headers in a text", func(c *Config) { c.AdditionalPlacement = "x:headers" }, same + `,"x":"{\"a\": \"1\"}"}`, with("x json"), append(row[:4:4], `{"a": "1"}`)},
		{"an object of headers that is null", func(c *Config) { c.AdditionalPlacement = "x:headers" }, same + `,"x":null}`, with("x json"), append(row[:4:4], null)},
		{"an object of headers that is not there", func(c *Config) { c.AdditionalPlacement = "x:headers" }, same + `}`, with("x json"), append(row[:4:4], null)},
		{"headers that are no object", func(c *Config) { c.AdditionalPlacement = "x:headers" }, same + `,"x":["a"]}`, with("x json"), append(row[:4:4], `["a"]`)},
		{"a partition", func(c *Config) { c.AdditionalPlacement = "x:partition" }, same + `,"x":3}`, with("x int4"), append(row[:4:4], "3")},
		{"no partition", func(c *Config) { c.AdditionalPlacement = "x:partition" }, same + `,"x":null}`, with("x int4"), append(row[:4:4], null)},
		{"a bad partition", func(c *Config) { c.AdditionalPlacement = "x:partition" }, same + `,"x":-3}`, with("x int4"), append(row[:4:4], "-3")},
		{"a timestamp", func(c *Config) { c.Timestamp = "x" }, same + `,"x":"2026-02-03T04:05:06.789012+05:30"}`, with("x timestamptz"), append(row[:4:4], "2026-02-02 22:35:06.789012+00")},
		{"a timestamp in a header", func(c *Config) { c.Timestamp, c.AdditionalPlacement = "x", "x:header" }, same + `,"x":"2026-02-03T04:05:06Z"}`, with("x timestamptz"), append(row[:4:4], "2026-02-03 04:05:06+00")},
		{"an envelope", func(c *Config) {
			c.AdditionalPlacement, c.Value.Name = "x:envelope", "json"
		}, same + `,"x":"v"}`, with("x text"), append(row[:4:4], "v")},
		{"a version", func(c *Config) {
			c.AdditionalPlacement, c.Value.Name, c.SchemaVersion = "x:envelope", "json", "n"
		}, same + `,"x":"v","n":7}`, table("id text", "aggregate_type text", "aggregate_id text", "payload text", "x text", "n int4"), append(row[:4:4], "v", "7")},
		{"an expanded payload", func(c *Config) { c.ExpandJSON, c.Value.Name = true, "json" }, same + `}`, texts, row},
		{"a payload of bytes in base64", func(c *Config) { c.Value.Name = "bytes" }, `{"id":"u-1","aggregate_type":"order","aggregate_id":"k","payload":"AP/+"}`, table("id text", "aggregate_type text", "aggregate_id text", "payload bytea"), []string{"u-1", "order", "k", `\x00fffe`}},
		{"a payload of bytes in hexadecimal digits", func(c *Config) { c.Value.Name = "binary" }, `{"id":"u-1","aggregate_type":"order","aggregate_id":"k","payload":"\\x00FFfe"}`, table("id text", "aggregate_type text", "aggregate_id text", "payload bytea"), []string{"u-1", "order", "k", `\x00fffe`}},
		{"no bytes", func(c *Config) { c.Value.Name = "bytes" }, `{"id":"u-1","aggregate_type":"order","aggregate_id":"k","payload":""}`, table("id text", "aggregate_type text", "aggregate_id text", "payload bytea"), []string{"u-1", "order", "k", `\x`}},
		{"a null payload of bytes", func(c *Config) { c.Value.Name, c.Tombstone = "bytes", true }, `{"id":"u-1","aggregate_type":"order","aggregate_id":"k","payload":null}`, table("id text", "aggregate_type text", "aggregate_id text", "payload bytea"), []string{"u-1", "order", "k", null}},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg := DefaultConfig()
			if c.change != nil {
				c.change(&cfg)
			}
			routed := func(ev *cdc.Event) string {
				r, err := New(cfg)
				if err != nil {
					t.Fatal(err)
				}
				if err := r.CheckMessages("outbox"); err != nil {
					t.Fatal(err)
				}
				var rec cdc.Record
				if ok, err := r.Route(ev, &rec); !ok {
					return strings.ReplaceAll(fmt.Sprintf("%v, id %q, key %q", err, rec.EventID, rec.Key), "messages:outbox", "public.outbox")
				}
				return show(&rec)
			}
			got, want := routed(message(c.content)), routed(insert(c.rel, c.row...))
			if strings.Contains(want, "Value") { // the name of an envelope's schema has the table's name
				got = strings.ReplaceAll(got, "messages_outbox", "public.outbox")
			}
			if got != want {
				t.Errorf("the message gives\n%s\nand the row gives\n%s", got, want)
			}
		})
	}
}

func TestAContentThatIsRefusedNamesTheFieldAndTheEvent(t *testing.T) {
	const head = `{"id":"u-1","aggregate_type":"order","aggregate_id":"k",`
	for _, c := range []struct{ name, content, want, column, id, key string }{
		{"nothing", "", "the content of the message is empty", "", "", ""},
		{"white space", " \n", "the content of the message is empty", "", "", ""},
		{"a text", "hello", "is not a JSON object", "", "", ""},
		{"an array", "[]", "is not a JSON object", "", "", ""},
		{"cut short", head + `"payload":{}`, "is not JSON: unexpected end of JSON input (at byte 68)", "", "", ""},
		{"more behind it", head + `"payload":{}}{}`, "is not JSON: invalid character '{' after top-level value", "", "", ""},
		{"not UTF-8", head + "\"payload\":\"\xff\"}", "is not UTF-8", "", "", ""},
		{"no payload", head + `"x":1}`, `the message has no field "payload"; write null if it has no value`, "payload", "u-1", "k"},
		{"no id", `{"aggregate_type":"order","aggregate_id":"k","payload":1}`, `no field "id"`, "id", "", "k"},
		{"no key", `{"id":"u-1","aggregate_type":"order","payload":1}`, `no field "aggregate_id"`, "aggregate_id", "u-1", "unknown"},
		{"no type", `{"id":"u-1","payload":1,"aggregate_id":"k"}`, `no field "aggregate_type"`, "aggregate_type", "u-1", "k"},
		{"a field twice", head + `"payload":1,"id":"u-2"}`, `the message has the field "id" twice`, "id", "u-1", "k"},
		{"U+0000", head + `"payload":"a\u0000"}`, `field "payload" has the character U+0000`, "payload", "u-1", "k"},
		{"half a pair", head + `"payload":"\ud83d"}`, `field "payload" has half of a surrogate pair`, "payload", "u-1", "k"},
		{"two first halves", head + `"payload":"\ud83d\ud83d\ude00"}`, `half of a surrogate pair`, "payload", "u-1", "k"},
		{"the second half first", head + `"payload":"\ude00\ud83d"}`, `half of a surrogate pair`, "payload", "u-1", "k"},
	} {
		t.Run(c.name, func(t *testing.T) {
			refused(t, DefaultConfig(), c.content, c.want, c.column, c.id, c.key)
		})
	}
	stamped, binary := DefaultConfig(), DefaultConfig()
	stamped.Timestamp = "at"
	binary.Value.Name = "bytes"
	for _, at := range []string{`1`, `"2026-02-03 04:05:06+00"`, `"2026-02-03T04:05:06"`, `"infinity"`, `{}`} {
		refused(t, stamped, head+`"payload":1,"at":`+at+`}`, `field "at" must be a`, "at", "u-1", "k")
	}
	for _, payload := range []string{`{}`, `1`, `"A"`, `"AA=A"`, `"AB=="`, "\"AAAA\\n\"", `"\\x0"`, `"\\x0g"`, `"-_-_"`} {
		refused(t, binary, head+`"payload":`+payload+`}`, `field "payload" `, "payload", "u-1", "k")
	}
}

func refused(t *testing.T, cfg Config, content, want, column, id, key string) {
	t.Helper()
	r, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	// What the message before it had must be forgotten.
	var rec cdc.Record
	_, _ = r.Route(message(`{"id":"before","aggregate_type":"before","aggregate_id":"before","payload":"before","at":null}`), &rec)
	ok, err := r.Route(message(content), &rec)
	bad, is := errors.AsType[*RowError](err)
	if ok || !is {
		t.Fatalf("%s gives %v, %v", content, ok, err)
	}
	p := bad.Problems[0]
	if !strings.Contains(bad.Error(), want) || p.Rule != ContentValid || p.Column != column || bad.BadBecause() != cdc.Unroutable {
		t.Errorf("%s gives %v (%+v), want %s", content, err, p, want)
	}
	if !strings.Contains(bad.Error(), "messages:outbox") || !strings.Contains(bad.Hint(), "Correct the program") {
		t.Errorf("%v; %s", err, bad.Hint())
	}
	known := key != "" && key != "unknown"
	if rec.EventID != id || bad.EventID != id || bad.KeyFound() != known || known && string(rec.Key) != key || !known && rec.Key != nil {
		t.Errorf("%s has id %q and key %q (found: %t), want %q and %q", content, rec.EventID, rec.Key, bad.KeyFound(), id, key)
	}
}

func TestRowsOfNoTableAreRoutedBesideMessages(t *testing.T) {
	cfg := DefaultConfig()
	cfg.Tables = []string{}
	r, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	var rec cdc.Record
	if ok, err := r.Route(insert(outbox, "u", "order", "k", "P", "1"), &rec); ok || err != nil {
		t.Errorf("a row of a table that is not configured gives %v, %v", ok, err)
	}
	if ok, err := r.Route(message(`{"id":"u","aggregate_type":"order","aggregate_id":"k","payload":1}`), &rec); !ok || err != nil {
		t.Errorf("a message gives %v, %v", ok, err)
	}
}

func TestARecordOfAMessageOwnsItsBytes(t *testing.T) {
	r, err := New(DefaultConfig())
	if err != nil {
		t.Fatal(err)
	}
	var rec cdc.Record
	ev := message(`{"id":"u-1","aggregate_type":"order","aggregate_id":"k","payload":{"a":1}}`)
	if ok, err := r.Route(ev, &rec); !ok || err != nil {
		t.Fatal(ok, err)
	}
	was := show(&rec) + rec.EventID
	clear(ev.Row.Values[0].Bytes)
	if got := show(&rec) + rec.EventID; got != was {
		t.Errorf("%s became %s", was, got)
	}
}

// FuzzMessage compares the fields with what encoding/json finds.
func FuzzMessage(f *testing.F) {
	f.Add(`{"id":"u-1","aggregate_type":"order","aggregate_id":"k","payload":{"a":[1,"}\\"]}}`)
	f.Add(`{"id":1e5 , "x":{"payload":2},"aggregate_type":"\ud83d\ude00","aggregate_id":null,"payload":"\u0041\\"}`)
	f.Add(`{}`)
	f.Add(` { "payload":[{"a":"}"},{}] ,"id":"","aggregate_id":true,"aggregate_type":""}`)
	f.Fuzz(func(t *testing.T, content string) {
		r, err := New(DefaultConfig())
		if err != nil {
			t.Fatal(err)
		}
		ev, problem := r.messages.expand(r, message(content))
		var all map[string]json.RawMessage
		if !utf8.ValidString(content) || json.Unmarshal([]byte(content), &all) != nil || all == nil {
			if problem == nil {
				t.Fatalf("%q is no JSON object, and is taken", content)
			}
			return
		}
		if problem != nil {
			return // the table above has the reasons
		}
		for i, c := range ev.Row.Relation.Columns {
			want := []byte(all[c.Name])
			switch {
			case len(want) == 0:
				t.Fatalf("%q lacks %s, and is taken", content, c.Name)
			case string(want) == "null":
				want = nil
			case want[0] == '"':
				var s string
				if err := json.Unmarshal(want, &s); err != nil {
					t.Fatal(err)
				}
				want = []byte(s)
			}
			if got := ev.Row.Values[i].Bytes; string(got) != string(want) || (got == nil) != (want == nil) {
				t.Fatalf("%q has %s %q, want %q", content, c.Name, got, want)
			}
		}
	})
}
