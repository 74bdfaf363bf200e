package badevent

import (
	"cmp"
	"errors"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/checkpoint"
	"github.com/walpost/walpost/internal/deadletter"
)

// Names gives events the names that halts, skips and letters know them by.
type Names struct {
	Relay   string
	Version string       // of walpost
	Found   cdc.Identity // of the newest session
}

// Halt names an event of the stream. Its timeline is the one that the event was written on, so a
// failover changes no token.
func (n *Names) Halt(commit cdc.Position, row int, table *cdc.Relation, id string) *checkpoint.Halt {
	h := &checkpoint.Halt{
		Name: n.Relay, SystemID: n.Found.SystemID, Timeline: n.Timeline(commit), Database: n.Found.Database, Slot: n.Found.Slot,
		Commit: commit, Row: row, Table: table.String(), EventID: id,
	}
	h.Token = h.NewToken()
	return h
}

// Readable reports whether the source can read the event of h again. It cannot if h is of another server, of a part of its
// history that the server does not have, or of another slot, or if only one of the two sources polls.
func (n *Names) Readable(h *checkpoint.Halt) bool {
	return h.SystemID == n.Found.SystemID && h.Timeline == n.Timeline(h.Commit) && h.Database == n.Found.Database && h.Slot == n.Found.Slot
}

// Timeline is the timeline that pos was written on. The numbers of a source that polls go on over a
// promotion, so the timeline of a number is the oldest one, whatever is promoted.
func (n *Names) Timeline(pos cdc.Position) uint32 {
	timeline := n.Found.Timeline
	for _, left := range n.Found.History {
		if pos.IsNumber() || pos < left.End.Position() {
			timeline = min(timeline, left.Timeline)
		}
	}
	return timeline
}

// token is the name of a bad event in its letter. content makes the name of a row of the table, which
// has no place in the stream.
func (n *Names) token(bad *Event, content ...[]byte) string {
	if bad.Token != "" {
		return bad.Token
	}
	return checkpoint.RowToken(n.Relay, n.Found.Database, bad.Table.String(), bad.EventID, content...)
}

// RowLetter returns the letter of a row that has no record. rec is the record as far as the router
// made it.
func (n *Names) RowLetter(bad *Event, ev *cdc.Event, rec *cdc.Record) *deadletter.Letter {
	content := make([][]byte, len(ev.Row.Values))
	for i := range content {
		content[i] = ev.Row.Values[i].Bytes
	}
	letter := n.letter(bad, rec, content...)
	letter.Event = ev
	letter.KeyKnown = bad.KeyFound()
	return letter
}

// RecordLetter returns the letter of an event that has the record rec.
func (n *Names) RecordLetter(bad *Event, rec *cdc.Record) *deadletter.Letter {
	letter := n.letter(bad, rec, rec.Key, rec.Value)
	letter.Record, letter.KeyKnown = rec, true
	return letter
}

func (n *Names) letter(bad *Event, rec *cdc.Record, content ...[]byte) *deadletter.Letter {
	letter := &deadletter.Letter{
		Token: n.token(bad, content...), Reason: bad.Because, Error: bad.Reason(), Table: bad.Table.String(), ID: bad.EventID, Commit: bad.Commit,
		CommitTime: rec.Committed, Topic: rec.Topic, Partition: rec.Partition, Attempts: 1, Version: n.Version, Key: rec.Key,
		Name: n.Relay, Database: n.Found.Database,
	}
	if bad.Commit != 0 {
		letter.Row = bad.Row
	}
	return letter
}

// Skipped returns the error of an event that a person asked to pass over. err is what the router said
// of it now, nil if it has a record.
func Skipped(ev *cdc.Event, id string, asked *checkpoint.Halt, err error) *Event {
	return &Event{
		EventID: id, Table: ev.Relation(), Commit: asked.Commit, Row: asked.Row, Topic: asked.Topic, Token: asked.Token,
		Because: cmp.Or(Because(err), asked.Reason, cdc.Unroutable), Err: cmp.Or(err, errors.New(asked.Error)),
	}
}
