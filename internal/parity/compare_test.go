package parity

import (
	"fmt"
	"regexp"
	"strings"
)

var failure = regexp.MustCompile("(?m)^failure .*$")

// Compare returns how walpost's outcome differs from what Debezium gave, "" where it does not. The reasons of failures are not
// compared, and where both fail, walpost may do so before it reads anything.
func (o *Outcome) Compare(debezium string) string {
	want := failure.ReplaceAllString(debezium, "failure")
	if strings.HasSuffix(want, "failure\n") && o.Failure != "" && o.AtStart {
		return ""
	}
	return Diff(want, failure.ReplaceAllString(o.String(), "failure"))
}

// A List is the differences on purpose, by the short names of the cases.
type List map[string]*Case

// ReadList reads a list: like a file of cases, where a case's name is its short name, the comment above it is the reason and
// -- differs -- is what Compare returns.
func ReadList(path string) (List, error) {
	f, err := ReadFile(path)
	if err != nil {
		return nil, err
	}
	list := List{}
	for _, c := range f.Cases {
		if c.Comment == "" {
			return nil, fmt.Errorf("%s: %s has no reason", path, c.Name)
		}
		if list[c.Name] != nil {
			return nil, fmt.Errorf("%s: %s is there twice", path, c.Name)
		}
		list[c.Name] = c
	}
	return list, nil
}

// Judge says what is wrong with a difference, "" where nothing is: it must be as it is listed, and what is listed must be.
func (l List) Judge(c *Case, difference string) string {
	listed := l[c.Slug()]
	switch {
	case listed == nil && difference == "":
		return ""
	case listed == nil:
		return "differs from Debezium:\n" + difference
	case difference == "":
		return "is listed as different and is not"
	case listed.Want != difference:
		return "differs in another way than it is listed:\n" + difference
	}
	return ""
}
