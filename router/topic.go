package router

import (
	"fmt"

	"github.com/walpost/walpost/internal/javaregex"
)

// maxTopics bounds the cache of topics. Routing values are few in practice, but a hostile one per
// row must not make the memory grow.
const maxTopics = 4096

// topics gives the topic of a routing value, as Kafka Connect's RegexRouter does. If the whole value
// matches the regular expression, the first match in it is replaced. Otherwise the topic is the value.
type topics struct {
	regex       *javaregex.Regexp
	replacement *javaregex.Replacement
	cache       map[string]string // by routing value
}

// newTopics compiles route.topic.regex and route.topic.replacement.
func newTopics(regex, replacement string) (*topics, []Problem) {
	re, err := javaregex.Compile(regex)
	if err != nil {
		return nil, []Problem{badOption("router.route.topic.regex", "%s", err)}
	}
	r, err := re.Replacement(replacement)
	if err != nil {
		return nil, []Problem{badOption("router.route.topic.replacement", "%s", err)}
	}
	return &topics{regex: re, replacement: r, cache: map[string]string{}}, nil
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
	if err := checkTopic(topic); err != nil {
		return "", err
	}
	if len(t.cache) >= maxTopics {
		clear(t.cache)
	}
	t.cache[string(value)] = topic
	return topic, nil
}

// checkTopic is Kafka's rule for topic names (org.apache.kafka.common.internals.Topic.validate).
func checkTopic(name string) error {
	if name == "" || name == "." || name == ".." || len(name) > 249 {
		return fmt.Errorf("invalid topic name %.260q: it must have 1 to 249 characters and be neither . nor .. alone", name)
	}
	for i := range len(name) {
		c := name[i]
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '.' && c != '_' && c != '-' {
			return fmt.Errorf("invalid topic name %q: only letters, digits, '.', '_' and '-' are allowed", name)
		}
	}
	return nil
}
