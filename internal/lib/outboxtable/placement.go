package outboxtable

import (
	"slices"
	"strings"
)

// fixed are the text columns of an outbox that the router reads by default, and those that a worker of
// source.poll writes.
var fixed = []string{"id", "aggregate_type", "aggregatetype", "aggregate_id", "aggregateid", "payload", "claimed_by", "last_error"}

// Extra returns those of a table's text columns that no record has by default.
func Extra(columns []string) []string {
	return slices.DeleteFunc(slices.Clone(columns), func(c string) bool { return slices.Contains(fixed, c) })
}

// Placement returns the value of router.table.fields.additional.placement that publishes columns of
// the type text: the type of the event in the header eventType, and the others in headers of their
// names. A column whose name the option cannot have is left out. With headers, it also publishes
// HeadersColumn.
func Placement(columns []string, headers bool) string {
	eventType := "event_type"
	if !slices.Contains(columns, eventType) {
		eventType = "type" // as in Debezium's example
	}
	var items []string
	for _, c := range columns {
		switch {
		case c == eventType:
			items = append(items, c+":header:"+EventTypeHeader)
		case !strings.ContainsAny(c, ",:") && c == strings.TrimSpace(c):
			items = append(items, c+":header")
		}
	}
	if headers {
		items = append(items, HeadersColumn+":headers")
	}
	return strings.Join(items, ",")
}
