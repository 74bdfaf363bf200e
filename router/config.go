package router

import (
	"fmt"
	"strings"

	"github.com/walpost/walpost/router/internal/pgvalue"
)

// Config is Debezium's EventRouter, the converters of Kafka Connect, and what of Debezium's Postgres connector decides how a row looks to
// both: the options, under their names there. Start from DefaultConfig.
type Config struct {
	// Tables are the tables whose rows are routed, as schema.table without quotes; rows of others give no record. Empty: all.
	Tables []string
	// Updates says that an update which changes a row's primary key gives a record, as Debezium has it. Where it is not set, that
	// is an update like any other.
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

// DefaultConfig is the EventRouter's defaults, with converters that leave text as it is.
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

// compile reads the options that have a syntax of their own, and returns everything that is wrong with c.
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
	} else if !topicPrefix(c.TopicPrefix) {
		bad("records.topic.prefix", "must be letters, digits, '.', '_' and '-' (got %q)", c.TopicPrefix)
	}
	oneOf("records.schema.name.adjustment.mode", c.SchemaNames, nameModes...)
	oneOf("records.field.name.adjustment.mode", c.FieldNames, nameModes...)
	return placements, topics, ps
}

func badOption(option, format string, args ...any) Problem {
	return Problem{Rule: OptionValid, Option: option, Message: fmt.Sprintf(format, args...)}
}

func enveloped(ps []placement) bool {
	for _, p := range ps {
		if p.place == inEnvelope {
			return true
		}
	}
	return false
}

// topicPrefix is Debezium's rule for topic.prefix (CommonConnectorConfig.TOPIC_NAME_PATTERN).
func topicPrefix(s string) bool {
	for i := range len(s) {
		c := s[i]
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '.' && c != '_' && c != '-' {
			return false
		}
	}
	return true
}

// modes are the options that package pgvalue knows.
func (c *Config) modes() pgvalue.Modes {
	return pgvalue.Modes{
		Time: strings.ToLower(c.TimePrecision), Decimal: strings.ToLower(c.Decimal), Binary: strings.ToLower(c.Binary),
		Interval: strings.ToLower(c.Interval), HStore: strings.ToLower(c.HStore),
	}
}
