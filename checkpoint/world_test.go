package checkpoint

import (
	"fmt"
	"slices"

	"github.com/walpost/walpost/cdc"
)

// A server is one data directory at one moment, as simple as it can be: its WAL as a list of records, each with an
// identity that no real position has. It says by looking what Judge must work out from numbers.
type server struct {
	system   string
	timeline uint32
	history  []cdc.Fork
	wal      []walRecord // never changed in place: copies of a server share it
	database string
	slot     slot
}

type walRecord struct {
	id       int // no two records ever written have the same
	start    cdc.Position
	end      cdc.Position
	timeline uint32
	tx       bool // the commit of a transaction that has rows for us
}

type slot struct {
	name      string
	exists    bool
	lost      bool
	confirmed cdc.Position
}

func (s *server) at() cdc.Position {
	if len(s.wal) == 0 {
		return 0x100
	}
	return s.wal[len(s.wal)-1].end
}

func (s *server) copy() *server {
	c := *s
	c.wal, c.history = slices.Clip(s.wal), slices.Clip(s.history)
	return &c
}

// until is the WAL whose records end at or before pos.
func (s *server) until(pos cdc.Position) []walRecord {
	n := 0
	for n < len(s.wal) && s.wal[n].end <= pos {
		n++
	}
	return slices.Clip(s.wal[:n])
}

// left is where s left timeline for a higher one, or where it stands.
func (s *server) left(timeline uint32) cdc.Position {
	for _, f := range s.history {
		if f.Timeline == timeline {
			return f.End.Position()
		}
	}
	return s.at()
}

func (s *server) descendsFrom(timeline uint32) bool {
	return s.timeline == timeline || slices.ContainsFunc(s.history, func(f cdc.Fork) bool { return f.Timeline == timeline })
}

func (s *server) identity() cdc.Identity {
	id := cdc.Identity{
		SystemID: s.system, Timeline: s.timeline, Database: s.database, Slot: s.slot.name, Server: s.at().LSN(), History: s.history,
	}
	if s.slot.exists {
		id.SlotFound = cdc.SlotState{Exists: true, Confirmed: s.slot.confirmed, Restart: s.slot.confirmed.LSN(), WALStatus: "reserved"}
		if s.slot.lost {
			id.SlotFound.WALStatus, id.SlotFound.Restart = "lost", 0
		}
	}
	return id
}

// A memory is a record and the truth behind it: the WAL up to where the record stands or, where a transaction behind that is
// delivered in part, to the end of that one.
type memory struct {
	rec *Record
	wal []walRecord
}

// A truth is what somebody who sees both histories says of going on from a memory on a server.
type truth struct {
	dishonest string // what would be left out or taken for something else; "" for nothing
	// unseen says that the two histories part on one timeline, and the server is past the memory on it: their numbers are
	// the same, and nobody who sees numbers alone can tell. Past the memory is past what its record knows: the other history
	// may stand between there and the end of a transaction whose end the record does not know.
	unseen bool
	// back says that the server's line does not hold the memory's timeline. What is remembered may well be there; but the
	// line is not the one that was followed, and that alone is to be refused.
	back bool
	// start is where to go on, if that is honest.
	start cdc.Position
}

func (m *memory) truth(s *server) truth {
	switch {
	case s.system != m.rec.SystemID:
		return truth{dishonest: "another system"}
	case s.database != m.rec.Database:
		return truth{dishonest: "another database"}
	case s.slot.name != m.rec.Slot:
		return truth{dishonest: "another slot"}
	case !s.slot.exists || s.slot.lost:
		return truth{dishonest: "no usable slot"}
	}
	at := m.rec.Position
	for i, r := range m.wal {
		if i < len(s.wal) && s.wal[i].id == r.id {
			continue
		}
		// Here the histories part. If the server has a timeline of its own from here on, and nothing behind it was delivered, the
		// relay goes on here.
		ours := slices.ContainsFunc(m.wal[i:], func(r walRecord) bool { return r.tx })
		if s.timeline > m.rec.Timeline && s.descendsFrom(m.rec.Timeline) && s.left(m.rec.Timeline) == r.start && !ours {
			at = r.start
			break
		}
		if i >= len(s.wal) {
			return truth{dishonest: fmt.Sprintf("the server has not written record %d, and would be started beyond its end", r.id)}
		}
		return truth{
			dishonest: fmt.Sprintf("record %d was delivered, and record %d stands in its place", r.id, s.wal[i].id),
			unseen:    s.wal[i].timeline == r.timeline && s.left(r.timeline).LSN() >= m.rec.delivered(),
		}
	}
	for _, r := range s.wal {
		// Whether it is one of ours does not matter: whoever moved the slot over it did not look.
		if r.end > at && r.end <= s.slot.confirmed {
			return truth{dishonest: fmt.Sprintf("the slot leaves out record %d", r.id)}
		}
	}
	return truth{back: !s.descendsFrom(m.rec.Timeline), start: at}
}
