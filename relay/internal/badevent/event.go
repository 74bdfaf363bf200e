// Package badevent has what becomes of an event that cannot be delivered: its error with the advice
// for a person, the policies, and its dead letter. It is pure.
package badevent

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/checkpoint"
	"github.com/walpost/walpost/internal/fault"
)

// An Event is an event that cannot be routed, or whose record the sink refused although the sink
// sent it alone. It halts the relay, unless the policy says otherwise.
type Event struct {
	fault.ForPerson // the event is the same at the next attempt

	EventID string        // "" if the event has none
	Table   *cdc.Relation // nil if it is not known
	Commit  cdc.Position  // position of its transaction's commit record; 0 for a row of the table
	Row     int           // its number in the transaction, or in the reading of the table, from 1
	Topic   string        // the topic that refused the record; "" if the event cannot be routed
	Token   string        // what walpost skip calls this event; "" if it cannot be skipped: a row of the table, or a claimed one
	Recover bool          // a recover reads the rows
	Letter  bool          // Topic is the dead letter topic, which refused the event's letter
	Because cdc.Reason    // "" if the sink cannot write at all
	Keyless bool          // the policy is to park the key, and the event has none, or is a row of the table
	Err     error         // of the router or the sink
}

func (e *Event) Error() string {
	step := "cannot be routed"
	if e.Topic != "" {
		step = "cannot be delivered to topic " + e.Topic
	}
	return fmt.Sprintf("%s %s: %s", checkpoint.Event(e.EventID, e.Table.String(), e.Commit, e.Row), step, e.Reason())
}

// Reason is the cause without the event, which the other fields name.
func (e *Event) Reason() string {
	var apart interface{ Reason() string }
	if errors.As(e.Err, &apart) {
		return apart.Reason()
	}
	return e.Err.Error()
}

// Unwrap returns the reason.
func (e *Event) Unwrap() error { return e.Err }

const again = "start walpost again (first stop the halted process, if it still runs)."

const fixCause = "Fix the cause (the configuration, the topic or its limit)."

// Hint says what to do next.
func (e *Event) Hint() string {
	hint := e.Repair()
	for _, skip := range e.Commands() {
		unchanged := " The skip changes nothing in the table."
		if e.ofMessages() {
			unchanged = ""
		}
		hint += " If no repair is possible, give up " + skip.GivesUp + "." + unchanged + " Run " + skip.Command + " and " + again
	}
	return hint
}

// Repair is the part of Hint that passes over no event.
func (e *Event) Repair() string {
	repair := cmp.Or(fault.Hint(e.Err), fixCause)
	if e.Keyless {
		repair = "The event is not parked, because walpost parks only events of the stream that have a known key. " + repair
	}
	if (e.Commit == 0 || e.Commit.IsNumber()) && e.Table != nil {
		start := "start walpost"
		if e.Recover {
			start = "run " + fault.Command("recover")
		}
		return repair + " Or update or delete the row. Then " + start + " again: walpost reads the row from the table again."
	}
	if e.ofMessages() {
		return repair + " The WAL keeps the message as it was written. After the repair, " + again
	}
	return repair + " An UPDATE or DELETE of the row changes nothing, because the WAL keeps the row as it was written. After the repair, " + again
}

// ofMessages reports whether the event is a message.
func (e *Event) ofMessages() bool { return e.Table != nil && e.Table.OfMessages() }

// Commands are those of Hint.
func (e *Event) Commands() []fault.Advice {
	if e.Token == "" {
		return nil
	}
	if e.Letter {
		return []fault.Advice{{Command: fault.Command("skip --discard --reason \"the dead letter was refused\"", e.Token), GivesUp: "exactly this event, which is then written nowhere"}}
	}
	return []fault.Advice{{Command: fault.Command("skip", e.Token), GivesUp: "the delivery of exactly this event, which then goes to the dead letter topic"}}
}

// KeyFound reports whether the router found the key of an event that it refused.
func (e *Event) KeyFound() bool {
	var keyed interface{ KeyFound() bool }
	return errors.As(e.Err, &keyed) && keyed.KeyFound()
}

// Unroutable returns the error for an event that the router refused. commit is 0 for a row of the
// table.
func Unroutable(ev *cdc.Event, id string, commit cdc.Position, row int, err error) *Event {
	return &Event{EventID: id, Table: ev.Relation(), Commit: commit, Row: row, Because: cmp.Or(Because(err), cdc.Unroutable), Err: err}
}

// Refused returns the error for a record that the sink refused.
func Refused(a *cdc.Ack) *Event {
	t := &a.Ticket
	return &Event{EventID: a.EventID, Table: t.Table, Commit: t.Commit, Row: int(t.Row), Topic: a.Topic, Because: Because(a.Err), Err: a.Err}
}

// Because returns the reason that an error of the router or the sink gives, and "" if it gives none.
func Because(err error) cdc.Reason {
	if says, ok := errors.AsType[interface {
		error
		BadBecause() cdc.Reason
	}](err); ok {
		return says.BadBecause()
	}
	return ""
}
