package router

import (
	"errors"
	"fmt"
	"strings"

	"github.com/walpost/walpost/internal/fault"
)

// Config is Debezium's EventRouter: its options, under their names there, and the converters. Start from DefaultConfig.
type Config struct {
	// Tables are the tables whose rows are routed, as schema.table without quotes; rows of others give no record. Empty: all.
	Tables []string

	EventID             string // table.field.event.id
	EventKey            string // table.field.event.key; empty: aggregate_id or aggregateid, whichever the table has
	Payload             string // table.field.event.payload
	Timestamp           string // table.field.event.timestamp; empty: the commit time
	SchemaVersion       string // table.field.event.schema.version
	AdditionalPlacement string // table.fields.additional.placement: column:placement[:alias], …
	AdditionalMissing   string // table.field.additional.missing: error | ignore
	RouteBy             string // route.by.field; empty: aggregate_type or aggregatetype, whichever the table has
	TopicRegex          string // route.topic.regex: a Java regular expression
	TopicReplacement    string // route.topic.replacement: a Java replacement
	Tombstone           bool   // route.tombstone.on.empty.payload
	InvalidOperation    string // table.op.invalid.behavior: warn | error | fatal
	ExpandJSON          bool   // table.expand.json.payload

	KeyConverter    string // records.key.converter
	ValueConverter  string // records.value.converter
	HeaderConverter string // records.header.converter
}

// The EventRouter's defaults for the topic.
const (
	DefaultTopicRegex       = "(?<routedByValue>.*)"
	DefaultTopicReplacement = "outbox.event.${routedByValue}"
)

// DefaultConfig is the EventRouter's defaults.
func DefaultConfig() Config {
	return Config{
		EventID: "id", Payload: "payload", AdditionalMissing: "error", TopicRegex: DefaultTopicRegex,
		TopicReplacement: DefaultTopicReplacement, InvalidOperation: "warn",
		KeyConverter: "string", ValueConverter: "string", HeaderConverter: "simple",
	}
}

// A Problem is one option that is wrong. Option is its full name in walpost.yaml.
type Problem struct{ Option, Message string }

func (p Problem) Error() string { return p.Option + ": " + p.Message }

// Validate returns everything that is wrong with c, in the order of the options.
func (c *Config) Validate() []Problem {
	var ps []Problem
	bad := func(option, format string, args ...any) {
		ps = append(ps, Problem{Option: option, Message: fmt.Sprintf(format, args...)})
	}
	oneOf := func(option, got string, supported, later []string) {
		for _, s := range supported {
			if strings.EqualFold(got, s) {
				return
			}
		}
		for _, s := range later {
			if strings.EqualFold(got, s) {
				bad(option, "%s: not supported yet", got)
				return
			}
		}
		bad(option, "must be one of %s (got %q)", strings.Join(append(supported, later...), ", "), got)
	}
	if c.EventID == "" {
		bad("router.table.field.event.id", "must name a column (got \"\")")
	}
	if c.Payload == "" {
		bad("router.table.field.event.payload", "must name a column (got \"\")")
	}
	if c.SchemaVersion != "" {
		bad("router.table.field.event.schema.version", "it matters only for an envelope with a schema: not supported yet")
	}
	if _, err := parsePlacements(c.AdditionalPlacement); err != nil {
		bad("router.table.fields.additional.placement", "%s", err)
	}
	oneOf("router.table.field.additional.missing", c.AdditionalMissing, []string{"error", "ignore"}, nil)
	if _, err := newTopics(c.TopicRegex, c.TopicReplacement); err != nil {
		var re *replacementError
		if errors.As(err, &re) {
			bad("router.route.topic.replacement", "%s", err)
		} else {
			bad("router.route.topic.regex", "%s", err)
		}
	}
	oneOf("router.table.op.invalid.behavior", c.InvalidOperation, []string{"warn", "error", "fatal"}, nil)
	if c.ExpandJSON {
		bad("router.table.expand.json.payload", "true: not supported yet")
	}
	oneOf("records.key.converter", c.KeyConverter, []string{"string"}, []string{"json", "bytes", "binary"})
	oneOf("records.value.converter", c.ValueConverter, []string{"string"}, []string{"json", "bytes", "binary"})
	oneOf("records.header.converter", c.HeaderConverter, []string{"simple"}, []string{"string", "json"})
	return ps
}

func (c *Config) err() error {
	var errs []error
	for _, p := range c.Validate() {
		errs = append(errs, p)
	}
	if len(errs) == 0 {
		return nil
	}
	return fault.Config(errors.Join(errs...), "")
}

type place uint8

const (
	inHeader place = iota + 1
	inPartition
)

// A placement puts a column somewhere beside key and payload.
type placement struct {
	column, alias string
	place         place
}

// parsePlacements reads table.fields.additional.placement as Debezium's AdditionalFieldsValidator does: items split at commas,
// each column:placement[:alias], all trimmed. An unknown placement, which Debezium lets pass and then fails on at the first record, is
// refused here.
func parsePlacements(s string) ([]placement, error) {
	if s == "" {
		return nil, nil
	}
	var ps []placement
	for _, item := range strings.Split(strings.TrimSuffix(s, ","), ",") {
		parts := strings.Split(strings.TrimSpace(item), ":")
		if n := len(parts); n > 2 && strings.TrimSpace(parts[n-1]) == "" {
			parts = parts[:n-1] // "type:header:" has no alias
		}
		if len(parts) < 2 || len(parts) > 3 || strings.TrimSpace(parts[0]) == "" {
			return nil, fmt.Errorf("must be column:placement or column:placement:alias, separated by commas (got %q)", item)
		}
		p := placement{column: strings.TrimSpace(parts[0])}
		p.alias = p.column
		if len(parts) == 3 {
			p.alias = strings.TrimSpace(parts[2])
		}
		switch strings.ToLower(strings.TrimSpace(parts[1])) {
		case "header":
			p.place = inHeader
		case "partition":
			p.place = inPartition
		case "envelope":
			return nil, fmt.Errorf("%q: an envelope needs value.converter json: not supported yet", item)
		default:
			return nil, fmt.Errorf("placement must be header, envelope or partition (got %q)", item)
		}
		ps = append(ps, p)
	}
	return ps, nil
}
