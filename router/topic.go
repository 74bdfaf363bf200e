package router

import (
	"unsafe"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/conf"
	"github.com/walpost/walpost/internal/javaregex"
	"github.com/walpost/walpost/internal/topicname"
)

// topic sets the record's topic and returns the aggregate type that it comes from, which is valid
// until the event ends. A NULL gives no topic even if the column has a default: the EventRouter
// reads the column by Struct.getString, which ignores defaults.
func (r *Router) topic(p *plan, row *row, rec *cdc.Record) (aggregate string, _ *Problem) {
	raw := row.text(&p.route)
	if raw == nil {
		return "", p.route.problem(ValueSet, nil, "column %s is NULL, and the topic comes from it", p.route.name)
	}
	if !p.route.typ.Text {
		v, err := p.route.typ.Parse(raw)
		text, ok := v.(string)
		switch {
		case err != nil:
			return "", p.route.bad(raw, err)
		case !ok:
			return "", p.route.problem(ValueSet, raw, "column %s is NULL for Debezium, and the topic comes from it", p.route.name)
		}
		raw = []byte(text)
	}
	topic, err := r.topics.of(raw)
	if err != nil {
		return "", p.route.bad(raw, err)
	}
	rec.Topic = topic
	return unsafe.String(unsafe.SliceData(raw), len(raw)), nil
}

// maxTopics bounds the cache of topics. Routing values are few in practice, but a hostile one per
// row must not make the memory grow.
const maxTopics = 4096

// topics gives the topic of a routing value, as Kafka Connect's RegexRouter does. If the whole
// value matches the regular expression, the first match in it is replaced. Otherwise the topic is
// the value.
type topics struct {
	regex       *javaregex.Regexp
	replacement *javaregex.Replacement
	cache       map[string]string // by routing value
}

// newTopics compiles route.topic.regex and route.topic.replacement. It adds what is wrong to ps.
func newTopics(regex, replacement string, ps *conf.Problems) *topics {
	re, err := javaregex.Compile(regex)
	if err != nil {
		ps.Try("router.route.topic.regex", err)
		return nil
	}
	r, err := re.Replacement(replacement)
	ps.Try("router.route.topic.replacement", err)
	return &topics{regex: re, replacement: r, cache: map[string]string{}}
}

// of returns the topic for a routing value. It does not keep the bytes of the value.
func (t *topics) of(value []byte) (string, error) {
	if topic, ok := t.cache[string(value)]; ok {
		return topic, nil
	}
	topic, err := t.regex.ReplaceIfMatches(string(value), t.replacement)
	if err != nil {
		return "", err
	}
	if err := topicname.Check(topic); err != nil {
		return "", err
	}
	if len(t.cache) >= maxTopics {
		clear(t.cache)
	}
	t.cache[string(value)] = topic
	return topic, nil
}
