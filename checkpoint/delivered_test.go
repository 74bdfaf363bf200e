package checkpoint

import (
	"testing"

	"github.com/walpost/walpost/cdc"
)

// Delivered may be too far, and must never be before an event that may have been delivered.
func TestARecordKnowsBehindWhatNothingWasDelivered(t *testing.T) {
	for _, c := range []struct {
		what string
		rec  Record // before it was moved to 0x3000
		end  cdc.Position
		want cdc.Position
	}{
		{what: "an event", rec: Record{Delivered: 0x100}, end: 0x2F00, want: 0x2F00},
		{what: "only keepalives", rec: Record{Delivered: 0x100}, want: 0x100},
		{what: "an older event than the record's", rec: Record{Delivered: 0x200}, end: 0x100, want: 0x200},
		{what: "a record of nothing known", end: 0x2F00, want: 0},
		{what: "the rest of a transaction, all of which the process before had delivered", rec: Record{Delivered: 0x100, Next: &Next{Commit: 0x2000, Rows: 3}}, want: 0x3000},
		{what: "a transaction of which nothing was delivered", rec: Record{Delivered: 0x100, Next: &Next{Commit: 0x2000}}, want: 0x100},
		{what: "a part of a transaction that goes on", rec: Record{Delivered: 0x100, Next: &Next{Commit: 0x3100, Rows: 3}}, want: 0x100},
		{what: "a source that polls", rec: Record{Polled: &cdc.Polled{}}, end: 5, want: 0},
	} {
		c.rec.Position = 0x3000
		if c.rec.Deliver(c.end); c.rec.Delivered != c.want {
			t.Errorf("%s: %s, want %s", c.what, c.rec.Delivered, c.want)
		}
	}
}

// The first record on a new timeline that left the old one before Position speaks of nothing behind that place.
func TestARecordThatGoesBackForgetsWhatComesNext(t *testing.T) {
	base := &Record{Position: 0x3000, Delivered: 0x2000, Next: &Next{Commit: 0x3100}}
	r := &Record{Position: 0x2800}
	if r.Follow(base, nil, false); r.Next != nil || r.Delivered != 0x2000 {
		t.Errorf("%+v", r)
	}
	r = &Record{Position: 0x3000}
	if r.Follow(base, nil, false); r.Next != base.Next || r.Delivered != 0x2000 {
		t.Errorf("%+v", r)
	}
}
