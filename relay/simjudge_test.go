package relay

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/checkpoint"
	"github.com/walpost/walpost/internal/deadletter"
)

// slotMade notes where the stream begins from now on. What no stream has and no table has any more may be missing.
func (w *world) slotMade() {
	if gap := w.accepted; gap != nil {
		for _, r := range w.byID {
			if r.tx.end > gap.From && r.tx.end <= w.pos {
				r.excused = true
			}
		}
		w.accepted, w.unwritten = nil, w.pos
	}
	w.made = w.pos
	w.forgive()
}

// forgive excuses the rows that were deleted before anything could read them: they are in no table, and in no stream.
func (w *world) forgive() {
	for _, r := range w.byID {
		if r.deleted != 0 && w.count[r.id] == 0 && (!w.usable() || r.tx.end <= w.made) {
			r.excused = true
		}
	}
}

// judgeSent holds what a process hands to the sink against the record with which it took the slot: that says what was delivered, and
// nothing of it may be sent again. And what it sends of one key must be contiguous.
func (w *world) judgeSent(p *proc, rec *cdc.Record) {
	r := w.byID[rec.EventID]
	if !w.tabled || r == nil || p.dead { // in the other worlds a source may lie, or a record be of somebody else's making
		return
	}
	var letter *deadletter.Letter
	if rec.Topic == deadTopic {
		letter = w.letterIn(rec)
	}
	fromTable := letter != nil && letter.Commit == 0 || slices.ContainsFunc(rec.Headers, func(h cdc.Header) bool { return h.Key == OriginHeader })
	if taken := p.taken; taken != nil && w.covers(taken, r, fromTable) {
		w.fail("%s (key %s, table %q, committed at %s) was sent again (from the table: %v) by process %d, and the record with which it took the slot says that it was delivered: %s at %s, next %+v, copy %+v",
			r.id, r.key, r.table, r.tx.end, fromTable, w.number(p), taken.Key(), taken.Position, taken.Next, taken.Copy)
	}
	if letter != nil {
		return
	}
	if p.last == nil {
		p.last = map[string]int{}
	}
	if last, ok := p.last[r.key]; ok && r.index > last {
		for _, between := range w.byKey[r.key][last+1 : r.index] {
			if !w.done(between) && !w.mayLag(between) {
				w.fail("key %s: a process sent record %d (%s) behind record %d, and %s between them has not arrived", r.key, r.index, r.id, last, between.id)
				break
			}
		}
	}
	p.last[r.key] = r.index
}

// covers says whether rec says that r is delivered.
func (w *world) covers(rec *checkpoint.Record, r *row, fromTable bool) bool {
	c := rec.Copy
	if fromTable {
		if c == nil || !c.Slot {
			return c == nil && r.tx.end <= rec.Position
		}
		if slices.Contains(c.Finished, r.table) {
			return true
		}
		sees, _ := strconv.Atoi(c.At.Visible) //nolint:errcheck // "" sees nothing
		upTo, err := strconv.Atoi(c.At.Key)
		return err == nil && c.At.Table == r.table && r.n <= upTo && max(r.tx.end, r.changed) <= cdc.Position(sees)
	}
	if c != nil && !c.Slot {
		return false
	}
	if n := rec.Next; n != nil && r.tx.begin == n.Commit {
		records := 0
		for _, other := range r.tx.rows {
			if other == r {
				return records < n.Rows
			}
			if other.routed {
				records++
			}
		}
	}
	return r.tx.end <= rec.Position
}

// judgeWriter sees to it that one process writes under one key. A record of a slot that is still to be made is no holder's.
func (w *world) judgeWriter(p *proc, key string, value []byte) {
	if strings.Count(key, "/") > 1 { // a halt
		return
	}
	rec, err := checkpoint.Decode(key, value)
	if err != nil || rec.Copy != nil && !rec.Copy.Slot {
		return // judgeRecord says what is wrong with it
	}
	if *seed0 != 0 {
		w.tell("process %d writes %s at %s, next %+v, copy %+v", w.number(p), key, rec.Position, rec.Next, rec.Copy)
	}
	switch other := w.writers[key]; {
	case other == nil:
		w.writers[key], p.taken = p, rec
		p.last, p.sentLast = nil, nil
	case other != p:
		w.fail("two processes write %s", key)
	}
	if old := w.records[key]; old != nil {
		if before, err := checkpoint.Decode(key, old); err == nil && before.Position > rec.Position {
			w.fail("record %s went back from %s to %s", key, before.Position, rec.Position)
		}
	}
}

// judgeTables holds what a record says of a copy against what has arrived.
func (w *world) judgeTables(rec *checkpoint.Record) {
	if !rec.Copy.Slot || rec.Position != w.made {
		return // the slot is still to be made, or was lost since
	}
	for _, r := range w.byID {
		if r.tx.end <= w.made && r.routed && !w.done(r) && w.covers(rec, r, true) {
			w.fail("a record says that rows of %s are published, and %s (%d) has not arrived: %+v", r.table, r.id, r.n, rec.Copy)
		}
	}
}

// number is the place of a process in the report.
func (w *world) number(p *proc) int {
	return slices.IndexFunc(w.runs, func(r *run) bool { return r.proc == p })
}

const deadTopic = "dead"

var burying = Poison{Policies: Policies{DefaultPolicy: PolicyDeadLetter}, Topic: deadTopic, Version: "test"}

// letterIn reads a dead letter as a consumer does.
func (w *world) letterIn(rec *cdc.Record) *deadletter.Letter {
	stored := &kgo.Record{Key: rec.Key, Value: rec.Value}
	for _, h := range rec.Headers {
		stored.Headers = append(stored.Headers, kgo.RecordHeader{Key: h.Key, Value: h.Value})
	}
	letter, _, err := deadletter.Decode(stored)
	if err != nil || letter == nil {
		w.fail("a dead letter of event %s cannot be read: %v", rec.EventID, err)
	}
	return letter
}

// landLetter is the arrival of a dead letter. Only a bad event has one, and it says what the event was.
func (w *world) landLetter(rec *cdc.Record) {
	l := w.letterIn(rec)
	if l == nil {
		return
	}
	r := w.byID[l.ID]
	if r == nil || !w.bad[l.ID] && !w.skipped[l.ID] {
		w.fail("a dead letter of an event that is fine: %+v", l)
		return
	}
	if !strings.HasPrefix(l.Name, "shop") || l.Database != w.id.Database {
		w.fail("the dead letter of event %s is of relay %s", l.ID, l.Relay())
	}
	w.arrivals++
	if w.tx != nil && l.Commit == 0 {
		r.reread = true // perhaps by a recover
	}
	if w.dead[l.ID]++; w.dead[l.ID] > 1 && w.once(r) {
		w.fail("event %s has %d dead letters", l.ID, w.dead[l.ID])
	}
	at := l.ID
	if l.Commit == 0 {
		at += " from the table"
	}
	if was := w.tokens[at]; was != "" && was != l.Token && l.Commit != 0 {
		w.fail("event %s has the tokens %s and %s", at, was, l.Token)
	}
	w.tokens[at] = l.Token
	switch form := l.Form(); {
	case form == deadletter.FormRow && (l.Reason != cdc.Unroutable || string(l.Event.Row.Values[0].Bytes) != r.id || string(l.Event.Row.Values[1].Bytes) != r.key):
		w.fail("the letter of row %+v: %+v", r, l)
	case form == deadletter.FormRecord && (l.Reason != cdc.TooLarge && !w.skipped[l.ID] || l.Topic != r.key || string(l.Key) != r.key ||
		indexIn(l.Record.Value) != r.index || !l.Record.Time.Equal(r.tx.time.Truncate(time.Millisecond))):
		w.fail("the letter of the record of %+v: %+v", r, l)
	case l.Commit != 0 && l.Commit != r.tx.begin || l.Attempts != 1 || !l.CommitTime.Equal(r.tx.time) || l.Table != r.relation().String():
		w.fail("the letter of %+v: %+v", r, l)
	}
}
