package sink

import "time"

// The slots of a topic that are at a client are a list in the order in which they were handed over, because the oldest one tells whether
// all of its partitions go on: each partition answers in order, so while it waits, its partition has answered nothing.

// leaves counts a slot that goes to the client. mu is held.
func (t *topic) leaves(sl *slot) {
	t.flight++
	sl.prev, sl.next = t.newest, nil
	if t.newest == nil {
		t.oldest = sl
	} else {
		t.newest.next = sl
	}
	t.newest = sl
}

// returns is the end of leaves. mu is held.
func (t *topic) returns(sl *slot) {
	if t.flight--; t.flight == 0 {
		t.stuck.well = time.Time{} // the wait of the next attempt is another one
	}
	if sl.prev == nil {
		t.oldest = sl.next
	} else {
		sl.prev.next = sl.next
	}
	if sl.next == nil {
		t.newest = sl.prev
	} else {
		sl.next.prev = sl.prev
	}
	sl.prev, sl.next = nil, nil
}
