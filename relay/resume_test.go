package relay

import (
	"errors"
	"testing"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/checkpoint"
)

func TestWhatWasDeliveredInPartIsRememberedUntilItIsPassed(t *testing.T) {
	next := &checkpoint.Next{CommitLSN: 50, Rows: 2, LastEventID: "b"}
	p := progress{next: next}
	if p.left(40, false) != next || p.left(50, true) != next || p.left(51, true) != nil {
		t.Error("before its transaction is read")
	}
	if fresh, err := p.begin(50); !fresh || err != nil {
		t.Fatal(fresh, err)
	}
	if send, err := p.record("a"); send || err != nil {
		t.Fatal(send, err)
	}
	if p.left(40, true) != next {
		t.Error("inside the part that is skipped, it is still the part before")
	}
	if send, err := p.record("b"); send || err != nil {
		t.Fatal(send, err)
	}
	if send, err := p.record("c"); !send || err != nil {
		t.Fatal(send, err)
	}
	if got := p.left(40, false); got != next {
		t.Errorf("with something in flight: %+v", got)
	}
	if got := p.left(40, true); got == nil || *got != (checkpoint.Next{CommitLSN: 50, Rows: 3, LastEventID: "c"}) {
		t.Errorf("settled: %+v", got)
	}
	if fresh, err := p.commit(); !fresh || err != nil || p.left(58, true) != nil {
		t.Error("after its end", fresh, err)
	}
}

func TestSourceThatContradictsItselfIsNoticed(t *testing.T) {
	begin := func(p *progress, pos int) error { _, err := p.begin(cdc.Position(pos)); return err }
	event := func(p *progress) error { _, err := p.event(); return err }
	commit := func(p *progress) error { _, err := p.commit(); return err }
	for name, c := range map[string]struct {
		do   func(p *progress) error
		want error // nil: any
	}{
		"begin inside":        {func(p *progress) error { return errors.Join(begin(p, 10), begin(p, 20)) }, nil},
		"row outside":         {event, nil},
		"commit outside":      {commit, nil},
		"begin at 0":          {func(p *progress) error { return begin(p, 0) }, nil},
		"not in commit order": {func(p *progress) error { return errors.Join(begin(p, 20), commit(p), begin(p, 10)) }, nil},
		"the same again": {func(p *progress) error {
			return errors.Join(begin(p, 20), commit(p), begin(p, 20))
		}, nil},
		"open one not again": {func(p *progress) error {
			_ = begin(p, 20)
			p.reconnected()
			return begin(p, 30)
		}, errChanged},
		"open one shorter": {func(p *progress) error {
			_ = errors.Join(begin(p, 20), event(p), event(p))
			p.reconnected()
			return errors.Join(begin(p, 20), event(p), commit(p))
		}, errChanged},
		"part not there": {func(p *progress) error {
			p.next = &checkpoint.Next{CommitLSN: 15}
			return begin(p, 20)
		}, errNext},
		"part longer than the transaction": {func(p *progress) error {
			p.next = &checkpoint.Next{CommitLSN: 20, Rows: 1}
			return errors.Join(begin(p, 20), commit(p))
		}, errNext},
	} {
		t.Run(name, func(t *testing.T) {
			err := c.do(&progress{})
			if err == nil || c.want != nil && !errors.Is(err, c.want) {
				t.Errorf("%v, not %v", err, c.want)
			}
		})
	}
}
