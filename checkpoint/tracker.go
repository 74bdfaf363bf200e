// Package checkpoint knows which position is safe, and whether a remembered position still means
// what it meant.
//
// It is pure: it has no clocks, no locks and no stores. A Tracker turns acknowledgements into the
// one position that may be confirmed. A Record is what is remembered of that position across
// restarts. Judge compares a Record with what a source says of itself.
//
// It isn't an API yet: anything in it may change with any release. The API is the root package, outbox and inbox.
package checkpoint

import (
	"fmt"
	"math"
	"time"

	"github.com/walpost/walpost/cdc"
)

// A Tracker turns acknowledgements that arrive in any order into the one position that is safe to
// confirm. That is the end of the last transaction such that it and every transaction before it is
// wholly acknowledged. The Tracker also counts what is in flight.
//
// The caller tells it what is read, in the order of reading: Begin, an Add for each delivery,
// Commit, and Idle between transactions. Transactions come whole, in commit order, one after
// another. A transaction stays open when the session that brought it is lost. The caller continues
// it when it is read again, and does not Add again what it has added.
//
// Part divides a large transaction. It tells the caller how much of a transaction is acknowledged
// from its beginning, and moves no position.
//
// One goroutine at a time may use a Tracker. It keeps some words per unacknowledged transaction or
// part, and nothing per delivery. It allocates only when more transactions are in flight than ever before.
type Tracker struct {
	safe  cdc.Position // end of the transactions that are finished, with all before
	when  time.Time    // commit time of the newest of them that had a delivery
	full  cdc.Position // end of that transaction; 0 for none
	last  cdc.Position // newest end that was reported: of a transaction, an idle report, or the start
	ended cdc.Position // newest end of a transaction that had a delivery; 0 for none since New

	// The transactions that are not behind safe have the numbers first to next-1, oldest first; each
	// part has a number of its own. Transaction n is in ring[n mod len(ring)]. len(ring) is a power
	// of two. The oldest one is never both ended and acknowledged.
	ring        []transaction
	first, next uint64
	open        bool // the newest transaction has begun and not ended
	added       int  // deliveries of the open transaction

	events, bytes int // unacknowledged, over all transactions
}

type transaction struct {
	committed time.Time
	end       cdc.Position // of it and of all empty transactions behind it; 0 while it is open
	full      cdc.Position // of it alone
	pending   int          // deliveries without acknowledgement
	bytes     int          // their sizes
	part      bool         // the next one is of the same transaction
}

// New returns a Tracker for what is read from start on.
func New(start cdc.Position) *Tracker {
	// Transactions are numbered from 1, so that the zero Ticket is never a valid one.
	return &Tracker{safe: start, last: start, ring: make([]transaction, 64), first: 1, next: 1}
}

// Begin opens a transaction that was committed at the given time. It panics if one is open.
func (t *Tracker) Begin(committed time.Time) {
	if t.open {
		panic("checkpoint: begin inside a transaction")
	}
	t.push(committed)
	t.open, t.added = true, 0
}

func (t *Tracker) push(committed time.Time) {
	if t.next-t.first == uint64(len(t.ring)) {
		t.grow()
	}
	*t.at(t.next) = transaction{committed: committed}
	t.next++
}

// Part ends a part of the open transaction: what was added to it since it began, or since the part
// before. The number is for Passed. Part does nothing, and returns false, if nothing was added to the
// transaction. It panics if no transaction is open.
func (t *Tracker) Part() (number uint64, ok bool) {
	if !t.open {
		panic("checkpoint: part outside a transaction")
	}
	if t.added == 0 {
		return 0, false
	}
	number = t.next - 1
	tx := t.at(number)
	tx.part = true
	t.push(tx.committed)
	t.advance()
	return number, true
}

// Passed reports whether a part and everything before it is acknowledged.
func (t *Tracker) Passed(part uint64) bool { return part < t.first }

// Add counts one delivery of size bytes within the open transaction. The ticket comes back through
// Ack, once. Add panics if no transaction is open.
func (t *Tracker) Add(size int) cdc.Ticket {
	if !t.open {
		panic("checkpoint: add outside a transaction")
	}
	if uint64(size) > math.MaxUint32 { // or negative
		panic(fmt.Sprintf("checkpoint: add of %d bytes", size))
	}
	ticket := cdc.Ticket{Tx: t.next - 1, Size: uint32(size)}
	tx := t.at(ticket.Tx)
	tx.pending++
	tx.bytes += size
	t.added++
	t.events++
	t.bytes += size
	return ticket
}

// Commit ends the open transaction at end, its end LSN. It panics if none is open. If end is not
// beyond everything that was reported before, Commit returns an error, and the transaction stays
// open. Then the source contradicts itself, and no position from it can be trusted any more.
func (t *Tracker) Commit(end cdc.Position) error {
	if !t.open {
		panic("checkpoint: commit outside a transaction")
	}
	if end <= t.last {
		return fmt.Errorf("a transaction ends at %s, which is not beyond the previously reported position %s", end, t.last)
	}
	t.open = false
	if t.added == 0 {
		t.next-- // no ticket has its number
		t.Idle(end)
		return nil
	}
	tx := t.at(t.next - 1)
	tx.end, tx.full = end, end
	t.last, t.ended = end, end
	t.advance()
	return nil
}

// Idle counts a report that everything before pos has been read, as an empty transaction that ends
// there. Idle is ignored inside a transaction, and if pos is 0 or not beyond what was reported
// before.
func (t *Tracker) Idle(pos cdc.Position) {
	if t.open || pos <= t.last {
		return
	}
	t.last = pos
	if t.first == t.next {
		t.safe = pos
		return
	}
	t.at(t.next - 1).end = pos
}

// Ack takes back one ticket of Add. It panics for a ticket that nobody waits for.
func (t *Tracker) Ack(ticket cdc.Ticket) {
	// This is first <= Tx < next, written so that it cannot overflow.
	if ticket.Tx-t.first >= t.next-t.first {
		panic(fmt.Sprintf("checkpoint: acknowledgement for transaction %d, which is finished or never began", ticket.Tx))
	}
	tx, size := t.at(ticket.Tx), int(ticket.Size)
	if tx.pending == 0 || size > tx.bytes || tx.pending == 1 && size != tx.bytes {
		panic(fmt.Sprintf("checkpoint: acknowledgement of %d bytes for transaction %d, which waits for %d deliveries of %d bytes",
			size, ticket.Tx, tx.pending, tx.bytes))
	}
	tx.pending--
	tx.bytes -= size
	t.events--
	t.bytes -= size
	t.advance()
}

// Safe is the position that may be confirmed: everything before it is acknowledged. It never goes
// back.
func (t *Tracker) Safe() cdc.Position { return t.safe }

// Last is the position that will be safe when everything that was added is acknowledged: the newest end that was reported.
func (t *Tracker) Last() cdc.Position { return t.last }

// LastEnd is what SafeEnd will be then.
func (t *Tracker) LastEnd() cdc.Position { return t.ended }

// SafeTime is the commit time of the newest transaction before Safe that had a delivery. It is zero
// if there was none since New.
func (t *Tracker) SafeTime() time.Time { return t.when }

// SafeEnd is the end of that transaction, and at most Safe: nothing was delivered between the two. It is 0 if there was none
// since New.
func (t *Tracker) SafeEnd() cdc.Position { return t.full }

// InFlight is the number of deliveries without acknowledgement, and their bytes.
func (t *Tracker) InFlight() (events, bytes int) { return t.events, t.bytes }

// Oldest is the commit time of the first transaction, in commit order, that has a delivery without
// acknowledgement. An open transaction counts. Oldest is zero if everything is acknowledged.
func (t *Tracker) Oldest() time.Time {
	if t.events == 0 {
		return time.Time{}
	}
	// The first one is committed and unacknowledged, or it is the open one and then the only one.
	return t.at(t.first).committed
}

// at is the place of transaction n in the ring.
func (t *Tracker) at(n uint64) *transaction { return &t.ring[n&uint64(len(t.ring)-1)] }

// advance moves safe over the finished transactions.
func (t *Tracker) advance() {
	for t.first != t.next {
		tx := t.at(t.first)
		if tx.pending > 0 || tx.end == 0 && !tx.part {
			return
		}
		if !tx.part {
			t.safe, t.when, t.full = tx.end, tx.committed, tx.full
		}
		t.first++
	}
}

func (t *Tracker) grow() {
	old := t.ring
	t.ring = make([]transaction, 2*len(old))
	for n := t.first; n != t.next; n++ {
		*t.at(n) = old[n&uint64(len(old)-1)]
	}
}
