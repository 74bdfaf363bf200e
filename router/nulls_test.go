package router

import (
	"strings"
	"testing"

	"github.com/walpost/walpost/cdc"
)

// schemaTexts is a Registry that keeps the schemas that it was asked for.
type schemaTexts []string

func (s *schemaTexts) SchemaID(_, schema, _ string, _, _ bool) (uint32, error) {
	*s = append(*s, schema)
	return uint32(len(*s)), nil
}

// notNull is the usual table with columns that are NOT NULL in the present catalog.
func notNull(names ...string) *cdc.Relation {
	rel := *outbox
	rel.Columns = append([]cdc.Column(nil), outbox.Columns...)
	for _, name := range names {
		rel.Columns[rel.Index(name)].NotNull = true
	}
	return &rel
}

// A row with a NULL was written before ALTER TABLE … SET NOT NULL, and becomes the record that it became then.
func TestANullDisprovesNotNull(t *testing.T) {
	envelope := func(c *Config) { c.AdditionalPlacement = "event_type:envelope" }
	for _, c := range []struct {
		name   string
		change func(*Config)
		column string // NOT NULL by now
	}{
		{"json", jsonValues, "payload"},
		{"json with schemas", schemas, "payload"},
		{"json key", func(c *Config) { c.Key.Converter = Converter{Name: "json"} }, "aggregate_id"},
		{"json envelope", all(jsonValues, envelope), "event_type"},
		{"json envelope of a payload", all(schemas, envelope), "payload"},
		{"string envelope", envelope, "event_type"},
		{"avro", avroValues, "payload"},
		{"avro envelope", all(avroValues, envelope), "event_type"},
		{"json_schema", jsonSchemaValues, "payload"},
		{"string", func(*Config) {}, "payload"},
	} {
		t.Run(c.name, func(t *testing.T) {
			route := func(rel *cdc.Relation, column string) (string, schemaTexts) {
				var texts schemaTexts
				r := routerOf(t, func(cfg *Config) {
					c.change(cfg)
					cfg.Registry = &texts
				})
				ev := insert(rel, "59a42efd-b015-44a9-9dde-cb36d9002425", "order", "4711", "Placed", "{}")
				ev.Row.Values[rel.Index(column)].Bytes = nil
				var first, rec cdc.Record
				for _, to := range []*cdc.Record{&first, &rec} {
					if ok, err := r.Route(ev, to); !ok || err != nil {
						t.Fatal(ok, err)
					}
				}
				if show(&first) != show(&rec) {
					t.Errorf("%s, and then %s", show(&first), show(&rec))
				}
				return show(&rec), texts
			}
			want, before := route(outbox, c.column)
			got, behind := route(notNull(c.column, "aggregate_type"), c.column)
			if got != want || strings.Join(behind, "\n") != strings.Join(before, "\n") {
				t.Errorf("\n got %s\n%s\nwant %s\n%s", got, behind, want, before)
			}
			if c.name == "json_schema" && strings.HasSuffix(got, "=null") {
				t.Errorf("a tombstone: %s", got)
			}
		})
	}
	r := routerOf(t, nil)
	ev := insert(notNull("aggregate_type"), "u-1", "order", "k", "Placed", "{}")
	ev.Row.Values[outbox.Index("aggregate_type")].Bytes = nil
	var rec cdc.Record
	if _, err := r.Route(ev, &rec); err == nil || !strings.Contains(err.Error(), "aggregate_type") {
		t.Errorf("an event without a topic: %v", err)
	}
}
