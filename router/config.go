package router

import (
	"fmt"
	"slices"
	"strings"

	"github.com/walpost/walpost/internal/conf"
	"github.com/walpost/walpost/internal/lib/topicname"
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
	// Registry is needed if Registered, and Validator if Validates.
	Registry  Registry
	Validator Validator

	Options
	Records
}

// Options are those of Debezium's EventRouter, with its names and meanings.
type Options struct {
	// The column with the event id.
	EventID string `yaml:"table.field.event.id" pattern:"." want:"the name of a column" example:"event_id"`
	// The column with the record's key. By default `aggregate_id` or `aggregateid`, whichever the table
	// has.
	EventKey string `yaml:"table.field.event.key" example:"customer_id"`
	// The column with the record's value.
	Payload string `yaml:"table.field.event.payload" pattern:"." want:"the name of a column" example:"body"`
	// The column with the record's timestamp. The default is the commit time.
	Timestamp string `yaml:"table.field.event.timestamp" example:"created_at"`
	// The column with the schema version of an envelope.
	SchemaVersion string `yaml:"table.field.event.schema.version" example:"version"`
	// More columns for the record, as `column:placement:alias`, separated by commas. The placement is
	// `header`, `envelope` or `partition`, with an optional alias, or walpost's own `headers`, which
	// turns each field of a JSON object into a header.
	AdditionalPlacement string `yaml:"table.fields.additional.placement" example:"event_type:header:eventType,headers:headers"`
	// What happens if an additional column is missing. A missing column with the placement `headers` is
	// never an error.
	AdditionalMissing string `yaml:"table.field.additional.missing" words:"error|ignore" fold:"true"`
	// The column that determines the topic. By default `aggregate_type` or `aggregatetype`, whichever
	// the table has.
	RouteBy string `yaml:"route.by.field" example:"aggregate_type"`
	// A Java regular expression for the routing column's value.
	TopicRegex string `yaml:"route.topic.regex" example:"(?<routedByValue>.*)" verbatim:"true"`
	// The topic if the expression matches.
	TopicReplacement string `yaml:"route.topic.replacement" example:"shop.${routedByValue}" verbatim:"true"`
	// A Java regular expression for renaming that topic, as Kafka Connect's RegexRouter does.
	RenameRegex string `yaml:"topic.rename.regex" example:"outbox\\.event\\.(order|customer)" verbatim:"true"`
	// The topic if the expression matches.
	RenameReplacement string `yaml:"topic.rename.replacement" example:"shop.$1" verbatim:"true"`
	// For an empty payload, write a record without a value.
	Tombstone bool `yaml:"route.tombstone.on.empty.payload"`
	// What happens to operations other than inserts.
	InvalidOperation string `yaml:"table.op.invalid.behavior" words:"warn|error|fatal" fold:"true"`
	// Parse a payload that is the text of a JSON object or array, so that a JSON value converter writes
	// it as JSON.
	ExpandJSON bool `yaml:"table.expand.json.payload"`
	// How an expanded payload represents a null.
	JSONNull string `yaml:"table.json.payload.null.behavior" words:"ignore|optional_bytes" fold:"true"`
	// How an expanded payload represents an empty array.
	JSONEmptyArray string `yaml:"table.json.payload.empty.array.behavior" words:"ignore|optional_string" fold:"true"`
	// How an expanded payload's field names are adjusted.
	JSONFieldNames string `yaml:"field.name.adjustment.mode" words:"none|avro|avro_unicode" fold:"true"`
	// The column with the writer's trace context, as Java `Properties` text. Its `traceparent` and
	// `tracestate` become headers. Debezium's default is `tracingspancontext`.
	SpanContext string `yaml:"tracing.span.context.field" example:"tracingspancontext"`
}

// Records has the options that decide how a row looks to the EventRouter and how column values
// become bytes: those of Debezium's Postgres connector and of Kafka Connect's converters.
type Records struct {
	// The key's converter.
	Key DelegatingConverter `yaml:"key.converter" words:"string|json|bytes|binary|avro|json_schema|protobuf"`
	// The value's converter.
	Value DelegatingConverter `yaml:"value.converter" words:"string|json|bytes|binary|avro|json_schema|protobuf"`
	// The headers' converter.
	Header Converter `yaml:"header.converter" words:"simple|string|json"`
	// Check each payload against the latest JSON schema of the subject `<topic>-value`. A payload that
	// doesn't match is a bad event.
	PayloadCheck string `yaml:"validate" words:"none|json_schema"`

	// How dates and times are represented.
	TimePrecision string `yaml:"time.precision.mode" words:"adaptive|adaptive_time_microseconds|connect|isostring|microseconds|nanoseconds" fold:"true"`
	// How `numeric` is represented.
	Decimal string `yaml:"decimal.handling.mode" words:"precise|double|string" fold:"true"`
	// How `bytea` is represented.
	Binary string `yaml:"binary.handling.mode" words:"bytes|base64|base64-url-safe|hex" fold:"true"`
	// How `interval` is represented.
	Interval string `yaml:"interval.handling.mode" words:"numeric|string" fold:"true"`
	// How `hstore` is represented.
	HStore string `yaml:"hstore.handling.mode" words:"json|map" fold:"true"`
	// Add Debezium's four `__debezium.context.…` headers; requires `records.topic.prefix`.
	ExtendedHeaders bool `yaml:"extended.headers.enabled"`
	// The prefix of schema names, and the connector's name in the extended headers.
	TopicPrefix string `yaml:"topic.prefix" pattern:"^[A-Za-z0-9._-]*$" want:"letters, digits, '.', '_' and '-'" example:"shop"`
	// How schema names are adjusted.
	SchemaNames string `yaml:"schema.name.adjustment.mode" words:"none|avro|avro_unicode" fold:"true"`
	// How column names are adjusted.
	FieldNames string `yaml:"field.name.adjustment.mode" words:"none|avro|avro_unicode" fold:"true"`
	// Steps that change every record's headers, one after the other: `{insert: name, value: text}` or
	// `drop: [name]`. The header `id` can't be changed.
	Headers []HeaderStep `yaml:"headers" example:"[{insert: source, value: shop}]"`
	// Large values, stored outside Kafka.
	ClaimCheck ClaimCheck `yaml:"claim_check"`
	// Replaces a large value that an update didn't change, because Postgres doesn't send such
	// values.
	UnavailableValue string `yaml:"unavailable.value.placeholder" example:"__debezium_unavailable_value"`
	// Write CloudEvents 1.0, with the attributes as headers (`binary`), or with attributes and payload
	// in one JSON document (`structured`).
	CloudEvents CloudEvents `yaml:"cloudevents" words:"none|binary|structured"`
}

// DefaultConfig has the EventRouter's defaults, and converters that do not change text.
func DefaultConfig() Config {
	json := Converter{DecimalFormat: "base64", NullDefault: true}
	text, simple := json, json
	text.Name, simple.Name = "string", "simple"
	coded := DelegatingConverter{Converter: text, Delegate: json, AutoRegister: true, Subjects: "topic", MoreProperties: true}
	return Config{
		Options: Options{
			EventID: "id", Payload: "payload", AdditionalMissing: "error", TopicRegex: "(?<routedByValue>.*)",
			TopicReplacement: topicname.DefaultPrefix + "${routedByValue}", InvalidOperation: "warn",
			JSONNull: "ignore", JSONEmptyArray: "ignore", JSONFieldNames: "none",
		},
		Records: Records{
			Key: coded, Value: coded, Header: simple, PayloadCheck: "none",
			TimePrecision: "adaptive", Decimal: "precise", Binary: "bytes", Interval: "numeric", HStore: "json",
			Headers: []HeaderStep{}, SchemaNames: "none", FieldNames: "none", UnavailableValue: "__debezium_unavailable_value",
			CloudEvents: CloudEvents{Mode: "none"},
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
	if c.Validates() && c.Value.registered() {
		ps.Add("records.validate", conf.Contradicts, "a value.converter whose own schemas are in the subject", c.Value.Name)
	}
	c.ClaimCheck.validate(&ps)
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
	c.CloudEvents.validate(&ps, c)
	for i := range c.Headers {
		c.Headers[i].validate(&ps, fmt.Sprintf("records.headers[%d]", i))
	}
	return placements, topics, ps
}

// enveloped reports whether a placement puts a column into an envelope.
func enveloped(ps []placement) bool {
	return slices.ContainsFunc(ps, func(p placement) bool { return p.place == inEnvelope })
}

// modes are the options for package pgvalue.
func (c *Config) modes() pgvalue.Modes {
	return pgvalue.Modes{
		Time: strings.ToLower(c.TimePrecision), Decimal: strings.ToLower(c.Decimal), Binary: strings.ToLower(c.Binary),
		Interval: strings.ToLower(c.Interval), HStore: strings.ToLower(c.HStore),
	}
}
