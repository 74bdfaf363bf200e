package relay

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/checkpoint"
	"github.com/walpost/walpost/internal/fault"
)

func TestStopDrains(t *testing.T) {
	story(t, func(t *testing.T, w *world) {
		w.do(func() { w.maxDelay = 4 * time.Second })
		r := w.start(Config{})
		w.commit(keys(8)...)
		time.Sleep(time.Second)
		confirms := look(w, &w.confirms)
		w.do(func() { w.status = 4 * time.Second })
		took := r.stop()
		if !w.everything() || w.record().Position != w.pos || look(w, &w.id.SlotFound.Confirmed) != w.pos || took < time.Second {
			t.Errorf("after %s: delivered %t, record %+v, slot %s of %s", took, w.everything(), w.record(), look(w, &w.id.SlotFound.Confirmed), w.pos)
		}
		if n := look(w, &w.confirms) - confirms; n < int(took/time.Second) {
			t.Errorf("%d confirms while stopping for %s", n, took)
		}
		r.wantLog(t, `"stopped"`, 1)
		r = w.start(Config{})
		time.Sleep(5 * time.Second)
		r.stopped(t, time.Second)
	})
}

// stopInside leaves a record that says that part of a transaction is delivered.
func stopInside(t *testing.T, w *world) *checkpoint.Next {
	t.Helper()
	w.commit(keys(40)...)
	r := w.start(Config{Window: Window{Events: 4}})
	w.want(t, 10*time.Second, "some delivered", func() bool { return len(w.count) > 10 })
	r.stopped(t, time.Second)
	next := w.record().Next
	if next == nil || next.Rows < 10 || len(w.count) != next.Rows {
		t.Fatalf("next %+v, %d delivered", next, len(w.count))
	}
	return next
}

func TestPartIsDeliveredAgainWhereItsLastEventIsAnother(t *testing.T) {
	story(t, func(t *testing.T, w *world) {
		w.clean = false
		next := stopInside(t, w)
		rec := w.record()
		rec.Next.LastEventID = "somebody else's"
		w.records[rec.HolderKey()] = rec.Encode()
		w.gapsOK = true
		r := w.start(Config{})
		w.want(t, 10*time.Second, "all delivered", w.allDelivered)
		if n := len(w.twice()); n != next.Rows {
			t.Errorf("%d delivered twice, not %d", n, next.Rows)
		}
		r.wantLog(t, "is not the one that the checkpoint says", 2)
		r.stopped(t, time.Second)
	})
}

func TestPartHoldsOnATimelineThatLeftBehindIt(t *testing.T) {
	story(t, func(t *testing.T, w *world) {
		stopInside(t, w)
		w.id.History = []cdc.Fork{{Timeline: 1, End: w.pos.LSN()}}
		w.id.Timeline = 2
		r := w.start(Config{})
		w.want(t, 10*time.Second, "all delivered", w.allDelivered)
		if n := len(w.twice()); n != 0 {
			t.Errorf("%d delivered twice", n)
		}
		r.stopped(t, time.Second)
	})
}

func TestKillAfterAPartWasSkippedRepeatsOnlyWhatCameAfter(t *testing.T) {
	story(t, func(t *testing.T, w *world) {
		w.clean = false
		next := stopInside(t, w)
		r := w.start(Config{Window: Window{Events: 4}})
		w.want(t, 10*time.Second, "some more", func() bool { return len(w.count) > next.Rows+5 })
		r.kill()
		<-r.done
		time.Sleep(2 * time.Second)
		r = w.start(Config{})
		w.want(t, 20*time.Second, "all delivered", w.allDelivered)
		for i, row := range w.log[0].rows {
			if i < next.Rows && w.count[row.id] != 1 {
				t.Errorf("event %d of the delivered part arrived %d times", i, w.count[row.id])
			}
		}
		r.stopped(t, time.Second)
	})
}

func TestStopWhileKafkaIsDeadSaysWhatComesAgain(t *testing.T) {
	story(t, func(t *testing.T, w *world) {
		r := w.start(Config{})
		w.commit("a")
		w.want(t, time.Second, "delivered", w.allDelivered)
		w.do(func() { w.stalled = true })
		w.commit("a", "b")
		w.commit("c")
		time.Sleep(time.Second)
		confirms := look(w, &w.confirms)
		if took := r.stop(); took < 20*time.Second || took > 21*time.Second || r.err != nil {
			t.Errorf("a stop took %s: %v", took, r.err)
		}
		if n := look(w, &w.confirms) - confirms; n < 20 {
			t.Errorf("%d confirms while stopping", n)
		}
		r.wantLog(t, `"events":3,"unacknowledged":3`, 1)
		r.wantLog(t, "delivery recovered", 0)
		w.do(func() { w.stalled = false })
		r = w.start(Config{})
		w.want(t, time.Second, "all delivered", w.allDelivered)
		r.stopped(t, time.Second)
	})
}

func TestStopIsBoundedWhateverHangs(t *testing.T) {
	for name, f := range map[string]func(w *world){
		"open":         func(w *world) { w.hang = true; w.cutLocked(errNet) },
		"store":        func(w *world) { w.storeHang = true },
		"store down":   func(w *world) { w.storeDown = true },
		"source down":  func(w *world) { w.down = true; w.cutLocked(errNet) },
		"slot in use":  func(w *world) { w.cutLocked(errNet); w.session = &fakeSession{p: &proc{w: w}} },
		"session hang": func(w *world) { w.blocked = true },
	} {
		t.Run(name, func(t *testing.T) {
			story(t, func(t *testing.T, w *world) {
				w.clean = name == "open" || name == "source down" || name == "slot in use"
				r := w.start(Config{})
				time.Sleep(time.Second)
				w.commit("a")
				w.want(t, time.Second, "delivered", w.allDelivered)
				w.do(func() { f(w) })
				w.commit("b")
				time.Sleep(time.Second)
				r.stopped(t, 12*time.Second)
				w.do(func() {
					w.hang, w.storeHang, w.storeDown, w.down, w.blocked, w.session = false, false, false, false, false, nil
				})
				r = w.start(Config{})
				w.want(t, time.Second, "all delivered", w.allDelivered)
				r.stopped(t, time.Second)
			})
		})
	}
	for name, f := range map[string]func(w *world){
		"open at start":  func(w *world) { w.hang = true },
		"store at start": func(w *world) { w.storeHang = true },
		"slot at start":  func(w *world) { w.session = &fakeSession{p: &proc{w: w}} },
	} {
		t.Run(name, func(t *testing.T) {
			story(t, func(t *testing.T, w *world) {
				f(w)
				r := w.start(Config{})
				time.Sleep(time.Minute)
				if st := r.relay.Status(); st.State != Connecting && st.State != Standby || (st.State == Standby) != (name == "slot at start") || st.Ready || st.Reason == "" {
					t.Errorf("%+v", st)
				}
				r.stopped(t, 2*time.Second)
				r.wantLog(t, `"msg":"stopped"`, 1)
			})
		})
	}
}

func TestPoisonHaltsAndConfirmsWhatIsBeforeIt(t *testing.T) {
	story(t, func(t *testing.T, w *world) {
		r := w.start(Config{HaltLinger: time.Minute})
		w.want(t, time.Second, "record", func() bool { return w.newest() != nil })
		good := w.commit("a")
		w.do(func() { w.poison["0/94-0"] = true })
		bad := w.commit("b", "c")
		if bad.rows[0].id != "0/94-0" {
			t.Fatal(bad.rows[0].id)
		}
		w.commit("b")
		w.want(t, 5*time.Second, "halted", func() bool { return r.relay.Status().State == Halted })
		w.want(t, 5*time.Second, "safe part confirmed", func() bool { return w.id.SlotFound.Confirmed == good.end })
		w.want(t, 5*time.Second, "slot free", func() bool { return w.session == nil })
		sends := r.sink.sent()
		w.commit("a")
		time.Sleep(30 * time.Second)
		st := r.relay.Status()
		if st.Ready || st.State != Halted || !strings.Contains(st.Reason, "0/94-0") || st.Sessions["halted"] != 1 || r.sink.sent() != sends {
			t.Errorf("%+v", st)
		}
		<-r.done
		for _, part := range []string{"0/94-0", "public.outbox", bad.begin.String(), "record too large"} {
			if r.err == nil || !strings.Contains(r.err.Error(), part) {
				t.Errorf("error without %q: %v", part, r.err)
			}
		}
		if !fault.NeedsPerson(r.err) || fault.Hint(r.err) == "" {
			t.Errorf("%v, hint %q", r.err, fault.Hint(r.err))
		}
		r.wantLog(t, `"halted`, 1)
		if rec := w.record(); rec.Position != good.end {
			t.Errorf("%+v", rec)
		}
	})
}

func TestRowThatCannotBeRoutedHalts(t *testing.T) {
	story(t, func(t *testing.T, w *world) {
		w.gapsOK = true
		r := w.start(Config{HaltLinger: -1})
		good := w.commit("a", "b")
		bad := w.commit("a", "!")
		w.commit("a")
		w.want(t, 5*time.Second, "halted", func() bool { return r.relay.Status().State == Halted })
		w.want(t, 5*time.Second, "safe part confirmed", func() bool { return w.id.SlotFound.Confirmed == good.end })
		time.Sleep(time.Hour)
		r.cancel()
		<-r.done
		for _, part := range []string{bad.rows[1].id, "public.outbox", bad.begin.String(), "aggregate_type is null"} {
			if r.err == nil || !strings.Contains(r.err.Error(), part) {
				t.Errorf("error without %q: %v", part, r.err)
			}
		}
		if n := w.count[w.log[2].rows[0].id]; n != 0 {
			t.Error("what is behind the bad row was delivered")
		}
	})
}

func TestMonitorHaltsOnlyForAPerson(t *testing.T) {
	story(t, func(t *testing.T, w *world) {
		r := w.start(Config{HaltLinger: 30 * time.Second})
		w.do(func() { w.checkErr = errNet })
		time.Sleep(time.Minute)
		w.commit("a")
		w.want(t, time.Second, "delivered", w.allDelivered)
		if st := r.relay.Status(); !st.Ready || len(st.Troubles) == 0 || !strings.Contains(st.Troubles[0].Text, "reset") {
			t.Errorf("%+v", st)
		}
		w.do(func() { w.checkErr = fault.Person(errors.New("the slot is gone"), "walpost recover") })
		w.want(t, 10500*time.Millisecond, "halted", func() bool { return r.relay.Status().State == Halted })
		<-r.done
		if !fault.NeedsPerson(r.err) || !strings.Contains(r.err.Error(), "the slot is gone") {
			t.Error(r.err)
		}
		r.wantLog(t, "source cannot be checked", 1)
	})
}

func TestMonitorWorksWhileTheSourceIsLost(t *testing.T) {
	story(t, func(t *testing.T, w *world) {
		r := w.start(Config{})
		time.Sleep(time.Second)
		w.do(func() { w.hang = true; w.checkErr = fault.Person(errors.New("the slot is gone"), "") })
		w.cut(errNet)
		<-r.done
		if !fault.NeedsPerson(r.err) {
			t.Error(r.err)
		}
	})
}

// Halted from outside: what was acknowledged is confirmed, the slot is free when freed is called, and Run lingers behind that.
func TestHaltFreesTheSlotAndLingers(t *testing.T) {
	story(t, func(t *testing.T, w *world) {
		r := w.start(Config{HaltLinger: 30 * time.Second})
		w.commit("a")
		w.want(t, time.Second, "delivered", w.allDelivered)
		held, calls := false, 0
		freed := func() {
			w.do(func() { held, calls = w.session != nil, calls+1 })
		}
		r.relay.Halt(fault.Person(errors.New("too much WAL"), ""), freed)
		r.relay.Halt(fault.Person(errors.New("another"), ""), freed)
		w.want(t, 10*time.Second, "halted", func() bool { return calls == 1 })
		if held {
			t.Error("the slot was still held")
		}
		if st := r.relay.Status(); st.State != Halted || st.Confirmed != w.pos {
			t.Errorf("%s, confirmed %s of %s", st.State, st.Confirmed, w.pos)
		}
		select {
		case <-r.done:
			t.Error("it did not linger")
		default:
		}
		w.commit("b")
		<-r.done
		if !fault.NeedsPerson(r.err) || !strings.Contains(r.err.Error(), "too much WAL") || calls != 1 {
			t.Errorf("%v, %d calls", r.err, calls)
		}
	})
}

func TestHaltWorksWithoutASession(t *testing.T) {
	story(t, func(t *testing.T, w *world) {
		r := w.start(Config{})
		time.Sleep(time.Second)
		w.do(func() { w.hang = true })
		w.cut(errNet)
		time.Sleep(time.Second)
		calls := 0
		r.relay.Halt(fault.Person(errors.New("too much WAL"), ""), func() { calls++ })
		<-r.done
		if !fault.NeedsPerson(r.err) || calls != 1 {
			t.Errorf("%v, %d calls", r.err, calls)
		}
	})
}

// A stoppingRouter calls stop when the loop installs its session number at.
type stoppingRouter struct {
	fakeRouter
	at   int
	stop func()
}

func (r *stoppingRouter) SetRunID(id string) {
	r.fakeRouter.SetRunID(id)
	if r.at--; r.at == 0 {
		r.stop()
	}
}

// A stop may come just when a lost session is replaced. What was in flight is delivered then, and
// the last checkpoint has it.
func TestAStopWhileASessionIsReplacedLosesNoAcknowledgement(t *testing.T) {
	story(t, func(t *testing.T, w *world) {
		ctx, stop := context.WithCancel(context.Background())
		defer stop()
		p := &proc{w: w}
		p.sink = newFakeSink(p, 1)
		cfg := DefaultConfig()
		cfg.Name = "shop"
		router := &stoppingRouter{fakeRouter: fakeRouter{w: w}, at: 2, stop: func() {
			stop()
			w.do(func() { w.stalled = false })
		}}
		relay := New(cfg, fakeSource{p}, router, p.sink, &fakeStore{p: p})
		done := make(chan error)
		go func() { done <- relay.Run(ctx) }()
		w.do(func() { w.stalled = true })
		w.commit(keys(8)...)
		w.want(t, 10*time.Second, "all in flight", func() bool { return relay.Status().InFlight.Events == 8 })
		w.cut(errNet)
		if err := <-done; err != nil || !w.everything() || w.record().Position != w.pos {
			t.Errorf("%v, delivered %t, record at %s of %s", err, w.everything(), w.record().Position, w.pos)
		}
		r := w.start(Config{})
		time.Sleep(5 * time.Second)
		r.stopped(t, time.Second)
	})
}
