package protocol

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/checkpoint"
)

// A row is a row of the outbox: the timeline that it was written on, its transaction's place in the
// workload from 1, and its place in the transaction from 0. A row of 0 is none.
type row uint8

func newRow(born, item, n uint8) row { return row(born<<5 | item<<2 | n) }

func (r row) born() uint8 { return uint8(r) >> 5 }
func (r row) item() uint8 { return uint8(r) >> 2 & 7 }
func (r row) n() uint8    { return uint8(r) & 3 }

// id is the event id. It begins with the timeline.
func (r row) id() string { return fmt.Sprintf("%d.%d.%d", r.born(), r.item(), r.n()) }

// lsn is the LSN that Postgres gives a row that COPY wrote first in its transaction: that of the end of
// the transaction before. All rows of one COPY share it.
func (r row) lsn() cdc.Position { return lsn(r.item() - 1) }

// Positions: item i of the workload ends at lsn(i). A transaction's commit record begins before that.
// Everything is counted in items; only the real code sees an LSN.
const commitLength = 4

func lsn(item uint8) cdc.Position   { return 100 + 10*cdc.Position(item) }
func begin(item uint8) cdc.Position { return lsn(item) - commitLength }
func index(p cdc.Position) uint8    { return uint8((p - 100) / 10) }

// A place is how far delivery has come: everything up to the end of item pos, and the first rows of item.
type place struct{ pos, item, rows, born uint8 }

func (p place) next() *checkpoint.Next {
	if p.item == 0 {
		return nil
	}
	n := &checkpoint.Next{Commit: begin(p.item), Rows: int(p.rows)}
	if p.rows > 0 {
		n.LastEventID = newRow(p.born, p.item, p.rows-1).id()
	}
	return n
}

// covers reports whether a record at p says that r is delivered.
func (p place) covers(r row) bool {
	return r.item() <= p.pos || r.item() == p.item && r.born() == p.born && r.n() < p.rows
}

// A mark is a checkpoint record, with what differs between the records of a model.
type mark struct {
	epoch, holder, timeline uint8
	place
}

// A recID stands for a mark; 0 for none.
type recID uint16

// old stands for any record that was read and is not the newest one any more.
const old recID = 1

// A library turns marks into real records and asks the real code about them. Answers are kept.
type library struct {
	marks []mark
	ids   map[mark]recID

	newest map[topic]newest
	judged map[verdictOf]verdict
	follow map[following]recID
}

func newLibrary() *library {
	return &library{
		marks: make([]mark, 2), ids: map[mark]recID{},
		newest: map[topic]newest{}, judged: map[verdictOf]verdict{}, follow: map[following]recID{},
	}
}

func (l *library) id(m mark) recID {
	id, ok := l.ids[m]
	if !ok {
		id = recID(len(l.marks))
		l.marks = append(l.marks, m)
		l.ids[m] = id
	}
	return id
}

func (l *library) record(id recID) *checkpoint.Record {
	if id == 0 {
		return nil
	}
	m := l.marks[id]
	return &checkpoint.Record{
		Name: name, Epoch: uint64(m.epoch), SystemID: "1", Timeline: uint32(m.timeline), Slot: "walpost", Database: "shop",
		Position: lsn(m.pos), Next: m.next(), RunID: "run", Holder: holderName(m.holder), Time: time.Unix(0, 0),
	}
}

const name = "shop.walpost"

func holderName(h uint8) string { return fmt.Sprintf("holder%d", h) }

// A topic holds the records that count, those of the highest epoch, sorted. The others can change
// nothing: see checkpoint.Read.
type topic [4]recID

type newest struct {
	rec    recID
	shared bool // with another holder's record of the same epoch
}

// read is what a process finds in the topic.
func (l *library) read(t topic) newest {
	if t[0] == 0 {
		return newest{}
	}
	if n, ok := l.newest[t]; ok {
		return n
	}
	values := map[string][]byte{}
	for _, id := range t {
		if id != 0 {
			r := l.record(id)
			values[r.HolderKey()] = r.Encode()
		}
	}
	stored, err := checkpoint.Read(name, values)
	if err != nil {
		panic(err)
	}
	var n newest
	for _, id := range t {
		if id != 0 && l.record(id).HolderKey() == stored.Rec.HolderKey() {
			n.rec = id
		}
	}
	n.shared = slices.ContainsFunc(stored.Older, func(key string) bool { return strings.HasPrefix(key, stored.Rec.Key()+".") })
	l.newest[t] = n
	return n
}

// store returns the topic once a record has been appended to it, and compacted. A record of an epoch
// that has passed changes nothing that counts.
func (l *library) store(t topic, id recID, sameKey bool) topic {
	m := l.marks[id]
	all := []recID{id}
	for _, other := range t {
		o := l.marks[other]
		if other != 0 && (o.epoch != m.epoch || o.holder != m.holder && !sameKey) {
			all = append(all, other)
		}
	}
	epoch := uint8(0)
	for _, id := range all {
		epoch = max(epoch, l.marks[id].epoch)
	}
	all = slices.DeleteFunc(all, func(id recID) bool { return l.marks[id].epoch < epoch })
	if len(all) > len(t) {
		panic("protocol: too many records of one epoch")
	}
	slices.Sort(all)
	t = topic{}
	copy(t[:], all)
	return t
}

// A found is what a session learns of the server. kept is how much of timeline 1 timeline 2 continues.
type found struct{ timeline, kept, slot uint8 }

func (f found) identity() cdc.Identity {
	id := cdc.Identity{SystemID: "1", Timeline: uint32(f.timeline), Database: "shop", Slot: "walpost", Server: lsn(9).LSN()}
	if f.timeline == 2 {
		id.History = []cdc.Fork{{Timeline: 1, End: lsn(f.kept).LSN()}}
	}
	if f.slot != noSlot {
		id.SlotFound = cdc.SlotState{Exists: true, Confirmed: lsn(f.slot), Restart: lsn(f.slot).LSN(), WALStatus: "reserved"}
	}
	return id
}

type verdictOf struct {
	rec recID
	found
}

type verdict struct {
	start   uint8
	refused checkpoint.Reason // "" for a start
}

// judge is checkpoint.Judge.
func (l *library) judge(rec recID, f found) verdict {
	at := verdictOf{rec, f}
	if v, ok := l.judged[at]; ok {
		return v
	}
	var v verdict
	start, err := checkpoint.Judge(l.record(rec), f.identity())
	var refusal *checkpoint.Refusal
	switch {
	case errors.As(err, &refusal):
		v.refused = refusal.Reason
	case err != nil:
		v.refused = checkpoint.SlotMissing // and no record: see checkpoint.ErrNoSlot
	default:
		v.start = index(start)
	}
	l.judged[at] = v
	return v
}

type following struct {
	holder, at uint8
	found
	base, held recID
}

// take is the record that a process writes when it has taken the slot: checkpoint.First and Follow.
func (l *library) take(f following) recID {
	if id, ok := l.follow[f]; ok {
		return id
	}
	base, held := l.record(f.base), l.record(f.held)
	r := checkpoint.First(name, holderName(f.holder), f.identity(), lsn(f.at), time.Unix(0, 0))
	r.Follow(base, held, false)
	m := mark{epoch: uint8(r.Epoch), holder: f.holder, timeline: uint8(r.Timeline), place: place{pos: index(r.Position)}}
	if r.Next != nil {
		b := l.marks[f.base]
		m.item, m.rows, m.born = index(r.Next.Commit+commitLength), uint8(r.Next.Rows), b.born
	}
	id := l.id(m)
	l.follow[f] = id
	return id
}
