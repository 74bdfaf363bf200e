package router

import (
	"bytes"
	"errors"
	"fmt"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"
	"weak"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/fault"
)

var committed = time.Date(2026, 3, 4, 5, 6, 7, 891234000, time.UTC)

// table makes a relation of "name type" columns; a type may end in "not null", "key" or "default
// …".
func table(columns ...string) *cdc.Relation {
	types := map[string]cdc.Column{
		"uuid": {TypeOID: 2950}, "text": {TypeOID: 25}, "varchar": {TypeOID: 1043}, "jsonb": {TypeOID: 3802}, "json": {TypeOID: 114},
		"int2": {TypeOID: 21}, "int4": {TypeOID: 23}, "int8": {TypeOID: 20}, "bool": {TypeOID: 16},
		"float4": {TypeOID: 700}, "float8": {TypeOID: 701}, "numeric(20,10)": {TypeOID: 1700, TypeMod: 20<<16 | 14}, "numeric(10,2)": {TypeOID: 1700, TypeMod: 10<<16 | 6},
		"numeric": {TypeOID: 1700}, "date": {TypeOID: 1082}, "time": {TypeOID: 1083}, "time(3)": {TypeOID: 1083, TypeMod: 3},
		"timestamp": {TypeOID: 1114}, "timestamp(3)": {TypeOID: 1114, TypeMod: 3}, "interval": {TypeOID: 1186},
		"timestamptz": {TypeOID: 1184}, "timestamptz(0)": {TypeOID: 1184, TypeMod: 0}, "timestamptz(3)": {TypeOID: 1184, TypeMod: 3},
		"bytea": {TypeOID: 17}, "int4[]": {TypeOID: 1007, ElementType: 23, ElementName: "int4", BaseName: "_int4"},
		"mood": {TypeOID: 20001, EnumLabels: []string{"sad", "ok"}},
		"flag": {TypeOID: 20002, BaseType: 16, BaseName: "bool"}, "citext": {TypeOID: 20003, BaseName: "citext"}, "hstore": {TypeOID: 20004, BaseName: "hstore"},
		"pair": {TypeOID: 30000}, "bpchar": {TypeOID: 1042}, "xml": {TypeOID: 142},
	}
	rel := &cdc.Relation{ID: 1, Schema: "public", Name: "outbox"}
	keys := 0
	for _, c := range columns {
		name, typ, _ := strings.Cut(c, " ")
		typ, def, hasDefault := strings.Cut(typ, " default ")
		typ, key := strings.CutSuffix(typ, " key")
		typ, notNull := strings.CutSuffix(typ, " not null")
		col, ok := types[typ]
		if !ok {
			panic("no type " + typ)
		}
		if col.TypeMod == 0 && !strings.Contains(typ, "(0)") {
			col.TypeMod = -1
		}
		base, _, _ := strings.Cut(typ, "(")
		if col.BaseName == "" {
			col.BaseName = base
		}
		col.Name, col.TypeName, col.BaseTypeMod = name, typ, col.TypeMod
		col.HasDefault, col.Default, col.NotNull = hasDefault, def, notNull || key
		if key {
			keys++
			col.Key, col.KeyPosition = true, keys
		}
		rel.Columns = append(rel.Columns, col)
	}
	return rel
}

var outbox = table("id uuid", "aggregate_type text", "aggregate_id text", "event_type text", "payload jsonb")

const null = "\x00NULL"

func insert(rel *cdc.Relation, values ...string) *cdc.Event {
	ev := &cdc.Event{Kind: cdc.Insert, LSN: 0x16B3748, Time: committed, Row: cdc.Row{Relation: rel}}
	for _, v := range values {
		if v == null {
			ev.Row.Values = append(ev.Row.Values, cdc.Value{})
		} else {
			ev.Row.Values = append(ev.Row.Values, cdc.Value{Bytes: []byte(v)})
		}
	}
	return ev
}

func show(r *cdc.Record) string {
	b := func(v []byte) string {
		if v == nil {
			return "null"
		}
		return fmt.Sprintf("%q", v)
	}
	s := fmt.Sprintf("%s[%d] %s=%s at %s", r.Topic, r.Partition, b(r.Key), b(r.Value), r.Time.Format("15:04:05.999999"))
	for _, h := range r.Headers {
		s += " " + h.Key + ":" + b(h.Value)
	}
	return s
}

func TestRowsGiveRecords(t *testing.T) {
	type c struct {
		name   string
		change func(*Config)
		rel    *cdc.Relation
		row    []string
		want   string // a record, or "!" and a part of the error
	}
	with := func(types ...string) *cdc.Relation {
		return table(append([]string{"id uuid", "aggregate_type text", "aggregate_id text", "payload jsonb"}, types...)...)
	}
	base := []string{"u-1", "order", "4711", `{"a": 1}`}
	header := func(typ, value, want string) c {
		return c{
			name: "header of type " + typ + " " + value, change: func(c *Config) { c.AdditionalPlacement = "x:header" },
			rel: with("x " + typ), row: append(base[:4:4], value),
			want: `outbox.event.order[-1] "4711"="{\"a\": 1}" at 05:06:07.891 id:"u-1" x:` + want,
		}
	}
	key := func(typ, value, want string) c {
		return c{
			name: "key of type " + typ + " " + value, change: func(c *Config) { c.EventKey = "x" },
			rel: with("x " + typ), row: append(base[:4:4], value),
			want: `outbox.event.order[-1] ` + want + `="{\"a\": 1}" at 05:06:07.891 id:"u-1"`,
		}
	}
	stamped := func(typ, value, want string) c {
		return c{
			name: "timestamp from " + typ + " " + value, change: func(c *Config) { c.Timestamp = "x" },
			rel: with("x " + typ), row: append(base[:4:4], value), want: want,
		}
	}
	for _, c := range []c{
		{name: "defaults", rel: outbox, row: []string{"u-1", "order", "4711", "Placed", `{"a": 1}`}, want: `outbox.event.order[-1] "4711"="{\"a\": 1}" at 05:06:07.891 id:"u-1"`},
		{name: "Debezium's column names", rel: table("id uuid", "aggregatetype varchar", "aggregateid varchar", "type varchar", "payload jsonb"), row: []string{"u-1", "order", "4711", "Placed", "1"}, want: `outbox.event.order[-1] "4711"="1" at 05:06:07.891 id:"u-1"`},
		{name: "null key and payload stay null", rel: outbox, row: []string{"u-1", "order", null, "Placed", null}, want: `outbox.event.order[-1] null=null at 05:06:07.891 id:"u-1"`},
		{name: "empty is not null", rel: outbox, row: []string{"u-1", "order", "", "Placed", ""}, want: `outbox.event.order[-1] ""="" at 05:06:07.891 id:"u-1"`},
		{name: "null id is a null header", rel: outbox, row: []string{null, "order", "k", "Placed", "1"}, want: `outbox.event.order[-1] "k"="1" at 05:06:07.891 id:null`},
		{name: "empty type", rel: outbox, row: []string{"u-1", "", "k", "Placed", "1"}, want: `outbox.event.[-1] "k"="1" at 05:06:07.891 id:"u-1"`},
		{name: "null type", rel: outbox, row: []string{"u-1", null, "k", "Placed", "1"}, want: `!event "u-1" of public.outbox at 0/16B3748 cannot be routed: router.route.by.field: column aggregate_type is NULL`},
		{name: "bad topic", rel: outbox, row: []string{"u-1", "or der", "k", "Placed", "1"}, want: `!invalid topic name "outbox.event.or der"`},
		{name: "long topic", rel: outbox, row: []string{"u-1", strings.Repeat("x", 237), "k", "Placed", "1"}, want: `!1 to 249`},
		{name: "newline is not in the dot, and no match gives the value", rel: outbox, row: []string{"u-1", "a\nb", "k", "Placed", "1"}, want: `!invalid topic name "a\nb"`},
		{name: "regex and numbered group", change: func(c *Config) { c.TopicRegex, c.TopicReplacement = `(\w+)-(\d+)`, `t.$2.$1` }, rel: outbox, row: []string{"u-1", "order-7", "k", "P", "1"}, want: `t.7.order[-1] "k"="1" at 05:06:07.891 id:"u-1"`},
		{name: "no match gives the value", change: func(c *Config) { c.TopicRegex, c.TopicReplacement = `(\d+)`, `t.$1` }, rel: outbox, row: []string{"u-1", "order-7", "k", "P", "1"}, want: `order-7[-1] "k"="1" at 05:06:07.891 id:"u-1"`},
		{name: "find may be shorter than the match", change: func(c *Config) { c.TopicRegex, c.TopicReplacement = `a|ab`, `x` }, rel: outbox, row: []string{"u-1", "ab", "k", "P", "1"}, want: `xb[-1] "k"="1" at 05:06:07.891 id:"u-1"`},
		{name: "headers in order, with alias, missing column ignored", change: func(c *Config) {
			c.AdditionalPlacement, c.AdditionalMissing = "event_type:header:eventType, nope:header ,aggregate_id:HEADER", "ignore"
		}, rel: outbox, row: []string{"u-1", "order", "k", "P", "1"}, want: `outbox.event.order[-1] "k"="1" at 05:06:07.891 id:"u-1" eventType:"P" aggregate_id:"k"`},
		{name: "partition", change: func(c *Config) { c.AdditionalPlacement = "p:partition" }, rel: with("p int4"), row: append(base[:4:4], "3"), want: `outbox.event.order[3] "4711"="{\"a\": 1}" at 05:06:07.891 id:"u-1"`},
		{name: "null partition", change: func(c *Config) { c.AdditionalPlacement = "p:partition" }, rel: with("p int4"), row: append(base[:4:4], null), want: `outbox.event.order[-1] "4711"="{\"a\": 1}" at 05:06:07.891 id:"u-1"`},
		{name: "negative partition", change: func(c *Config) { c.AdditionalPlacement = "p:partition" }, rel: with("p int4"), row: append(base[:4:4], "-1"), want: `!it must be 0 or more`},
		{name: "tombstone of null", change: func(c *Config) { c.Tombstone = true }, rel: outbox, row: []string{"u-1", "order", "k", "P", null}, want: `outbox.event.order[-1] "k"=null at 05:06:07.891 id:"u-1"`},
		{name: "tombstone of blank", change: func(c *Config) { c.Tombstone = true }, rel: outbox, row: []string{"u-1", "order", "k", "P", " \t\n"}, want: `outbox.event.order[-1] "k"=null at 05:06:07.891 id:"u-1"`},
		{name: "no tombstone without the option", rel: outbox, row: []string{"u-1", "order", "k", "P", " "}, want: `outbox.event.order[-1] "k"=" " at 05:06:07.891 id:"u-1"`},
		header("bool", "t", `"true"`), header("bool", "f", `"false"`), header("bool", null, "null"), header("mood", "ok", `"ok"`), header("flag", "t", `"true"`), header("citext", "Ab", `"Ab"`),
		header("bytea", `\x00ff5b`, `"AP9b"`), header("numeric(20,10)", "12.3000000000", `"12.3000000000"`),
		header("numeric(20,10)", "0.0000000123", `"1.23E-8"`), header("numeric(20,10)", "-0.0000001000", `"-1.000E-7"`), header("numeric(20,10)", "0.0000000000", `"0E-10"`), header("numeric(20,10)", "NaN", "null"),
		header("date", "2024-02-29", `"19782"`), header("date", "0001-01-01 BC", `"-719528"`), header("time", "12:34:56.5", `"45296500000"`), header("time(3)", "12:34:56.789", `"45296789"`),
		header("timestamp", "2024-02-29 12:34:56.123456", `"1709210096123456"`), header("timestamp(3)", "2024-02-29 12:34:56.123", `"1709210096123"`), header("timestamp(3)", "1969-12-31 23:59:59.999", `"-1"`),
		header("timestamptz", "2024-02-29 12:34:56.1+00", `"2024-02-29T12:34:56.100000Z"`), header("timestamptz(3)", "2024-02-29 12:34:56.1+00", `"2024-02-29T12:34:56.100Z"`), header("timestamptz(0)", "2024-02-29 12:34:56+00", `"2024-02-29T12:34:56Z"`), header("timestamptz", "infinity", `"infinity"`),
		key("int8", "77", `"77"`), key("bool", "t", `"true"`), key("float8", "1e-10", `"1.0E-10"`), key("float8", "10000000", `"1.0E7"`), key("float8", "9999999", `"9999999.0"`), key("float8", "0.001", `"0.001"`), key("float8", "0.0009999", `"9.999E-4"`), key("float8", "-0", `"-0.0"`), key("float8", "Infinity", `"Infinity"`), key("float4", "0.1", `"0.1"`), key("float8", "1e+23", `"1.0E23"`),
		stamped("timestamp", "2024-02-29 12:34:56.123999", `outbox.event.order[-1] "4711"="{\"a\": 1}" at 12:34:56.123 id:"u-1"`),
		stamped("timestamptz", "2024-02-29 12:34:56.5+00", `outbox.event.order[-1] "4711"="{\"a\": 1}" at 12:34:56.5 id:"u-1"`),
		stamped("timestamp", null, `outbox.event.order[-1] "4711"="{\"a\": 1}" at 05:06:07.891 id:"u-1"`),
		stamped("timestamp", "1969-12-31 23:59:59", "!before 1970"), stamped("timestamp", "1969-12-31 23:59:59.9991", `outbox.event.order[-1] "4711"="{\"a\": 1}" at 00:00:00 id:"u-1"`), stamped("timestamp", "-infinity", "!before 1970"),
		stamped("timestamptz(3)", "2024-02-29 12:34:56.5+00", `outbox.event.order[-1] "4711"="{\"a\": 1}" at 12:34:56.5 id:"u-1"`),
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg := DefaultConfig()
			if c.change != nil {
				c.change(&cfg)
			}
			r, err := New(cfg)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := r.Needs(c.rel); err != nil {
				t.Fatal(err)
			}
			var rec, again cdc.Record
			ev := insert(c.rel, c.row...)
			ok, err := r.Route(ev, &rec)
			if part, bad := strings.CutPrefix(c.want, "!"); bad || strings.HasSuffix(c.want, ":!") {
				var row *RowError
				if !errors.As(err, &row) || !strings.Contains(err.Error(), part) && bad || !fault.NeedsPerson(err) || rec.EventID != "u-1" {
					t.Errorf("error %v for event %q, want a row error with %q", err, rec.EventID, part)
				}
				return
			}
			if err != nil || !ok {
				t.Fatalf("routed %t, %v", ok, err)
			}
			if got := show(&rec); got != c.want {
				t.Errorf("\n got %s\nwant %s", got, c.want)
			}
			if rec.Committed != committed {
				t.Errorf("committed at %s, want %s", rec.Committed, committed)
			}
			// The record owns its bytes, and the same row gives the same record.
			before := show(&rec)
			for _, v := range ev.Row.Values {
				for i := range v.Bytes {
					v.Bytes[i] = '#'
				}
			}
			if got := show(&rec); got != before {
				t.Errorf("the record changed with the event's buffer: %s", got)
			}
			if _, err := r.Route(insert(c.rel, c.row...), &again); err != nil || !reflect.DeepEqual(rec, again) {
				t.Errorf("routed again: %s, %v", show(&again), err)
			}
		})
	}
}

func TestARowErrorSaysWhereTheRowWasFound(t *testing.T) {
	cfg := DefaultConfig()
	r, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	var rec cdc.Record
	ev := insert(outbox, "u-1", null, "k", "Placed", "1")
	for pos, want := range map[cdc.LSN]string{
		0x16B3748: `event "u-1" of public.outbox at 0/16B3748 cannot be routed: router.route.by.field: column aggregate_type`,
		0:         `event "u-1", read from the table public.outbox, cannot be routed: router.route.by.field: column aggregate_type`, // by recover, or as a snapshot
	} {
		ev.LSN = pos
		if _, err := r.Route(ev, &rec); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("at %s: %v, want %s", pos, err, want)
		}
	}
}

func TestNeedsNamesWhatATableLacks(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*Config)
		rel    *cdc.Relation
		want   string // columns, or "!" and parts of the error
	}{
		{"defaults", nil, outbox, "id aggregate_type aggregate_id payload"},
		{"everything", func(c *Config) { c.AdditionalPlacement, c.Timestamp = "event_type:header,p:partition", "at" }, table("id uuid", "aggregate_type text", "aggregate_id text", "event_type text", "payload jsonb", "p int4", "at timestamp", "other text"), "id aggregate_type aggregate_id event_type payload p at"},
		{"all missing at once", nil, table("x text"), `!no column "id"|no column "aggregate_id"|no column "payload"|no column "aggregate_type"`},
		{"both names", nil, table("id uuid", "aggregate_type text", "aggregatetype text", "aggregate_id text", "aggregateid text", "payload jsonb"), "!key: must be set|route.by.field: must be set"},
		{"both names and one set", func(c *Config) { c.EventKey, c.RouteBy = "aggregateid", "aggregate_type" }, table("id uuid", "aggregate_type text", "aggregatetype text", "aggregate_id text", "aggregateid text", "payload jsonb"), "id aggregate_type aggregateid payload"},
		{"text through bytes", func(c *Config) { c.Value.Name = "bytes" }, outbox, "!payload: column payload is a jsonb: Invalid schema type for ByteArrayConverter: STRING"},
		{"text through binary", func(c *Config) { c.Key.Name = "binary" }, outbox, "!key: column aggregate_id is a text|requires a delegate.converter.type to be configured"},
		{"text through binary with a delegate", func(c *Config) { c.Value.Name, c.Value.Delegate.Name = "binary", "string" }, outbox, "id aggregate_type aggregate_id payload"},
		{"envelope through bytes", func(c *Config) { c.Value.Name, c.AdditionalPlacement = "bytes", "event_type:envelope" }, outbox, "!envelope: Invalid schema type for ByteArrayConverter: STRUCT"},
		{"envelope", func(c *Config) { c.AdditionalPlacement, c.SchemaVersion = "event_type:envelope", "v" }, table("id uuid", "aggregate_type text", "aggregate_id text", "event_type text", "payload jsonb", "v int4"), "id aggregate_type aggregate_id event_type payload v"},
		{"envelope with one name twice", func(c *Config) { c.AdditionalPlacement = "event_type:envelope:payload" }, outbox, "!Cannot create field because of field name duplication payload"},
		{"version of another type", func(c *Config) { c.AdditionalPlacement, c.SchemaVersion = "event_type:envelope", "event_type" }, outbox, "!Field 'event_type' is not of type INT32"},
		{"version without an envelope is not read", func(c *Config) { c.SchemaVersion = "nope" }, outbox, "id aggregate_type aggregate_id payload"},
		{"a type without a value", nil, table("id uuid", "aggregate_type text", "aggregate_id text", "payload pair"), "!payload|pair"},
		{"missing columns ignored", func(c *Config) {
			c.AdditionalPlacement, c.AdditionalMissing = "a:header,b:partition,c:envelope,event_type:envelope", "Ignore"
		}, outbox, "id aggregate_type aggregate_id event_type payload"},
		{"missing envelope field", func(c *Config) { c.AdditionalPlacement = "c:envelope" }, outbox, `!no column "c"`},
		{"names that differ by case", func(c *Config) { c.AdditionalPlacement = "Id:header" }, table("id uuid", "Id text", "aggregate_type text", "aggregate_id text", "payload jsonb"), "id Id aggregate_type aggregate_id payload"},
		{"an adjusted name", func(c *Config) { c.EventKey, c.FieldNames = "agg_id", "avro" }, table("id uuid", "aggregate_type text", "agg-id text", "payload jsonb"), "id aggregate_type agg-id payload"},
		{"missing header", func(c *Config) { c.AdditionalPlacement = "h:header" }, outbox, `!no column "h"`},
		{"partition of another type", func(c *Config) { c.AdditionalPlacement = "p:partition" }, table("id uuid", "aggregate_type text", "aggregate_id text", "payload jsonb", "p int8"), "!Field 'p' is not of type INT32"},
		{"route by number", func(c *Config) { c.RouteBy = "p" }, table("id uuid", "aggregate_id text", "payload jsonb", "p bool"), "!Field 'p' is not of type STRING"},
		{"timestamp of a date", func(c *Config) { c.Timestamp = "d" }, table("id uuid", "aggregate_type text", "aggregate_id text", "payload jsonb", "d date"), "!must be a timestamp"},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg := DefaultConfig()
			if c.change != nil {
				c.change(&cfg)
			}
			r, err := New(cfg)
			if err != nil {
				t.Fatal(err)
			}
			columns, err := r.Needs(c.rel)
			if parts, bad := strings.CutPrefix(c.want, "!"); bad {
				for _, part := range strings.Split(parts, "|") {
					if err == nil || !strings.Contains(err.Error(), part) || !fault.Misconfigured(err) {
						t.Errorf("error %v lacks %q", err, part)
					}
				}
			} else if got := strings.Join(columns, " "); err != nil || got != c.want {
				t.Errorf("needs %q (%v), want %q", got, err, c.want)
			}
		})
	}
}

func TestOnlyInsertsOfTheTablesAreRouted(t *testing.T) {
	cfg := DefaultConfig()
	cfg.Tables = []string{"public.outbox"}
	r, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	var rec cdc.Record
	other := *outbox
	other.Name = "other"
	for _, ev := range []*cdc.Event{
		insert(&other, "u", "order", "k", "P", "1"),
		{Kind: cdc.Delete, Old: cdc.Row{Relation: outbox}},
		{Kind: cdc.Update, Row: insert(outbox, "u", "order", "k", "P", "1").Row},
	} {
		if ok, err := r.Route(ev, &rec); ok || err != nil {
			t.Errorf("%s: routed %t, %v", ev.Kind, ok, err)
		}
	}
	cfg.InvalidOperation = "fatal"
	if r, err = New(cfg); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Route(&cdc.Event{Kind: cdc.Update, Row: insert(outbox, "u", "order", "k", "P", "1").Row}, &rec); err == nil {
		t.Error("an update is no error although it is fatal")
	}
}

func TestValidateSaysEverythingAtOnce(t *testing.T) {
	cfg := Config{
		Options: Options{
			TopicRegex: "(?<a>.*", TopicReplacement: "x", AdditionalPlacement: "a:nowhere", AdditionalMissing: "maybe", InvalidOperation: "no",
			JSONNull: "drop", JSONEmptyArray: "x", JSONFieldNames: "y",
		},
		Records: Records{
			Key:    DelegatingConverter{Converter: Converter{Name: "json", DecimalFormat: "hex"}, Delegate: Converter{Name: "string", NullDefault: true}, AutoRegister: true, Subjects: "topic", MoreProperties: true},
			Value:  DelegatingConverter{Converter: Converter{Name: "xml", NullDefault: true}, Delegate: Converter{NullDefault: true, Schemas: true}, AutoRegister: true, Subjects: "topic", MoreProperties: true},
			Header: Converter{Name: "string"}, ExtendedHeaders: true, SchemaNames: "z", FieldNames: "AVRO",
			TimePrecision: "Connect", Decimal: "no", Binary: "none", Interval: "", HStore: "xml",
		},
	}
	var got []string
	for _, p := range cfg.Validate() {
		got = append(got, p.Field)
	}
	want := strings.Fields(`
		records.binary.handling.mode records.cloudevents records.decimal.handling.mode records.header.converter records.hstore.handling.mode
		records.interval.handling.mode records.key.converter.decimal.format records.key.converter.delegate.converter.type
		records.schema.name.adjustment.mode records.topic.prefix records.validate records.value.converter
		records.value.converter.delegate.converter.type router.field.name.adjustment.mode router.route.topic.regex
		router.table.field.additional.missing router.table.field.event.id router.table.field.event.payload
		router.table.fields.additional.placement router.table.json.payload.empty.array.behavior
		router.table.json.payload.null.behavior router.table.op.invalid.behavior`)
	if slices.Sort(got); !slices.Equal(got, want) {
		t.Errorf("problems with %s\nwant %s", got, want)
	}
	if _, err := New(cfg); !fault.Misconfigured(err) {
		t.Errorf("New: %v, want an error about configuration", err)
	}
	// The converters take an unknown mode for the default, so nothing else refuses it.
	cfg = DefaultConfig()
	cfg.TimePrecision = "micros"
	only := `records.time.precision.mode: must be one of adaptive, adaptive_time_microseconds, connect, isostring, microseconds, nanoseconds (got "micros")`
	if found := cfg.Validate(); found.Error() != only {
		t.Errorf("%s, want %s", found, only)
	}
}

func TestPlacementsAreReadAsDebeziumDoes(t *testing.T) {
	for in, want := range map[string]string{
		"":                               "[]",
		"a:header":                       "[{a a 1}]",
		" a : header : b , c:PARTITION,": "[{a b 1} {c c 2}]",
		"type:header:":                   "[{type type 1}]",
		"type:header: , a:Envelope:b,,":  "[{type  1} {a b 3}]",
		"type":                           "!", "type:": "!", "a:header,,b:header": "!", "a:header:c:d": "!", "type:foo": "!", "type::x": "!", "a:envelope: ": "!", ":header": "!",
	} {
		ps, err := parsePlacements(in)
		if want == "!" {
			if err == nil {
				t.Errorf("%q: %v, want an error", in, ps)
			}
		} else if fmt.Sprint(ps) != want || err != nil {
			t.Errorf("%q: %v, %v; want %s", in, ps, err, want)
		}
	}
}

func FuzzRoute(f *testing.F) {
	f.Add("u-1", "order", "4711", `{"a": 1}`, "t")
	f.Add("", "\n", "\xff", " ", "x")
	rel := table("id uuid", "aggregate_type text", "aggregate_id text", "payload jsonb", "b bool", "n numeric(20,10)", "f float8", "d date", "t timestamp", "z timestamptz", "y bytea", "c time")
	cfg := DefaultConfig()
	cfg.AdditionalPlacement = "b:header,n:header,f:header,d:header,t:header,z:header,y:header,c:header"
	f.Fuzz(func(t *testing.T, id, typ, key, payload, any string) {
		r, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		for i := 4; i < 12; i++ {
			row := []string{id, typ, key, payload, null, null, null, null, null, null, null, null}
			row[i] = any
			var a, b cdc.Record
			okA, errA := r.Route(insert(rel, row...), &a)
			okB, errB := r.Route(insert(rel, row...), &b)
			if okA != okB || (errA == nil) != (errB == nil) || errA == nil && !reflect.DeepEqual(a, b) {
				t.Fatalf("the same row gave %v %v and %v %v", show(&a), errA, show(&b), errB)
			}
			if errA == nil && !bytes.Equal(a.Value, []byte(payload)) {
				t.Fatalf("payload %q became %q", payload, a.Value)
			}
		}
	})
}

// oneID is a Registry that has every schema.
type oneID struct{}

func (oneID) SchemaID(_, _, _ string, _, _ bool) (uint32, error) { return 1, nil }

func avroValues(c *Config) { c.Value.Name, c.Key.Name, c.Registry = "avro", "avro", oneID{} }

func jsonSchemaValues(c *Config) {
	c.Value.Name, c.Key.Name, c.Registry = "json_schema", "json_schema", oneID{}
}

func protobufValues(c *Config) {
	c.Value.Name, c.Key.Name, c.Registry = "protobuf", "protobuf", oneID{}
}

// subjects is a Registry that keeps what it was asked for.
type subjects []string

func (s *subjects) SchemaID(subject, _, format string, _, _ bool) (uint32, error) {
	*s = append(*s, format+" "+subject)
	return 1, nil
}

// A row may be what registers a schema, and looking at a table may not.
func TestOnlyRecordsAskTheRegistry(t *testing.T) {
	for name, format := range map[string]string{"avro": "AVRO", "json_schema": "JSON", "protobuf": "PROTOBUF"} {
		var asked subjects
		cfg := DefaultConfig()
		cfg.TopicPrefix, cfg.Value.Name, cfg.Key.Name, cfg.Registry, cfg.AdditionalPlacement = "shop", name, name, &asked, "event_type:envelope"
		r, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		ev := insert(outbox, "59a42efd-b015-44a9-9dde-cb36d9002425", "order", "4711", "Placed", "{}")
		if _, err := r.Needs(outbox); err != nil || len(asked) > 0 {
			t.Errorf("%s: asked for %q, %v", name, asked, err)
		}
		var rec cdc.Record
		if _, err := r.Route(ev, &rec); err != nil {
			t.Fatal(err)
		}
		if want := []string{format + " outbox.event.order-key", format + " outbox.event.order-value"}; !slices.Equal(asked, want) {
			t.Errorf("%s: asked for %q, want %q", name, asked, want)
		}
	}
}

func BenchmarkRoute(b *testing.B) {
	object := `{"a": "` + strings.Repeat("x", 300) + `"}`
	for _, c := range []struct {
		name    string
		change  func(*Config)
		payload string
	}{
		{"string", nil, object},
		{"json", all(jsonValues, func(c *Config) { c.Key.Converter = Converter{Name: "json"} }), object},
		{"json with schemas", all(schemas, func(c *Config) { c.Key.Converter = Converter{Name: "json", Schemas: true} }), object},
		{"string with all headers", func(c *Config) { c.ExtendedHeaders, c.AdditionalPlacement = true, "event_type:header" }, object},
		{"string with an object of headers", func(c *Config) { c.AdditionalPlacement = "payload:headers" }, object},
		{"string with 10 headers", func(c *Config) { c.AdditionalPlacement = "payload:headers" }, objectOf(10)},
		{"string with 1000 headers", func(c *Config) { c.AdditionalPlacement = "payload:headers" }, objectOf(1000)},
		{"json envelope", all(jsonValues, func(c *Config) { c.AdditionalPlacement = "event_type:envelope" }), object},
		{"json expanded", all(jsonValues, func(c *Config) { c.ExpandJSON = true }), object},
		{"CloudEvents binary", cloudEvents("binary"), object},
		{"CloudEvents structured", cloudEvents("structured"), object},
		{"avro", avroValues, object},
		{"avro expanded", all(avroValues, func(c *Config) { c.ExpandJSON = true }), object},
		{"json schema", jsonSchemaValues, object},
		{"json schema expanded", all(jsonSchemaValues, func(c *Config) { c.ExpandJSON = true }), object},
		{"protobuf", protobufValues, object},
		{"protobuf expanded", all(protobufValues, func(c *Config) { c.ExpandJSON = true }), object},
	} {
		b.Run(c.name, func(b *testing.B) {
			cfg := DefaultConfig()
			cfg.TopicPrefix = "shop"
			if c.change != nil {
				c.change(&cfg)
			}
			r, err := New(cfg)
			if err != nil {
				b.Fatal(err)
			}
			r.SetRunID(runID)
			ev := insert(outbox, "59a42efd-b015-44a9-9dde-cb36d9002425", "order", "4711", "Placed", c.payload)
			var rec cdc.Record
			b.ReportAllocs()
			b.SetBytes(300)
			for b.Loop() {
				if _, err := r.Route(ev, &rec); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// A halted relay keeps the error for as long as it lingers.
func TestAnErrorDoesNotKeepThePayload(t *testing.T) {
	cfg := DefaultConfig()
	r, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	var rec cdc.Record
	_, err = r.Route(insert(outbox, "u-1", "no topic", "k", "Placed", strings.Repeat("x", 1<<20)), &rec)
	if err == nil || rec.EventID != "u-1" {
		t.Fatalf("error %v for event %q", err, rec.EventID)
	}
	payload := weak.Make(unsafe.StringData(rec.EventID))
	rec = cdc.Record{}
	if runtime.GC(); payload.Value() != nil {
		t.Errorf("the payload is in memory as long as the error %q", err)
	}
	runtime.KeepAlive(err)
}

// Options name fields, whose names may be adjusted. Who reads the table needs the names that its columns have.
func TestColumnsHaveTheNamesOfTheTable(t *testing.T) {
	for _, c := range []struct {
		what   string
		change func(*Config)
		rel    *cdc.Relation
		want   Columns
	}{
		{"the defaults", func(*Config) {}, table("id uuid", "aggregate_id text", "aggregatetype text", "payload jsonb"), Columns{ID: "id", Key: "aggregate_id", Payload: "payload", Route: "aggregatetype"}},
		{"another key", func(*Config) {}, table("id uuid", "aggregateid text", "payload jsonb"), Columns{ID: "id", Key: "aggregateid", Payload: "payload", Route: "aggregate_type"}},
		{"adjusted names", func(c *Config) {
			c.EventID, c.EventKey, c.Payload, c.Timestamp, c.FieldNames = "event_id", "agg_id", "pay_load", "at_time", "avro"
		}, table("event-id uuid", "agg-id text", "pay-load jsonb", "at-time timestamptz", "aggregate-type text"), Columns{"event-id", "agg-id", "pay-load", "aggregate-type", "at-time"}},
		{"a column that is not there", func(c *Config) { c.EventKey = "gone" }, table("id uuid", "payload jsonb"), Columns{ID: "id", Key: "gone", Payload: "payload", Route: "aggregate_type"}},
	} {
		cfg := DefaultConfig()
		c.change(&cfg)
		r, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		if got := r.Columns(c.rel); got != c.want {
			t.Errorf("%s: %+v, want %+v", c.what, got, c.want)
		}
	}
}
