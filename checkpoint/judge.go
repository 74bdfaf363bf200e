package checkpoint

import (
	"errors"
	"fmt"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/fault"
)

// ErrNoSlot says that neither a record nor a slot exists. Nothing was ever delivered, so nothing
// can be missing, and the slot may be made. ErrNoSlot is not a Refusal.
var ErrNoSlot = errors.New("the slot does not exist, and no checkpoint belongs to it")

// Judge says where to start on the source that was found. It returns ErrNoSlot if a slot has to be
// made first. It returns a *Refusal if a start would leave events out, or would give other events
// than those that the record is about.
//
// rec is what is remembered, nil for nothing. Its Position must be the position that the caller means to
// start from. A caller that has read further and has the rest in flight asks with a copy of the
// record that says so.
//
// On a higher timeline that left the record's before its Position, but after everything that was delivered, the start is where
// it left: the WAL of the old primary that the new one lacks held no event. Otherwise a record that is
// accepted on a higher timeline is true on it as it stands, Next included. It may be written again under that timeline.
//
// Judge cannot detect one case: two histories that part on one timeline, once the server has
// written past the record again. This happens if a copy is started without recovery, or if two
// copies are promoted to the same timeline number without a common archive. A restore or a
// promotion that takes a timeline of its own is seen.
func Judge(rec *Record, found cdc.Identity) (start cdc.Position, err error) {
	if rec == nil {
		switch slot := &found.SlotFound; {
		case !slot.Exists:
			return 0, ErrNoSlot // a source that polls has made a beginning, so it does not come here
		case lost(slot):
			return 0, refuse(SlotLost, rec, found)
		default:
			return slot.Confirmed, nil
		}
	}
	if reason := judge(rec, &found); reason != "" {
		refusal := refuse(reason, rec, found)
		if reason == ServerBehind && found.Recovering {
			// A standby that has just started replays from its last restart point, which may lie
			// before the record.
			return 0, fault.Retry(fmt.Errorf("the server is in recovery and has replayed only up to %s, but the checkpoint is at %s: %w",
				found.Server, rec.reach(), refusal))
		}
		return 0, refusal
	}
	return rec.Start(&found), nil
}

// Start is where to go on with r on the server that was found, if Judge accepts it: at Position, or where the server's history left
// r's timeline before that and behind everything that was delivered.
func (r *Record) Start(found *cdc.Identity) cdc.Position {
	if found.SystemID != r.SystemID || found.Timeline <= r.Timeline || found.Polled != nil || r.Polled != nil || r.Position.IsNumber() {
		return r.Position
	}
	if end, ok := fork(found, r.Timeline); ok && end >= r.delivered() {
		return min(r.Position, end.Position())
	}
	return r.Position
}

func judge(rec *Record, found *cdc.Identity) Reason {
	switch {
	case found.SystemID != rec.SystemID:
		return OtherSystem
	case found.Database != rec.Database:
		return OtherDatabase
	case rec.sameKind(found) && found.Slot != rec.Slot:
		return OtherSlot
	case found.Timeline < rec.Timeline:
		return TimelineBack
	}
	reach := rec.reach()
	if found.Timeline > rec.Timeline && reach > 0 {
		end, ok := fork(found, rec.Timeline)
		if !ok || end < rec.delivered() {
			return TimelineForked
		}
		reach = min(reach, end)
	}
	switch slot := &found.SlotFound; {
	case found.Server < reach:
		// The server would accept a start in the future, and would skip everything before it
		// silently.
		return ServerBehind
	case !rec.Polled.IsTable(found.Polled):
		return TableReplaced
	case !rec.sameKind(found): // A change of the source trusts the record, so the record must be true of this server.
		return OtherSource
	case found.Polled != nil: // no slot can be missing
	case !slot.Exists:
		return SlotMissing
	case lost(slot):
		return SlotLost
	case slot.Confirmed > rec.Start(found):
		// walpost never moves the slot beyond the record, because the checkpoint is durable before
		// a position is confirmed. The server would start at the slot's position, whatever it is
		// asked for. A slot behind the record is fine: walpost was killed in between, or the server
		// was, which keeps a slot's position in memory for a while.
		return SlotAhead
	}
	return judgePublished(rec, found)
}

// judgePublished is the part of the judgement that a look beside a running stream repeats.
func judgePublished(rec *Record, found *cdc.Identity) Reason {
	was := rec.Published
	switch {
	case !rec.Polled.IsTable(found.Polled):
		return TableReplaced
	case was == nil:
		return ""
	case len(was.Tables) > 0 && len(found.Published.Tables) > 0 && !was.shares(&found.Published):
		return OtherTables
	case was.Publication != found.Published.Publication:
		if found.Settled { // the slot gives nothing from before the last change of this publication
			return ""
		}
		return OtherPublication
	case len(was.changes(&found.Published)) > 0:
		return PublicationChanged
	}
	return ""
}

// JudgePublished judges a look beside a running stream: whether what is published is what rec
// remembers. The refusal is the one that Judge gives at the next start.
func JudgePublished(rec *Record, found cdc.Identity) error {
	if reason := judgePublished(rec, &found); reason != "" {
		return refuse(reason, rec, found)
	}
	return nil
}

// reach is how far the source must have come on the record's history for the record to be true of
// it. That is the record's Position. If part of the transaction behind it is delivered, it is the end of
// that transaction. For a source that polls, the record has it in WAL.
func (r *Record) reach() cdc.LSN {
	if r.Polled != nil || r.Position.IsNumber() { // until a change of the source has begun, the position is that of the former source
		return r.WAL
	}
	reach := r.Position
	if n := r.Next; n != nil && n.Rows > 0 {
		// If the end is not known, the beginning of the commit record will do, because histories do
		// not part within a record.
		reach = max(reach, n.CommitEnd, n.Commit+1)
	}
	return reach.LSN()
}

// delivered is the end of what r is known to have delivered. It is reach, or before it.
func (r *Record) delivered() cdc.LSN {
	if r.Delivered == 0 || r.Polled != nil || r.Copy != nil || r.Next != nil && r.Next.Rows > 0 {
		return r.reach()
	}
	return r.Delivered.LSN()
}

// fork is where the history of found left timeline.
func fork(found *cdc.Identity, timeline uint32) (cdc.LSN, bool) {
	for _, f := range found.History {
		if f.Timeline == timeline {
			return f.End, true
		}
	}
	return 0, false
}

func lost(slot *cdc.SlotState) bool { return slot.Invalidation != "" || slot.WALStatus == "lost" }
