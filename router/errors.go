package router

import (
	"fmt"
	"slices"
	"strings"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/conf"
)

// A Problem is one reason why rows cannot become records.
type Problem struct {
	Rule    Rule
	Option  string // the full name of the option in walpost.yaml, or "" if there is none
	Column  string // the column that the option reads, or "" if the problem is in the option itself
	Value   string // the start of the column's value if the problem is in the value
	Path    string // the JSON pointer to what does not fit, with PayloadFits; "" for the whole payload
	Message string // a sentence for people; it does not name the option
}

func (p Problem) String() string {
	if p.Option == "" {
		return p.Message
	}
	return p.Option + ": " + p.Message
}

// A Rule is what a Problem violates. It tells what has to change.
type Rule string

// The rules. Against the first four, only a change of the configuration or of the table's
// definition helps.
const (
	OptionValid  Rule = "option valid"   // an option has a value that it can have
	ColumnExists Rule = "column exists"  // the table has the column that an option names
	ColumnChosen Rule = "column chosen"  // an option is set if the table has both of its default columns
	ColumnType   Rule = "column type"    // the column has a type that the option can use
	ValueSet     Rule = "value set"      // a column that decides on the topic is not NULL
	ValueValid   Rule = "value valid"    // the value can be what the option makes of it
	TopicValid   Rule = "topic valid"    // Kafka allows the topic that the value gives
	ValueSent    Rule = "value sent"     // the server sends every value that an update needs
	ContentValid Rule = "content valid"  // the content of a message is a JSON object with the fields that the options name
	PayloadFits  Rule = "payload fits"   // the payload fits the latest JSON schema of its subject
	UpdateFatal  Rule = "update refused" // a row is not updated if table.op.invalid.behavior is fatal
)

// maxValue bounds Problem.Value, in characters.
const maxValue = 40

// A configError says why a configuration does not fit a table.
type configError struct {
	table    string
	problems []Problem
}

func (e *configError) Error() string { return "table " + e.table + ": " + conf.Lines(e.problems) }

// Misconfigured is true: see package fault.
func (e *configError) Misconfigured() bool { return true }

// Hint says which change of the configuration or of the table helps against each problem.
func (e *configError) Hint() string {
	var hints []string
	for i, p := range e.problems {
		hint := (&RowError{Problems: e.problems[i:]}).Hint()
		if p.Rule == ColumnExists {
			hint = "Set " + p.Option + " to an existing column of the table, or add the column to the table."
		}
		if !slices.Contains(hints, hint) {
			hints = append(hints, hint)
		}
	}
	return strings.Join(hints, " ")
}

// A RowError says why a row cannot be routed. A person must change the row or the configuration.
type RowError struct {
	EventID string
	Table   string
	LSN     cdc.LSN // where the WAL has the row; 0 if the row was read from the table
	// Problems has at least one element, and more only if they are about the table's definition.
	Problems []Problem
	keyFound bool
}

// BadBecause says why the row can never be delivered.
func (e *RowError) BadBecause() cdc.Reason {
	if e.Problems[0].Rule == TopicValid {
		return cdc.InvalidTopic
	}
	return cdc.Unroutable
}

// KeyFound reports whether Route could find the key of the record, which can be null.
func (e *RowError) KeyFound() bool { return e.keyFound }

func (e *RowError) Error() string {
	if e.LSN == 0 {
		return fmt.Sprintf("event %q, read from the table %s, cannot be routed: %s", e.EventID, e.Table, e.Reason())
	}
	return fmt.Sprintf("event %q of %s at %s cannot be routed: %s", e.EventID, e.Table, e.LSN, e.Reason())
}

// Reason is the error without the event: for callers that name the event themselves.
func (e *RowError) Reason() string { return conf.Lines(e.Problems) }

// NeedsPerson is true: see package fault.
func (e *RowError) NeedsPerson() bool { return true }

// Hint says which change helps. A change of the row helps only if the row was read from the table.
func (e *RowError) Hint() string {
	p, stream := e.Problems[0], e.LSN != 0
	switch p.Rule {
	case ColumnExists:
		return "Set " + p.Option + " to an existing column of the table."
	case ColumnChosen:
		return "Name one of the two columns in " + p.Option + "."
	case ColumnType:
		return fmt.Sprintf("Set %s to a column of another type, or set a converter under records that can write this type.", p.Option)
	case ValueSet:
		if stream {
			return fmt.Sprintf("No default replaces a NULL here. If another column has the topic of every row, set %s to that column. Otherwise, no configuration helps.", p.Option)
		}
		return fmt.Sprintf("Write a value into column %s, or set %s to another column.", p.Column, p.Option)
	case ValueValid, TopicValid:
		switch {
		case p.Rule == TopicValid && p.Column != "" && stream:
			return fmt.Sprintf("If another value of %s is right for every row, set it. Or have router.route.topic.regex and router.route.topic.replacement turn this value into a valid topic: they apply to every row, and the regex must match the whole value. Otherwise, no configuration helps.", p.Option)
		case p.Column != "" && stream:
			return fmt.Sprintf("If another value of %s is right for every row, set it. Otherwise, no configuration helps.", p.Option)
		case p.Column != "":
			return fmt.Sprintf("Change the value of column %s, or the value of %s.", p.Column, p.Option)
		}
	case ValueSent:
		return "This event can only be skipped. For later updates, set REPLICA IDENTITY FULL on the table."
	case ContentValid:
		return "This event can only be skipped. Correct the program that writes the message."
	case PayloadFits:
		if stream {
			return "If the payload is right, register a version of the schema that accepts it. Otherwise, correct the program that writes it; this event can then only be skipped."
		}
		return "If the payload is right, register a version of the schema that accepts it, or set records.validate to none. Otherwise, correct the row."
	case UpdateFatal:
		return "Set router.table.op.invalid.behavior to warn or error to skip all updates, or skip only this event."
	case OptionValid:
	}
	return "Change the value of " + p.Option + "."
}
