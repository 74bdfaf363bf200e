package cleanup

import "github.com/walpost/walpost/cdc"

// A Progress is how far the relay has come, at one moment.
type Progress struct {
	// Session names the relay's present session with the database: another value is another session. 0: it has none.
	Session uint64
	// Confirmed is the position that this session has confirmed: everything that was committed before it is in Kafka, and
	// the checkpoint says so.
	Confirmed cdc.Position
}

// A mark is a pair that was read on one connection, the snapshot before the position: every transaction below xmin had ended when
// position was the end of the WAL. So, once position is confirmed, whatever transactions below xmin have written was delivered.
//
// The snapshot's xmin and not the snapshot as a whole decides: pg_snapshot lists the open transactions but not their
// subtransactions, whose ids rows written behind a savepoint carry. A subtransaction's id is above its parent's, so below
// xmin both have ended.
type mark struct {
	xmin     uint64 // a full transaction id, with its epoch
	position cdc.Position
}

// A horizon turns marks and the relay's progress into the transaction id below which everything was delivered. It is pure.
// What it knows holds for one session of the relay and one connection of ours: a server that was restored, failed over or replaced
// counts its transactions anew, and none of that happens behind the back of both.
type horizon struct {
	session uint64
	pending *mark
	below   uint64 // 0: not known
}

// wants says whether a new mark should be taken: there is a session, and no mark is waiting for it.
func (h *horizon) wants(p Progress) bool {
	h.follow(p)
	return p.Session != 0 && h.pending == nil
}

// note takes a mark that was read while p was the relay's progress.
func (h *horizon) note(p Progress, m mark) {
	h.follow(p)
	if p.Session != 0 {
		h.pending = &m
	}
}

// bound is the id below which everything was delivered, 0 for none. slot is what the server itself says was confirmed, on the
// connection of the marks; both must have passed the mark.
func (h *horizon) bound(p Progress, slot cdc.Position) uint64 {
	h.follow(p)
	if h.pending != nil && p.Confirmed >= h.pending.position && slot >= h.pending.position {
		h.below = max(h.below, h.pending.xmin)
		h.pending = nil
	}
	return h.below
}

// follow forgets everything when the session is another one.
func (h *horizon) follow(p Progress) {
	if p.Session == 0 || p.Session != h.session {
		*h = horizon{session: p.Session}
	}
}

// forget is for a lost connection.
func (h *horizon) forget() { *h = horizon{} }
