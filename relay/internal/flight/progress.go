package flight

import (
	"errors"
	"fmt"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/checkpoint"
)

// Progress remembers what was received, so that what a source sends again is handled once. After a
// lost session, a source sends again everything from the position that the new session starts at.
// Within one timeline of one system it sends the same transactions in the same order, with the same
// events in the same order.
//
// So Progress tells transactions apart by the position of their commit record, which Begin carries.
// It tells events apart by counting them within their transaction. It never uses the LSN of a row,
// because rows of one COPY share an LSN, and the first row of a transaction carries the end of the
// transaction before.
//
// Progress is pure: it decides and the phase acts. Its zero value has received nothing.
type Progress struct {
	// Whole is Begin.Pos of the newest transaction that was received whole. It may be any position
	// from there up to the next transaction.
	Whole cdc.Position

	// Open is Begin.Pos of the transaction that was received in part, 0 for none. It outlives a
	// session.
	Open   cdc.Position
	Events int    // of the open one: events handled, with or without a record
	rows   int    // of the open one: events that gave a record, including those skipped because of Next
	parted int    // of rows: those in the parts that have ended
	lastID []byte // event id of the last of rows, copied out of its payload

	inTx      bool // between Begin and Commit of this session
	again     bool // the current transaction was received whole before
	skip      int  // events of the current transaction that will come again and were handled before
	replaying bool // this session has brought nothing new yet

	// Cut says that the source cuts transactions out of a table itself. It can cut the same one again
	// only if the checkpoint says where the open one ends, so the checkpoint says that also if
	// nothing of it is delivered.
	Cut bool

	// Next says how much the run before delivered of the first transaction behind the checkpoint.
	// It is nil if that run delivered none of it, or once the transaction is whole.
	Next     *checkpoint.Next
	nextLeft int // records that still have to be skipped because of Next
}

// ErrChanged says that the source sent something else than before.
var ErrChanged = errors.New("the source did not send again what it sent before")

// ErrNext says that the checkpoint describes another transaction than the one that came.
var ErrNext = errors.New("the transaction is not the one that the checkpoint says was delivered in part")

// Why a record's LSN minus 1 separates what is delivered from what is not: A record says "everything before lsn
// is delivered". A session that starts there may send older transactions again. flight.Progress recognises them
// by the position of their commit record, which BEGIN carries. lsn is the end of a commit record or the walEnd
// of a keepalive, so it lies between two WAL records. So a commit record that begins before lsn also ends at lsn
// or before it, and its transaction is delivered. The transaction of a commit record that begins at lsn or later
// is not. So a transaction is fully delivered if and only if its commit record begins at or before lsn-1.

// Resume returns the progress of a process that goes on at lsn, with what its checkpoint says of the
// transaction behind lsn.
func Resume(lsn cdc.Position, next *checkpoint.Next) Progress {
	return Progress{Next: next, Whole: lsn - 1, replaying: true}
}

// Reconnected begins a new session on the same history.
func (p *Progress) Reconnected() {
	p.inTx, p.again, p.skip, p.replaying = false, false, 0, true
}

// Begin takes a Begin. It reports whether the transaction was never seen before.
func (p *Progress) Begin(pos cdc.Position) (fresh bool, err error) {
	if p.inTx {
		return false, fmt.Errorf("begin of transaction %s inside transaction", pos)
	}
	if pos == 0 {
		return false, errors.New("begin of a transaction without a position")
	}
	p.inTx = true
	switch {
	case p.replaying && pos <= p.Whole:
		p.again = true
		return false, nil
	case p.Open != 0 && pos == p.Open:
		p.skip, p.replaying = p.Events, false
		return false, nil
	case p.Open != 0:
		return false, fmt.Errorf("%w: transaction %s, of which %d events were read, came as %s", ErrChanged, p.Open, p.Events, pos)
	case pos <= p.Whole:
		return false, fmt.Errorf("transaction %s after transaction %s: not in commit order", pos, p.Whole)
	}
	p.Open, p.Events, p.rows, p.parted, p.lastID, p.replaying = pos, 0, 0, 0, p.lastID[:0], false
	if p.Next != nil {
		switch {
		case pos == p.Next.Commit:
			p.nextLeft = p.Next.Rows
		case pos > p.Next.Commit:
			return false, fmt.Errorf("%w: expected %s, got %s", ErrNext, p.Next.Commit, pos)
		}
	}
	return true, nil
}

// Event takes an event inside a transaction. It reports whether the event has to be handled.
func (p *Progress) Event() (bool, error) {
	switch {
	case !p.inTx:
		return false, errors.New("a row outside a transaction")
	case p.again:
		return false, nil
	case p.skip > 0:
		p.skip--
		return false, nil
	}
	p.Events++
	return true, nil
}

// Unread takes back the newest Event, which was not handled before its session was lost.
func (p *Progress) Unread() { p.Events-- }

// Record takes the record that an event gave. It reports whether the record has to be delivered.
func (p *Progress) Record(id string) (bool, error) {
	p.rows++
	p.lastID = append(p.lastID[:0], id...)
	if p.nextLeft == 0 {
		return true, nil
	}
	p.nextLeft--
	if p.nextLeft == 0 && id != p.Next.LastEventID {
		return false, fmt.Errorf("%w: transaction %s, event %d is %q and not %q", ErrNext, p.Open, p.rows, id, p.Next.LastEventID)
	}
	return false, nil
}

// Commit takes a Commit. It reports whether the transaction was not whole before.
func (p *Progress) Commit() (fresh bool, err error) {
	if !p.inTx {
		return false, errors.New("a commit outside a transaction")
	}
	p.inTx = false
	if p.again {
		p.again = false
		return false, nil
	}
	if p.skip > 0 {
		return false, fmt.Errorf("%w: transaction %s ended %d events before the point that was read", ErrChanged, p.Open, p.skip)
	}
	if p.nextLeft > 0 {
		return false, fmt.Errorf("%w: transaction %s ended %d records before the point that was delivered", ErrNext, p.Open, p.nextLeft)
	}
	p.Whole, p.Open, p.Next = p.Open, 0, nil
	return true, nil
}

// Part ends a part of the open transaction once it has at least that many records, before the next
// Record. It returns what a checkpoint says when they are delivered, and nil if no part ends here.
func (p *Progress) Part(records int) *checkpoint.Next {
	if p.nextLeft > 0 || p.rows < p.parted+records {
		return nil
	}
	p.parted = p.rows
	return p.left()
}

// Left is what a checkpoint says of the transaction that is read in part when nothing is in flight,
// nil for nothing.
func (p *Progress) Left() *checkpoint.Next {
	if p.Open == 0 || p.rows == 0 && !p.Cut || p.nextLeft > 0 {
		return nil
	}
	return p.left()
}

func (p *Progress) left() *checkpoint.Next {
	return &checkpoint.Next{Commit: p.Open, Rows: p.rows, LastEventID: string(p.lastID)}
}

// Between reports whether no transaction is read in part.
func (p *Progress) Between() bool { return p.Open == 0 && !p.inTx }

// Delivered reports whether the run before has dealt with the next record.
func (p *Progress) Delivered() bool { return p.nextLeft > 0 }
