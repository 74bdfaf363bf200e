package cleanup

import "github.com/walpost/walpost/cdc"

// A Progress is the progress of the relay at one moment.
type Progress struct {
	// Session identifies the relay's present session with the database. It is 0 without a session.
	Session uint64
	// Confirmed is what this session has confirmed of the slot. Everything that was committed
	// before it is in Kafka and in the checkpoint.
	Confirmed cdc.LSN
	// Gap is the token of a gap that a person has accepted and not closed, "" for none. Rows in it may
	// not be in Kafka, so no row is removed.
	Gap string
}

// A mark is a pair that was read on one connection, first the snapshot and then the position. Every
// transaction below xmin had ended when position was the end of the WAL. Therefore all their rows
// are delivered when position is confirmed.
//
// The mark uses only the snapshot's xmin, because pg_snapshot lists open transactions without their
// subtransactions. A row that was written after a savepoint has the id of a subtransaction. This id
// is above the parent's, so below xmin both have ended.
type mark struct {
	xmin     uint64 // a full transaction id, with its epoch
	position cdc.LSN
}

// A horizon computes the transaction id below which everything was delivered, from marks and the
// relay's progress. It is pure. Its knowledge is valid for one session of the relay and one
// connection of the cleaner: a server that was restored, failed over or replaced has other
// transactions, and none of these events can keep both alive.
type horizon struct {
	session uint64
	pending *mark
	below   uint64 // 0 if not known
}

// wants reports whether a new mark is needed: there is a session, and no mark waits to be
// confirmed.
func (h *horizon) wants(p Progress) bool {
	h.follow(p)
	return p.Session != 0 && h.pending == nil
}

// note stores a mark that was read after the progress p.
func (h *horizon) note(p Progress, m mark) {
	h.follow(p)
	if p.Session != 0 {
		h.pending = &m
	}
}

// bound is the id below which everything was delivered, or 0. slot is the confirmed position of the
// slot, read on the connection of the marks. The relay and the slot must both have passed the mark.
func (h *horizon) bound(p Progress, slot cdc.LSN) uint64 {
	h.follow(p)
	if h.pending != nil && p.Confirmed >= h.pending.position && slot >= h.pending.position {
		h.below = max(h.below, h.pending.xmin)
		h.pending = nil
	}
	return h.below
}

// follow forgets everything if the session has changed.
func (h *horizon) follow(p Progress) {
	if p.Session == 0 || p.Session != h.session {
		*h = horizon{session: p.Session}
	}
}

// forget discards everything after a lost connection.
func (h *horizon) forget() { *h = horizon{} }
