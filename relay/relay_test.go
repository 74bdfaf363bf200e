package relay

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/checkpoint"
	"github.com/walpost/walpost/internal/fault"
)

// story runs f in a bubble of fake time and fails for whatever the world saw that must not happen.
func story(t *testing.T, f func(t *testing.T, w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(1)
		w.clean = true
		t.Cleanup(func() {
			for _, r := range w.runs {
				r.cancel()
				<-r.done
			}
			time.Sleep(2 * time.Second) // kills end
		})
		f(t, w)
		w.mu.Lock()
		defer w.mu.Unlock()
		for _, s := range w.wrong {
			t.Error(s)
		}
	})
}

func (w *world) want(t *testing.T, limit time.Duration, what string, ok func() bool) {
	t.Helper()
	from := time.Now()
	if !w.eventually(limit, ok) {
		t.Fatalf("not within %s: %s", limit, what)
	}
	t.Logf("after %s: %s", time.Since(from), what)
}

func (w *world) do(f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f()
}

// look reads something of the world.
func look[T any](w *world, p *T) T {
	w.mu.Lock()
	defer w.mu.Unlock()
	return *p
}

func (w *world) record() *checkpoint.Record {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.newest()
}

func (w *world) everything() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.allDelivered()
}

func (w *world) twice() (ids []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for id, n := range w.count {
		if n > 1 {
			ids = append(ids, id)
		}
	}
	return ids
}

func keys(n int) []string {
	k := make([]string, n)
	for i := range k {
		k[i] = string(rune('a' + i%5))
	}
	return k
}

func (r *run) wantLog(t *testing.T, text string, times int) {
	t.Helper()
	if n := strings.Count(r.logs.String(), text); n != times {
		t.Errorf("%q is logged %d times, not %d:\n%s", text, n, times, r.logs.String())
	}
}

// stopped stops r cleanly and wants no error.
func (r *run) stopped(t *testing.T, limit time.Duration) {
	t.Helper()
	if took := r.stop(); r.err != nil || took > limit {
		t.Errorf("a stop took %s (at most %s): %v", took, limit, r.err)
	}
}

func TestFirstRecordFollowsTheSlot(t *testing.T) {
	story(t, func(t *testing.T, w *world) {
		w.commit("a") // before the slot: not ours
		w.count[w.log[0].rows[0].id] = 1
		w.id.SlotFound = cdc.SlotState{}
		r := w.start(Config{Create: true})
		w.want(t, 100*time.Millisecond, "record", func() bool { return w.newest() != nil })
		rec := w.record()
		if rec.Position != w.pos || rec.Epoch != 1 || rec.SystemID != "7" || rec.Timeline != 1 || rec.Slot != "walpost" || rec.Database != "shop" || rec.RunID == "" || rec.Time.IsZero() {
			t.Errorf("record %+v", rec)
		}
		r.stopped(t, time.Second)
		r.wantLog(t, "no checkpoint belongs to it", 0)
		if look(w, &w.creates) != 1 || look(w, &w.saves) != 1 {
			t.Errorf("%d slots made, %d saves", look(w, &w.creates), look(w, &w.saves))
		}
	})
}

func TestSlotWithoutACheckpointIsTakenLoudly(t *testing.T) {
	story(t, func(t *testing.T, w *world) {
		w.commit("a") // behind the slot, and never seen by anybody
		r := w.start(Config{Create: true})
		w.want(t, time.Second, "delivered", w.allDelivered)
		r.stopped(t, time.Second)
		w.start(Config{Create: true}).stopped(t, time.Second)
		r.wantLog(t, "no checkpoint belongs to it", 1)
		w.runs[1].wantLog(t, "no checkpoint belongs to it", 0)
	})
}

func TestSlotIsNotMadeUnasked(t *testing.T) {
	story(t, func(t *testing.T, w *world) {
		w.id.SlotFound = cdc.SlotState{}
		r := w.start(Config{})
		<-r.done
		if !errors.Is(r.err, checkpoint.ErrNoSlot) || !fault.Misconfigured(r.err) || look(w, &w.creates) > 0 || len(w.records) > 0 {
			t.Errorf("%v, %d slots made", r.err, look(w, &w.creates))
		}
		// Another reader may have used the slot, so its loss comes before the advice to make a new one.
		hint := fault.Hint(r.err)
		cause, loss, create := strings.Index(hint, "source.slot"), strings.Index(hint, "has no events from before its creation"), strings.Index(hint, "source.create: true")
		if cause < 0 || loss < cause || create < loss {
			t.Errorf("the hint: %s", hint)
		}
	})
}

func TestSlotIsNotMadeWhereARecordKnowsIt(t *testing.T) {
	story(t, func(t *testing.T, w *world) {
		r := w.start(Config{Create: true})
		w.want(t, time.Second, "record", func() bool { return w.newest() != nil })
		r.stopped(t, time.Second)
		w.id.SlotFound = cdc.SlotState{}
		r = w.start(Config{Create: true, HaltLinger: time.Minute})
		from := time.Now()
		<-r.done
		if !fault.NeedsPerson(r.err) || look(w, &w.creates) > 0 || time.Since(from) < time.Minute {
			t.Errorf("%v, %d slots made, after %s", r.err, look(w, &w.creates), time.Since(from))
		}
	})
}

func TestEachSessionTakesTheNextEpochAndRemovesTheOlder(t *testing.T) {
	story(t, func(t *testing.T, w *world) {
		for epoch := range uint64(3) {
			r := w.start(Config{})
			w.commit("a")
			w.want(t, time.Second, "delivered", w.allDelivered)
			w.want(t, 2*time.Second, "older records removed", func() bool {
				return w.newest() != nil && w.newest().Epoch == epoch+1 && len(w.records) == 1
			})
			r.stopped(t, time.Second)
			if st := r.relay.Status(); st.Epoch != epoch+1 || st.State != Stopped || st.Sessions["stopped"] != 1 {
				t.Errorf("%+v", st)
			}
		}
	})
}

func TestCheckpointComesWithinASecondAndConfirmRightAfter(t *testing.T) {
	story(t, func(t *testing.T, w *world) {
		r := w.start(Config{})
		time.Sleep(20 * time.Second)
		for range 10 {
			end := w.commit("a").end
			w.want(t, 1200*time.Millisecond, "confirmed", func() bool { return w.id.SlotFound.Confirmed >= end })
		}
		if st := r.relay.Status(); st.Events != 10 || st.Transactions != 10 || st.Latency.Sum == 0 {
			t.Errorf("%+v", st)
		}
		saves := look(w, &w.saves)
		for range 500 {
			w.commit("a")
			time.Sleep(10 * time.Millisecond)
		}
		if n := look(w, &w.saves) - saves; n < 4 || n > 6 {
			t.Errorf("%d saves in 5 s", n)
		}
		r.stopped(t, time.Second)
	})
}

func TestIdleProgressIsCheckpointedEveryTenSeconds(t *testing.T) {
	story(t, func(t *testing.T, w *world) {
		r := w.start(Config{})
		time.Sleep(time.Second)
		saves := look(w, &w.saves)
		for range 1000 {
			w.other()
			time.Sleep(100 * time.Millisecond)
		}
		if n := look(w, &w.saves) - saves; n < 9 || n > 12 {
			t.Errorf("%d saves in 100 s", n)
		}
		w.want(t, 11*time.Second, "slot follows", func() bool { return w.id.SlotFound.Confirmed == w.pos })
		r.stopped(t, time.Second)
	})
}

func TestWindowHoldsAndSignsOfLifeGoOn(t *testing.T) {
	for name, win := range map[string]Window{"events": {Events: 10}, "bytes": {Events: 1000, Bytes: 800}, "transactions": {Events: 10}} {
		t.Run(name, func(t *testing.T) {
			story(t, func(t *testing.T, w *world) {
				r := w.start(Config{Window: win})
				time.Sleep(time.Second)
				w.do(func() { w.stalled = true })
				if name == "transactions" {
					for range 30 {
						w.commit("a")
					}
				} else {
					w.commit(keys(100)...)
				}
				confirms := look(w, &w.confirms)
				time.Sleep(50 * time.Second)
				st := r.relay.Status()
				if st.InFlight.Events > 11 || st.InFlight.Events < 9 || r.sink.sent() > 11 {
					t.Errorf("%d events, %d bytes in flight, %d sent", st.InFlight.Events, st.InFlight.Bytes, r.sink.sent())
				}
				if st.WindowFull < 48*time.Second || st.WindowFull > 51*time.Second {
					t.Errorf("the window was full for %s", st.WindowFull)
				}
				if st.Ready || !strings.Contains(st.Reason, "brokers cannot be reached") || st.InFlight.Oldest.IsZero() {
					t.Errorf("%+v", st)
				}
				if n := look(w, &w.confirms) - confirms; n < 48 || n > 60 {
					t.Errorf("%d confirms in 50 s of a full window", n)
				}
				w.do(func() { w.stalled = false })
				w.want(t, 10*time.Second, "all delivered", w.allDelivered)
				time.Sleep(time.Second)
				if st := r.relay.Status(); !st.Ready || st.InFlight.Events != 0 {
					t.Errorf("%+v", st)
				}
				r.stopped(t, time.Second)
				r.wantLog(t, "delivery stalled", 1)
				r.wantLog(t, "delivery recovered", 1)
			})
		})
	}
}

// The log of an outage names the cause as soon as it is known, and not a minute later.
func TestTheCauseOfAStallIsLoggedAtOnce(t *testing.T) {
	story(t, func(t *testing.T, w *world) {
		r := w.start(Config{})
		time.Sleep(time.Second)
		silent := func(is bool) {
			w.do(func() { w.stalled, w.silent = true, is })
			time.Sleep(5 * time.Second)
		}
		w.commit("a")
		silent(true)
		r.wantLog(t, "no acknowledgement", 1)
		silent(false)
		r.wantLog(t, "brokers cannot be reached", 1)
		silent(true)
		silent(false) // it is known already
		r.wantLog(t, "delivery stalled", 2)
		w.do(func() { w.stalled = false })
		w.want(t, 10*time.Second, "all delivered", w.allDelivered)
		r.stopped(t, time.Second)
	})
}

// A key that waits for its broker must not let memory, and what a crash repeats, grow with what the other keys deliver.
func TestOneStuckKeyBoundsWhatIsReadBehindIt(t *testing.T) {
	story(t, func(t *testing.T, w *world) {
		r := w.start(Config{Window: Window{Events: 20}})
		stuck := w.commit("a")
		w.do(func() { w.count[stuck.rows[0].id] = 0; w.hold = stuck.rows[0].id })
		for range 100 {
			w.commit("b")
		}
		time.Sleep(20 * time.Second)
		if n := r.sink.sent(); n < 20 || n > 22 {
			t.Errorf("%d records sent behind one that is stuck", n)
		}
		w.do(func() { w.hold = "" })
		w.want(t, 30*time.Second, "all delivered", w.allDelivered)
		r.stopped(t, time.Second)
	})
}

func TestLostSessionLeavesTheSinkAlone(t *testing.T) {
	story(t, func(t *testing.T, w *world) {
		w.do(func() { w.maxDelay = 3 * time.Second })
		r := w.start(Config{Window: Window{Events: 10}})
		w.commit("a")
		w.commit(keys(30)...)
		w.commit("b", "-", "c")
		w.want(t, 20*time.Second, "some of it delivered", func() bool { return w.arrived == 1 && len(w.count) > 5 })
		for range 5 {
			w.cut(errNet)
			w.want(t, 2*time.Second, "session again", func() bool { return w.session != nil })
			time.Sleep(700 * time.Millisecond)
		}
		w.want(t, time.Minute, "all delivered", w.allDelivered)
		r.stopped(t, 10*time.Second)
		if st := r.relay.Status(); st.Sessions["lost"] != 5 || st.Events != 33 || st.Transactions != 3 {
			t.Errorf("%+v", st)
		}
	})
}

func TestSourceDownIsLoggedAtItsEdges(t *testing.T) {
	story(t, func(t *testing.T, w *world) {
		r := w.start(Config{})
		w.commit("a")
		time.Sleep(10 * time.Second)
		w.do(func() { w.down = true })
		w.cut(errNet)
		w.commit("a", "b")
		opens := look(w, &w.opens)
		time.Sleep(5 * time.Minute)
		if n := look(w, &w.opens) - opens; n < 12 || n > 40 {
			t.Errorf("%d attempts in 5 minutes", n)
		}
		if st := r.relay.Status(); st.Ready || st.State != Connecting || !strings.Contains(st.Reason, "refused") {
			t.Errorf("%+v", st)
		}
		w.do(func() { w.down = false })
		w.want(t, 31*time.Second, "all delivered", w.allDelivered)
		r.stopped(t, time.Second)
		r.wantLog(t, `"source lost"`, 1)
		r.wantLog(t, "source recovered", 1)
		if n := strings.Count(r.logs.String(), "no session, trying again"); n < 3 || n > 5 {
			t.Errorf("%d log lines in 5 minutes", n)
		}
	})
}

func TestPromotionStartsOverAtTheCheckpoint(t *testing.T) {
	story(t, func(t *testing.T, w *world) {
		w.clean = false
		r := w.start(Config{})
		time.Sleep(time.Second)
		w.do(func() { w.stalled = true })
		w.commit(keys(5)...)
		time.Sleep(time.Second)
		w.do(func() {
			w.id.History = append(w.id.History, cdc.Fork{Timeline: 1, End: w.pos.LSN()})
			w.id.Timeline = 2
		})
		w.cut(errNet)
		time.Sleep(5 * time.Second)
		w.do(func() { w.stalled = false })
		w.commit("a")
		w.want(t, 10*time.Second, "all delivered", w.allDelivered)
		time.Sleep(2 * time.Second)
		if n := len(w.twice()); n != 5 {
			t.Errorf("%d delivered twice", n)
		}
		r.wantLog(t, "starting over at the checkpoint", 1)
		r.stopped(t, time.Second)
		if rec := w.record(); rec.Timeline != 2 || rec.Position != w.pos {
			t.Errorf("%+v", rec)
		}
	})
}

func TestServerBehindWhatWasReceivedStartsOver(t *testing.T) {
	story(t, func(t *testing.T, w *world) {
		w.clean = false
		r := w.start(Config{})
		time.Sleep(time.Second)
		w.do(func() { w.stalled = true })
		w.commit("a")
		time.Sleep(time.Second)
		w.do(func() { // restored from a copy, from before the transaction: other rows are at its place now
			w.log, w.pos = nil, 100
			w.perKey["a"] = 0
		})
		w.cut(errNet)
		time.Sleep(2 * time.Second)
		w.do(func() { w.stalled = false })
		time.Sleep(30 * time.Second)
		w.do(func() { clear(w.landed); w.clear() })
		w.commit("a")
		w.want(t, 10*time.Second, "all delivered", w.allDelivered)
		r.wantLog(t, "the source went back", 1)
		r.stopped(t, time.Second)
	})
}

func TestLyingSourceStartsOverAtTheCheckpoint(t *testing.T) {
	story(t, func(t *testing.T, w *world) {
		w.clean = false
		r := w.start(Config{Window: Window{Events: 3}})
		time.Sleep(time.Second)
		w.do(func() { w.stalled = true })
		w.commit("a", "b", "c")
		time.Sleep(time.Second) // the commit is not read: the window is full
		w.do(func() { w.strays[0] = true })
		w.cut(errNet)
		time.Sleep(time.Second)
		w.do(func() { w.stalled = false })
		w.want(t, 5*time.Second, "noticed", func() bool { return strings.Contains(r.logs.String(), "did not send again") })
		w.do(func() { clear(w.strays) })
		w.cut(errNet)
		w.commit("a")
		w.want(t, 30*time.Second, "all delivered", w.allDelivered)
		r.stopped(t, time.Second)
	})
}

// The process moves its own record while it waits for the slot: what it then knows to be delivered is not read again, also where
// the source is another one by then.
func TestRecordMovedByItselfWhileWaitingForTheSlot(t *testing.T) {
	for name, timeline := range map[string]uint32{"same timeline": 1, "promotion": 2} {
		t.Run(name, func(t *testing.T) {
			story(t, func(t *testing.T, w *world) {
				r := w.start(Config{})
				time.Sleep(time.Second)
				w.do(func() { w.stalled = true })
				w.commit(keys(5)...)
				w.commit("a")
				time.Sleep(time.Second)
				w.do(func() {
					w.cutLocked(errNet)
					w.session = &fakeSession{p: &proc{w: w}}
					if timeline > 1 {
						w.id.History = []cdc.Fork{{Timeline: 1, End: w.pos.LSN()}}
						w.id.Timeline = timeline
					}
				})
				time.Sleep(time.Second)
				w.do(func() { w.stalled = false })
				w.want(t, 5*time.Second, "checkpoint moved without a session", func() bool { return w.newest().Position == w.pos })
				w.do(func() { w.session = nil; w.wake() })
				w.want(t, 5*time.Second, "session", func() bool { return w.session != nil })
				w.commit("a")
				w.cut(errNet)
				w.want(t, 5*time.Second, "all delivered", w.allDelivered)
				r.stopped(t, time.Second)
			})
		})
	}
}

// Acknowledgements of what was sent before the source became another one do not count for what is read again.
func TestLateAcknowledgementsOfAFormerHistoryCountForNothing(t *testing.T) {
	story(t, func(t *testing.T, w *world) {
		w.clean = false
		r := w.start(Config{ShutdownGrace: time.Second})
		time.Sleep(time.Second)
		w.do(func() { w.stalled = true })
		w.commit(keys(5)...)
		time.Sleep(time.Second)
		w.do(func() {
			w.id.History = []cdc.Fork{{Timeline: 1, End: w.pos.LSN()}}
			w.id.Timeline = 2
			w.cutLocked(errNet)
		})
		w.want(t, 5*time.Second, "read again", func() bool { return r.sink.sent() == 10 })
		w.do(func() { w.stalled = false })
		time.Sleep(5 * time.Second)
		if st := r.relay.Status(); st.Events != 5 || st.InFlight.Events != 0 || st.Safe != look(w, &w.pos) {
			t.Errorf("%+v", st)
		}
		r.stopped(t, time.Second)
	})
}
