package checkpoint

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/testenv/short"
)

// Bounds of the walk. What a fifth transaction or a fourth delivery could do, the fourth and the third have done.
const (
	maxTransactions = 4 // three with -short and under the race detector
	maxDeliveries   = 3 // in each
	maxIdles        = 2 // that say something new; stale ones are tried everywhere
)

// TestEveryInterleaving walks every order of begin, add, part, commit, idle and ack within the bounds, each state once, and
// holds the Tracker against its twin after each step. In every state it also tries what must change nothing (stale and
// untimely idle reports, a commit that goes back) and what must panic.
func TestEveryInterleaving(t *testing.T) {
	transactions, least := maxTransactions, 270_000
	if short.Pick(short.Raced(false, true), true) { // the race detector has nothing to find in a walk of one goroutine
		transactions, least = maxTransactions-1, 19_000
	}
	t.Run("without parts", func(t *testing.T) { everyInterleaving(t, transactions, 0, least) })
	t.Run("with parts", func(t *testing.T) { everyInterleaving(t, 2, 2, 10_000) })
}

func everyInterleaving(t *testing.T, transactions, parts, least int) {
	seen := map[string]struct{}{}
	fail := func(p *pair, err error) {
		t.Helper()
		t.Fatalf("%v\n%s", err, p.told())
	}
	steps := 0
	var walk func(p *pair, deliveries, idles int)
	step := func(p *pair, do func(p *pair), deliveries, idles int) {
		steps++
		was := p.t.Safe()
		p = p.clone()
		do(p)
		if err := p.differ(); err != nil {
			fail(p, err)
		}
		if p.t.Safe() < was {
			t.Fatalf("safe went from %d to %d\n%s", was, p.t.Safe(), p.told())
		}
		walk(p, deliveries, idles)
	}
	walk = func(p *pair, deliveries, idles int) {
		state := p.state()
		if _, ok := seen[state]; ok {
			return
		}
		seen[state] = struct{}{}
		triesThatChangeNothing(t, p)
		last := p.w.reported()
		if !p.w.isOpen() {
			if p.begun < transactions {
				step(p, (*pair).begin, 0, idles)
			}
			if idles < maxIdles {
				step(p, func(p *pair) { p.idle(last + 5) }, deliveries, idles+1)
			}
		} else {
			if deliveries < maxDeliveries {
				step(p, func(p *pair) { p.add(100 * p.begun) }, deliveries+1, idles)
			}
			if deliveries > 0 && len(p.w.parts) < parts {
				step(p, (*pair).part, deliveries, idles)
			}
			step(p, func(p *pair) {
				if err := p.commit(last + 10); err != nil {
					fail(p, err)
				}
			}, 0, idles)
		}
		for i := range p.tickets {
			if !p.acked(i) {
				step(p, func(p *pair) { p.ack(i) }, deliveries, idles)
			}
		}
	}
	walk(newPair(1000), 0, 0)
	t.Logf("%d states, %d steps", len(seen), steps)
	if len(seen) < least {
		t.Errorf("only %d states: the walk does not walk", len(seen))
	}
}

func triesThatChangeNothing(t *testing.T, p *pair) {
	t.Helper()
	before := p.state()
	last, safe := p.w.reported(), p.w.safe()
	same := func(what string, arg cdc.Position) {
		if p.state() != before {
			t.Fatalf("%s %d changed something\n%s", what, arg, p.told())
		}
	}
	// Of the tracker alone: the twin would remember even what means nothing.
	stale := [...]cdc.Position{0, 1, safe, safe + 1, last - 1, last}
	for _, pos := range stale {
		if pos <= last {
			p.t.Idle(pos)
			same("a stale idle", pos)
		}
	}
	if p.w.isOpen() {
		p.t.Idle(last + 50)
		same("an idle inside a transaction", last+50)
		for _, end := range stale {
			if end > last {
				continue
			}
			if err := p.t.Commit(end); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("ends at %s, which is not beyond the previously reported position %s", end, last)) {
				t.Fatalf("commit %d: %v\n%s", end, err, p.told())
			}
			same("a commit that goes back", end)
		}
	}
	if p.begun == maxTransactions {
		return // most states, and a panic is slow: three transactions show as much
	}
	if p.w.isOpen() {
		mustPanic(t, p, "begin inside a transaction", func() { p.t.Begin(time.Time{}) })
	} else {
		mustPanic(t, p, "add outside a transaction", func() { p.t.Add(1) })
		mustPanic(t, p, "part outside a transaction", func() { p.t.Part() })
		mustPanic(t, p, "commit outside a transaction", func() { _ = p.t.Commit(last + 50) })
	}
	mustPanic(t, p, "ack of the zero ticket", func() { p.t.Ack(cdc.Ticket{}) })
	mustPanic(t, p, "ack of a ticket from the future", func() { p.t.Ack(cdc.Ticket{Tx: p.t.next}) })
	mustPanic(t, p, "ack of a ticket from the past", func() { p.t.Ack(cdc.Ticket{Tx: p.t.first - 1}) })
	for _, d := range p.tickets {
		waiting, bytes := 0, 0
		for i, acked := range p.w.log[d.entry].acked {
			if !acked {
				waiting++
				bytes += p.w.log[d.entry].sizes[i]
			}
		}
		switch waiting {
		case 0:
			mustPanic(t, p, "second ack", func() { p.t.Ack(d.ticket) })
			mustPanic(t, p, "second ack, of nothing", func() { p.t.Ack(cdc.Ticket{Tx: d.ticket.Tx}) })
		case 1:
			mustPanic(t, p, "last ack, too small", func() { p.t.Ack(cdc.Ticket{Tx: d.ticket.Tx, Size: uint32(bytes - 1)}) })
			fallthrough
		default:
			mustPanic(t, p, "ack, too big", func() { p.t.Ack(cdc.Ticket{Tx: d.ticket.Tx, Size: uint32(bytes + 1)}) })
		}
	}
	same("a panic", 0)
}

func mustPanic(t *testing.T, p *pair, what string, do func()) {
	t.Helper()
	defer func() {
		t.Helper()
		if said := fmt.Sprint(recover()); !strings.HasPrefix(said, "checkpoint: ") {
			t.Fatalf("%s: the panic is %s\n%s", what, said, p.told())
		}
	}()
	do()
}

// FuzzTracker goes where the walk does not: many transactions, many deliveries, numbers of any distance. A byte is one step.
func FuzzTracker(f *testing.F) {
	f.Add([]byte{0, 1, 2, 4, 3, 5})
	f.Add([]byte("\x00\x01\x01\x01\x02\x00\x01\x02\x03\x04\x0c\x14\x1c"))
	f.Add([]byte{0, 2, 0, 2, 3, 0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2, 28, 20, 12, 4, 3})
	f.Fuzz(func(t *testing.T, steps []byte) {
		p := newPair(7)
		for i, step := range steps[:min(len(steps), 400)] {
			arg := int(step >> 3)
			was := p.t.Safe()
			switch step & 7 {
			case 0, 6:
				if p.w.isOpen() {
					continue
				}
				p.begin()
			case 1, 7:
				if !p.w.isOpen() {
					continue
				}
				p.add(arg)
			case 2:
				if !p.w.isOpen() {
					continue
				}
				// Up to 3 behind what was reported: must be refused.
				if err := p.commit(p.w.reported() + cdc.Position(arg) - 3); err != nil {
					t.Fatalf("%v\n%s", err, p.told())
				}
			case 3:
				p.idle(p.w.reported() + cdc.Position(arg) - 3)
			case 4, 5:
				n := len(p.tickets)
				if n == 0 {
					continue
				}
				k := (arg*31 + i) % n
				if p.acked(k) {
					continue
				}
				p.ack(k)
			}
			if err := p.differ(); err != nil {
				t.Fatalf("%v\n%s", err, p.told())
			}
			if p.t.Safe() < was {
				t.Fatalf("safe went from %d to %d\n%s", was, p.t.Safe(), p.told())
			}
		}
	})
}

func TestAnImpossibleSizePanics(t *testing.T) {
	for _, size := range []int{-1, 1 << 32} {
		p := newPair(1)
		p.begin()
		mustPanic(t, p, "add", func() { p.t.Add(size) })
		if err := p.differ(); err != nil {
			t.Errorf("add of %d bytes left a trace: %v", size, err)
		}
	}
}

func TestNothingIsAllocatedInSteadyState(t *testing.T) {
	for _, window := range []int{1, 1000} {
		run := steady(window)
		for range 2 * window { // let the ring grow
			run()
		}
		if n := testing.AllocsPerRun(5000, run); n != 0 {
			t.Errorf("%d transactions in flight: %v allocations per transaction", window, n)
		}
	}
}

// steady returns a function that reads one transaction of one delivery and acknowledges the one that is window older.
func steady(window int) func() {
	tr, tickets, i, end := New(1), make([]cdc.Ticket, window), 0, cdc.Position(1)
	return func() {
		if tickets[i] != (cdc.Ticket{}) {
			tr.Ack(tickets[i])
		}
		tr.Begin(time.Time{})
		tickets[i] = tr.Add(400)
		end += 100
		if err := tr.Commit(end); err != nil {
			panic(err)
		}
		i = (i + 1) % window
	}
}

func BenchmarkTracker(b *testing.B) {
	for _, c := range []struct {
		name string
		run  func() func()
	}{
		{"one in flight", func() func() { return steady(1) }},
		{"50000 in flight", func() func() { return steady(50_000) }},
		{"100 deliveries, acknowledged backwards", func() func() {
			tr, tickets, end := New(1), make([]cdc.Ticket, 100), cdc.Position(1)
			return func() {
				tr.Begin(time.Time{})
				for i := range tickets {
					tickets[i] = tr.Add(400)
				}
				end += 100
				if err := tr.Commit(end); err != nil {
					panic(err)
				}
				for i := len(tickets) - 1; i >= 0; i-- {
					tr.Ack(tickets[i])
				}
			}
		}},
		{"idle", func() func() {
			tr, pos := New(1), cdc.Position(1)
			return func() {
				pos++
				tr.Idle(pos)
			}
		}},
	} {
		b.Run(c.name, func(b *testing.B) {
			run := c.run()
			b.ReportAllocs()
			for b.Loop() {
				run()
			}
		})
	}
}
