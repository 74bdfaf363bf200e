package checkpoint

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"strings"
	"time"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/fault"
)

// A Reason is why a record does not fit the source that was found.
type Reason string

// The reasons, in the order in which they are looked for.
const (
	OtherSystem    Reason = "other_system"    // another system identifier
	OtherDatabase  Reason = "other_database"  // the record is of another database of this server
	OtherSlot      Reason = "other_slot"      // the record is of another slot
	TimelineBack   Reason = "timeline_back"   // a lower timeline: an old primary, or an old copy
	TimelineForked Reason = "timeline_forked" // a higher one that does not continue the record's timeline up to the record
	ServerBehind   Reason = "server_behind"   // the server has not reached the record's position, after a restore
	TableReplaced  Reason = "table_replaced"  // another table is polled than the one of the record, maybe under its name
	OtherSource    Reason = "other_source"    // the record is of another kind of source, or of another strategy of polling
	SlotMissing    Reason = "slot_missing"
	SlotLost       Reason = "slot_lost"
	SlotAhead      Reason = "slot_ahead"   // the slot was advanced or made again, or somebody else uses it
	OtherTables    Reason = "other_tables" // the record has none of the configured tables, so it can be another relay's
	// OtherPublication: another publication is configured, and the slot may still give what was
	// written before its last change.
	OtherPublication Reason = "other_publication"
	// PublicationChanged: the publication, or the place of a table in it, was altered, or was
	// removed and put back.
	PublicationChanged Reason = "publication_changed"
)

// A Refusal says why going on would silently leave something out. Then only a person can decide.
// The person accepts the gap by its token. The same gap has the same token at every start, and no
// other gap has it. Once a gap is accepted, a record of the next epoch must be written, which uses
// the token up.
type Refusal struct {
	fault.ForPerson // only a person can say whether what is missing may be missing

	Reason Reason
	// From and To are where events may be missing. Everything before From is delivered, or the slot
	// still gives it. To is 0 if the end of the missing part is not known, or if the positions
	// belong to two histories.
	From, To cdc.Position
	// Since is a commit time before which no event is missing; zero if that is not known.
	Since time.Time
	// Changes are how what is published differs from what is remembered. The gap covers them,
	// whatever the Reason is.
	Changes []Change
	Record  *Record // what is remembered; nil for nothing
	Found   cdc.Identity
	Token   string
}

func refuse(reason Reason, rec *Record, found cdc.Identity) *Refusal {
	r := &Refusal{Reason: reason, Found: found}
	slot := &r.Found.SlotFound
	if rec == nil {
		r.From = slot.Confirmed // it survives an invalidation
	} else {
		c := *rec
		r.Record, r.From, r.Since = &c, rec.Start(&found), rec.CommitTime
	}
	// comparable says that the positions found belong to the record's history, or to one that
	// continues it from From on.
	comparable := false
	if r.Polls() { // the positions are not those of a WAL
		r.Token = r.token()
		return r
	}
	switch reason {
	case TimelineForked:
		// Beyond the fork, other events have the positions of delivered events.
		end, ok := fork(&found, rec.Timeline)
		if ok {
			r.From = min(r.From, end.Position())
		}
		comparable = ok
	case ServerBehind:
		r.From = min(r.From, found.Server.Position())
	case OtherSlot:
		comparable = found.Timeline == rec.Timeline
	case SlotAhead:
		comparable = true
	case OtherSystem, OtherDatabase, OtherSource, TableReplaced, TimelineBack, SlotMissing, SlotLost, OtherTables, OtherPublication, PublicationChanged:
	}
	if r.Changes = changes(reason, rec, &found); len(r.Changes) > 0 {
		r.widen(rec.Published)
	}
	if comparable && !r.NeedsSlot() && slot.Confirmed > r.From {
		r.To = slot.Confirmed
	}
	r.Token = r.token()
	return r
}

// changes are the changes of the publication, if its rows can be compared at all.
func changes(reason Reason, rec *Record, found *cdc.Identity) []Change {
	if rec == nil || rec.Published == nil || reason == OtherSystem || reason == OtherDatabase {
		return nil
	}
	return rec.Published.changes(&found.Published)
}

// widen includes in the gap the time since the last look that found the publication unchanged. The
// record may have moved since then, past rows that the slot left out.
func (r *Refusal) widen(was *Published) {
	from := was.LSN
	if end, ok := fork(&r.Found, r.Record.Timeline); ok {
		from = min(from, end)
	}
	if r.Reason == PublicationChanged {
		r.From, r.Since = from.Position(), was.Time
		return
	}
	r.From = min(r.From, from.Position())
	if r.Since.After(was.Time) {
		r.Since = was.Time
	}
}

// token digests what identifies the gap, and nothing that moves while the gap stays the same, such
// as the server's position.
func (r *Refusal) token() string {
	h := sha256.New()
	f := &r.Found
	switch rec := r.Record; {
	case r.Reason == TableReplaced: // the position moves as below
		fmt.Fprintf(h, "%s\n%q %q %v %v\n", r.Reason, rec.Name, rec.SystemID, *rec.Polled, *f.Polled)
	case r.KeepsPosition():
		// The position and the epoch move while this gap stays, because a running relay that finds
		// it writes a last checkpoint.
		fmt.Fprintf(h, "%s\n%q %q %q %q %q %q\n", r.Reason, rec.Name, rec.SystemID, rec.Database, rec.Slot, rec.Published.Publication, f.Published.Publication)
	default:
		var end cdc.LSN
		var forked bool
		if rec != nil {
			fmt.Fprintf(h, "%q %d %s %s %q %d %q %q\n", rec.Name, rec.Epoch, rec.Position, rec.reach(),
				rec.SystemID, rec.Timeline, rec.Database, rec.slotOrStrategy())
			if c := rec.Copy; c != nil {
				fmt.Fprintf(h, "%s %d\n", c.Origin, c.Rows)
			}
			end, forked = fork(f, rec.Timeline)
		}
		_, name := f.Reader()
		fmt.Fprintf(h, "%s\n%q %d %q %q %v %s\n", r.Reason, f.SystemID, f.Timeline, f.Database, name, forked, end)
		fmt.Fprintf(h, "%v %s %v %q\n", f.SlotFound.Exists, f.SlotFound.Confirmed, lost(&f.SlotFound), f.SlotFound.Invalidation)
	}
	if r.Reason == OtherTables {
		fmt.Fprintf(h, "%v %v\n", r.Record.Published.Tables, f.Published.Tables)
	}
	for i := range r.Changes {
		r.Changes[i].digest(h)
	}
	return fmt.Sprintf("%x", h.Sum(nil)[:6])
}

// NeedsSlot reports whether going on takes a new slot, because the one that was found is missing or
// lost.
func (r *Refusal) NeedsSlot() bool {
	return !r.KeepsPosition() && (!r.Found.SlotFound.Exists || lost(&r.Found.SlotFound))
}

// KeepsPosition reports whether the slot is good and still gives everything behind the record, or
// another table is polled on the server of the record. Then going on starts at the record.
func (r *Refusal) KeepsPosition() bool {
	return r.Reason == TableReplaced || r.Reason == PublicationChanged || r.Reason == OtherPublication || r.Reason == OtherTables
}

// Complete reports whether the slot still gives everything that this server has behind what is delivered, so that only the consumers have too
// much: events of a history that was given up. Then going on starts where the histories part.
func (r *Refusal) Complete() bool {
	if r.Reason != TimelineForked || r.Polls() || r.NeedsSlot() || len(r.Changes) > 0 || r.Record.Copy != nil {
		return false
	}
	end, ok := fork(&r.Found, r.Record.Timeline)
	return ok && r.From == min(r.Record.Position, end.Position()) && r.Found.SlotFound.Confirmed <= r.From
}

// KeepsSlot reports whether a recover publishes what is missing and then goes on with the slot that
// exists.
func (r *Refusal) KeepsSlot() bool {
	return r.Reason == PublicationChanged
}

// AcceptedStart is where to start once a person has accepted the gap of ref by its token: where the
// slot stands, or at the record (KeepsPosition). found is what the session to be started says. It
// must be the same as in ref, except for the new slot if ref needs one. Otherwise it is not the
// accepted gap, and AcceptedStart returns an error: the caller judges again.
//
// The record that is written then has no Next, unless the position is kept. A transaction that was
// delivered in part is part of the gap.
func AcceptedStart(ref *Refusal, found cdc.Identity) (start cdc.Position, err error) {
	now := *ref
	now.Found = found
	if ref.NeedsSlot() {
		slot := &found.SlotFound
		if !slot.Created || lost(slot) {
			return 0, fmt.Errorf("slot %q is not the new slot that the accepted gap %s needs", found.Slot, ref.Token)
		}
		now.Found.SlotFound = ref.Found.SlotFound
	}
	if !ref.NeedsSlot() {
		now.Changes = changes(ref.Reason, ref.Record, &found)
	}
	if now.token() != ref.Token {
		return 0, fmt.Errorf("the server, the slot or the checkpoint has changed since walpost refused gap %s", ref.Token)
	}
	if ref.KeepsPosition() {
		return ref.Record.Start(&found), nil
	}
	if ref.Complete() {
		return ref.From, nil
	}
	return found.SlotFound.Confirmed, nil
}

// Error says in one sentence what was found and which events may be missing.
func (r *Refusal) Error() string {
	text := r.found() + ": " + r.gap()
	if r.Record != nil && r.Record.Copy != nil {
		text += fmt.Sprintf("; the %s is not finished: %d rows of the table are published", r.Record.Copy.Origin, r.Record.Copy.Rows)
	}
	return text
}

func (r *Refusal) found() string {
	f, rec := &r.Found, r.Record
	if rec == nil {
		return fmt.Sprintf("slot %q is lost (%s), and no checkpoint belongs to it", f.Slot, why(&f.SlotFound))
	}
	key := fmt.Sprintf("checkpoint %s at %s", rec.Key(), rec.Position)
	if rec.Polled != nil && rec.WAL != 0 {
		key = fmt.Sprintf("checkpoint %s at %s", rec.Key(), rec.WAL)
	}
	switch r.Reason {
	case OtherSource:
		was, is := r.Sources()
		return fmt.Sprintf("the source is %s, but checkpoint %s was written for %s", is, rec.Key(), was)
	case TableReplaced:
		was, is := rec.Polled, f.Polled
		return fmt.Sprintf("table %s is a different table (OID %d of database OID %d) from %s (OID %d of database OID %d), which %s was written for",
			is.Table, is.OID, is.Database, was.Table, was.OID, was.Database, key)
	case OtherSystem:
		return fmt.Sprintf("the server has the system identifier %s, but %s was written for %s, another server", f.SystemID, key, rec.SystemID)
	case OtherDatabase:
		return fmt.Sprintf("the database is %q, but %s was written for %q", f.Database, key, rec.Database)
	case OtherSlot:
		return fmt.Sprintf("the slot is %q, but %s was written for %q", f.Slot, key, rec.Slot)
	case TimelineBack:
		return fmt.Sprintf("the server is on timeline %d, but %s is on timeline %d: this is an old primary or an old copy",
			f.Timeline, key, rec.Timeline)
	case TimelineForked:
		end, ok := fork(f, rec.Timeline)
		if !ok {
			return fmt.Sprintf("the server is on timeline %d, which does not continue timeline %d of %s", f.Timeline, rec.Timeline, key)
		}
		return fmt.Sprintf("the server's history left timeline %d at %s, but %s has delivered events of this timeline up to %s",
			rec.Timeline, end, key, rec.delivered())
	case ServerBehind:
		return fmt.Sprintf("the server's WAL ends at %s, but %s has delivered events up to %s: the server was restored from an earlier copy",
			f.Server, key, rec.reach())
	case SlotMissing:
		return fmt.Sprintf("slot %q does not exist, but %s was written for this slot", f.Slot, key)
	case SlotLost:
		return fmt.Sprintf("slot %q is lost (%s), and %s was written for this slot", f.Slot, why(&f.SlotFound), key)
	case SlotAhead:
		return fmt.Sprintf("slot %q stands at %s, beyond %s: it was advanced, created again or used by another reader",
			f.Slot, f.SlotFound.Confirmed, key)
	case OtherTables:
		return fmt.Sprintf("source.table is %s, but %s was written for %s, so the slot may still hold rows of %[3]s",
			names(f.Published.Tables), key, names(rec.Published.Tables))
	case OtherPublication:
		return fmt.Sprintf("source.publication is %q, but %s was written with publication %q: the slot may still hold rows that were written before publication %q had its current form",
			f.Published.Publication, key, rec.Published.Publication, f.Published.Publication)
	case PublicationChanged:
		what := make([]string, len(r.Changes))
		for i := range r.Changes {
			what[i] = r.Changes[i].String()
		}
		return strings.Join(what, ", ") + " (after checkpoint " + rec.Key() + ")"
	}
	return string(r.Reason)
}

func why(slot *cdc.SlotState) string { return cmp.Or(slot.Invalidation, slot.WALStatus) }

func (r *Refusal) gap() string {
	switch {
	case r.Reason == OtherSource && r.OtherStrategy():
		return "the position of one source has no meaning for the other source"
	case r.Reason == TableReplaced && r.Claims():
		return "rows of the former table may be missing"
	case r.Reason == TableReplaced:
		return "rows of the former table, and rows of this table that were written before this checkpoint, may be missing"
	case r.Claims():
		return "the table may lack what walpost noted in it after this checkpoint, so rows may be delivered twice"
	case r.Polls():
		return "events that were committed after this checkpoint may be missing"
	case r.Complete():
		return fmt.Sprintf("no event of this server is missing, because the slot still has everything after %s, but consumers have events that this server lacks", r.Found.SlotFound.Confirmed)
	case r.To != 0:
		return fmt.Sprintf("events from %s to %s may be missing", r.From, r.To)
	case r.Reason == OtherTables:
		return fmt.Sprintf("walpost would skip those that were committed after %s", r.From)
	case r.KeepsPosition():
		return fmt.Sprintf("rows that were committed after %s may be missing", r.From)
	case r.Reason == SlotMissing || r.Reason == SlotLost:
		return fmt.Sprintf("events from %s to the start of a new slot may be missing", r.From)
	default:
		return fmt.Sprintf("events from %s onwards may be missing, and the end of the gap is unknown", r.From)
	}
}

// Claims reports whether workers claim the rows. Then the table says what is not delivered, and no row is
// left out, whatever the server has lost.
func (r *Refusal) Claims() bool { return r.Found.Polled != nil && r.Found.Polled.Claims }

// Polls reports whether one of the two sources polls.
func (r *Refusal) Polls() bool {
	return r.Found.Polled != nil || r.Record != nil && r.Record.Polled != nil
}

// Recoverable reports whether a recover can close the gap with a new beginning: the slot is gone, or the
// relay has changed from a slot to polling, or back, or polls by another column.
func (r *Refusal) Recoverable() bool {
	switch r.Reason {
	case SlotLost, SlotMissing:
		return true
	case OtherSource:
		return !r.OtherStrategy()
	case OtherSystem, OtherDatabase, OtherSlot, TimelineBack, TimelineForked, ServerBehind, TableReplaced, SlotAhead, OtherTables, OtherPublication, PublicationChanged:
	}
	return false
}

// OtherStrategy reports whether a relay that polls has another strategy than before.
func (r *Refusal) OtherStrategy() bool {
	return r.Record != nil && r.Record.Polled != nil && r.Found.Polled != nil && r.Record.Polled.Strategy != r.Found.Polled.Strategy
}

// ChangesSource reports whether the configuration names another source than the record.
func (r *Refusal) ChangesSource() bool { return r.Record != nil && !r.Record.sameKind(&r.Found) }

// Sources names what the record was written for, and what was found.
func (r *Refusal) Sources() (was, found string) {
	return sourceName(r.Record.Polled, r.Record.Slot), sourceName(r.Found.Polled, r.Found.Slot)
}
