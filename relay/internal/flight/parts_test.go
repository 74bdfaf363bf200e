package flight

import (
	"testing"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/checkpoint"
)

// What is delivered of a large transaction is known by its parts, until the transaction is safe. A part is delivered only if everything
// before it is.
func TestThePartsOfATransactionThatAreDelivered(t *testing.T) {
	zero := new(Flight)
	f := zero.Next(10)
	send := func() cdc.Ticket {
		ticket := f.Tracker.Add(1)
		f.Count(&ticket, 20)
		return ticket
	}
	wants := func(want *checkpoint.Next, wantSent uint64) {
		t.Helper()
		if got, sent := f.Delivered(); got != want || sent != wantSent {
			t.Errorf("delivered %+v and %d records before, must be %+v and %d", got, sent, want, wantSent)
		}
	}
	before, first, second := &checkpoint.Next{Commit: 20, Rows: 1}, &checkpoint.Next{Commit: 20, Rows: 2}, &checkpoint.Next{Commit: 20, Rows: 3}
	f.Resume(before)
	f.Tracker.Begin(cdc.Event{}.Time)
	a := send()
	f.Part(first)
	b := send()
	f.Part(second)
	c := send()
	wants(before, 0)
	f.Ack(b)
	wants(before, 0)
	f.Ack(a)
	wants(second, 2)
	if f.Waiting() != 1 {
		t.Errorf("%d transactions wait, must be 1", f.Waiting())
	}
	if err := f.Tracker.Commit(30); err != nil {
		t.Fatal(err)
	}
	wants(second, 2)
	f.Ack(c)
	wants(nil, 0)
}
