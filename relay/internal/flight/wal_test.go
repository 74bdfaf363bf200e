package flight

import (
	"testing"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/checkpoint"
)

func TestTheWALOfACheckpointHoldsWhatItSaysIsDelivered(t *testing.T) {
	f := new(Flight)
	f.HeldBy(9, 100)
	f.HeldBy(19, 200)
	f.HeldBy(9, 300) // comes again
	f.HeldBy(29, 0)  // of another kind of source
	f.HeldBy(39, 400)
	for _, c := range []struct {
		safe cdc.Position
		next *checkpoint.Next
		want cdc.LSN
	}{
		{9, nil, 0},
		{10, nil, 100},
		{20, nil, 200},
		{39, nil, 200},
		{20, &checkpoint.Next{Commit: 39}, 200},
		{20, &checkpoint.Next{Commit: 39, Rows: 1}, 400},
		{40, nil, 400},
	} {
		if got := f.WAL(c.safe, c.next); got != c.want {
			t.Errorf("at %d with %+v: %d, must be %d", c.safe, c.next, got, c.want)
		}
	}
	if f.NewestWAL() != 400 {
		t.Errorf("the newest is %d", f.NewestWAL())
	}
}

func TestALeftRangeHasItsEndAlsoWithoutARow(t *testing.T) {
	p := Resume(10, nil)
	p.Cut = true
	if _, err := p.Begin(19); err != nil {
		t.Fatal(err)
	}
	if next := p.Left(); next == nil || next.Commit != 19 || next.Rows != 0 {
		t.Fatalf("left %+v", next)
	}
	if p.Cut = false; p.Left() != nil {
		t.Error("a source that does not cut has something left")
	}
}
