package relay

import (
	"testing"
	"time"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/internal/parking"
)

// Status says what is parked: in the process that holds the slot, also if it did not park the keys itself, and in a halted one. A process
// that waits for the slot says nothing of it, because it does not follow the topic.
func TestTheHolderOfTheSlotSaysWhatIsParked(t *testing.T) {
	story(t, func(t *testing.T, w *world) {
		cfg := w.parking()
		cfg.HaltLinger = -1
		a := w.start(cfg)
		w.want(t, 10*time.Second, "record", func() bool { return w.newest() != nil })
		w.do(func() { w.stalled = true })
		txn := w.commit("a", "b", "a")
		w.do(func() { w.stalled, w.cursed[txn.rows[0].id] = false, true })
		parked := func(r *run) func() bool {
			return func() bool {
				st := r.relay.Status()
				return st.Parked.Keys == 1 && st.Parked.Events == 2 && !parking.Since(st.OldestParked).IsZero() && len(st.OldestParked) == 1 &&
					st.OldestParked[0].Key.Key == "a" && st.OldestParked[0].First.Reason == cdc.TooLarge && st.OldestParked[0].Events == 2
			}
		}
		none := func(r *run) func() bool {
			return func() bool { st := r.relay.Status(); return st.Parked.Keys == 0 && len(st.OldestParked) == 0 }
		}
		w.want(t, 10*time.Second, "the first says what it parks", parked(a))
		w.want(t, time.Minute, "confirmed", func() bool { return w.id.SlotFound.Confirmed == w.pos })
		b := w.start(cfg)
		w.want(t, 10*time.Second, "the second waits", func() bool { return b.relay.Status().State == Standby })
		if !none(b)() {
			t.Errorf("a standby says %+v", b.relay.Status().Parked)
		}
		w.cut(errNet)
		w.want(t, time.Minute, "the second holds the slot", func() bool { return w.session != nil && w.session.p == b.proc })
		w.want(t, time.Minute, "the second says what is parked", parked(b))
		w.want(t, time.Minute, "the first, which waits, says nothing", none(a))
		w.do(func() { w.stalled = true })
		w.commit("b") // not of the parked key
		b.relay.Halt(fault.Person(errNet, "look"), func() {})
		b.halted(t)
		if !parked(b)() {
			t.Errorf("halted: %+v", b.relay.Status().Parked)
		}
		a.stop()
		b.stop()
	})
}
