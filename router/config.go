package router

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

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
	EventID string `yaml:"table.field.event.id"`
	// EventKey is the column of the key. Empty: aggregate_id or aggregateid, whichever the table
	// has.
	EventKey string `yaml:"table.field.event.key"`
	Payload  string `yaml:"table.field.event.payload"`
	// Timestamp is the column of the record's timestamp. Empty: the commit time.
	Timestamp string `yaml:"table.field.event.timestamp"`
	// SchemaVersion is read only with an envelope.
	SchemaVersion string `yaml:"table.field.event.schema.version"`
	// AdditionalPlacement lists column:placement[:alias], separated by commas. The placement is
	// header, envelope or partition.
	AdditionalPlacement string `yaml:"table.fields.additional.placement"`
	AdditionalMissing   string `yaml:"table.field.additional.missing"` // error | ignore
	// RouteBy is the column that names the topic. Empty: aggregate_type or aggregatetype, whichever
	// the table has.
	RouteBy          string `yaml:"route.by.field"`
	TopicRegex       string `yaml:"route.topic.regex"`       // a Java regular expression
	TopicReplacement string `yaml:"route.topic.replacement"` // a Java replacement
	// RenameRegex and RenameReplacement change the topic once more, as Kafka Connect's RegexRouter
	// behind the EventRouter. Without a regex, nothing is renamed.
	RenameRegex       string `yaml:"topic.rename.regex"`
	RenameReplacement string `yaml:"topic.rename.replacement"`
	Tombstone         bool   `yaml:"route.tombstone.on.empty.payload"`
	InvalidOperation  string `yaml:"table.op.invalid.behavior"` // warn | error | fatal
	// ExpandJSON makes JSON of a payload that is the text of an object or array, for a value
	// converter that writes JSON.
	ExpandJSON     bool   `yaml:"table.expand.json.payload"`
	JSONNull       string `yaml:"table.json.payload.null.behavior"`        // ignore | optional_bytes
	JSONEmptyArray string `yaml:"table.json.payload.empty.array.behavior"` // ignore | optional_string
	// JSONFieldNames adjusts the names of the fields of an expanded payload: none, avro or
	// avro_unicode.
	JSONFieldNames string `yaml:"field.name.adjustment.mode"`
}

// Records has the options that decide how a row looks to the EventRouter and how column values
// become bytes: those of Debezium's Postgres connector and of Kafka Connect's converters.
type Records struct {
	Key    DelegatingConverter `yaml:"key.converter"`
	Value  DelegatingConverter `yaml:"value.converter"`
	Header Converter           `yaml:"header.converter"`

	TimePrecision string `yaml:"time.precision.mode"`
	Decimal       string `yaml:"decimal.handling.mode"`
	Binary        string `yaml:"binary.handling.mode"`
	Interval      string `yaml:"interval.handling.mode"`
	HStore        string `yaml:"hstore.handling.mode"`
	// ExtendedHeaders adds the four headers __debezium.context.…, which need TopicPrefix.
	ExtendedHeaders bool `yaml:"extended.headers.enabled"`
	// TopicPrefix begins the names of schemas, and is the connector's name in the extended headers.
	TopicPrefix string `yaml:"topic.prefix"`
	// SchemaNames and FieldNames adjust the names of schemas and of columns: none, avro or
	// avro_unicode.
	SchemaNames string `yaml:"schema.name.adjustment.mode"`
	FieldNames  string `yaml:"field.name.adjustment.mode"`
	// Headers change the headers of every record, one step after the other.
	Headers []HeaderStep `yaml:"headers"`
	// UnavailableValue stands for a large value that an update did not send.
	UnavailableValue string `yaml:"unavailable.value.placeholder"`
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

var nameModes = []string{"none", "avro", "avro_unicode"}

// Validate returns everything that is wrong with c, in the order of the options.
func (c *Config) Validate() conf.Problems {
	_, _, ps := c.compile()
	return ps
}

// compile parses the options that have a syntax, and returns everything that is wrong with c.
func (c *Config) compile() (placements []placement, topics *topics, ps conf.Problems) {
	oneOf := func(option, got string, words ...string) {
		if !slices.ContainsFunc(words, func(w string) bool { return strings.EqualFold(w, got) }) {
			ps.OneOf(option, got, words...)
		}
	}
	if c.EventID == "" {
		ps.Add("router.table.field.event.id", conf.MustBe, "the name of a column", "")
	}
	if c.Payload == "" {
		ps.Add("router.table.field.event.payload", conf.MustBe, "the name of a column", "")
	}
	placements, err := parsePlacements(c.AdditionalPlacement)
	ps.Try("router.table.fields.additional.placement", err)
	oneOf("router.table.field.additional.missing", c.AdditionalMissing, "error", "ignore")
	topics = newTopics(c, &ps)
	oneOf("router.table.op.invalid.behavior", c.InvalidOperation, "warn", "error", "fatal")
	oneOf("router.table.json.payload.null.behavior", c.JSONNull, "ignore", "optional_bytes")
	oneOf("router.table.json.payload.empty.array.behavior", c.JSONEmptyArray, "ignore", "optional_string")
	oneOf("router.field.name.adjustment.mode", c.JSONFieldNames, nameModes...)
	c.Key.validate(&ps, "records.key.converter")
	c.Value.validate(&ps, "records.value.converter")
	c.Header.validate(&ps, "records.header.converter", "simple", "string", "json")
	oneOf("records.time.precision.mode", c.TimePrecision, pgvalue.TimeModes...)
	oneOf("records.decimal.handling.mode", c.Decimal, pgvalue.DecimalModes...)
	oneOf("records.binary.handling.mode", c.Binary, pgvalue.BinaryModes...)
	oneOf("records.interval.handling.mode", c.Interval, pgvalue.IntervalModes...)
	oneOf("records.hstore.handling.mode", c.HStore, pgvalue.HStoreModes...)
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
	} else if strings.ContainsFunc(c.TopicPrefix, notInTopic) { // CommonConnectorConfig.TOPIC_NAME_PATTERN
		ps.Add(prefix, conf.MustBe, "letters, digits, '.', '_' and '-'", c.TopicPrefix)
	}
	for i := range c.Headers {
		c.Headers[i].validate(&ps, fmt.Sprintf("records.headers[%d]", i))
	}
	oneOf("records.schema.name.adjustment.mode", c.SchemaNames, nameModes...)
	oneOf("records.field.name.adjustment.mode", c.FieldNames, nameModes...)
	return placements, topics, ps
}

// enveloped reports whether a placement puts a column into an envelope.
func enveloped(ps []placement) bool {
	return slices.ContainsFunc(ps, func(p placement) bool { return p.place == inEnvelope })
}

// notInTopic reports that Kafka does not allow the character in the name of a topic.
func notInTopic(r rune) bool { return r >= utf8.RuneSelf || !topicname.Allowed(byte(r)) }

// modes are the options for package pgvalue.
func (c *Config) modes() pgvalue.Modes {
	return pgvalue.Modes{
		Time: strings.ToLower(c.TimePrecision), Decimal: strings.ToLower(c.Decimal), Binary: strings.ToLower(c.Binary),
		Interval: strings.ToLower(c.Interval), HStore: strings.ToLower(c.HStore),
	}
}
