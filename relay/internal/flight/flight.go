// Package flight counts what a phase of the relay receives and sends. It is pure: it knows neither the
// source nor the sink.
package flight

import (
	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/checkpoint"
)

const (
	genShift = 48 // a ticket's Tx holds the tracker's number below this bit, and the flight's gen above it
	maxTx    = 1<<genShift - 1
)

// A Flight counts what a phase has sent, and knows how far everything sent is acknowledged.
type Flight struct {
	Tracker *checkpoint.Tracker
	// gen numbers the flights of a process. An acknowledgement of a former flight must not reach
	// this tracker.
	gen    uint16    // not 0
	unsafe []txStart // the transactions that gave a record and are not safe yet, oldest first, from head on
	head   int
	Sent   uint64 // records, by all flights of this process
	held   []walMark
	parts  []part // of transactions that are not safe, oldest first; none is known to be delivered
	passed part   // the newest one that is delivered
}

// A part is the beginning of a transaction. tx is its number, sent is how many records were sent before its
// end, and next is what a checkpoint says of it.
type part struct {
	tx, sent uint64
	next     *checkpoint.Next
}

// Resume notes what the run before delivered of the first transaction; nil for nothing.
func (f *Flight) Resume(next *checkpoint.Next) { f.parts, f.passed = nil, part{next: next} }

// Part ends a part of the open transaction. next is what a checkpoint says once the part is delivered.
func (f *Flight) Part(next *checkpoint.Next) {
	if tx, ok := f.Tracker.Part(); ok {
		f.parts = append(f.parts, part{tx, f.Sent, next})
	}
}

// Delivered is how much is known to be delivered of the first transaction that is not safe, nil for nothing
// of it, and how many records were sent before the end of that.
func (f *Flight) Delivered() (next *checkpoint.Next, sent uint64) {
	for len(f.parts) > 0 && f.Tracker.Passed(f.parts[0].tx) {
		f.passed, f.parts = f.parts[0], f.parts[1:]
	}
	if f.passed.next == nil || f.passed.next.Commit < f.Tracker.Safe() {
		return nil, 0
	}
	return f.passed.next, f.passed.sent
}

// A txStart says how many records were sent before a transaction.
type txStart struct {
	begin cdc.Position // of the commit record
	sent  uint64
}

// Next returns the flight that follows f and starts at start.
func (f *Flight) Next(start cdc.Position) Flight {
	return Flight{Tracker: checkpoint.New(start), gen: max(1, f.gen+1), Sent: f.Sent}
}

// Count counts the record of ticket, which is of the open transaction, and marks ticket as one of
// this flight. The transaction's commit record is at begin, and the transaction ends behind begin.
func (f *Flight) Count(ticket *cdc.Ticket, begin cdc.Position) {
	if ticket.Tx > maxTx {
		panic("relay: too many transactions for a ticket") // 2^48 take nine years at a million a second
	}
	if n := len(f.unsafe); n == f.head || f.unsafe[n-1].begin != begin { // parts of it have numbers of their own
		f.unsafe = append(f.unsafe, txStart{begin: begin, sent: f.Sent})
	}
	f.Sent++
	ticket.Tx |= uint64(f.gen) << genShift
}

// Owns reports whether a ticket is of this flight.
func (f *Flight) Owns(ticket *cdc.Ticket) bool { return uint16(ticket.Tx>>genShift) == f.gen }

// Untracked reports whether a ticket is of no flight, because no position waits for its record. The
// rest of its Tx is the sender's own.
func Untracked(ticket *cdc.Ticket) bool { return ticket.Tx>>genShift == 0 }

// Ack takes back a ticket. It reports false for a ticket of a former flight, whose record is read
// and counted again.
func (f *Flight) Ack(ticket cdc.Ticket) bool {
	if !f.Owns(&ticket) {
		return false
	}
	ticket.Tx &= maxTx
	f.Tracker.Ack(ticket)
	return true
}

// InFlight is the number of records without acknowledgement.
func (f *Flight) InFlight() int {
	events, _ := f.Tracker.InFlight()
	return events
}

// Waiting is the number of transactions that gave a record and are not safe.
func (f *Flight) Waiting() int { return len(f.unsafe) - f.head }

// Drop forgets the transactions that are safe. It returns how many of the records sent belong to no
// other transaction.
func (f *Flight) Drop() uint64 {
	safe := f.Tracker.Safe()
	for f.head < len(f.unsafe) && f.unsafe[f.head].begin < safe {
		f.head++
	}
	if f.head > len(f.unsafe)/2 {
		n := copy(f.unsafe, f.unsafe[f.head:])
		f.unsafe, f.head = f.unsafe[:n], 0
	}
	if f.Waiting() == 0 {
		return f.Sent
	}
	return f.unsafe[f.head].sent
}
