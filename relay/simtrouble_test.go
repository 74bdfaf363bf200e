package relay

import (
	"time"

	"github.com/walpost/walpost/cdc"
)

// A trouble is one thing that can happen. Those of a clean world deliver nothing twice, but for rows that a second reading of the tables gives.
type trouble struct {
	name  string
	clean bool // also where nothing may be delivered twice
	alone bool // in a clean world only while one host runs: a second one takes over what the first had in flight
	do    func(f *fleet, h *host)
}

var troubles = []trouble{
	{"nothing", true, false, func(*fleet, *host) {}},
	{"session lost", true, true, func(f *fleet, _ *host) { f.cut(errNet) }},
	{"flaky network", true, true, func(f *fleet, _ *host) {
		f.do(func() { f.flaky = []float64{.3, .05, .005}[f.rng.IntN(3)] })
		f.pass(f.upTo(5 * time.Second))
		f.do(func() { f.flaky = 0 })
	}},
	{"server down", true, true, func(f *fleet, _ *host) {
		back := f.rng.IntN(300)
		f.do(func() {
			f.down = true
			if slot := &f.id.SlotFound; f.usable() {
				slot.Confirmed = max(f.made, slot.Confirmed-cdc.Position(min(back, int(slot.Confirmed))))
			}
		})
		f.cut(errNet)
		f.pass(f.upTo(4 * time.Second))
		f.do(func() { f.down = false })
	}},
	{"stop", true, false, func(f *fleet, h *host) { f.stopHost(h); f.launch(h) }},
	{"stop for a while", true, false, func(f *fleet, h *host) { f.stopHost(h); f.pass(f.upTo(3 * time.Second)); f.launch(h) }},
	{"sink stalled", true, false, func(f *fleet, _ *host) {
		f.do(func() { f.stalled = true })
		f.pass(f.upTo(5 * time.Second))
		f.do(func() { f.stalled = false })
	}},
	{"sink stalled until a copy frees its snapshot", true, false, func(f *fleet, _ *host) {
		f.do(func() { f.stalled = true })
		f.pass(SnapshotPatience + f.upTo(5*time.Second))
		f.do(func() { f.stalled = false })
	}},
	{"schema registry down", true, false, func(f *fleet, _ *host) {
		f.do(func() { f.unanswered = true })
		f.pass(f.upTo(5 * time.Second))
		f.do(func() { f.unanswered = false })
	}},
	{"store slow, and lies", true, true, func(f *fleet, _ *host) {
		f.do(func() { f.storeMax, f.storeLie = 400*time.Millisecond, true })
		f.pass(f.upTo(5 * time.Second))
		f.do(func() { f.storeMax, f.storeLie = 5*time.Millisecond, false })
	}},
	{"store down", true, true, func(f *fleet, _ *host) {
		f.do(func() { f.storeDown = true })
		f.pass(f.upTo(3 * time.Second))
		f.do(func() { f.storeDown = false })
	}},
	{"kill", false, false, func(f *fleet, h *host) { h.run.kill(); <-h.run.done; f.launch(h) }},
	{"cut off", false, false, func(f *fleet, h *host) {
		f.do(func() {
			if h.run.away = true; f.session != nil && f.session.p == h.run.proc {
				f.cutLocked(errNet)
			}
		})
		f.pass(f.upTo(5 * time.Second))
		f.do(func() { h.run.away = false })
	}},
	{"store answers late", false, false, func(f *fleet, _ *host) {
		f.do(func() { f.storeLate, f.storeMax = true, 300*time.Millisecond })
		f.pass(f.upTo(5 * time.Second))
		if f.rng.IntN(2) == 0 {
			f.cut(errNet)
			f.pass(f.upTo(2 * time.Second))
		}
		f.do(func() { f.storeLate, f.storeMax = false, 5*time.Millisecond })
	}},
	{"store hangs while stopping", false, false, func(f *fleet, h *host) {
		f.do(func() { f.storeHang = true })
		f.stopHost(h)
		f.do(func() { f.storeHang = false })
		f.launch(h)
	}},
	{"sink stalled while stopping", false, false, func(f *fleet, h *host) {
		f.do(func() { f.stalled = true })
		f.stopHost(h)
		f.do(func() { f.stalled = false })
		f.launch(h)
	}},
	{"poison", false, false, func(f *fleet, _ *host) {
		f.do(func() {
			where := f.poison
			if f.rng.IntN(2) == 0 {
				where = f.unrouted
			}
			for _, t := range f.log {
				for _, r := range t.rows {
					if r.routed && f.count[r.id] == 0 && f.rng.IntN(4) == 0 {
						where[r.id], f.spoiled[r.id] = true, true
						return
					}
				}
			}
		})
	}},
	{"no dead letters", true, true, func(f *fleet, _ *host) {
		f.do(func() { f.noLetters = true })
		f.pass(f.upTo(8 * time.Second))
		f.do(func() { f.noLetters = false })
	}},
	{"slot lost", false, false, func(f *fleet, _ *host) {
		f.do(func() {
			f.loseSlot(f.rng.IntN(2) == 0)
		})
	}},
	{"transaction", false, false, func(f *fleet, h *host) { f.txTrouble(f.rng, h.run) }},
	{"recover killed", false, false, func(f *fleet, _ *host) {
		if f.repair != nil {
			f.repair.kill()
			<-f.repair.done
		}
	}},
}

// happen lets one of the troubles happen.
func (f *fleet) happen() {
	live := f.live()
	if len(live) == 0 {
		return
	}
	h := live[f.rng.IntN(len(live))]
	t := troubles[f.rng.IntN(len(troubles))]
	if f.clean && (!t.clean || t.alone && len(f.hosts) > 1) {
		return
	}
	f.note("%s (%s)", t.name, h.name)
	t.do(f, h)
}
