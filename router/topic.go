package router

import (
	"fmt"
	"regexp"
	"strings"
)

// maxTopics bounds the cache of topics by routing value; values are few in practice, and hostile ones must not grow memory.
const maxTopics = 4096

// topics gives the topic of a routing value, as Connect's RegexRouter does: where the whole value matches the regex, the first
// match found in it is replaced; otherwise the value itself is the topic.
type topics struct {
	whole, find *regexp.Regexp
	repl        []piece
	endAnchor   bool
	cache       map[string]string
}

// newTopics compiles a Java regex and a Java replacement. A pattern whose meaning differs in Go is refused with the reason.
func newTopics(regex, replacement string) (*topics, error) {
	pattern, endAnchor, err := translate(regex)
	if err != nil {
		return nil, fmt.Errorf("%q: %w", regex, err)
	}
	t := &topics{endAnchor: endAnchor, cache: map[string]string{}}
	if t.find, err = regexp.Compile(pattern); err != nil {
		return nil, fmt.Errorf("%q: %w", regex, err)
	}
	if t.whole, err = regexp.Compile(`\A(?:` + pattern + `)\z`); err != nil {
		return nil, fmt.Errorf("%q: %w", regex, err)
	}
	if t.repl, err = parseReplacement(replacement, t.find); err != nil {
		return nil, err
	}
	return t, nil
}

// of returns the topic for a value. The bytes are not kept.
func (t *topics) of(value []byte) (string, error) {
	if topic, ok := t.cache[string(value)]; ok {
		return topic, nil
	}
	topic, err := t.route(string(value))
	if err == nil {
		err = checkTopic(topic)
	}
	if err != nil {
		return "", err
	}
	if len(t.cache) >= maxTopics {
		clear(t.cache)
	}
	t.cache[string(value)] = topic
	return topic, nil
}

func (t *topics) route(value string) (string, error) {
	if t.endAnchor && (strings.HasSuffix(value, "\n") || strings.HasSuffix(value, "\r") || strings.HasSuffix(value, "\u0085") ||
		strings.HasSuffix(value, "\u2028") || strings.HasSuffix(value, "\u2029")) {
		return "", fmt.Errorf("value %q ends in a line terminator, and route.topic.regex has a $", value)
	}
	if !t.whole.MatchString(value) {
		return value, nil
	}
	m := t.find.FindStringSubmatchIndex(value)
	if m == nil {
		return value, nil
	}
	var b strings.Builder
	b.WriteString(value[:m[0]])
	for _, p := range t.repl {
		switch {
		case p.group < 0:
			b.WriteString(p.text)
		case m[2*p.group] >= 0:
			b.WriteString(value[m[2*p.group]:m[2*p.group+1]])
		}
	}
	b.WriteString(value[m[1]:])
	return b.String(), nil
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

// A piece of a replacement: a group, or text where group is negative.
type piece struct {
	group int
	text  string
}

// A replacementError says that the replacement, and not the regex, is wrong.
type replacementError struct{ msg string }

func (e *replacementError) Error() string { return e.msg }

// parseReplacement reads the syntax of java.util.regex.Matcher.replaceFirst: \c is the character c, $d a group by number,
// which takes further digits as long as such a group exists, ${name} a group by name.
func parseReplacement(s string, re *regexp.Regexp) ([]piece, error) {
	var pieces []piece
	var text strings.Builder
	fail := func(format string, args ...any) ([]piece, error) {
		return nil, &replacementError{fmt.Sprintf("%q: ", s) + fmt.Sprintf(format, args...)}
	}
	group := func(n int) {
		if text.Len() > 0 {
			pieces = append(pieces, piece{group: -1, text: text.String()})
			text.Reset()
		}
		pieces = append(pieces, piece{group: n})
	}
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case c == '\\':
			if i++; i == len(s) {
				return fail("nothing behind the last backslash")
			}
			text.WriteByte(s[i])
		case c != '$':
			text.WriteByte(c)
		case i+1 == len(s):
			return fail("nothing behind the last $ (a dollar sign is \\$)")
		case s[i+1] == '{':
			end := strings.IndexByte(s[i:], '}')
			if end < 0 {
				return fail("${ without }")
			}
			name := s[i+2 : i+end]
			n := re.SubexpIndex(name)
			if n < 0 {
				return fail("the regex has no group called %q", name)
			}
			group(n)
			i += end
		case s[i+1] >= '0' && s[i+1] <= '9':
			i++
			n := int(s[i] - '0')
			if n > re.NumSubexp() {
				return fail("the regex has no group %d", n)
			}
			for i+1 < len(s) && s[i+1] >= '0' && s[i+1] <= '9' && n*10+int(s[i+1]-'0') <= re.NumSubexp() {
				i++
				n = n*10 + int(s[i]-'0')
			}
			group(n)
		default:
			return fail("%q is not a group (a dollar sign is \\$)", s[i:i+2])
		}
	}
	if text.Len() > 0 {
		pieces = append(pieces, piece{group: -1, text: text.String()})
	}
	return pieces, nil
}
