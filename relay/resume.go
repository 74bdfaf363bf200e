package relay

import (
	"errors"
	"fmt"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/checkpoint"
)

// progress remembers what was received, so that what a source sends again is handled once. After a
// lost session, a source sends again everything from the position that the new session starts at.
// Within one timeline of one system it sends the same transactions in the same order, with the same
// events in the same order.
//
// So progress tells transactions apart by the position of their commit record, which Begin carries.
// It tells events apart by counting them within their transaction. It never uses the LSN of a row,
// because rows of one COPY share an LSN, and the first row of a transaction carries the end of the
// transaction before.
//
// progress is pure: it decides and the phase acts. Its zero value has received nothing.
type progress struct {
	// whole is Begin.Pos of the newest transaction that was received whole. It may be any position
	// from there up to the next transaction.
	whole cdc.Position

	// open is Begin.Pos of the transaction that was received in part, 0 for none. It outlives a
	// session.
	open   cdc.Position
	events int    // of the open one: events handled, with or without a record
	rows   int    // of the open one: events that gave a record, including those skipped because of next
	lastID []byte // event id of the last of rows, copied out of its payload

	inTx      bool // between Begin and Commit of this session
	again     bool // the current transaction was received whole before
	skip      int  // events of the current transaction that will come again and were handled before
	replaying bool // this session has brought nothing new yet

	// next says how much the run before delivered of the first transaction behind the checkpoint.
	// It is nil if that run delivered none of it, or once the transaction is whole.
	next     *checkpoint.Next
	nextLeft int // records that still have to be skipped because of next
}

// errChanged says that the source sent something else than before.
var errChanged = errors.New("the source did not send again what it sent before")

// errNext says that the checkpoint describes another transaction than the one that came.
var errNext = errors.New("the transaction is not the one that the checkpoint says was delivered in part")

// reconnected begins a new session on the same history.
func (p *progress) reconnected() {
	p.inTx, p.again, p.skip, p.replaying = false, false, 0, true
}

// begin takes a Begin. It reports whether the transaction was never seen before.
func (p *progress) begin(pos cdc.Position) (fresh bool, err error) {
	if p.inTx {
		return false, fmt.Errorf("begin of transaction %s inside transaction", pos)
	}
	if pos == 0 {
		return false, errors.New("begin of a transaction at position 0/0")
	}
	p.inTx = true
	switch {
	case p.replaying && pos <= p.whole:
		p.again = true
		return false, nil
	case p.open != 0 && pos == p.open:
		p.skip, p.replaying = p.events, false
		return false, nil
	case p.open != 0:
		return false, fmt.Errorf("%w: transaction %s, of which %d events were read, came as %s", errChanged, p.open, p.events, pos)
	case pos <= p.whole:
		return false, fmt.Errorf("transaction %s after transaction %s: not in commit order", pos, p.whole)
	}
	p.open, p.events, p.rows, p.lastID, p.replaying = pos, 0, 0, p.lastID[:0], false
	if p.next != nil {
		switch {
		case pos == p.next.CommitLSN:
			p.nextLeft = p.next.Rows
		case pos > p.next.CommitLSN:
			return false, fmt.Errorf("%w: expected %s, got %s", errNext, p.next.CommitLSN, pos)
		}
	}
	return true, nil
}

// event takes an event inside a transaction. It reports whether the event has to be handled.
func (p *progress) event() (bool, error) {
	switch {
	case !p.inTx:
		return false, errors.New("a row outside a transaction")
	case p.again:
		return false, nil
	case p.skip > 0:
		p.skip--
		return false, nil
	}
	p.events++
	return true, nil
}

// record takes the record that an event gave. It reports whether the record has to be delivered.
func (p *progress) record(id string) (bool, error) {
	p.rows++
	p.lastID = append(p.lastID[:0], id...)
	if p.nextLeft == 0 {
		return true, nil
	}
	p.nextLeft--
	if p.nextLeft == 0 && id != p.next.LastEventID {
		return false, fmt.Errorf("%w: transaction %s, event %d is %q and not %q", errNext, p.open, p.rows, id, p.next.LastEventID)
	}
	return false, nil
}

// commit takes a Commit. It reports whether the transaction was not whole before.
func (p *progress) commit() (fresh bool, err error) {
	if !p.inTx {
		return false, errors.New("a commit outside a transaction")
	}
	p.inTx = false
	if p.again {
		p.again = false
		return false, nil
	}
	if p.skip > 0 {
		return false, fmt.Errorf("%w: transaction %s ended %d events before the point that was read", errChanged, p.open, p.skip)
	}
	if p.nextLeft > 0 {
		return false, fmt.Errorf("%w: transaction %s ended %d records before the point that was delivered", errNext, p.open, p.nextLeft)
	}
	p.whole, p.open, p.next = p.open, 0, nil
	return true, nil
}

// left is what a checkpoint at safe says of the transaction behind safe. settled says that nothing
// is in flight.
func (p *progress) left(safe cdc.Position, settled bool) *checkpoint.Next {
	if settled && p.open != 0 && p.rows > 0 && p.nextLeft == 0 {
		return &checkpoint.Next{CommitLSN: p.open, Rows: p.rows, LastEventID: string(p.lastID)}
	}
	if p.next != nil && safe <= p.next.CommitLSN {
		return p.next
	}
	return nil
}
