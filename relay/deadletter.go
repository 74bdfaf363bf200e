package relay

import (
	"cmp"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/checkpoint"
	"github.com/walpost/walpost/internal/deadletter"
)

// The policies say what becomes of a bad event.
const (
	PolicyHalt       = "halt"        // the relay halts at the event
	PolicyDeadLetter = "dead_letter" // the event goes to the topic of dead letters, and the relay goes on
)

// Policies has the policy of each reason, and under "default" that of the other reasons. Without one
// the policy is to halt.
type Policies map[string]string

// DefaultPolicy is the key of the policy for all other reasons.
const DefaultPolicy = "default"

// UnmarshalText reads one word, which is the policy for every reason.
func (p *Policies) UnmarshalText(text []byte) error {
	*p = Policies{DefaultPolicy: string(text)}
	return nil
}

// Of returns the policy of a reason.
func (p Policies) Of(reason cdc.Reason) string {
	return cmp.Or(p[string(reason)], p[DefaultPolicy], PolicyHalt)
}

// Bury reports whether any bad event goes to the topic of dead letters.
func (p Policies) Bury() bool {
	return slices.Contains(slices.Collect(maps.Values(p)), PolicyDeadLetter)
}

// Poison says what becomes of bad events. The zero value halts at each.
type Poison struct {
	Policies Policies
	Topic    string // of dead letters
	Version  string // of walpost, for the letters
}

// buries reports whether a bad event goes to the topic of dead letters. A letter that is refused
// itself does not.
func (p *Poison) buries(reason cdc.Reason, topic string) bool {
	return reason != "" && topic != p.Topic && p.Policies.Of(reason) == PolicyDeadLetter
}

// A DeadLetter is an event that was sent to the topic of dead letters.
type DeadLetter struct {
	Token   string
	EventID string
	Table   string
	Reason  cdc.Reason
	Topic   string // the topic that the event was meant for, "" if it is not known
	Text    string // the error
	At      time.Time
}

// recentLetters is how many dead letters Status has.
const recentLetters = 10

// buryRow makes l.rec the dead letter of a row that has no record, and reports whether the policy
// asks for that. The letter counts as the record of the row.
func (l *loop) buryRow(bad *BadEvent, ev *cdc.Event) bool {
	if !l.cfg.Poison.buries(bad.Because, bad.Topic) {
		return false
	}
	return l.becomes(l.rowLetter(bad, ev), bad) == nil
}

// putAside makes l.rec the dead letter of an event that a person asked to pass over, whatever the
// policy. ok and err are what the router said of it.
func (l *loop) putAside(ev *cdc.Event, asked *checkpoint.Halt, ok bool, err error) error {
	bad := &BadEvent{
		EventID: l.rec.EventID, Table: relationOf(ev), Commit: asked.Commit, Row: asked.Row, Topic: asked.Topic, Token: asked.Token,
		Because: cmp.Or(because(err), asked.Reason, cdc.Unroutable), Err: cmp.Or(err, errors.New(asked.Error)),
	}
	if err != nil || !ok {
		return l.becomes(l.rowLetter(bad, ev), bad)
	}
	rec := l.rec
	letter := l.letter(bad, &rec)
	letter.Record, letter.KeyKnown = &rec, true
	return l.becomes(letter, bad)
}

// rowLetter is the letter of a row that has no record.
func (l *loop) rowLetter(bad *BadEvent, ev *cdc.Event) *deadletter.Letter {
	letter := l.letter(bad, &l.rec)
	letter.Event = ev
	var keyed interface{ KeyFound() bool }
	letter.KeyKnown = errors.As(bad.Err, &keyed) && keyed.KeyFound()
	if letter.Token == "" {
		values := ev.Row.Values
		content := make([][]byte, len(values))
		for i := range values {
			content[i] = values[i].Bytes
		}
		letter.Token = l.rowToken(bad, content...)
	}
	return letter
}

// becomes makes l.rec the letter. It returns bad if the letter cannot be written down.
func (l *loop) becomes(letter *deadletter.Letter, bad *BadEvent) error {
	rec, err := letter.Encode(l.cfg.Poison.Topic)
	if err != nil {
		bad.Err = errors.Join(bad.Err, err)
		return bad
	}
	l.rec = *rec
	l.note(letter)
	return nil
}

// buryRecord sends a dead letter in place of a record that the sink refused, if the policy asks for
// that, and lets the topic go on. The letter has the ticket of the record, so no position passes
// the event before the brokers have its letter.
func (l *loop) buryRecord(bad *BadEvent, a *cdc.Ack) bool {
	if a.Record == nil || !l.cfg.Poison.buries(bad.Because, bad.Topic) {
		return false
	}
	letter := l.letter(bad, a.Record)
	letter.Record, letter.KeyKnown = a.Record, true
	if letter.Token == "" {
		letter.Token = l.rowToken(bad, a.Record.Key, a.Record.Value)
	}
	rec, err := letter.Encode(l.cfg.Poison.Topic)
	if err != nil {
		bad.Err = errors.Join(bad.Err, err)
		return false
	}
	l.note(letter)
	l.sink.Send(rec, a.Ticket)
	l.sink.PassOver(a.Topic, nil)
	return true
}

// letter begins the letter of a bad event. rec is its record, as far as it could be made.
func (l *loop) letter(bad *BadEvent, rec *cdc.Record) *deadletter.Letter {
	letter := &deadletter.Letter{
		Token: bad.Token, Reason: bad.Because, Error: bad.Reason(), Table: bad.Table.String(), ID: bad.EventID, Commit: bad.Commit,
		CommitTime: rec.Committed, Topic: rec.Topic, Partition: rec.Partition, Attempts: 1, Version: l.cfg.Poison.Version, Key: rec.Key,
	}
	if bad.Commit != 0 {
		letter.Row = bad.Row
	}
	return letter
}

// rowToken names a row that was read from the table.
func (l *loop) rowToken(bad *BadEvent, content ...[]byte) string {
	return checkpoint.RowToken(l.cfg.Name, l.found.Database, bad.Table.String(), bad.EventID, content...)
}

// note counts a dead letter. The log has it within a moment: see sayBuried.
func (l *loop) note(letter *deadletter.Letter) {
	l.buried++
	l.st.DeadLetters = maps.Clone(l.st.DeadLetters) // Status has given the former map away
	if l.st.DeadLetters == nil {
		l.st.DeadLetters = map[cdc.Reason]uint64{}
	}
	l.st.DeadLetters[letter.Reason]++
	newest := DeadLetter{
		Token: letter.Token, EventID: strings.Clone(letter.ID), Table: letter.Table, Reason: letter.Reason, Topic: letter.Topic, Text: letter.Error, At: l.now,
	}
	before := l.st.NewestDead
	l.st.NewestDead = append([]DeadLetter{newest}, before[:min(len(before), recentLetters-1)]...)
}

// sayBuried logs dead letters: the first one at once, and later ones together.
func (l *loop) sayBuried(end bool) {
	was := l.toldBuried
	if l.buried == was.count || !end && l.now.Sub(was.at) < remarkEvery {
		return
	}
	last := &l.st.NewestDead[0]
	l.log.Error().Uint64("times", l.buried-was.count).Uint64("in_all", l.buried).Str("token", last.Token).Str("id", last.EventID).
		Str("table", last.Table).Str("reason", string(last.Reason)).Str("topic", last.Topic).Str("err", last.Text).
		Msg("an event cannot be delivered and goes to the topic of dead letters " + l.cfg.Poison.Topic)
	l.toldBuried = told{count: l.buried, at: l.now}
}

// passes reports whether err is of a topic that waits for PassOver. The loop calls it when it takes
// the acknowledgement of the refused record, so the topic does not stall.
func (l *loop) passes(err error) bool {
	r, ok := errors.AsType[*cdc.Refusal](err)
	return ok && l.cfg.Poison.buries(r.Reason, r.Topic)
}
