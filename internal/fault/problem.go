package fault

import (
	"fmt"
	"strings"
)

// A Problem is one thing that is wrong with a configuration: Field is its path by walpost.yaml's keys, Text says the bound and the value.
type Problem struct {
	Field string
	Text  string
}

func (p Problem) String() string { return p.Field + ": " + p.Text }

// Problems is everything that is wrong with a configuration, in the order in which it was found. It is an error that a retry cannot help.
type Problems []Problem

// Add adds a problem of a field.
func (ps *Problems) Add(field, format string, args ...any) {
	*ps = append(*ps, Problem{Field: field, Text: fmt.Sprintf(format, args...)})
}

func (ps Problems) Error() string {
	lines := make([]string, len(ps))
	for i, p := range ps {
		lines[i] = p.String()
	}
	return strings.Join(lines, "\n")
}

// Misconfigured says that this error is a matter of configuration.
func (Problems) Misconfigured() bool { return true }
