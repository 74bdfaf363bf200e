// Package logicalmsg has the section source.messages: which logical messages are events, and what
// record a message becomes. It is pure.
package logicalmsg

import (
	"fmt"
	"strings"
	"sync"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/conf"
	"github.com/walpost/walpost/internal/javaregex"
	"github.com/walpost/walpost/internal/lib/pgname"
)

// The formats of Config.Format.
const (
	Row      = "row"      // the content has the columns of an outbox row, and is routed like one
	Debezium = "debezium" // the record is what Debezium's Postgres connector writes for a message
)

// A Config says which messages of pg_logical_emit_message(true, …) are events.
type Config struct {
	// Messages with this prefix are events, in addition to rows or without any table.
	Prefix string `yaml:"prefix" example:"outbox"`
	// `row` routes a message like a row. `debezium` writes Debezium's record, and needs
	// `records.topic.prefix`.
	Format string `yaml:"format" words:"row|debezium"`
	// With `format: debezium`: prefixes of messages that are events (default: all), as Java regular
	// expressions for whole prefixes, ignoring case.
	Include []string `yaml:"include" example:"[\"audit.*\"]"`
	// With `format: debezium`: prefixes of messages that aren't events.
	Exclude []string `yaml:"exclude" example:"[heartbeat]"`
}

// On reports whether messages are events.
func (c *Config) On() bool { return c.Prefix != "" || c.Debezium() }

// Debezium reports whether messages become the records that Debezium writes.
func (c *Config) Debezium() bool { return c.Format == Debezium }

// String says which messages are events.
func (c *Config) String() string {
	switch {
	case !c.Debezium():
		return fmt.Sprintf("messages with the prefix %q", c.Prefix)
	case len(c.Include) > 0:
		return fmt.Sprintf("messages whose prefix matches %q", strings.Join(c.Include, ","))
	case len(c.Exclude) > 0:
		return fmt.Sprintf("messages whose prefix does not match %q", strings.Join(c.Exclude, ","))
	}
	return "all messages"
}

// Validate adds what is wrong.
func (c *Config) Validate(found *conf.Problems) {
	const section = "source.messages."
	if !pgname.IsPrefix(c.Prefix) {
		found.Add(section+"prefix", conf.MustBe, fmt.Sprintf("at most %d bytes of UTF-8 without control characters", pgname.MaxPrefix), c.Prefix)
	} else if c.Prefix != "" && c.Debezium() {
		found.Add(section+"prefix", conf.Contradicts, "source.messages.format debezium, which has include and exclude", nil)
	}
	for _, list := range []struct {
		key      string
		patterns []string
	}{{"include", c.Include}, {"exclude", c.Exclude}} {
		if len(list.patterns) > 0 && !c.Debezium() {
			found.Add(section+list.key, conf.Contradicts, "source.messages.format row, which has prefix", nil)
		}
		_, err := compile(list.patterns)
		found.Try(section+list.key, err)
	}
	if len(c.Include) > 0 && len(c.Exclude) > 0 {
		found.Add(section+"exclude", conf.Contradicts, "source.messages.include: set only one of the two", nil)
	}
}

// maxRelations bounds what is remembered, because an application can make any number of prefixes.
const maxRelations = 1024

// Relations gives the relations of messages by their prefixes. It must be used by one goroutine at a
// time.
type Relations struct {
	cfg              Config
	include, exclude []*javaregex.Regexp
	known            map[string]*cdc.Relation // nil for a prefix whose messages are no events
}

// NewRelations returns the Relations of a valid Config.
func NewRelations(c Config) *Relations {
	r := &Relations{cfg: c, known: map[string]*cdc.Relation{}}
	r.include, _ = compile(c.Include) // Validate has the errors
	r.exclude, _ = compile(c.Exclude)
	return r
}

// Of returns the relation of messages with a prefix, or nil if they are no events.
func (r *Relations) Of(prefix []byte) *cdc.Relation {
	if rel, ok := r.known[string(prefix)]; ok {
		return rel
	}
	var rel *cdc.Relation
	switch selected := r.selects(string(prefix)); {
	case selected && r.cfg.Debezium():
		rel = cdc.MessagesWithOrigin(string(prefix))
	case selected:
		rel = cdc.Messages(string(prefix))
	}
	if len(prefix) > pgname.MaxPrefix { // up to 1 GiB
		return rel
	}
	if len(r.known) >= maxRelations {
		clear(r.known)
	}
	r.known[string(prefix)] = rel
	return rel
}

// selects reports whether messages with a prefix are events. So are those with a prefix for which the
// answer of Java is not known: every role can write such a prefix, so it must neither stop the relay
// nor lose an event.
func (r *Relations) selects(prefix string) bool {
	if !r.cfg.Debezium() {
		return r.cfg.Prefix != "" && prefix == r.cfg.Prefix
	}
	patterns := r.include
	if len(patterns) == 0 {
		patterns = r.exclude
	}
	for _, re := range patterns {
		switch ok, err := re.Matches(prefix); {
		case err != nil:
			return true
		case ok:
			return len(r.include) > 0
		}
	}
	return len(r.include) == 0
}

func compile(patterns []string) (all []*javaregex.Regexp, _ error) {
	for _, p := range patterns {
		re, err := javaregex.CompileFold(p)
		if err != nil {
			return nil, err
		}
		all = append(all, re)
	}
	return all, nil
}

// Outside counts selected messages that belong to no transaction, which are no events. Any goroutine
// may call its methods.
type Outside struct {
	mu     sync.Mutex
	count  uint64
	newest string
}

// Add counts one message.
func (o *Outside) Add(rel *cdc.Relation, at cdc.LSN) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.count, o.newest = o.count+1, rel.String()+" at "+at.String()
}

// Remarks calls each if there was a message.
func (o *Outside) Remarks(each func(what string, severe bool, count uint64, last string)) {
	o.mu.Lock()
	n, newest := o.count, o.newest
	o.mu.Unlock()
	if n > 0 {
		each("message that is not transactional ignored", true, n, newest)
	}
}
