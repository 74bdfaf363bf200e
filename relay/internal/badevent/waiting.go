package badevent

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// A Waiting is a topic with events that were sent and are not delivered.
type Waiting struct {
	Topic  string `json:"topic"`
	Events int    `json:"events"`
	Why    string `json:"why"` // "" if it is not known
	// Closed says that the events are behind a refused one in the topic. They are not delivered
	// before the next start.
	Closed bool `json:"closed"`
}

// SortWaiting puts the topic with the most events first.
func SortWaiting(all []Waiting) {
	slices.SortFunc(all, func(a, b Waiting) int {
		return cmp.Or(b.Events-a.Events, strings.Compare(a.Topic, b.Topic))
	})
}

// waitingTopics is how many topics DescribeWaiting names.
const waitingTopics = 3

// DescribeWaiting says how many events wait for which topic. It is "" if none do.
func DescribeWaiting(all []Waiting) string {
	var open, closed []string
	for _, w := range all {
		switch {
		case w.Closed:
			closed = append(closed, fmt.Sprintf("%d after the refused event in topic %s", w.Events, w.Topic))
		case w.Why != "":
			open = append(open, fmt.Sprintf("%d for topic %s (%s)", w.Events, w.Topic, w.Why))
		default:
			open = append(open, fmt.Sprintf("%d for topic %s", w.Events, w.Topic))
		}
	}
	text := ""
	if len(open) > 0 {
		text = "; events that still wait to be delivered: " + listed(open)
	}
	if len(closed) > 0 {
		text += "; events that walpost reads again at the next start: " + listed(closed)
	}
	return text
}

func listed(parts []string) string {
	if more := len(parts) - waitingTopics; more > 0 {
		return strings.Join(parts[:waitingTopics], ", ") + fmt.Sprintf(", and %d more topics", more)
	}
	return strings.Join(parts, ", ")
}
