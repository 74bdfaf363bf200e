package flight

import (
	"errors"
	"testing"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/checkpoint"
)

func TestWhatWasDeliveredInPartIsRememberedUntilItIsPassed(t *testing.T) {
	next := &checkpoint.Next{Commit: 50, Rows: 2, LastEventID: "b"}
	p := Progress{Next: next}
	if p.Left() != nil {
		t.Error("before its transaction is read")
	}
	if fresh, err := p.Begin(50); !fresh || err != nil {
		t.Fatal(fresh, err)
	}
	if send, err := p.Record("a"); send || err != nil {
		t.Fatal(send, err)
	}
	if p.Left() != nil || p.Part(1) != nil {
		t.Error("inside the part that is skipped, nothing more is left")
	}
	if send, err := p.Record("b"); send || err != nil {
		t.Fatal(send, err)
	}
	if send, err := p.Record("c"); !send || err != nil {
		t.Fatal(send, err)
	}
	want := checkpoint.Next{Commit: 50, Rows: 3, LastEventID: "c"}
	if got := p.Left(); got == nil || *got != want {
		t.Errorf("left: %+v", got)
	}
	if got := p.Part(4); got != nil {
		t.Errorf("a part with fewer records: %+v", got)
	}
	if got := p.Part(3); got == nil || *got != want {
		t.Errorf("a part: %+v", got)
	}
	if got := p.Part(1); got != nil {
		t.Errorf("a part without a record: %+v", got)
	}
	if fresh, err := p.Commit(); !fresh || err != nil || p.Left() != nil {
		t.Error("after its end", fresh, err)
	}
}

func TestSourceThatContradictsItselfIsNoticed(t *testing.T) {
	begin := func(p *Progress, pos int) error { _, err := p.Begin(cdc.Position(pos)); return err }
	event := func(p *Progress) error { _, err := p.Event(); return err }
	commit := func(p *Progress) error { _, err := p.Commit(); return err }
	for name, c := range map[string]struct {
		do   func(p *Progress) error
		want error // nil: any
	}{
		"begin inside":        {func(p *Progress) error { return errors.Join(begin(p, 10), begin(p, 20)) }, nil},
		"row outside":         {event, nil},
		"commit outside":      {commit, nil},
		"begin at 0":          {func(p *Progress) error { return begin(p, 0) }, nil},
		"not in commit order": {func(p *Progress) error { return errors.Join(begin(p, 20), commit(p), begin(p, 10)) }, nil},
		"the same again": {func(p *Progress) error {
			return errors.Join(begin(p, 20), commit(p), begin(p, 20))
		}, nil},
		"open one not again": {func(p *Progress) error {
			_ = begin(p, 20)
			p.Reconnected()
			return begin(p, 30)
		}, ErrChanged},
		"open one shorter": {func(p *Progress) error {
			_ = errors.Join(begin(p, 20), event(p), event(p))
			p.Reconnected()
			return errors.Join(begin(p, 20), event(p), commit(p))
		}, ErrChanged},
		"part not there": {func(p *Progress) error {
			p.Next = &checkpoint.Next{Commit: 15}
			return begin(p, 20)
		}, ErrNext},
		"part longer than the transaction": {func(p *Progress) error {
			p.Next = &checkpoint.Next{Commit: 20, Rows: 1}
			return errors.Join(begin(p, 20), commit(p))
		}, ErrNext},
	} {
		t.Run(name, func(t *testing.T) {
			err := c.do(&Progress{})
			if err == nil || c.want != nil && !errors.Is(err, c.want) {
				t.Errorf("%v, not %v", err, c.want)
			}
		})
	}
}
