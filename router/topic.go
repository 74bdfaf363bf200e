package router

import (
	"fmt"
	"regexp"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/dlclark/regexp2"
)

// maxTopics bounds the cache of topics by routing value; values are few in practice, and hostile ones must not grow memory.
const maxTopics = 4096

// matchLimit bounds one match of a regex that backtracks; see its use.
const matchLimit = time.Second

// topics gives the topic of a routing value, as Connect's RegexRouter does: where the whole value matches the regex, the first
// match found in it is replaced; otherwise the value itself is the topic.
type topics struct {
	re    *javaRegex
	find  func(value string) (groups []string, from, to int, err error) // the first match; groups nil for none
	whole func(value string) (bool, error)
	repl  []piece
	cache map[string]string
}

// newTopics compiles a Java regex and a Java replacement. A pattern whose meaning would differ is refused with the reason.
func newTopics(regex, replacement string) (*topics, error) {
	re, err := translate(regex)
	if err != nil {
		return nil, fmt.Errorf("%q: %w", regex, err)
	}
	t := &topics{re: re, cache: map[string]string{}}
	compile := t.linear
	if re.backtracks {
		compile = t.backtracking
	}
	if err := compile(); err != nil {
		return nil, fmt.Errorf("%q: %w", regex, err)
	}
	if t.repl, err = parseReplacement(replacement, re); err != nil {
		return nil, err
	}
	return t, nil
}

// linear is Go's own engine: it takes time in proportion to the value.
func (t *topics) linear() error {
	find, err := regexp.Compile(t.re.pattern)
	if err != nil {
		return err
	}
	whole, err := regexp.Compile(`\A(?:` + t.re.pattern + `)\z`)
	if err != nil {
		return err
	}
	t.whole = func(value string) (bool, error) { return whole.MatchString(value), nil }
	t.find = func(value string) ([]string, int, int, error) {
		at := find.FindStringSubmatchIndex(value)
		if at == nil {
			return nil, 0, 0, nil
		}
		groups := make([]string, len(at)/2)
		for i := range groups {
			if at[2*i] >= 0 {
				groups[i] = value[at[2*i]:at[2*i+1]]
			}
		}
		return groups, at[0], at[1], nil
	}
	return nil
}

// backtracking is the engine for what Go's own cannot do. It can take for ever, as Java's can: then the value is an error.
func (t *topics) backtracking() error {
	find, err := regexp2.Compile(t.re.pattern, regexp2.None)
	if err != nil {
		return err
	}
	whole, err := regexp2.Compile(`\A(?:`+t.re.pattern+`)\z`, regexp2.None)
	if err != nil {
		return err
	}
	find.MatchTimeout, whole.MatchTimeout = matchLimit, matchLimit
	t.whole = whole.MatchString
	t.find = func(value string) ([]string, int, int, error) {
		m, err := find.FindStringMatch(value)
		if m == nil || err != nil {
			return nil, 0, 0, err
		}
		groups := make([]string, t.re.groups+1)
		for i := range groups {
			if g := m.GroupByNumber(i); g != nil && len(g.Captures) > 0 {
				groups[i] = g.String()
			}
		}
		runes := []rune(value)
		from := len(string(runes[:m.Index]))
		return groups, from, from + len(string(runes[m.Index:m.Index+m.Length])), nil
	}
	return nil
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
	if !utf8.ValidString(value) { // of a database with the encoding SQL_ASCII
		return "", fmt.Errorf("value %q is not UTF-8", value)
	}
	if t.re.endAnchor && (strings.HasSuffix(value, "\n") || strings.HasSuffix(value, "\r") || strings.HasSuffix(value, "\u0085") ||
		strings.HasSuffix(value, "\u2028") || strings.HasSuffix(value, "\u2029")) {
		return "", fmt.Errorf("value %q ends in a line terminator, and route.topic.regex has a $", value)
	}
	if t.re.wordAnchor && strings.ContainsFunc(value, func(r rune) bool { return r >= utf8.RuneSelf }) {
		return "", fmt.Errorf("value %q is not ASCII, and what \\b in route.topic.regex means then depends on the version of Java", value)
	}
	if t.re.looksBehind && strings.ContainsFunc(value, func(r rune) bool { return r > 0xFFFF }) {
		return "", fmt.Errorf("value %q has a character beyond U+FFFF, and route.topic.regex looks behind", value)
	}
	matches, err := t.whole(value)
	if err != nil {
		return "", fmt.Errorf("route.topic.regex: %w", err)
	}
	if !matches {
		return value, nil
	}
	groups, from, to, err := t.find(value)
	if err != nil {
		return "", fmt.Errorf("route.topic.regex: %w", err)
	}
	if groups == nil {
		return value, nil
	}
	var b strings.Builder
	b.WriteString(value[:from])
	for _, p := range t.repl {
		if p.group < 0 {
			b.WriteString(p.text)
		} else {
			b.WriteString(groups[p.group])
		}
	}
	b.WriteString(value[to:])
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
func parseReplacement(s string, re *javaRegex) ([]piece, error) {
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
			n := re.names[name]
			if n == 0 {
				return fail("the regex has no group called %q", name)
			}
			group(n)
			i += end
		case s[i+1] >= '0' && s[i+1] <= '9':
			i++
			n := int(s[i] - '0')
			if n > re.groups {
				return fail("the regex has no group %d", n)
			}
			for i+1 < len(s) && s[i+1] >= '0' && s[i+1] <= '9' && n*10+int(s[i+1]-'0') <= re.groups {
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
