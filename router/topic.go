package router

import (
	"errors"
	"unsafe"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/conf"
	"github.com/walpost/walpost/internal/javaregex"
	"github.com/walpost/walpost/internal/lib/topicname"
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
		problem := p.route.bad(raw, err)
		if notAllowed := (notAllowed{}); errors.As(err, &notAllowed) {
			problem.Rule = TopicValid
		}
		return "", problem
	}
	rec.Topic = topic
	return unsafe.String(unsafe.SliceData(raw), len(raw)), nil
}

// notAllowed says that Kafka does not allow the name of a topic.
type notAllowed struct{ error }

// maxTopics bounds the cache of topics. Routing values are few in practice, but a hostile one per
// row must not make the memory grow.
const maxTopics = 4096

// topics gives the topic of a routing value: the value after all rewrites.
type topics struct {
	rewrites []rewrite
	cache    map[string]string // by routing value
}

// A rewrite changes a name as Kafka Connect's RegexRouter does. If the whole name matches the
// regular expression, the first match in it is replaced. Otherwise the name stays.
type rewrite struct {
	regex       *javaregex.Regexp
	replacement *javaregex.Replacement
}

// newTopics compiles route.topic and topic.rename. It adds what is wrong to ps.
func newTopics(c *Config, ps *conf.Problems) *topics {
	t := &topics{cache: map[string]string{}}
	add := func(option, regex, replacement string) {
		re, err := javaregex.Compile(regex)
		if err != nil {
			ps.Try(option+".regex", err)
			return
		}
		r, err := re.Replacement(replacement)
		ps.Try(option+".replacement", err)
		t.rewrites = append(t.rewrites, rewrite{re, r})
	}
	add("router.route.topic", c.TopicRegex, c.TopicReplacement)
	if c.RenameRegex != "" {
		add("router.topic.rename", c.RenameRegex, c.RenameReplacement)
	} else if c.RenameReplacement != "" {
		ps.Add("router.topic.rename.regex", conf.Required, "with router.topic.rename.replacement", nil)
	}
	return t
}

// TopicPatterns returns the names of the topics that rows go to, with * for what depends on the row.
// The name of a topic has no *.
func (r *Router) TopicPatterns() []string {
	last := len(r.topics.rewrites) - 1
	patterns := []string{r.topics.rewrites[last].replacement.Glob()}
	if last > 0 { // a topic that topic.rename.regex does not match keeps its name
		patterns = append(patterns, r.topics.rewrites[0].replacement.Glob())
	}
	if r.debezium != nil {
		patterns = append(patterns, r.debezium.topic)
	}
	return patterns
}

// of returns the topic for a routing value. It does not keep the bytes of the value.
func (t *topics) of(value []byte) (string, error) {
	if topic, ok := t.cache[string(value)]; ok {
		return topic, nil
	}
	topic := string(value)
	for _, r := range t.rewrites {
		var err error
		if topic, err = r.regex.ReplaceIfMatches(topic, r.replacement); err != nil {
			return "", err
		}
	}
	if err := topicname.Check(topic); err != nil {
		return "", notAllowed{err}
	}
	if len(t.cache) >= maxTopics {
		clear(t.cache)
	}
	t.cache[string(value)] = topic
	return topic, nil
}
