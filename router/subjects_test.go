package router

import (
	"strings"
	"testing"

	"github.com/walpost/walpost/cdc"
)

// Values that are no records have no subject that is named after one: no event could be routed.
func TestASubjectNamedAfterARecordWantsOne(t *testing.T) {
	record := func(c *Config) { c.Value.Subjects = "record" }
	both := func(c *Config) { c.Value.Subjects = "topic_record" }
	valuesOnly := func(change func(*Config)) func(*Config) {
		return all(change, func(c *Config) { c.Key = DefaultConfig().Key })
	}
	avro, jsonSchema, protobuf := valuesOnly(avroValues), valuesOnly(jsonSchemaValues), valuesOnly(protobufValues)
	for _, c := range []struct {
		name   string
		change func(*Config)
		rel    *cdc.Relation
		wrong  string
	}{
		{"avro of a text", all(avro, record), outbox, "the subject is named after a record"},
		{"avro of a text, with its topic", all(avro, both), outbox, "the subject is named after a record"},
		{"a key", all(avroValues, func(c *Config) { c.Key.Subjects = "record" }), outbox, "the subject is named after a record"},
		{"avro, expanded", all(avro, both, func(c *Config) { c.ExpandJSON = true }), outbox, ""},
		{"avro of an envelope", all(avro, both, func(c *Config) { c.AdditionalPlacement = "event_type:envelope" }), outbox, ""},
		{"protobuf has a message for each type", all(protobuf, record), outbox, ""},
		{"a title", all(jsonSchema, record), titled(true), ""},
		{"a title that is one of a choice", all(jsonSchema, record), titled(false), "the subject is named after a record"},
		{"by topic", avroValues, outbox, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := routerOf(t, c.change)
			_, err := r.Needs(c.rel)
			if c.wrong == "" && err != nil || c.wrong != "" && (err == nil || !strings.Contains(err.Error(), c.wrong)) {
				t.Errorf("%v", err)
			}
			ev := insert(c.rel, "59a42efd-b015-44a9-9dde-cb36d9002425", "order", "4711", "Placed", `{"a": 1}`)
			var rec cdc.Record
			if ok, err := r.Route(ev, &rec); (err != nil) != (c.wrong != "") || ok != (err == nil) {
				t.Errorf("routed %t: %v", ok, err)
			}
		})
	}
}

// titled is the usual table with a payload whose schema has a name.
func titled(required bool) *cdc.Relation {
	rel := table("id uuid", "aggregate_type text", "aggregate_id text", "event_type text", "payload jsonb")
	rel.Columns[rel.Index("payload")].NotNull = required
	return rel
}
