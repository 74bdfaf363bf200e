package relay

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/walpost/walpost/checkpoint"
	"github.com/walpost/walpost/internal/fault"
)

// everyHalt asks for every event that a relay was halted by.
func everyHalt(*checkpoint.Halt) bool { return true }

// A person passes over exactly one event. All others of its transaction are delivered, and nothing is left in the store.
func TestASkipPassesOverExactlyOneEvent(t *testing.T) {
	for name, poison := range map[string]bool{"that cannot be routed": false, "that is refused": true} {
		t.Run(name, func(t *testing.T) {
			story(t, func(t *testing.T, w *world) {
				w.gapsOK, w.clean = true, !poison // what was delivered of the transaction around a refused event comes again
				r := w.start(Config{})
				w.want(t, time.Second, "record", func() bool { return w.newest() != nil })
				w.do(func() { w.stalled = true })
				keys := []string{"a", "b", "!", "b", "c"}
				if poison {
					keys[2] = "b"
				}
				bad := w.commit(keys...)
				w.do(func() { w.stalled, w.cursed[bad.rows[2].id] = false, poison })
				<-r.done
				token := badOf(t, r.err).Token
				if rec := w.record(); token == "" || w.halts() != 1 || !strings.Contains(fault.Hint(r.err), "walpost skip "+token+" ") || rec.Position > bad.begin {
					t.Fatalf("%+v, %d halts, %+v", r.err, w.halts(), rec)
				}
				again := w.start(Config{})
				<-again.done
				if got := badOf(t, again.err).Token; got != token || w.halts() != 1 {
					t.Errorf("token %s after %s, %d halts", got, token, w.halts())
				}
				w.skip(everyHalt)
				r = w.start(Config{})
				w.want(t, 10*time.Second, "all the others, and nothing left in the store", func() bool { return w.allDelivered() && w.halts() == 0 })
				if n := w.count[bad.rows[2].id]; n != 0 || look(w, &w.id.SlotFound.Confirmed) != bad.end {
					t.Errorf("delivered %d times, confirmed %s", n, w.id.SlotFound.Confirmed)
				}
				if n := r.relay.Status().Skipped; n != 1 {
					t.Errorf("%d skipped", n)
				}
				r.stopped(t, time.Second)
				r.wantLog(t, "EVENT SKIPPED", 1)
			})
		})
	}
}

func badOf(t *testing.T, err error) *BadEvent {
	t.Helper()
	var bad *BadEvent
	if !errors.As(err, &bad) {
		t.Fatalf("no bad event: %v", err)
	}
	return bad
}

// Stops, kills and another instance between passing over the event and the confirmation of what is behind it: none halts again, and a clean
// one delivers nothing twice.
func TestASkipThatIsInterruptedSkipsAgain(t *testing.T) {
	for at := range 20 {
		for _, how := range []string{"stop", "kill", "another"} {
			story(t, func(t *testing.T, w *world) {
				w.gapsOK = true
				ks := keys(60)
				ks[at] = "!"
				if at%3 == 2 && at > 3 {
					ks[at-1] = "-"
				}
				bad := w.commit(ks...)
				r := w.start(Config{Window: Window{Events: 3}})
				<-r.done
				badOf(t, r.err)
				w.skip(everyHalt)
				w.clean = how == "stop"
				for n := range 4 {
					r = w.start(Config{Window: Window{Events: 3}})
					time.Sleep(time.Duration(20+(n*31+at*17)%200) * time.Millisecond)
					switch how {
					case "stop":
						r.stopped(t, 2*time.Second)
					case "kill":
						r.kill()
						<-r.done
					default: // it waits for the slot, and reads the request behind it
						w.start(Config{Window: Window{Events: 3}})
						r.kill()
						<-r.done
						w.runs[len(w.runs)-1].stop()
					}
				}
				r = w.start(Config{})
				w.want(t, time.Minute, "all delivered", func() bool { return w.allDelivered() && w.halts() == 0 })
				if n := w.count[bad.rows[at].id]; n != 0 {
					t.Errorf("delivered %d times", n)
				}
				r.stopped(t, time.Second)
			})
		}
	}
}

// The cause was repaired after a person had asked, and the event was delivered before the request was read: nothing behind it is left out,
// also where ids say nothing.
func TestASkipThatComesTooLateLeavesNothingOut(t *testing.T) {
	story(t, func(t *testing.T, w *world) {
		w.gapsOK, w.clean = true, false
		w.do(func() { w.stalled = true })
		txn := w.commit(keys(40)...)
		r := w.start(Config{Window: Window{Events: 4}})
		time.Sleep(time.Second)
		w.do(func() { w.stalled, w.cursed[txn.rows[2].id] = false, true })
		<-r.done
		badOf(t, r.err)
		w.do(func() { clear(w.cursed) })
		r = w.start(Config{Window: Window{Events: 4}})
		w.want(t, 10*time.Second, "some delivered", func() bool { return len(w.count) > 10 })
		r.stopped(t, time.Second)
		if next := w.record().Next; next == nil || next.Rows < 10 {
			t.Fatalf("%+v", next)
		}
		before := len(w.twice())
		w.skip(everyHalt)
		clear(w.skipped)
		r = w.start(Config{})
		w.want(t, 10*time.Second, "all delivered", w.allDelivered)
		if n := len(w.twice()); n != before {
			t.Errorf("%d delivered twice after %d", n, before)
		}
		r.stopped(t, time.Second)
	})
}

// startAfterSkipOfAnother starts a relay that finds, at the place of a skip request, another event
// than the one that the request names.
func (w *world) startAfterSkipOfAnother(t *testing.T) *run {
	w.gapsOK = true
	w.commit("a", "!")
	r := w.start(Config{})
	<-r.done
	badOf(t, r.err)
	w.skip(everyHalt)
	w.do(func() { w.log[0].rows[1].id = "another" })
	return w.start(Config{})
}

// A request for another event than the one that comes at its place is not applied.
func TestASkipOfAnotherEventIsNotApplied(t *testing.T) {
	story(t, func(t *testing.T, w *world) {
		r := w.startAfterSkipOfAnother(t)
		w.want(t, time.Minute, "halted again", r.ended)
		if bad := badOf(t, r.err); bad.EventID != "another" {
			t.Errorf("%+v", bad)
		}
		r.wantLog(t, "walpost ignores the request", 1)
	})
}
