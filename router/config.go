package router

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/walpost/walpost/internal/topicname"
	"github.com/walpost/walpost/router/internal/pgvalue"
)

// Config has the options of Debezium's EventRouter, those of Kafka Connect's converters, and those
// of Debezium's Postgres connector that decide how a row looks to both. The comments give the names
// of the options there. Start from DefaultConfig.
type Config struct {
	// Tables are the tables whose rows are routed, as schema.table without quotes. Rows of other
	// tables give no record. If it is empty, the rows of all tables are routed.
	Tables []string
	// Updates makes an update that changes a row's primary key give a record, as in Debezium. If it
	// is not set, such an update is treated like every other.
	Updates bool

	EventID             string // table.field.event.id
	EventKey            string // table.field.event.key; empty: aggregate_id or aggregateid, whichever the table has
	Payload             string // table.field.event.payload
	Timestamp           string // table.field.event.timestamp; empty: the commit time
	SchemaVersion       string // table.field.event.schema.version; read only with an envelope
	AdditionalPlacement string // table.fields.additional.placement: column:placement[:alias], …
	AdditionalMissing   string // table.field.additional.missing: error | ignore
	RouteBy             string // route.by.field; empty: aggregate_type or aggregatetype, whichever the table has
	TopicRegex          string // route.topic.regex: a Java regular expression
	TopicReplacement    string // route.topic.replacement: a Java replacement
	Tombstone           bool   // route.tombstone.on.empty.payload
	InvalidOperation    string // table.op.invalid.behavior: warn | error | fatal
	ExpandJSON          bool   // table.expand.json.payload
	JSONNull            string // table.json.payload.null.behavior: ignore | optional_bytes
	JSONEmptyArray      string // table.json.payload.empty.array.behavior: ignore | optional_string
	JSONFieldNames      string // field.name.adjustment.mode of the EventRouter: none | avro | avro_unicode

	Key, Value, Header Converter

	TimePrecision    string // time.precision.mode
	Decimal          string // decimal.handling.mode
	Binary           string // binary.handling.mode
	Interval         string // interval.handling.mode
	HStore           string // hstore.handling.mode
	ExtendedHeaders  bool   // extended.headers.enabled
	TopicPrefix      string // topic.prefix
	SchemaNames      string // schema.name.adjustment.mode: none | avro | avro_unicode
	FieldNames       string // field.name.adjustment.mode of the connector
	UnavailableValue string // unavailable.value.placeholder
}

// The EventRouter's defaults for the topic.
const (
	DefaultTopicRegex       = "(?<routedByValue>.*)"
	DefaultTopicReplacement = "outbox.event.${routedByValue}"
)

// DefaultConfig has the EventRouter's defaults, and converters that do not change text.
func DefaultConfig() Config {
	return Config{
		EventID: "id", Payload: "payload", AdditionalMissing: "error", TopicRegex: DefaultTopicRegex,
		TopicReplacement: DefaultTopicReplacement, InvalidOperation: "warn",
		JSONNull: "ignore", JSONEmptyArray: "ignore", JSONFieldNames: "none",
		Key: Converter{Name: "string", NullDefault: true}, Value: Converter{Name: "string", NullDefault: true},
		Header:        Converter{Name: "simple", NullDefault: true},
		TimePrecision: "adaptive", Decimal: "precise", Binary: "bytes", Interval: "numeric", HStore: "json",
		SchemaNames: "none", FieldNames: "none", UnavailableValue: "__debezium_unavailable_value",
	}
}

var nameModes = []string{"none", "avro", "avro_unicode"}

// Validate returns everything that is wrong with c, in the order of the options.
func (c *Config) Validate() []Problem {
	_, _, ps := c.compile()
	return ps
}

// compile parses the options that have a syntax, and returns everything that is wrong with c.
func (c *Config) compile() (placements []placement, topics *topics, ps []Problem) {
	bad := func(option, format string, args ...any) {
		ps = append(ps, badOption(option, format, args...))
	}
	oneOf := func(option, got string, words ...string) {
		for _, s := range words {
			if strings.EqualFold(got, s) {
				return
			}
		}
		bad(option, "must be one of %s (got %q)", strings.Join(words, ", "), got)
	}
	if c.EventID == "" {
		bad("router.table.field.event.id", "must name a column (got \"\")")
	}
	if c.Payload == "" {
		bad("router.table.field.event.payload", "must name a column (got \"\")")
	}
	placements, err := parsePlacements(c.AdditionalPlacement)
	if err != nil {
		bad("router.table.fields.additional.placement", "%s", err)
	}
	oneOf("router.table.field.additional.missing", c.AdditionalMissing, "error", "ignore")
	topics, wrong := newTopics(c.TopicRegex, c.TopicReplacement)
	ps = append(ps, wrong...)
	oneOf("router.table.op.invalid.behavior", c.InvalidOperation, "warn", "error", "fatal")
	oneOf("router.table.json.payload.null.behavior", c.JSONNull, "ignore", "optional_bytes")
	oneOf("router.table.json.payload.empty.array.behavior", c.JSONEmptyArray, "ignore", "optional_string")
	oneOf("router.field.name.adjustment.mode", c.JSONFieldNames, nameModes...)
	for _, conv := range []struct {
		prefix string
		c      *Converter
		names  []string
	}{
		{"records.key.converter", &c.Key, recordConverters},
		{"records.value.converter", &c.Value, recordConverters},
		{"records.header.converter", &c.Header, headerConverters},
	} {
		ps = append(ps, conv.c.validate(conv.prefix, conv.names)...)
	}
	oneOf("records.time.precision.mode", c.TimePrecision, pgvalue.TimeModes...)
	oneOf("records.decimal.handling.mode", c.Decimal, pgvalue.DecimalModes...)
	oneOf("records.binary.handling.mode", c.Binary, pgvalue.BinaryModes...)
	oneOf("records.interval.handling.mode", c.Interval, pgvalue.IntervalModes...)
	oneOf("records.hstore.handling.mode", c.HStore, pgvalue.HStoreModes...)
	if c.TopicPrefix == "" {
		switch {
		case c.ExtendedHeaders:
			bad("records.topic.prefix", "is required with records.extended.headers.enabled: it is the header __debezium.context.connectorLogicalName")
		case enveloped(placements) && c.Value.schemas():
			bad("records.topic.prefix", "is required with an envelope whose schema is written: the schema's name begins with it")
		case c.Updates && c.Header.schemas():
			bad("records.topic.prefix", "is required with source.publish update and a header converter that writes schemas: the schema's name of __debezium.oldkey begins with it")
		}
	} else if strings.ContainsFunc(c.TopicPrefix, notInTopic) { // CommonConnectorConfig.TOPIC_NAME_PATTERN
		bad("records.topic.prefix", "must be letters, digits, '.', '_' and '-' (got %q)", c.TopicPrefix)
	}
	oneOf("records.schema.name.adjustment.mode", c.SchemaNames, nameModes...)
	oneOf("records.field.name.adjustment.mode", c.FieldNames, nameModes...)
	return placements, topics, ps
}

func badOption(option, format string, args ...any) Problem {
	return Problem{Rule: OptionValid, Option: option, Message: fmt.Sprintf(format, args...)}
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
