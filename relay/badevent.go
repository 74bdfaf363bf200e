package relay

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/checkpoint"
	"github.com/walpost/walpost/internal/fault"
)

// A BadEvent is an event that cannot be routed, or whose record the sink refused although the sink
// sent it alone. It halts the relay.
type BadEvent struct {
	fault.ForPerson // the event is the same at the next attempt

	EventID string        // "" if the event has none
	Table   *cdc.Relation // nil for a message
	Commit  cdc.Position  // position of its transaction's commit record; 0 for a row of the table
	Row     int           // its number in the transaction, or in the reading of the table, from 1
	Topic   string        // the topic that refused the record; "" if the event cannot be routed
	Token   string        // what walpost skip calls this event; "" for a row of the table
	Err     error         // of the router or the sink
}

func (e *BadEvent) Error() string {
	step := "cannot be routed"
	if e.Topic != "" {
		step = "cannot be delivered to topic " + e.Topic
	}
	return fmt.Sprintf("%s %s: %s", checkpoint.Event(e.EventID, e.Table.String(), e.Commit, e.Row), step, e.Reason())
}

// Reason is the cause without the event, which the other fields name.
func (e *BadEvent) Reason() string {
	var apart interface{ Reason() string }
	if errors.As(e.Err, &apart) {
		return apart.Reason()
	}
	return e.Err.Error()
}

// Unwrap returns the reason.
func (e *BadEvent) Unwrap() error { return e.Err }

const again = "start walpost again (first stop the halted process, if it still runs)."

const repairCause = "Repair the cause (the configuration, the topic or its limit)."

// Hint says what to do next.
func (e *BadEvent) Hint() string {
	hint := e.Repair()
	for _, skip := range e.Commands() {
		hint += " If no repair is possible, give up " + skip.GivesUp + ". The skip changes nothing in the table. Run " + skip.Command + " and " + again
	}
	return hint
}

// Repair is the part of Hint that gives up no event.
func (e *BadEvent) Repair() string {
	repair := cmp.Or(fault.Hint(e.Err), repairCause)
	if e.Commit == 0 && e.Table != nil {
		return repair + " Or update or delete the row. Then start walpost again: walpost reads the row from the table once more."
	}
	return repair + " An UPDATE or DELETE of the row changes nothing, because the WAL keeps the row as it was written. After the repair, " + again
}

// Commands are those of Hint.
func (e *BadEvent) Commands() []fault.Advice {
	if e.Token == "" {
		return nil
	}
	return []fault.Advice{{Command: fault.Command("skip", e.Token), GivesUp: "exactly this event, which then never reaches Kafka"}}
}

// unroutable returns the error for an event that the router refused. commit is 0 for a row of the
// table.
func (l *loop) unroutable(ev *cdc.Event, commit cdc.Position, row int, err error) *BadEvent {
	return l.token(&BadEvent{EventID: l.rec.EventID, Table: relationOf(ev), Commit: commit, Row: row, Err: err})
}

// refusedBySink returns the error for a record that the sink refused.
func (l *loop) refusedBySink(a *cdc.Ack) *BadEvent {
	t := &a.Ticket
	return l.token(&BadEvent{EventID: a.EventID, Table: t.Table, Commit: t.Commit, Row: int(t.Row), Topic: a.Topic, Err: a.Err})
}

// token gives a bad event of the stream its token and has the checkpoint store remember the event.
func (l *loop) token(bad *BadEvent) *BadEvent {
	if bad.Commit == 0 {
		return bad
	}
	h := l.haltOf(bad.Commit, bad.Row, bad.Table, bad.EventID)
	h.Topic, h.Error, h.Time = bad.Topic, bad.Reason(), time.Now()
	bad.Token = h.Token
	l.checkpointer.halts = append(l.checkpointer.halts, h)
	return bad
}

// haltOf names an event of the stream. Its timeline is the one that the event was written on, so a
// failover changes no token.
func (l *loop) haltOf(commit cdc.Position, row int, table *cdc.Relation, id string) *checkpoint.Halt {
	timeline := l.found.Timeline
	for _, left := range l.found.History {
		if commit < left.End {
			timeline = min(timeline, left.Timeline)
		}
	}
	h := &checkpoint.Halt{
		Name: l.cfg.Name, SystemID: l.found.SystemID, Timeline: timeline, Database: l.found.Database, Slot: l.found.Slot,
		Commit: commit, Row: row, Table: table.String(), EventID: id,
	}
	h.Token = h.NewToken()
	return h
}

func relationOf(ev *cdc.Event) *cdc.Relation {
	if ev.Row.Relation != nil {
		return ev.Row.Relation
	}
	return ev.Old.Relation
}

// A Waiting is a topic with events that were sent and are not delivered.
type Waiting struct {
	Topic  string `json:"topic"`
	Events int    `json:"events"`
	Why    string `json:"why"` // "" if it is not known
	// Closed says that the events are behind a refused one in the topic. They are not delivered
	// before the next start.
	Closed bool `json:"closed"`
}

// waiting asks the sink what is not delivered. The topic with the most events comes first. open is
// how many events can still be delivered.
func (l *loop) waiting() (all []Waiting, open int) {
	l.sink.Pending(func(topic string, records int, why error, closed bool) {
		w := Waiting{Topic: topic, Events: records, Closed: closed}
		if why != nil {
			w.Why = why.Error()
		}
		if !closed {
			open += records
		}
		all = append(all, w)
	})
	slices.SortFunc(all, func(a, b Waiting) int {
		return cmp.Or(b.Events-a.Events, strings.Compare(a.Topic, b.Topic))
	})
	return all, open
}

// waitingTopics is how many topics describeWaiting names.
const waitingTopics = 3

// describeWaiting says how many events wait for which topic. It is "" if none do.
func describeWaiting(all []Waiting) string {
	var open, closed []string
	for _, w := range all {
		switch {
		case w.Closed:
			closed = append(closed, fmt.Sprintf("%d behind the refused event in topic %s", w.Events, w.Topic))
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
		text += "; events that come again at the next start: " + listed(closed)
	}
	return text
}

func listed(parts []string) string {
	if more := len(parts) - waitingTopics; more > 0 {
		return strings.Join(parts[:waitingTopics], ", ") + fmt.Sprintf(", and %d more topics", more)
	}
	return strings.Join(parts, ", ")
}
