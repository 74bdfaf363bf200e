// Package javaregex matches and replaces with the regular expressions of java.util.regex.
//
// Kafka Connect reads route.topic.regex as a Java pattern, so the same pattern must give the same
// topic here. Compile translates a pattern for Go's engine. What that engine does not have, or
// reads in another way without a translation, is an error with the part of the pattern: look-around,
// back references, atomic groups, possessive quantifiers, classes in classes and others. The same
// goes for a value that Java could read in another way. The answers of a real Java are in
// testdata/regex.txt.
package javaregex

import (
	"fmt"
	"regexp"
	"strings"
	"unicode/utf8"
)

// A Regexp is a compiled Java pattern. It is safe for concurrent use.
type Regexp struct {
	find, whole *regexp.Regexp
	// endAnchor is set if the pattern has a $ or \Z. In Java both also match before a line
	// terminator at the end of the value, but here they do not.
	endAnchor bool
	// wordAnchor is set if the pattern has a \b or \B. Outside ASCII, Java 19 changed what it
	// means.
	wordAnchor bool
}

// Compile compiles a Java pattern. The error says why the pattern is invalid or not supported.
func Compile(pattern string) (*Regexp, error) { return compile(pattern, flags{}) }

// CompileFold is Compile with Java's flag CASE_INSENSITIVE.
func CompileFold(pattern string) (*Regexp, error) { return compile(pattern, flags{fold: true}) }

func compile(pattern string, flags flags) (*Regexp, error) {
	t := translator{rest: unquote(pattern), flags: flags}
	if err := t.run(); err != nil {
		return nil, fmt.Errorf("%q: %w", pattern, err)
	}
	find, err := regexp.Compile(t.out.String())
	if err != nil { // for example a{1001}
		return nil, fmt.Errorf("%q is not supported: %w", pattern, err)
	}
	t.re.find, t.re.whole = find, regexp.MustCompile(`\A(?:`+t.out.String()+`)\z`)
	return &t.re, nil
}

// lineTerminators are the characters that Java's dot does not match.
const lineTerminators = "\n\r\u0085\u2028\u2029"

// Matches reports whether the pattern matches the whole value. The error is about the value.
func (re *Regexp) Matches(value string) (bool, error) {
	last, _ := utf8.DecodeLastRuneInString(value)
	beyondASCII := strings.ContainsFunc(value, func(r rune) bool { return r >= utf8.RuneSelf })
	switch {
	case !utf8.ValidString(value): // a database with the encoding SQL_ASCII gives such a value
		return false, fmt.Errorf("value %q is not UTF-8", value)
	case re.endAnchor && value != "" && strings.ContainsRune(lineTerminators, last):
		return false, fmt.Errorf("value %q ends in a line terminator, and the regular expression has a $", value)
	case re.wordAnchor && beyondASCII:
		return false, fmt.Errorf(`value %q is not ASCII: the meaning of \b in the regular expression then depends on the version of Java`, value)
	}
	return re.whole.MatchString(value), nil
}

// ReplaceIfMatches returns what Java's "m.matches() ? m.replaceFirst(replacement) : value" returns.
// The first match in the value can be shorter than the value although the whole value matches.
// The replacement must come from the same Regexp. The error is about the value.
func (re *Regexp) ReplaceIfMatches(value string, replacement *Replacement) (string, error) {
	if ok, err := re.Matches(value); !ok || err != nil {
		return value, err
	}
	at := re.find.FindStringSubmatchIndex(value)
	to := re.find.ExpandString([]byte(value[:at[0]]), replacement.template, value, at)
	return string(to) + value[at[1]:], nil
}

// A Replacement is the compiled replacement of java.util.regex.Matcher.replaceFirst.
type Replacement struct {
	template string // as Regexp.Expand reads it
	glob     string
}

// Glob is what the replacement gives, with * for each group.
func (r *Replacement) Glob() string { return r.glob }

var replacementPart = regexp.MustCompile(`(?s)\\(?P<literal>.)|\$\{(?P<name>[^}]*)\}|\$(?P<number>[0-9]+)|[^\\$]+|.`)

// Replacement compiles a replacement. In a replacement \c is the character c, and ${name} is the
// group with that name. $d is the group with the number d, and takes further digits as long as
// such a group exists.
func (re *Regexp) Replacement(s string) (*Replacement, error) {
	var template, glob strings.Builder
	for _, m := range replacementPart.FindAllStringSubmatch(s, -1) {
		text, name, digits := m[0], m[2], m[3]
		group := -1
		switch {
		case m[1] != "":
			text = m[1]
		case strings.HasPrefix(text, "${"):
			if group = re.find.SubexpIndex(name); group < 0 {
				return nil, fmt.Errorf("%q: the regular expression has no group called %q", s, name)
			}
			text = ""
		case digits != "":
			group, text = int(digits[0]-'0'), digits[1:]
			for text != "" && 10*group+int(text[0]-'0') <= re.find.NumSubexp() {
				group, text = 10*group+int(text[0]-'0'), text[1:]
			}
			if group > re.find.NumSubexp() {
				return nil, fmt.Errorf("%q: the regular expression has no group %d", s, group)
			}
		case text == `\`:
			return nil, fmt.Errorf("%q: nothing follows the last backslash", s)
		case text == "$":
			return nil, fmt.Errorf("%q has a $ that no group follows: write \\$ for a dollar sign", s)
		}
		if group >= 0 {
			fmt.Fprintf(&template, "${%d}", group)
			glob.WriteByte('*')
		}
		template.WriteString(strings.ReplaceAll(text, "$", "$$"))
		glob.WriteString(text)
	}
	return &Replacement{template.String(), glob.String()}, nil
}
