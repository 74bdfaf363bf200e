package router

import (
	"fmt"
	"strings"
	"testing"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/fault"
)

const runID = "018f2a5c-0000-7000-8000-000000000001"

// routerOf returns a Router with the changed configuration.
func routerOf(t *testing.T, change func(*Config)) *Router {
	t.Helper()
	cfg := DefaultConfig()
	cfg.TopicPrefix = "shop"
	if change != nil {
		change(&cfg)
	}
	r, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	r.SetRunID(runID)
	return r
}

// result routes ev, and shows the record, "nothing", or "!" and the error.
func result(t *testing.T, change func(*Config), ev *cdc.Event) string {
	t.Helper()
	r := routerOf(t, change)
	var rec cdc.Record
	ok, err := r.Route(ev, &rec)
	switch {
	case err != nil:
		return "!" + err.Error()
	case !ok:
		return "nothing"
	}
	return strings.NewReplacer(`\"`, `'`, ` at 05:06:07.891`, ``, "outbox.event.", "").Replace(show(&rec))
}

func jsonValues(c *Config) { c.Value.Converter = Converter{Name: "json", NullDefault: true} }

func schemas(c *Config) {
	c.Value.Converter = Converter{Name: "json", Schemas: true, NullDefault: true}
}

func all(changes ...func(*Config)) func(*Config) {
	return func(c *Config) {
		for _, f := range changes {
			f(c)
		}
	}
}

// The outcomes are Debezium's: of its EventRouterDelegate and Kafka Connect's converters, as the
// corpus in testdata/debezium and real runs show them.
func TestOptionsHaveDebeziumsOutcome(t *testing.T) {
	base := []string{"id uuid not null key", "aggregate_type text not null", "aggregate_id text", "payload jsonb"}
	with := func(columns ...string) *cdc.Relation { return table(append(base[:4:4], columns...)...) }
	row := func(rel *cdc.Relation, payload string, more ...string) *cdc.Event {
		return insert(rel, append([]string{"u-1", "order", "k", payload}, more...)...)
	}
	place := func(s string) func(*Config) { return func(c *Config) { c.AdditionalPlacement = s } }
	expand := func(c *Config) { c.ExpandJSON = true }
	tombstone := func(c *Config) { c.Tombstone = true }
	for _, c := range []struct {
		name   string
		change func(*Config)
		ev     *cdc.Event
		want   string
	}{
		{"json value", jsonValues, row(with(), `{"a": 1}`), `order[-1] "k"="'{\\'a\\': 1}'" id:"u-1"`},
		{"json null is four bytes", jsonValues, row(with(), null), `order[-1] "k"="null" id:"u-1"`},
		{"json with schemas", schemas, row(with(), `1`), `order[-1] "k"="{'schema':{'type':'string','optional':true,'name':'io.debezium.data.Json','version':1},'payload':'1'}" id:"u-1"`},
		{"json null with schemas", schemas, row(with(), null), `order[-1] "k"="{'schema':{'type':'string','optional':true,'name':'io.debezium.data.Json','version':1},'payload':null}" id:"u-1"`},
		{"json key", func(c *Config) { c.Key.Converter = Converter{Name: "json", Schemas: true} }, row(with(), `1`), `order[-1] "{'schema':{'type':'string','optional':true},'payload':'k'}"="1" id:"u-1"`},
		{"json header", func(c *Config) { c.Header = Converter{Name: "json"} }, row(with(), `1`), `order[-1] "k"="1" id:"'u-1'"`},
		{"json null header is four bytes", all(place("n:header"), func(c *Config) { c.Header = Converter{Name: "json"} }), row(with("n int4"), `1`, null), `order[-1] "k"="1" id:"'u-1'" n:"null"`},
		{"string header of an array", all(place("n:header"), func(c *Config) { c.Header = Converter{Name: "string", NullDefault: true} }), row(with("n int4[]"), `1`, "{1,NULL,3}"), `order[-1] "k"="1" id:"u-1" n:"[1, null, 3]"`},
		{"simple header of an array", place("n:header"), row(with("n int4[]"), `1`, "{1,NULL,3}"), `order[-1] "k"="1" id:"u-1" n:"[1,null,3]"`},
		{"bytes", func(c *Config) { c.Payload = "b"; c.Value.Name = "bytes" }, row(with("b bytea"), `1`, `\x00ff`), `order[-1] "k"="\x00\xff" id:"u-1"`},
		{"null bytes", func(c *Config) { c.Payload = "b"; c.Value.Name = "bytes" }, row(with("b bytea"), `1`, null), `order[-1] "k"=null id:"u-1"`},
		{"binary", func(c *Config) { c.Payload = "b"; c.Value.Name = "binary" }, row(with("b bytea"), `1`, `\x00ff`), `order[-1] "k"="\x00\xff" id:"u-1"`},
		{"binary with a delegate", func(c *Config) { c.Value.Name, c.Value.Delegate = "binary", Converter{Name: "json"} }, row(with(), `1`), `order[-1] "k"="'1'" id:"u-1"`},
		{"binary mode", func(c *Config) { c.Payload, c.Binary = "b", "HEX" }, row(with("b bytea"), `1`, `\x00ff`), `order[-1] "k"="00ff" id:"u-1"`},
		{"decimal mode", func(c *Config) { c.EventKey, c.Decimal = "n", "string" }, row(with("n numeric(10,2)"), `1`, `1.50`), `order[-1] "1.50"="1" id:"u-1"`},
		{"decimal format", func(c *Config) { c.EventKey, c.Key.Converter = "n", Converter{Name: "json", DecimalFormat: "NUMERIC"} }, row(with("n numeric(10,2)"), `1`, `1.50`), `order[-1] "1.50"="1" id:"u-1"`},
		{"time mode", all(place("t:header"), func(c *Config) { c.TimePrecision = "isostring" }), row(with("t timestamp"), `1`, `2024-02-29 12:34:56.5`), `order[-1] "k"="1" id:"u-1" t:"2024-02-29T12:34:56.5Z"`},

		{"a null is the default: key", func(c *Config) { c.EventKey = "d" }, row(with("d text default 'x'::text"), `1`, null), `order[-1] "x"="1" id:"u-1"`},
		{"a null is the default: payload, and so no tombstone", all(tombstone, func(c *Config) { c.Payload = "d" }), row(with("d text default 'x'::text"), `1`, null), `order[-1] "k"="x" id:"u-1"`},
		{"a null is the default: header", place("d:header"), row(with("d int4 default 7"), `1`, null), `order[-1] "k"="1" id:"u-1" d:"7"`},
		{"a null is the default: envelope", all(jsonValues, place("d:envelope")), row(with("d int4 default 7"), `1`, null), `order[-1] "k"="{'payload':'1','d':7}" id:"u-1"`},
		{"a null is no default: topic", func(c *Config) { c.RouteBy = "d" }, row(with("d text default 'x'::text"), `1`, null), `!event "u-1" of public.outbox at 0/16B3748 cannot be routed: router.route.by.field: column d is NULL, and the topic comes from it`},
		{"a null is no default: partition", place("d:partition"), row(with("d int4 default 7"), `1`, null), `order[-1] "k"="1" id:"u-1"`},
		{"a null is no default: timestamp, although its header shows it", all(place("d:header"), func(c *Config) { c.Timestamp = "d" }), row(with("d timestamp default '2024-02-29 12:34:56'::timestamp without time zone"), `1`, null), `order[-1] "k"="1" id:"u-1" d:"1709210096000000"`},

		{"envelope", all(schemas, place("event:envelope:type,n:envelope")), row(with("event text not null", "n int4"), `1`, "Placed", "3"), `order[-1] "k"="{'schema':{'type':'struct','fields':[{'type':'string','optional':true,'name':'io.debezium.data.Json','version':1,'field':'payload'},{'type':'string','optional':false,'field':'type'},{'type':'int32','optional':true,'field':'n'}],'optional':false,'name':'shop.public.outbox.order.Value'},'payload':{'payload':'1','type':'Placed','n':3}}" id:"u-1"`},
		{"envelope with a version", all(schemas, place("n:envelope"), func(c *Config) { c.SchemaVersion = "n" }), row(with("n int4"), null, "3"), `order[-1] "k"="{'schema':{'type':'struct','fields':[{'type':'string','optional':true,'name':'io.debezium.data.Json','version':1,'field':'payload'},{'type':'int32','optional':true,'field':'n'}],'optional':false,'name':'shop.public.outbox.order.Value','version':3},'payload':{'payload':null,'n':3}}" id:"u-1"`},
		{"envelope's name for Avro", all(schemas, place("n:envelope:m"), func(c *Config) { c.SchemaNames, c.TopicPrefix = "avro", "sh-op" }), row(with("n int4"), null, "3"), `order[-1] "k"="{'schema':{'type':'struct','fields':[{'type':'string','optional':true,'name':'io.debezium.data.Json','version':1,'field':'payload'},{'type':'int32','optional':true,'field':'m'}],'optional':false,'name':'sh_op.public.outbox.order.Value'},'payload':{'payload':null,'m':3}}" id:"u-1"`},
		{"envelope as text", place("n:envelope"), row(with("n int4"), `{"a": 1}`, "3"), `order[-1] "k"="Struct{payload={'a': 1},n=3}" id:"u-1"`},
		{"envelope and header and partition, the last one", all(jsonValues, place("n:envelope,n:partition,m:partition,n:header,n:header:again")), row(with("n int4", "m int4"), `1`, "3", "5"), `order[5] "k"="{'payload':'1','n':3}" id:"u-1" n:"3" again:"3"`},
		{"tombstone drops the envelope", all(jsonValues, tombstone, place("n:envelope")), row(with("n int4"), ` `, "3"), `order[-1] "k"=null id:"u-1"`},
		{"a last partition that is null", place("n:partition,m:partition"), row(with("n int4", "m int4"), `1`, "3", null), `order[-1] "k"="1" id:"u-1"`},

		{"expanded", all(jsonValues, expand), row(with(), `{"a": {"b": [1, 2]}, "n": null}`), `order[-1] "k"="{'a':{'b':[1,2]}}" id:"u-1"`},
		{"expanded, nulls kept", all(jsonValues, expand, func(c *Config) { c.JSONNull = "optional_bytes" }), row(with(), `{"a": 1, "n": null}`), `order[-1] "k"="{'a':1,'n':null}" id:"u-1"`},
		{"expanded, empty arrays kept", all(jsonValues, expand, func(c *Config) { c.JSONEmptyArray = "optional_string" }), row(with(), `{"a": 1, "e": []}`), `order[-1] "k"="{'a':1,'e':[]}" id:"u-1"`},
		{"expanded, empty arrays dropped", all(jsonValues, expand), row(with(), `{"a": 1, "e": []}`), `order[-1] "k"="{'a':1}" id:"u-1"`},
		{"expanded, names for Avro", all(jsonValues, expand, func(c *Config) { c.JSONFieldNames = "avro" }), row(with(), `{"a-b": 1}`), `order[-1] "k"="{'a_b':1}" id:"u-1"`},
		{"expanded with schemas", all(schemas, expand), row(with(), `{"o": {"a": 1}}`), `order[-1] "k"="{'schema':{'type':'struct','fields':[{'type':'struct','fields':[{'type':'int32','optional':true,'field':'a'}],'optional':true,'name':'payload.o','field':'o'}],'optional':true,'name':'payload'},'payload':{'o':{'a':1}}}" id:"u-1"`},
		{"expanded in an envelope", all(jsonValues, expand, place("n:envelope")), row(with("n int4"), `{"a": 1}`, "3"), `order[-1] "k"="{'payload':{'a':1},'n':3}" id:"u-1"`},
		{"an empty array in an envelope", all(jsonValues, expand, place("n:envelope")), row(with("n int4"), `[]`, "3"), `order[-1] "k"="{'payload':'[]','n':3}" id:"u-1"`},
		{"not to be expanded", all(jsonValues, expand), row(with(), `"text"`), `order[-1] "k"="'\\'text\\''" id:"u-1"`},
		{"null is not expanded", all(jsonValues, expand, tombstone), row(with(), null), `order[-1] "k"=null id:"u-1"`},
		{"expanded as text", expand, row(with(), `{"a": 1}`), `order[-1] "k"="Struct{a=1}" id:"u-1"`},

		{"tombstone of empty bytes is none", all(tombstone, func(c *Config) { c.Payload, c.Value.Name = "b", "bytes" }), row(with("b bytea"), `1`, `\x`), `order[-1] "k"="" id:"u-1"`},
		{"tombstone of null bytes", all(tombstone, func(c *Config) { c.Payload, c.Value.Name = "b", "bytes" }), row(with("b bytea"), `1`, null), `order[-1] "k"=null id:"u-1"`},
		{"tombstone of empty bytes as text", all(tombstone, func(c *Config) { c.Payload, c.Binary = "b", "base64" }), row(with("b bytea"), `1`, `\x`), `order[-1] "k"=null id:"u-1"`},
		{"no tombstone of a number", all(tombstone, func(c *Config) { c.Payload = "n" }), row(with("n int4"), `1`, "0"), `order[-1] "k"="0" id:"u-1"`},

		{"context headers", func(c *Config) { c.ExtendedHeaders = true }, row(with(), `1`), `order[-1] "k"="1" __debezium.context.connectorLogicalName:"shop" __debezium.context.taskId:"0" __debezium.context.connectorName:"postgresql" __debezium.context.runId:"` + runID + `" id:"u-1"`},
		{"context headers as json", all(place("n:header"), func(c *Config) { c.ExtendedHeaders, c.Header = true, Converter{Name: "json"} }), row(with("n int4"), `1`, "3"), `order[-1] "k"="1" __debezium.context.connectorLogicalName:"'shop'" __debezium.context.taskId:"'0'" __debezium.context.connectorName:"'postgresql'" __debezium.context.runId:"'` + runID + `'" id:"'u-1'" n:"3"`},
		{"column names of any kind", func(c *Config) { c.EventKey, c.Payload = "aggregateId", `pay"load` }, insert(table("id uuid", "aggregate_type text", "aggregateId text", `pay"load text`, "PAY text"), "u-1", "order", "k", "p", "q"), `order[-1] "k"="p" id:"u-1"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := result(t, c.change, c.ev); got != c.want {
				t.Errorf("\n got %s\nwant %s", got, c.want)
			}
		})
	}
}

// A router that nobody gives a run id, as the second one of recover, routes with one of its own.
func TestARouterHasARunID(t *testing.T) {
	cfg := DefaultConfig()
	cfg.ExtendedHeaders, cfg.TopicPrefix = true, "shop"
	seen := map[string]int{}
	for range 2 {
		r, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			var rec cdc.Record
			if ok, err := r.Route(insert(outbox, "u-1", "order", "k", "P", "1"), &rec); !ok || err != nil {
				t.Fatal(ok, err)
			}
			h := rec.Headers[3]
			if seen[string(h.Value)]++; h.Key != runIDHeader || len(h.Value) != len(runID) {
				t.Errorf("%s: %s", h.Key, h.Value)
			}
		}
	}
	for id, records := range seen {
		if records != 2 {
			t.Errorf("%d records have the run id %s", records, id)
		}
	}
}

func TestTopicPrefixIsRequiredWhereItIsWritten(t *testing.T) {
	withSchemas := Converter{Name: "json", Schemas: true}
	for _, c := range []struct {
		name   string
		change func(*Config)
		want   bool
	}{
		{"defaults", nil, false},
		{"extended headers", func(c *Config) { c.ExtendedHeaders = true }, true},
		{"schema of an envelope", func(c *Config) { c.AdditionalPlacement, c.Value.Converter = "a:envelope", withSchemas }, true},
		{"schema of an envelope by a delegate", func(c *Config) {
			c.AdditionalPlacement, c.Value.Name, c.Value.Delegate = "a:envelope", "binary", withSchemas
		}, true},
		{"envelope without a schema", func(c *Config) { c.AdditionalPlacement, c.Value.Converter = "a:envelope", Converter{Name: "json"} }, false},
		{"schema of another value", func(c *Config) { c.AdditionalPlacement, c.Value.Converter = "a:header", withSchemas }, false},
		{"schema of the old key", func(c *Config) { c.Updates, c.Header = true, withSchemas }, true},
		{"no updates", func(c *Config) { c.Header = withSchemas }, false},
	} {
		cfg := DefaultConfig()
		if c.change != nil {
			c.change(&cfg)
		}
		ps := cfg.Validate()
		if got := len(ps) == 1 && ps[0].Field == "records.topic.prefix"; got != c.want || !c.want && len(ps) > 0 {
			t.Errorf("%s: %v, want it required: %t", c.name, ps, c.want)
		}
	}
}

// Debezium keeps the first schema for all aggregate types; a relay that did would write other bytes
// after a restart.
func TestEachAggregateTypeHasItsOwnEnvelopeSchema(t *testing.T) {
	cfg := DefaultConfig()
	cfg.TopicPrefix, cfg.AdditionalPlacement = "shop", "event_type:envelope"
	schemas(&cfg)
	r, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	for _, typ := range []string{"order", "user", "order"} {
		var rec cdc.Record
		if _, err := r.Route(insert(outbox, "u-1", typ, "k", "P", "1"), &rec); err != nil || !strings.Contains(string(rec.Value), `"name":"shop.public.outbox.`+typ+`.Value"`) {
			t.Errorf("%s: %s, %v", typ, rec.Value, err)
		}
	}
}

// A router gives each row the envelope that it would give a row that is its first, whichever rows came
// before. It remembers one schema for each aggregate type and version, and none of an expanded payload.
func TestAnEnvelopesSchemaIsOfItsRow(t *testing.T) {
	rel := table("id uuid not null key", "aggregate_type text not null", "aggregate_id text", "payload jsonb", "event_type text", "version int4")
	fresh := func() *Router {
		cfg := DefaultConfig()
		cfg.TopicPrefix, cfg.AdditionalPlacement, cfg.SchemaVersion, cfg.ExpandJSON = "shop", "event_type:envelope", "version", true
		schemas(&cfg)
		r, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	value := func(r *Router, ev *cdc.Event) string {
		var rec cdc.Record
		if _, err := r.Route(ev, &rec); err != nil {
			t.Fatal(err)
		}
		return string(rec.Value)
	}
	rows := [][3]string{ // aggregate type, version, payload
		{"order", "1", "no document"},
		{"other", "1", "no document"},
		{"order", "2", "no document"},
		{"order", "1", `{"a": 1}`},
		{"order", "1", "no document"},
		{"order", "1", `{"a": "x"}`},
		{"other", "1", `{"b": true}`},
		{"other", "1", `[1]`},
	}
	kept := 3 + 1 // and the schema of the probe at the start
	for i := range 300 {
		rows = append(rows, [3]string{fmt.Sprintf("t%04d", i), "1", "no document"})
		kept++
	}
	r, buffer := fresh(), make([]byte, 0, 64)
	for range 2 {
		for _, row := range rows {
			ev := insert(rel, "u-1", row[0], "k", row[2], "Placed", row[1])
			want := value(fresh(), ev)
			ev.Row.Values[1].Bytes = append(buffer, row[0]...) // the next row overwrites it, as in a stream
			if got := value(r, ev); got != want {
				t.Fatalf("%s: got %s\nwant %s", row, got, want)
			}
		}
	}
	if n := len(r.plan(rel).envelope.schemas); n != kept {
		t.Errorf("%d schemas are kept, want %d", n, kept)
	}
}

// updated is an event that changes was, the old key or row, to is. A value "~" is one that the
// server did not send.
func updated(rel *cdc.Relation, was, is []string) *cdc.Event {
	ev := insert(rel, is...)
	ev.Kind = cdc.Update
	for i, v := range is {
		if v == "~" {
			ev.Row.Values[i] = cdc.Value{Unchanged: true}
		}
	}
	if was != nil {
		ev.Old = insert(rel, was...).Row
	}
	return ev
}

func TestUpdatesHaveDebeziumsOutcome(t *testing.T) {
	updates := func(c *Config) { c.Updates = true }
	one := table("id uuid not null key", "aggregate_type text", "aggregate_id text", "payload text", "b bytea")
	two := table("aggregate_id text not null key", "aggregate_type text", "id numeric not null key", "payload text")
	two.Columns[0].KeyPosition, two.Columns[2].KeyPosition = 2, 1
	none := table("id uuid", "aggregate_type text", "aggregate_id text", "payload text")
	indexed := table("id uuid not null key", "aggregate_type text", "aggregate_id text", "payload text")
	indexed.Columns[0].Key = false
	key := []string{"u-1", null, null, null, null}
	for _, c := range []struct {
		name   string
		change func(*Config)
		ev     *cdc.Event
		want   string
	}{
		{"of the key", updates, updated(one, key, []string{"u-2", "order", "k", "p", null}), `order[-1] "k"="p" __debezium.oldkey:"{'id':'u-1'}" id:"u-2"`},
		{"of the key, not wanted", nil, updated(one, key, []string{"u-2", "order", "k", "p", null}), "nothing"},
		{"of nothing that counts", updates, updated(one, nil, []string{"u-2", "order", "k", "p", null}), "nothing"},
		{"with the whole row", updates, updated(one, []string{"u-1", "order", "k", "p", null}, []string{"u-1", "order", "k", "q", null}), "nothing"},
		{"of the key, with the whole row", updates, updated(one, []string{"u-1", "order", "k", "long", `\x01`}, []string{"u-2", "order", "k", "~", `~`}), `order[-1] "k"="long" __debezium.oldkey:"{'id':'u-1'}" id:"u-2"`},
		{"of the key, with a large value that did not change", updates, updated(one, key, []string{"u-2", "order", "k", "~", null}), `order[-1] "k"="__debezium_unavailable_value" __debezium.oldkey:"{'id':'u-1'}" id:"u-2"`},
		{"of the key, with large bytes that did not change", all(updates, func(c *Config) { c.Payload, c.Value.Name, c.UnavailableValue = "b", "bytes", "hex:00ff" }), updated(one, key, []string{"u-2", "order", "k", "p", "~"}), `order[-1] "k"="\x00\xff" __debezium.oldkey:"{'id':'u-1'}" id:"u-2"`},
		{"with context headers behind it", all(updates, func(c *Config) { c.ExtendedHeaders = true }), updated(one, key, []string{"u-2", "order", "k", "p", null}), `order[-1] "k"="p" __debezium.oldkey:"{'id':'u-1'}" __debezium.context.connectorLogicalName:"shop" __debezium.context.taskId:"0" __debezium.context.connectorName:"postgresql" __debezium.context.runId:"` + runID + `" id:"u-2"`},
		{"of a key in its order, with schemas", all(updates, func(c *Config) { c.Header, c.Decimal = Converter{Name: "json", Schemas: true}, "string" }), updated(two, []string{"k", null, "1", null}, []string{"k", "order", "2", "p"}), `order[-1] "k"="p" __debezium.oldkey:"{'schema':{'type':'struct','fields':[{'type':'string','optional':false,'field':'id'},{'type':'string','optional':false,'field':'aggregate_id'}],'optional':false,'name':'shop.public.outbox.Key'},'payload':{'id':'1','aggregate_id':'k'}}" id:"{'schema':{'type':'string','optional':false},'payload':'2'}"`},
		{"of a key to the same number", updates, updated(two, []string{"k", null, "1.0", null}, []string{"k", "order", "1.00", "p"}), "nothing"},
		{"without a primary key", updates, updated(none, []string{"u-1", "order", "k", "p"}, []string{"u-2", "order", "k", "p"}), "nothing"},
		{"fatal", all(updates, func(c *Config) { c.InvalidOperation = "Fatal" }), updated(one, nil, []string{"u-2", "order", "k", "p", null}), `!event "u-2" of public.outbox at 0/16B3748 cannot be routed: router.table.op.invalid.behavior: the row was updated, and updates are fatal: write outbox rows only once, or set the option to warn`},
		{"of the key, where others are fatal", all(updates, func(c *Config) { c.InvalidOperation = "fatal" }), updated(one, key, []string{"u-2", "order", "k", "p", null}), `order[-1] "k"="p" __debezium.oldkey:"{'id':'u-1'}" id:"u-2"`},
		{"of an identity that lacks the key", updates, updated(indexed, []string{null, null, "k", null}, []string{"u-1", "order", "l", "p"}), `!event "u-1" of public.outbox at 0/16B3748 cannot be routed: source.publish: the update does not have the old value of column id of the primary key: the replica identity must contain the primary key`},
		{"delete", updates, &cdc.Event{Kind: cdc.Delete, Old: insert(one, key...).Row}, "nothing"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := result(t, c.change, c.ev); got != c.want {
				t.Errorf("\n got %s\nwant %s", got, c.want)
			}
		})
	}
}

// Debezium has its placeholder for these types, whatever the limit on their length.
func TestEveryTextThatAnUpdateDidNotChangeHasThePlaceholder(t *testing.T) {
	for _, typ := range []string{"text", "varchar", "bpchar", "json", "jsonb", "xml", "citext"} {
		one := table("id uuid not null key", "aggregate_type text", "aggregate_id text", "payload "+typ)
		ev := updated(one, []string{"u-1", null, null, null}, []string{"u-2", "order", "k", "~"})
		const want = `order[-1] "k"="__debezium_unavailable_value" __debezium.oldkey:"{'id':'u-1'}" id:"u-2"`
		if got := result(t, func(c *Config) { c.Updates = true }, ev); got != want {
			t.Errorf("%s:\n got %s\nwant %s", typ, got, want)
		}
	}
}

// What Debezium 3.6.1 gives for bytes that an update did not change, where it writes bytes as text.
func TestBytesThatAnUpdateDidNotChangeHaveDebeziumsPlaceholder(t *testing.T) {
	for _, c := range []struct{ mode, placeholder, column, want string }{
		{"bytes", "hex:00ff", "bytea", `"\x00\xff"`},
		{"base64", "x", "bytea", "null"},
		{"Base64-url-safe", "hex:00ff", "bytea", "null"},
		{"hex", "__debezium_unavailable_value", "bytea", `"__debezium_unavailable_value"`},
		{"HEX", "hex:00ff", "bytea not null", `"\x00` + "\uFFFD" + `"`},
		{"base64", "x", "bytea not null", "!"},
	} {
		one := table("id uuid not null key", "aggregate_type text", "aggregate_id text", "payload "+c.column)
		ev := updated(one, []string{"u-1", null, null, null}, []string{"u-2", "order", "k", "~"})
		got := result(t, func(cfg *Config) {
			cfg.Updates, cfg.Binary, cfg.UnavailableValue = true, c.mode, c.placeholder
			if c.mode == "bytes" {
				cfg.Value.Name = "bytes"
			}
		}, ev)
		want := `order[-1] "k"=` + c.want + ` __debezium.oldkey:"{'id':'u-1'}" id:"u-2"`
		if c.want == "!" {
			want = `!event "u-2" of public.outbox at 0/16B3748 cannot be routed: router.table.field.event.payload: column payload is a large value that the update did not change, so the WAL does not have it`
		}
		if got != want {
			t.Errorf("%s, %s, %s:\n got %s\nwant %s", c.mode, c.placeholder, c.column, got, want)
		}
	}
}

func TestWhatIsPassedOverIsTold(t *testing.T) {
	cfg := DefaultConfig()
	cfg.ExpandJSON, cfg.InvalidOperation, cfg.Tables = true, "error", []string{"public.outbox"}
	r, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	other := *outbox
	other.Name = "other"
	var rec cdc.Record
	for _, ev := range []*cdc.Event{
		updated(outbox, nil, []string{"u-1", "order", "k", "P", "1"}), updated(outbox, nil, []string{"u-2", "order", "k", "P", "1"}),
		updated(&other, nil, []string{"u-3", "order", "k", "P", "1"}),
		insert(outbox, "u-4", "order", "k", "P", "1"), insert(outbox, "u-5", "order", "k", "P", null), insert(outbox, "u-6", "order", "k", "P", "{}"),
	} {
		if _, err := r.Route(ev, &rec); err != nil {
			t.Fatal(err)
		}
	}
	got := map[string]string{}
	r.Remarks(func(what string, severe bool, count uint64, last string) {
		got[what] = last
		if want := map[string]uint64{"unexpected update ignored": 2, "payload not expanded": 1}[what]; count != want || severe != strings.HasPrefix(what, "unexp") {
			t.Errorf("%s: %d times, severe %t", what, count, severe)
		}
	})
	if len(got) != 2 || got["unexpected update ignored"] != `event "u-2" of public.outbox` || !strings.HasPrefix(got["payload not expanded"], `event "u-4" of public.outbox: `) {
		t.Errorf("%q", got)
	}
}

func TestAnEventCostsTwoAllocations(t *testing.T) {
	for name, change := range map[string]func(*Config){
		"string": nil,
		"json":   all(jsonValues, func(c *Config) { c.Key.Converter = Converter{Name: "json"} }),
		"with headers and schemas": all(schemas, func(c *Config) {
			c.ExtendedHeaders, c.AdditionalPlacement = true, "event_type:header"
		}),
		"an object of headers": func(c *Config) { c.AdditionalPlacement = "payload:headers" },
		"avro":                 avroValues,
		"protobuf":             protobufValues,
	} {
		costsTwoAllocations(t, name, change)
	}
}

func costsTwoAllocations(t *testing.T, name string, change func(*Config)) {
	t.Helper()
	r := routerOf(t, change)
	ev := insert(outbox, "59a42efd-b015-44a9-9dde-cb36d9002425", "order", "4711", "Placed", `{"a": 1, "b": "ä"}`)
	var rec cdc.Record
	if n := testing.AllocsPerRun(100, func() {
		if _, err := r.Route(ev, &rec); err != nil {
			t.Fatal(err)
		}
	}); n > 2 {
		t.Errorf("%s: %v allocations", name, n)
	}
}

func TestSchemasOfAggregateTypesAreBounded(t *testing.T) {
	cfg := DefaultConfig()
	cfg.TopicPrefix, cfg.AdditionalPlacement = "shop", "event_type:envelope"
	jsonValues(&cfg)
	r, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	var rec cdc.Record
	for i := range 3 * maxSchemas {
		typ := string([]byte{byte('a' + i%26), byte('a' + i/26%26), byte('a' + i/676%26)})
		if _, err := r.Route(insert(outbox, "u", typ, "k", "P", "1"), &rec); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(r.plan(outbox).envelope.schemas); n > maxSchemas {
		t.Errorf("%d schemas kept", n)
	}
}

func TestFatalUpdateNeedsAPerson(t *testing.T) {
	cfg := DefaultConfig()
	cfg.InvalidOperation = "fatal"
	r, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	var rec cdc.Record
	if _, err := r.Route(updated(outbox, nil, []string{"u-1", "order", "k", "P", "1"}), &rec); !fault.NeedsPerson(err) || !strings.Contains(err.Error(), "set the option to warn") {
		t.Error(err)
	}
}

func TestSchemaNamesAreDebeziums(t *testing.T) {
	for _, c := range []struct{ mode, in, want string }{
		{"none", "a-b.1é", "a-b.1é"},
		{"avro", "a-b.1é", "a_b.1_"},
		{"avro", "1a", "_1a"},
		{"avro", "-a", "_a"},
		{"avro", "😀", "__"},
		{"avro_unicode", "a_b", "a_u005fb"},
		{"avro_unicode", "1", "_u0031"},
		{"avro_unicode", "ā", "_u101"},
		{"avro", "", ""},
	} {
		if got := adjustment(c.mode).AdjustSchema(c.in); got != c.want {
			t.Errorf("%s of %q: %q, want %q", c.mode, c.in, got, c.want)
		}
	}
	if got := schemaPrefix("s", "pub lic", "ou\"t😀", ""); got != "s.pub_lic.ou_t__" {
		t.Error(got)
	}
	if got := len(schemaPrefix(strings.Repeat("x", 300))); got != 249 {
		t.Error(got)
	}
}
