package relay

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/checkpoint"
	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/internal/size"
)

// known are defects that are not repaired yet: what shows them is left out, unless the flag -known asks for it.
var known = map[string]bool{
	"update": true, // an updated row takes the mark of a copy back to its place
}

var showKnown = flag.String("known", "", "what shows these known defects is not left out (comma-separated)")

// spare says whether what shows a known defect is to be left out.
func spare(defect string) bool {
	return known[defect] && !slices.Contains(strings.Split(*showKnown, ","), defect)
}

// A fleet is a world with tables, one or two hosts that run the relay, and an operator who does what refusals say: who repairs poison,
// runs recover, or accepts a gap. Its driver is one goroutine.
type fleet struct {
	*world
	rng    *rand.Rand
	cfg    Config
	tables []string
	hosts  []*host
	repair *run // a recover that runs

	spoiled map[string]bool // events that could not be routed or delivered for some time

	wanted   bool      // a recover is to be started
	recovers int       // in a row without an end of the trouble
	mended   time.Time // when the operator last repaired something: an end may still be about what was before
}

type host struct {
	name   string
	run    *run
	down   bool // stopped on purpose
	accept string
	told   string // why it ended last
}

func (f *fleet) upTo(d time.Duration) time.Duration { return time.Duration(f.rng.Int64N(int64(d))) }

func (f *fleet) note(format string, a ...any) { f.do(func() { f.tell(format, a...) }) }

func (f *fleet) wrongSoFar() (n int) {
	f.do(func() { n = len(f.wrong) })
	return n
}

// order is the tables in any order, as somebody may write them anew between two starts.
func (f *fleet) order() []string {
	order := slices.Clone(f.tables)
	f.rng.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
	return order
}

func (f *fleet) launch(h *host) {
	cfg := f.cfg
	cfg.AcceptGap = h.accept
	order := f.order()
	if cfg.Copying != nil {
		cfg.Copying = &Copying{Origin: checkpoint.OriginSnapshot, Tables: &simTables{w: f.world, order: order}}
	}
	h.run, h.down = f.start(cfg), false
}

// recoverNow starts walpost recover.
func (f *fleet) recoverNow() {
	cfg := f.cfg
	order := f.order()
	f.note("recover, tables %v", order)
	cfg.Create = true
	cfg.Copying = &Copying{
		Origin: checkpoint.OriginRecover, Tables: &simTables{w: f.world, order: order, recover: true},
		Gap: func(context.Context, *checkpoint.Refusal, *checkpoint.Copy, *checkpoint.Copy) error { return nil },
	}
	f.repair = f.start(cfg)
}

func ended(r *run) bool {
	select {
	case <-r.done:
		return true
	default:
		return false
	}
}

// tend does what an operator does, and starts what has ended.
func (f *fleet) tend() {
	if r := f.repair; r != nil && ended(r) {
		f.repair, f.mended = nil, time.Now()
		f.note("recover ended: %v", r.err)
		var bad *BadEvent
		switch {
		case r.err == nil || errors.Is(r.err, ErrNoGap) || r.dead:
		case errors.As(r.err, &bad):
			f.do(func() {
				if f.bury {
					f.fail("recover halts although the policy is dead_letter: %v", r.err)
				}
				f.repaired(bad)
			})
		case !fault.NeedsPerson(r.err):
			f.do(func() { f.fail("recover ended: %v", r.err) })
		}
	}
	if f.wanted {
		f.wanted = false
		f.recoverNow()
	}
	for _, h := range f.hosts {
		if h.down || !ended(h.run) {
			continue
		}
		err := h.run.err
		if err != nil && err.Error() != h.told {
			h.told = err.Error()
			f.note("%s ended: %v", h.name, err)
		}
		switch {
		case err == nil:
		case fault.NeedsPerson(err):
			f.refused(h, err)
		default:
			f.do(func() { f.fail("%s ended: %v", h.name, err) })
		}
		f.launch(h)
	}
	f.do(func() {
		if rec := f.newest(); f.usable() && rec != nil && rec.Copy == nil && f.repair == nil {
			f.recovers = 0
		}
	})
}

// refused does what an end that needs a person asks for.
func (f *fleet) refused(h *host, err error) {
	var gap *checkpoint.Refusal
	var bad *BadEvent
	f.do(func() {
		stale := time.Since(f.mended) < 10*time.Second
		switch {
		case errors.As(err, &bad):
			if f.bury {
				f.fail("%s halts although the policy is dead_letter: %v", h.name, err)
			}
			if !f.spoiled[bad.EventID] {
				f.fail("%s halts at an event that is fine: %v", h.name, err)
			}
			f.repaired(bad)
		case errors.As(err, &gap):
			f.gap(h, gap, stale)
		case f.tx != nil && len(f.runs) > 1 && errors.As(err, new(*superseded)):
		case f.newest().Copies(checkpoint.OriginRecover):
			f.recoverAgain(h.name, err)
		case !stale && f.repair == nil: // a recover that ends writes that down first
			f.fail("%s is refused without a cause: %v", h.name, err)
		}
	})
}

// repaired makes a bad event a good one, or has it passed over.
func (f *fleet) repaired(bad *BadEvent) {
	f.mended = time.Now()
	if bad.Commit > 0 && f.rng.IntN(3) == 0 {
		f.tell("%s is passed over", bad.EventID)
		f.skipLocked(func(h *checkpoint.Halt) bool { return h.EventID == bad.EventID })
		return
	}
	clear(f.poison)
	clear(f.unrouted)
}

// gap answers the refusal of a gap. There is one only where the slot was lost.
func (f *fleet) gap(h *host, gap *checkpoint.Refusal, stale bool) {
	lost := gap.Reason == checkpoint.SlotLost || gap.Reason == checkpoint.SlotMissing
	switch {
	case f.repair != nil || f.wanted || f.accepted != nil && f.accepted.Token == gap.Token:
	case lost && f.usable(): // the slot was made anew since
	case lost && !f.newest().Copies(checkpoint.OriginRecover) && f.rng.IntN(3) == 0:
		f.tell("%s: the gap is accepted, with %s", h.name, gap.Token)
		h.accept, f.accepted, f.mended = gap.Token, gap, time.Now()
		if f.tx != nil && gap.Record.Copies(checkpoint.OriginSnapshot) { // which begins once more
			for _, r := range f.byID {
				r.reread = true
			}
		}
	case lost:
		f.recoverAgain(h.name, gap)
	case gap.Reason == checkpoint.SlotAhead && gap.To == f.unwritten:
		// The slot behind an accepted gap was made, and the process ended before it wrote that down.
		h.accept = gap.Token
	case !stale:
		f.fail("%s is refused without a cause: %v", h.name, gap)
	}
}

// recoverAgain wants a recover, unless it was of no use too often.
func (f *fleet) recoverAgain(who string, err error) {
	if f.repair != nil || f.wanted {
		return
	}
	if f.recovers++; f.recovers > 30 {
		f.fail("a dead end: recover was run %d times, and %s still says: %v", f.recovers-1, who, err)
		return
	}
	f.wanted = true
}

// live says which hosts run.
func (f *fleet) live() (hosts []*host) {
	for _, h := range f.hosts {
		if !ended(h.run) {
			hosts = append(hosts, h)
		}
	}
	return hosts
}

// pass lets time go by.
func (f *fleet) pass(d time.Duration) {
	for until := time.Now().Add(d); time.Now().Before(until) && f.wrongSoFar() == 0; time.Sleep(min(500*time.Millisecond, time.Until(until))) {
		f.tend()
	}
	f.tend()
}

// reach waits until ok, and says whether it came true in time.
func (f *fleet) reach(limit time.Duration, ok func() bool) bool {
	for until := time.Now().Add(limit); time.Now().Before(until); time.Sleep(20 * time.Millisecond) {
		f.tend()
		is := false
		f.do(func() { is = ok() })
		if is || f.wrongSoFar() > 0 {
			return true
		}
	}
	return false
}

func (f *fleet) stopHost(h *host) {
	h.down = true
	took := h.run.stop()
	f.do(func() {
		if h.run.err != nil && !fault.NeedsPerson(h.run.err) {
			f.fail("%s stopped: %v", h.name, h.run.err)
		}
		if took > 30*time.Second {
			f.fail("a stop of %s took %s", h.name, took)
		}
	})
}

// write is the application. Each key is of one table.
func (f *fleet) write(rng *rand.Rand, transactions int, pause time.Duration) {
	for range transactions {
		n := 1 + rng.IntN(4)
		if rng.IntN(12) == 0 {
			n = 20 + rng.IntN(150)
		}
		keys := make([]string, n)
		for i := range keys {
			keys[i] = f.spoil(rng, string("abcdef-"[rng.IntN(7)])) + strings.TrimPrefix(f.tables[rng.IntN(len(f.tables))], "t")
		}
		brief := rng.IntN(8) == 0 // rows that no table ever shows
		f.insert(keys, func(int) bool { return brief && rng.IntN(2) == 0 })
		for range rng.IntN(3) {
			f.do(func() {
				t := f.log[rng.IntN(len(f.log))]
				r := t.rows[rng.IntN(len(t.rows))]
				switch {
				case r.deleted != 0:
				case rng.IntN(2) == 0:
					f.remove(r)
				case r.changed == 0 && !spare("update"):
					f.touch(r)
				}
			})
		}
		if rng.IntN(5) == 0 {
			f.other()
		}
		if pause > 0 && rng.IntN(3) > 0 {
			time.Sleep(time.Duration(rng.Int64N(int64(pause))))
		}
	}
}

func newFleet(seed uint64, clean bool, tx *txBroker) *fleet {
	f := &fleet{world: newWorld(seed), rng: rand.New(rand.NewPCG(seed, 5)), spoiled: map[string]bool{}}
	f.clean, f.tabled, f.tx = clean, true, tx
	f.tables = []string{"t0", "t1", "t2"}[:1+f.rng.IntN(3)]
	f.maxDelay = []time.Duration{2 * time.Millisecond, 50 * time.Millisecond, 700 * time.Millisecond}[f.rng.IntN(3)]
	f.status = []time.Duration{10 * time.Second, 2 * time.Second}[f.rng.IntN(2)]
	f.cfg.Window = Window{Events: 1 + f.rng.IntN(60), Bytes: size.Bytes(100 + f.rng.IntN(5000))}
	f.id.SlotFound = cdc.SlotState{}
	f.cfg.Create = true
	if f.rng.IntN(3) > 0 {
		f.cfg.Copying = &Copying{}
		f.write(rand.New(rand.NewPCG(seed, 6)), f.rng.IntN(40), 0)
	}
	f.poisoned(seed, &f.cfg)
	for i := range 1 + f.rng.IntN(2) {
		f.hosts = append(f.hosts, &host{name: fmt.Sprintf("host %d", i)})
	}
	return f
}

// live runs the fleet through its troubles, and then wants everything to come to rest.
func (f *fleet) story(seed uint64) {
	for _, h := range f.hosts {
		f.launch(h)
	}
	// What is written before the slot is there is nobody's to deliver, unless a snapshot gives it.
	f.reach(20*time.Second, func() bool { return f.usable() })
	written, transactions := make(chan struct{}), 30+f.rng.IntN(60)
	go func() {
		defer close(written)
		f.write(rand.New(rand.NewPCG(seed, 7)), transactions, 600*time.Millisecond)
	}()
	for range 5 + f.rng.IntN(12) {
		if f.pass(f.upTo(3 * time.Second)); f.wrongSoFar() > 0 {
			break
		}
		f.happen()
	}
	<-written
	f.note("quiet")
	f.do(func() { f.maxDelay = 5 * time.Millisecond })
	if !f.reach(5*time.Minute, f.atRest) {
		f.do(func() {
			pos, next, n := f.delivered()
			f.fail("not everything arrived: up to %s of %s, next %+v, %d rows of it, record %+v", pos, f.pos, next, n, f.newest())
		})
	}
	f.other()
	if !f.reach(time.Minute, func() bool { return f.id.SlotFound.Confirmed == f.pos }) {
		f.do(func() { f.fail("the slot stays at %s, the server is at %s", f.id.SlotFound.Confirmed, f.pos) })
	}
	if f.wrongSoFar() > 0 {
		return
	}
	// A late write of each killed process may come after the last start has looked.
	if !f.reach(time.Minute, func() bool { return len(f.records) <= 3 }) {
		f.do(func() { f.fail("records are left: %s", slices.Sorted(maps.Keys(f.records))) })
	}
	for _, h := range f.live() {
		took := h.run.stop()
		f.do(func() {
			stale := fault.NeedsPerson(h.run.err) && time.Since(f.mended) < 10*time.Second || errors.As(h.run.err, new(*superseded))
			if h.run.err != nil && !stale || took > 2*time.Second {
				f.fail("the last stop of %s took %s: %v", h.name, took, h.run.err)
			}
		})
	}
}

// atRest says that everything has arrived, no copy is open, and the slot is used.
func (f *fleet) atRest() bool {
	rec := f.newest()
	return f.allDelivered() && rec != nil && rec.Copy == nil && f.session != nil && f.repair == nil
}

func simulateFleet(t *testing.T, seed uint64, clean bool, tx *txBroker) {
	var f *fleet
	synctest.Test(t, func(t *testing.T) {
		f = newFleet(seed, clean, tx)
		defer func() {
			for _, r := range f.runs {
				r.cancel()
				<-r.done
			}
			time.Sleep(5 * time.Second) // kills and late writes end
		}()
		f.story(seed)
	})
	if len(f.wrong) == 0 && *seed0 == 0 {
		return
	}
	if *seed0 != 0 {
		for i, r := range f.runs {
			t.Logf("process %d:\n%s", i, r.logs.String())
		}
	}
	t.Logf("seed %d, window %+v, %d hosts, tables %v, snapshot %v, %d confirms, %d saves, %d opens\n%s",
		seed, f.cfg.Window, len(f.hosts), f.tables, f.cfg.Copying != nil, f.confirms, f.saves, f.opens, strings.Join(f.tale, "\n"))
	if len(f.wrong) > 0 {
		t.Errorf("seed %d:\n%s", seed, strings.Join(f.wrong[:min(5, len(f.wrong))], "\n"))
	}
}

// Snapshots, lost slots, recovers and two processes, with clean stops and lost sessions alone: nothing is delivered twice, but for what a
// second reading of the tables gives.
func TestSimulationOfCopiesAndTakeoversWithoutACrash(t *testing.T) {
	seedsOf(t, func(t *testing.T, seed uint64) { simulateFleet(t, seed, true, nil) })
}

// The same with everything that can happen: nothing is lost, nothing is out of order, and nothing that a record says was delivered comes again.
func TestSimulationOfCopiesAndTakeovers(t *testing.T) {
	seedsOf(t, func(t *testing.T, seed uint64) { simulateFleet(t, seed, false, nil) })
}
