package router

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/walpost/walpost/internal/conf"
	"github.com/walpost/walpost/internal/topicname"
	"github.com/walpost/walpost/router/internal/pgvalue"
)

// A Config says which rows are routed, and how. Start from DefaultConfig.
type Config struct {
	// Tables are the tables whose rows are routed, as schema.table without quotes. Rows of other
	// tables give no record. If it is nil, the rows of all tables are routed. Messages always are.
	Tables []string
	// Updates makes an update that changes a row's primary key give a record, as in Debezium. If it
	// is not set, such an update is treated like every other.
	Updates bool
	// DebeziumMessages makes messages give the records that Debezium writes for them, which name the
	// Database. If it is not set, messages are routed like rows.
	DebeziumMessages bool
	Database         string

	Options
	Records
}

// Options are those of Debezium's EventRouter, with its names and meanings.
type Options struct {
	// The column with the id of the event.
	EventID string `yaml:"table.field.event.id" pattern:"." want:"the name of a column" example:"event_id"`
	// The column with the key of the record. Without it, the column is `aggregate_id` or
	// `aggregateid`, whichever the table has.
	EventKey string `yaml:"table.field.event.key" example:"customer_id"`
	// The column with the value of the record.
	Payload string `yaml:"table.field.event.payload" pattern:"." want:"the name of a column" example:"body"`
	// The column with the timestamp of the record. Without it, the timestamp is the commit time.
	Timestamp string `yaml:"table.field.event.timestamp" example:"created_at"`
	// The column with the version of the schema of the value. Only an envelope uses it.
	SchemaVersion string `yaml:"table.field.event.schema.version" example:"version"`
	// More columns of the record, as `column:placement:alias`, separated by commas. The placement is
	// `header`, `envelope` or `partition`. The alias may be missing.
	AdditionalPlacement string `yaml:"table.fields.additional.placement" example:"event_type:header:eventType"`
	// What happens if the table lacks an additional column.
	AdditionalMissing string `yaml:"table.field.additional.missing" words:"error|ignore" fold:"true"`
	// The column that names the topic. Without it, the column is `aggregate_type` or `aggregatetype`,
	// whichever the table has.
	RouteBy string `yaml:"route.by.field" example:"aggregate_type"`
	// A Java regular expression over the value of the routing column, without look-around, back
	// references and possessive quantifiers. `${VAR}` does not expand in it.
	TopicRegex string `yaml:"route.topic.regex" example:"(?<routedByValue>.*)" verbatim:"true"`
	// The topic that replaces a match of the regular expression. `${VAR}` does not expand in it.
	TopicReplacement string `yaml:"route.topic.replacement" example:"shop.${routedByValue}" verbatim:"true"`
	// A Java regular expression that renames the topic once more, as Kafka Connect's RegexRouter does
	// after the EventRouter. `${VAR}` does not expand in it.
	RenameRegex string `yaml:"topic.rename.regex" example:"outbox\\.event\\.(order|customer)" verbatim:"true"`
	// The topic that replaces a match of `router.topic.rename.regex`.
	RenameReplacement string `yaml:"topic.rename.replacement" example:"shop.$1" verbatim:"true"`
	// Whether an empty payload gives a record without a value.
	Tombstone bool `yaml:"route.tombstone.on.empty.payload"`
	// What happens after an operation other than an insert.
	InvalidOperation string `yaml:"table.op.invalid.behavior" words:"warn|error|fatal" fold:"true"`
	// Whether a payload that is the text of a JSON object or array becomes JSON. It needs a value
	// converter that writes JSON.
	ExpandJSON bool `yaml:"table.expand.json.payload"`
	// How an expanded payload represents a null.
	JSONNull string `yaml:"table.json.payload.null.behavior" words:"ignore|optional_bytes" fold:"true"`
	// How an expanded payload represents an empty array.
	JSONEmptyArray string `yaml:"table.json.payload.empty.array.behavior" words:"ignore|optional_string" fold:"true"`
	// How the names of the fields of an expanded payload are adjusted.
	JSONFieldNames string `yaml:"field.name.adjustment.mode" words:"none|avro|avro_unicode" fold:"true"`
}

// Records has the options that decide how a row looks to the EventRouter and how column values
// become bytes: those of Debezium's Postgres connector and of Kafka Connect's converters.
type Records struct {
	// The converter of the key.
	Key DelegatingConverter `yaml:"key.converter" words:"string|json|bytes|binary"`
	// The converter of the value.
	Value DelegatingConverter `yaml:"value.converter" words:"string|json|bytes|binary"`
	// The converter of the headers.
	Header Converter `yaml:"header.converter" words:"simple|string|json"`

	// How times are represented.
	TimePrecision string `yaml:"time.precision.mode" words:"adaptive|adaptive_time_microseconds|connect|isostring|microseconds|nanoseconds" fold:"true"`
	// How numerics are represented.
	Decimal string `yaml:"decimal.handling.mode" words:"precise|double|string" fold:"true"`
	// How bytea is represented.
	Binary string `yaml:"binary.handling.mode" words:"bytes|base64|base64-url-safe|hex" fold:"true"`
	// How intervals are represented.
	Interval string `yaml:"interval.handling.mode" words:"numeric|string" fold:"true"`
	// How hstore is represented.
	HStore string `yaml:"hstore.handling.mode" words:"json|map" fold:"true"`
	// Whether each record has Debezium's four `__debezium.context.…` headers. It needs
	// `records.topic.prefix`.
	ExtendedHeaders bool `yaml:"extended.headers.enabled"`
	// The beginning of the names of schemas, and the name of the connector in the extended headers.
	TopicPrefix string `yaml:"topic.prefix" pattern:"^[A-Za-z0-9._-]*$" want:"letters, digits, '.', '_' and '-'" example:"shop"`
	// How the names of schemas are adjusted.
	SchemaNames string `yaml:"schema.name.adjustment.mode" words:"none|avro|avro_unicode" fold:"true"`
	// How the names of columns are adjusted.
	FieldNames string `yaml:"field.name.adjustment.mode" words:"none|avro|avro_unicode" fold:"true"`
	// Steps that change the headers of every record, one after the other. A step is `{insert: name,
	// value: text}` or `drop: [name]`. No step can insert or drop the header `id`, because `recover`
	// finds the records by it.
	Headers []HeaderStep `yaml:"headers" example:"[{insert: source, value: shop}]"`
	// The text that replaces a large value that an update did not send.
	UnavailableValue string `yaml:"unavailable.value.placeholder" example:"__debezium_unavailable_value"`
}

// DefaultConfig has the EventRouter's defaults, and converters that do not change text.
func DefaultConfig() Config {
	json := Converter{DecimalFormat: "base64", NullDefault: true}
	text, simple := json, json
	text.Name, simple.Name = "string", "simple"
	return Config{
		Options: Options{
			EventID: "id", Payload: "payload", AdditionalMissing: "error", TopicRegex: "(?<routedByValue>.*)",
			TopicReplacement: topicname.DefaultPrefix + "${routedByValue}", InvalidOperation: "warn",
			JSONNull: "ignore", JSONEmptyArray: "ignore", JSONFieldNames: "none",
		},
		Records: Records{
			Key: DelegatingConverter{text, json}, Value: DelegatingConverter{text, json}, Header: simple,
			TimePrecision: "adaptive", Decimal: "precise", Binary: "bytes", Interval: "numeric", HStore: "json",
			Headers: []HeaderStep{}, SchemaNames: "none", FieldNames: "none", UnavailableValue: "__debezium_unavailable_value",
		},
	}
}

// Validate returns everything that is wrong with c.
func (c *Config) Validate() conf.Problems {
	_, _, ps := c.compile()
	return ps
}

// compile parses the options that have a syntax, and returns everything that is wrong with c.
func (c *Config) compile() (placements []placement, topics *topics, ps conf.Problems) {
	ps = slices.Concat(conf.Check("router", &c.Options), conf.Check("records", &c.Records))
	placements, err := parsePlacements(c.AdditionalPlacement)
	ps.Try("router.table.fields.additional.placement", err)
	topics = newTopics(c, &ps)
	c.Key.validate(&ps, "records.key.converter")
	c.Value.validate(&ps, "records.value.converter")
	c.Header.validate(&ps, "records.header.converter")
	const prefix = "records.topic.prefix"
	if c.TopicPrefix == "" {
		switch {
		case c.DebeziumMessages:
			ps.Add(prefix, conf.Required, "with source.messages.format debezium: the records go to the topic <topic.prefix>.message", nil)
		case c.ExtendedHeaders:
			ps.Add(prefix, conf.Required, "with records.extended.headers.enabled: it is the header __debezium.context.connectorLogicalName", nil)
		case enveloped(placements) && c.Value.schemas():
			ps.Add(prefix, conf.Required, "with an envelope whose schema is written: the schema's name begins with it", nil)
		case c.Updates && c.Header.schemas():
			ps.Add(prefix, conf.Required, "with source.publish update and a header converter that writes schemas: the name of the schema of __debezium.oldkey begins with it", nil)
		}
	}
	for i := range c.Headers {
		c.Headers[i].validate(&ps, fmt.Sprintf("records.headers[%d]", i))
	}
	return placements, topics, ps
}

// enveloped reports whether a placement puts a column into an envelope.
func enveloped(ps []placement) bool {
	return slices.ContainsFunc(ps, func(p placement) bool { return p.target == inEnvelope })
}

// modes are the options for package pgvalue.
func (c *Config) modes() pgvalue.Modes {
	return pgvalue.Modes{Time: c.TimePrecision, Decimal: c.Decimal, Binary: c.Binary, Interval: c.Interval, HStore: c.HStore}
}

// fold writes the words of a section in lower case. Debezium reads them in upper and lower case.
func fold(section any) {
	for f := range conf.Fields(reflect.ValueOf(section).Elem(), "") {
		if f.Has("fold") {
			f.Value.SetString(strings.ToLower(f.Value.String()))
		}
	}
}
