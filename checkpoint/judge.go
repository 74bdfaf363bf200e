package checkpoint

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"

	"github.com/walpost/walpost/cdc"
)

// ErrNoSlot says that there is neither a record nor a slot: nothing was ever delivered, so nothing can be missing, and the
// slot may be made. It is not a Refusal.
var ErrNoSlot = errors.New("the slot does not exist, and no checkpoint knows it")

// A Reason is why a record does not fit the source that was found.
type Reason string

// The reasons, in the order in which they are looked for.
const (
	OtherSystem    Reason = "other_system"    // another system identifier
	OtherDatabase  Reason = "other_database"  // the record is of another database of this server
	OtherSlot      Reason = "other_slot"      // the record is of another slot
	TimelineBack   Reason = "timeline_back"   // a lower timeline: an old primary, or an old copy
	TimelineForked Reason = "timeline_forked" // a higher one that left the record's timeline before the record, or never was on it
	ServerBehind   Reason = "server_behind"   // the server has not come to the record's position: restored from a copy
	SlotMissing    Reason = "slot_missing"
	SlotLost       Reason = "slot_lost"
	SlotAhead      Reason = "slot_ahead" // the slot was advanced or made again, or somebody else uses it
)

// A Refusal says why going on would leave something out silently. Only a person can decide then. It asks for a token that
// names this one gap; the same gap has the same token at every start, and no other gap has it.
type Refusal struct {
	Reason Reason
	// From and To are where events may be missing: committed after From, up to To. To is 0 where it can not be known,
	// because nothing says where the missing part ends or because the positions are of two histories.
	From, To cdc.Position
	Record   *Record // what is remembered; nil where nothing is
	Found    cdc.Identity
	Token    string
}

// Judge says where to start on the source that was found. It returns ErrNoSlot where a slot is to be made first, and a
// *Refusal where a start would leave events out, or give others than those that the record speaks of.
//
// rec is what is remembered, nil for nothing. Its LSN must be the position that the caller means to start from: one that
// has read further, and has the rest in flight, asks with a copy of the record that says so.
//
// What no judgement can see: a server that was restored from a copy, is on the same timeline as before, and has already
// written past the record again. A restore that goes through recovery takes a new timeline and is seen.
func Judge(rec *Record, found cdc.Identity) (start cdc.Position, err error) {
	if rec == nil {
		switch slot := &found.SlotFound; {
		case !slot.Exists:
			return 0, ErrNoSlot
		case lost(slot):
			return 0, refuse(SlotLost, rec, found)
		default:
			return slot.Confirmed, nil
		}
	}
	if reason := judge(rec, &found); reason != "" {
		return 0, refuse(reason, rec, found)
	}
	return rec.LSN, nil
}

func judge(rec *Record, found *cdc.Identity) Reason {
	switch {
	case found.SystemID != rec.SystemID:
		return OtherSystem
	case found.Database != rec.Database:
		return OtherDatabase
	case found.Slot != rec.Slot:
		return OtherSlot
	case found.Timeline < rec.Timeline:
		return TimelineBack
	}
	if found.Timeline > rec.Timeline {
		if end, ok := fork(found, rec.Timeline); !ok || end < rec.LSN {
			return TimelineForked
		}
	}
	switch slot := &found.SlotFound; {
	case found.Server < rec.LSN:
		// The server would accept a start in the future, and skip everything before it without a word.
		return ServerBehind
	case !slot.Exists:
		return SlotMissing
	case lost(slot):
		return SlotLost
	case slot.Confirmed > rec.LSN:
		// Ours never is: the checkpoint is durable before a position is confirmed. The server would start at the
		// slot's position, whatever it is asked for. A slot behind the record is fine: we were killed in between, or
		// the server was, which keeps a slot's position in memory for a while.
		return SlotAhead
	}
	return ""
}

// fork is where found's history left timeline.
func fork(found *cdc.Identity, timeline uint32) (cdc.Position, bool) {
	for _, f := range found.History {
		if f.Timeline == timeline {
			return f.End, true
		}
	}
	return 0, false
}

func lost(slot *cdc.SlotState) bool { return slot.Invalidation != "" || slot.WALStatus == "lost" }

func refuse(reason Reason, rec *Record, found cdc.Identity) *Refusal {
	ref := &Refusal{Reason: reason, Found: found}
	slot := &found.SlotFound
	if rec == nil {
		ref.From = slot.Confirmed
	} else {
		c := *rec
		ref.Record, ref.From = &c, rec.LSN
	}
	if reason == SlotAhead {
		ref.To = slot.Confirmed
	}
	ref.Token = ref.token()
	return ref
}

// token digests what names the gap, and nothing that moves while the gap stays the same, such as the server's position.
func (r *Refusal) token() string {
	h := sha256.New()
	f := &r.Found
	end, forked := cdc.Position(0), false
	if r.Record != nil {
		fmt.Fprintf(h, "%q %d %s %q %d %q %q\n", r.Record.Name, r.Record.Epoch, r.Record.LSN,
			r.Record.SystemID, r.Record.Timeline, r.Record.Database, r.Record.Slot)
		end, forked = fork(f, r.Record.Timeline)
	}
	fmt.Fprintf(h, "%s\n%q %d %q %q %v %s\n", r.Reason, f.SystemID, f.Timeline, f.Database, f.Slot, forked, end)
	fmt.Fprintf(h, "%v %s %q\n", f.SlotFound.Exists, f.SlotFound.Confirmed, f.SlotFound.Invalidation)
	return hex.EncodeToString(h.Sum(nil)[:6])
}

// NeedsSlot says that going on takes a new slot: the one that was found is missing or lost.
func (r *Refusal) NeedsSlot() bool { return !r.Found.SlotFound.Exists || lost(&r.Found.SlotFound) }

// AcceptedStart is where to start once a person has accepted the gap of ref by its token: at the position of the slot. found
// is what the session says that is to be started: the same as in ref or, where ref needs a slot, after that was
// made. Anything else is an error: it is not the gap that was accepted.
func AcceptedStart(ref *Refusal, found cdc.Identity) (cdc.Position, error) {
	now := *ref
	now.Found = found
	if ref.NeedsSlot() {
		if !found.SlotFound.Created || lost(&found.SlotFound) {
			return 0, fmt.Errorf("slot %q was to be made again for the gap that was accepted, and was not", found.Slot)
		}
		now.Found.SlotFound = ref.Found.SlotFound
	}
	if now.token() != ref.Token {
		return 0, fmt.Errorf("what was found has changed since the gap %s was accepted", ref.Token)
	}
	return found.SlotFound.Confirmed, nil
}

func (r *Refusal) Error() string { return string(r.Reason) }

// Hint says what to do next.
func (r *Refusal) Hint() string {
	return "To go on without these events: walpost run --accept-gap=" + r.Token
}

// NeedsPerson is true: only a person can say whether what is missing may be missing.
func (r *Refusal) NeedsPerson() bool { return true }

// Retryable is false: the gap stays.
func (r *Refusal) Retryable() bool { return false }
