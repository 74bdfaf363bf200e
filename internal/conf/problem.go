// Package conf holds what the configuration of every stage is made of: values with a text form,
// secrets, and what a validation finds.
package conf

import (
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strings"
)

// A Problem is one thing that is wrong with a configuration.
type Problem struct {
	Field string // the path by the keys of walpost.yaml
	Rule  Rule
	Want  string // what the rule asks for: "at least 1", "one of kafka, file"
	Value any    // what the field has, or nil if it is absent or must not be shown
}

// A Rule is what a value violates. Its text is the verb of the message.
type Rule string

const (
	Required    Rule = "is required"
	MustBe      Rule = "must be"
	MustHave    Rule = "must have"
	Contradicts Rule = "contradicts"
	Usable      Rule = "" // Want is the error of whatever tried to use the value
)

// Text is the problem without its field.
func (p Problem) Text() string {
	text := strings.TrimSpace(string(p.Rule) + " " + p.Want)
	switch {
	case p.Value == nil:
		return text
	case reflect.TypeOf(p.Value).Kind() == reflect.String:
		return fmt.Sprintf("%s (got %q)", text, p.Value)
	}
	return fmt.Sprintf("%s (got %v)", text, p.Value)
}

func (p Problem) String() string { return p.Field + ": " + p.Text() }

// Problems is everything that is wrong with a configuration, in the order in which it was found. It
// is an error that a retry cannot help.
type Problems []Problem

func (ps Problems) Error() string { return Lines(ps) }

// Lines is the text of each problem on a line of its own.
func Lines[P fmt.Stringer](problems []P) string {
	lines := make([]string, len(problems))
	for i, p := range problems {
		lines[i] = p.String()
	}
	return strings.Join(lines, "\n")
}

// Misconfigured is true: see package fault.
func (Problems) Misconfigured() bool { return true }

// Add adds a problem.
func (ps *Problems) Add(field string, rule Rule, want string, value any) {
	*ps = append(*ps, Problem{Field: field, Rule: rule, Want: want, Value: value})
}

// Try adds err, if there is one, as a problem of the field.
func (ps *Problems) Try(field string, err error) {
	if err != nil {
		ps.Add(field, Usable, err.Error(), nil)
	}
}

// OneOf adds a problem if the value is none of the words. The empty word is not shown.
func (ps *Problems) OneOf(field, value string, words ...string) {
	if !slices.Contains(words, value) {
		words = slices.DeleteFunc(slices.Clone(words), func(w string) bool { return w == "" })
		ps.Add(field, MustBe, "one of "+strings.Join(words, ", "), value)
	}
}

// Wrap breaks a text into lines of at most width characters.
func Wrap(text string, width int) []string {
	line := regexp.MustCompile(fmt.Sprintf(`(.{1,%d})(?: |$)`, width))
	text = line.ReplaceAllString(strings.Join(strings.Fields(text), " "), "$1\n")
	return strings.Split(strings.TrimSuffix(text, "\n"), "\n")
}
