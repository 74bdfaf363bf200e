// Package javaregex matches and replaces with the regular expressions of java.util.regex.
//
// Kafka Connect reads route.topic.regex as a Java pattern, so the same pattern must give the same
// topic here. Compile translates a pattern for one of two engines and writes every character class
// out as ranges. Therefore the classes of the engines do not matter. Go's own engine takes linear
// time and serves most patterns. Package regexp2 backtracks and serves look-around, back
// references, atomic groups and possessive quantifiers.
//
// The package never guesses. If a pattern, or a value under a pattern, would have another meaning
// than in Java, the caller gets an error. The answers of a real Java are in testdata/regex.txt.
package javaregex

import (
	"fmt"
	"regexp"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/dlclark/regexp2"
)

// matchLimit bounds one match of the backtracking engine, which can take exponential time.
const matchLimit = time.Second

// A Regexp is a compiled Java pattern. It is safe for concurrent use.
type Regexp struct {
	translation
	// matches reports whether the pattern matches the whole value.
	matches func(value string) (bool, error)
	// find returns the first match in the value and its groups. groups is nil if there is none.
	find func(value string) (groups []string, from, to int, err error)
}

// Compile compiles a Java pattern. The error says why the pattern is invalid or not supported.
func Compile(pattern string) (*Regexp, error) {
	translated, err := translate(pattern)
	if err != nil {
		return nil, fmt.Errorf("%q: %w", pattern, err)
	}
	re := &Regexp{translation: *translated}
	if re.backtracks {
		err = re.useBacktracking()
	} else {
		err = re.useLinear()
	}
	if err != nil {
		return nil, fmt.Errorf("%q: %w", pattern, err)
	}
	return re, nil
}

// useLinear compiles the pattern for Go's own engine.
func (re *Regexp) useLinear() error {
	find, err := regexp.Compile(re.pattern)
	if err != nil {
		return err
	}
	whole, err := regexp.Compile(`\A(?:` + re.pattern + `)\z`)
	if err != nil {
		return err
	}
	re.matches = func(value string) (bool, error) { return whole.MatchString(value), nil }
	re.find = func(value string) ([]string, int, int, error) {
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

// useBacktracking compiles the pattern for regexp2. A match that exceeds matchLimit is an error.
func (re *Regexp) useBacktracking() error {
	find, err := regexp2.Compile(re.pattern, regexp2.None)
	if err != nil {
		return err
	}
	whole, err := regexp2.Compile(`\A(?:`+re.pattern+`)\z`, regexp2.None)
	if err != nil {
		return err
	}
	find.MatchTimeout, whole.MatchTimeout = matchLimit, matchLimit
	re.matches = whole.MatchString
	re.find = func(value string) ([]string, int, int, error) {
		m, err := find.FindStringMatch(value)
		if m == nil || err != nil {
			return nil, 0, 0, err
		}
		groups := make([]string, re.groups+1)
		for i := range groups {
			if g := m.GroupByNumber(i); g != nil && len(g.Captures) > 0 {
				groups[i] = g.String()
			}
		}
		runes := []rune(value) // regexp2 counts characters
		from := len(string(runes[:m.Index]))
		return groups, from, from + len(string(runes[m.Index:m.Index+m.Length])), nil
	}
	return nil
}

// lineTerminators are the ends of a value before which Java's $ and \Z match too.
var lineTerminators = []string{"\n", "\r", "\u0085", "\u2028", "\u2029"}

// check returns an error if Java could read the pattern in another way for this value.
func (re *Regexp) check(value string) error {
	if !utf8.ValidString(value) { // a database with the encoding SQL_ASCII gives such a value
		return fmt.Errorf("value %q is not UTF-8", value)
	}
	if re.endAnchor {
		for _, end := range lineTerminators {
			if strings.HasSuffix(value, end) {
				return fmt.Errorf("value %q ends in a line terminator, and the regular expression has a $", value)
			}
		}
	}
	above := func(limit rune) bool {
		return strings.ContainsFunc(value, func(r rune) bool { return r > limit })
	}
	if re.wordAnchor && above('\x7f') {
		return fmt.Errorf(`value %q is not ASCII: the meaning of \b in the regular expression then depends on the version of Java`, value)
	}
	if re.looksBehind && above('\uFFFF') {
		return fmt.Errorf("value %q has a character above U+FFFF, and the regular expression looks behind", value)
	}
	return nil
}

// ReplaceIfMatches returns what Java's "m.matches() ? m.replaceFirst(replacement) : value" returns.
// The first match in the value can be shorter than the value although the whole value matches.
// The replacement must come from the same Regexp. The error is about the value.
func (re *Regexp) ReplaceIfMatches(value string, replacement *Replacement) (string, error) {
	if err := re.check(value); err != nil {
		return "", err
	}
	if ok, err := re.matches(value); !ok || err != nil {
		return value, err
	}
	groups, from, to, err := re.find(value)
	if groups == nil || err != nil {
		return value, err
	}
	var b strings.Builder
	b.WriteString(value[:from])
	for _, p := range replacement.pieces {
		if p.group < 0 {
			b.WriteString(p.text)
		} else {
			b.WriteString(groups[p.group])
		}
	}
	b.WriteString(value[to:])
	return b.String(), nil
}

// Matches reports whether the pattern matches the whole value. The error is about the value.
func (re *Regexp) Matches(value string) (bool, error) {
	if err := re.check(value); err != nil {
		return false, err
	}
	return re.matches(value)
}
