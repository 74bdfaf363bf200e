package show

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/walpost/walpost"
	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/command/badevents"
	"github.com/walpost/walpost/internal/deadletter"
	"github.com/walpost/walpost/internal/fault"
)

// DeadList is bad events, one on each line.
func DeadList(found []*walpost.BadEvent) string {
	var b strings.Builder
	out := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	consumed := len(found) > 0 && found[0].Group != ""
	if consumed {
		fmt.Fprintln(out, "TOKEN\tSTATE\tREASON\tGROUP\tID\tKEY\tTOPIC\tATTEMPTS\tTIME\tERROR")
	} else if len(found) > 0 {
		fmt.Fprintln(out, "TOKEN\tSTATE\tREASON\tRELAY\tTABLE\tID\tKEY\tTOPIC\tATTEMPTS\tCOMMITTED\tERROR")
	}
	for _, e := range found {
		from := dash(e.Name) + "\t" + dash(e.Table)
		if consumed {
			from = e.Group
		}
		fmt.Fprintf(out, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%d\t%s\t%s\n", e.Token, stateWord(e), e.Reason, from, dash(e.ID), keyText(&e.Letter),
			dash(e.Letter.Topic), e.Attempts, e.CommitTime.Format(time.RFC3339), OneLine(e.Error))
	}
	fmt.Fprintf(out, "events: %d\n", len(found))
	_ = out.Flush() // a Builder never fails
	return b.String()
}

// stateWord is the state of an event for a person.
func stateWord(e *walpost.BadEvent) string {
	switch {
	case e.State != deadletter.Open:
		return string(e.State)
	case e.Dropping:
		return "dropping"
	case e.Releasing:
		return "releasing"
	}
	return string(e.Where)
}

func keyText(l *deadletter.Letter) string {
	if !l.KeyKnown {
		return "(unknown)"
	}
	return shown(l.Key)
}

// A BadEvent is an event for programs. A key that is not UTF-8 is in base64, under another name.
type BadEvent struct {
	Token      string          `json:"token"`
	Where      badevents.Where `json:"where"`
	State      string          `json:"state"`
	Releasing  bool            `json:"releasing,omitempty"` // the relay is to deliver the parked event, or to drop it
	Dropping   bool            `json:"dropping,omitempty"`
	Why        string          `json:"why,omitempty"`
	Reason     cdc.Reason      `json:"reason"`
	Error      string          `json:"error"`
	Relay      string          `json:"relay"`    // its name
	Database   string          `json:"database"` // of the relay
	Table      string          `json:"table"`
	EventID    string          `json:"event_id"`
	Key        *string         `json:"key"`
	KeyB64     *string         `json:"key_base64,omitempty"`
	KeyKnown   bool            `json:"key_known"`
	Topic      string          `json:"topic"`
	Attempts   int             `json:"attempts"`
	CommitTime time.Time       `json:"commit_time"`
	Commit     cdc.Position    `json:"commit_lsn,omitzero"`
	Version    string          `json:"version"`
	Partition  int32           `json:"letter_partition"`
	Offset     int64           `json:"letter_offset"`
	Consumer   *Consumer       `json:"consumer,omitempty"` // of the dead letter of a consumer
}

// A Consumer is the group that a message is dead for, and the message's place in its topic.
type Consumer struct {
	Group     string `json:"group"`
	Partition int32  `json:"partition"`
	Offset    int64  `json:"offset"`
}

// BadEventOf is e for programs.
func BadEventOf(e *walpost.BadEvent) BadEvent {
	row := BadEvent{
		Token: e.Token, Where: e.Where, State: string(e.State), Releasing: e.Releasing, Dropping: e.Dropping, Why: e.Why, Reason: e.Reason, Error: e.Error, Relay: e.Name, Database: e.Database, Table: e.Table, EventID: e.ID, KeyKnown: e.KeyKnown,
		Topic: e.Letter.Topic, Attempts: e.Attempts, CommitTime: e.CommitTime, Version: e.Version, Commit: e.Commit, Partition: e.Newest.Partition, Offset: e.Newest.Offset,
	}
	row.Key, row.KeyB64 = textOrBase64(e.Key)
	if e.Group != "" {
		row.Consumer = &Consumer{e.Group, e.Letter.Partition, e.Letter.Offset}
	}
	return row
}

// A deadDetail is all that is known of an event, for programs.
type deadDetail struct {
	BadEvent
	Form     deadletter.Form `json:"form"`
	Letters  []deadStep      `json:"history"`
	Headers  []header        `json:"headers"`
	Value    *string         `json:"value"`
	ValueB64 *string         `json:"value_base64,omitempty"`
}

// A deadStep is a letter or a mark.
type deadStep struct {
	Partition int32      `json:"partition"`
	Offset    int64      `json:"offset"`
	What      string     `json:"what"` // letter, or the state of a mark; release and drop are requests to the relay
	Attempts  int        `json:"attempts,omitempty"`
	Reason    cdc.Reason `json:"reason,omitempty"`
	Error     string     `json:"error,omitempty"`
	Stack     string     `json:"stack,omitempty"` // of a panic of a consumer's handler
	Version   string     `json:"version,omitempty"`
	Why       string     `json:"why,omitempty"`
	Time      *time.Time `json:"time,omitempty"` // of a mark
}

// DeadDetailOf is e for programs, with its history and the content of its newest letter.
func DeadDetailOf(e *walpost.BadEvent, steps []badevents.Step, value []byte, headers []cdc.Header) *deadDetail {
	d := &deadDetail{BadEvent: BadEventOf(e), Letters: []deadStep{}, Headers: headersOf(headers)}
	for _, s := range steps {
		step := deadStep{Partition: s.At.Partition, Offset: s.At.Offset, What: "letter"}
		if l := s.Letter; l != nil {
			step.Attempts, step.Reason, step.Error, step.Stack, step.Version = l.Attempts, l.Reason, l.Error, l.Stack, l.Version
			d.Form = s.Form
		} else {
			step.What, step.Why, step.Time = string(s.Mark.State), s.Mark.Why, &s.Mark.Time
		}
		d.Letters = append(d.Letters, step)
	}
	d.Value, d.ValueB64 = textOrBase64(value)
	return d
}

// deadMeaning says what the state of an event means, and whether a retry or a drop is next.
func deadMeaning(e *walpost.BadEvent) (text string, open bool) {
	switch {
	case e.State == deadletter.Retried && e.Group != "":
		return "a retry has sent the message back. If it failed again, it has another token", false
	case e.Group != "" && e.State == deadletter.Open:
		return "the group has not handled the message", true
	case e.State == deadletter.Retried:
		return "a retry has delivered the event", false
	case e.State == deadletter.Released:
		return "the relay has delivered the event after a retry", false
	case e.State == deadletter.Dropped:
		return "a person has given the event up: " + OneLine(e.Why), false
	case e.Dropping:
		return "a drop has asked the relay to give the event up, which the running relay does: " + OneLine(e.Why), false
	case e.Releasing:
		return "the running relay delivers the parked events of the key", false
	case e.Where == badevents.InParking:
		return "the event waits, and all later events of its key wait too", true
	}
	return "the event is not delivered", true
}

// Dead is all that is known of an event. value is its value, or its row.
func Dead(e *walpost.BadEvent, d *deadDetail, value []byte) string {
	var b strings.Builder
	line := func(name, text string) { fmt.Fprintf(&b, "%-10s %s\n", name, text) }
	line("token", e.Token)
	meaning, open := deadMeaning(e)
	line("state", stateWord(e)+": "+meaning)
	if open {
		line("to retry", "fix the cause, then run "+fault.Command("dead", "retry", e.Token))
		line("to drop", fault.Command("dead", "drop", "--reason REASON", e.Token))
	}
	place := "read from the table"
	if e.Commit != 0 {
		place = fmt.Sprintf("commit %s, row %d", e.Commit, e.Row)
	}
	if e.Group != "" {
		line("message", fmt.Sprintf("id %s, written at %s (offset %d)", dash(e.ID), e.CommitTime.Format(time.RFC3339Nano), e.Letter.Offset))
		line("group", e.Group)
	} else {
		line("event", fmt.Sprintf("id %s of %s, committed at %s (%s)", dash(e.ID), dash(e.Table), e.CommitTime.Format(time.RFC3339Nano), place))
		line("relay", dash(e.Letter.Relay()))
	}
	line("reason", fmt.Sprintf("%s: %s", e.Reason, OneLine(e.Error)))
	for _, s := range d.Letters {
		text := fmt.Sprintf("partition %d, offset %d: ", s.Partition, s.Offset)
		if s.Time == nil {
			text += fmt.Sprintf("attempt %d failed, %s: %s", s.Attempts, s.Reason, OneLine(s.Error))
			for frame := range strings.Lines(s.Stack) {
				text += "\n             " + OneLine(strings.Trim(frame, "\t\n"))
			}
		} else {
			what := s.What
			if state := deadletter.State(what); state == deadletter.Release || state == deadletter.Drop {
				what += " requested"
			}
			text += strings.TrimSuffix(fmt.Sprintf("%s at %s: %s", what, s.Time.Format(time.RFC3339), OneLine(s.Why)), ": ")
		}
		line("history", text)
	}
	topic := dash(e.Letter.Topic)
	if e.Partition >= 0 {
		topic += fmt.Sprintf(", partition %d", e.Partition)
	}
	line("topic", topic)
	line("key", keyText(&e.Letter))
	for _, h := range d.Headers {
		text := shown(nil)
		switch {
		case h.Value != nil:
			text = shown([]byte(*h.Value))
		case h.ValueB64 != nil:
			text = "(base64) " + *h.ValueB64
		}
		line("header", shown([]byte(h.Key))+": "+text)
	}
	name, text := "value", shown(value)
	if d.Form == deadletter.FormRow {
		name = "row"
	}
	if json.Valid(value) {
		text = string(value)
	}
	line(name, text)
	return b.String()
}

// A DeadRetry is what a retry did, for programs.
type DeadRetry struct {
	*walpost.RetryReport
	Parked *badevents.Requested `json:"parked"`
	Done   []BadEvent           `json:"not_open"` // tokens of events that need no retry
}

// Text says what a retry did.
func (r *DeadRetry) Text() string {
	var b strings.Builder
	for _, e := range r.Done {
		fmt.Fprintf(&b, "%s: nothing to do, the event is %s\n", e.Token, e.State)
	}
	fmt.Fprintf(&b, "dead events: %d\n", r.Events)
	for _, topic := range slices.Sorted(maps.Keys(r.Topics)) {
		fmt.Fprintf(&b, "for topic %s: %d\n", topic, r.Topics[topic])
	}
	refused := "refused again"
	if r.DryRun {
		refused = "a retry would refuse"
	} else if r.Events > 0 {
		fmt.Fprintf(&b, "delivered and marked: %d\n", r.Delivered)
	}
	if len(r.Refused) > 0 {
		fmt.Fprintf(&b, "%s: %d\n", refused, len(r.Refused))
	}
	for _, e := range r.Refused {
		fmt.Fprintf(&b, "  %s, event %s, attempt %d, %s: %s\n", e.Token, dash(e.EventID), e.Attempts, e.Reason, OneLine(e.Error))
	}
	if p := r.Parked; p != nil && p.Keys > 0 {
		fmt.Fprintf(&b, "parked keys: %d, events: %d\n", p.Keys, p.Events)
		parked(&b, p)
	}
	return b.String()
}

// parked prints what became of parked events that the relay was asked to release or to drop.
func parked(b *strings.Builder, p *badevents.Requested) {
	for _, line := range []struct {
		n    int
		text string
	}{
		{p.Released, "delivered by the relay: %d\n"},
		{p.Dropped, "dropped by the relay: %d\n"},
		{p.Closed, "delivered or dropped by the relay, which has deleted the records since: %d\n"},
		{p.Refused, "refused again: %d (walpost dead list says why)\n"},
		{p.Parked, "still parked: %d\n"},
		{p.Waiting, "waiting for the relay: %d\n"},
	} {
		if line.n > 0 {
			fmt.Fprintf(b, line.text, line.n)
		}
	}
}

// A DeadDrop is what a drop did, for programs.
type DeadDrop struct {
	Events int                  `json:"events"`
	Dead   int                  `json:"dropped_dead"`
	Parked *badevents.Requested `json:"parked"`
}

// Text says what a drop did.
func (d *DeadDrop) Text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "open events: %d\n", d.Events)
	p := d.Parked
	if p == nil || p.Events == 0 || d.Dead > 0 {
		fmt.Fprintf(&b, "dropped: %d\n", d.Dead)
	}
	if p != nil && p.Events > 0 {
		fmt.Fprintf(&b, "parked events: %d\n", p.Events)
		parked(&b, p)
	}
	return b.String()
}
