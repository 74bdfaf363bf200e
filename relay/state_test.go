package relay

import (
	"slices"
	"strings"
	"testing"
	"time"
)

// If several states hold at one time, the relay shows the worst one, and the reasons of all.
func TestTheWorstStateIsShown(t *testing.T) {
	story(t, func(t *testing.T, w *world) {
		w.do(func() { w.storeDown = true })
		r := w.start(Config{})
		wants := func(state State, reasons ...string) {
			t.Helper()
			w.want(t, time.Minute, string(state), func() bool { return r.relay.Status().State == state })
			st := r.relay.Status()
			for _, text := range reasons {
				if !strings.Contains(st.Reason, text) {
					t.Errorf("%s: reason %q lacks %q", state, st.Reason, text)
				}
			}
			if st.Ready != (state == Streaming) || (st.Reason == "") != (state == Streaming) || time.Since(st.Since) > time.Minute {
				t.Errorf("%s: ready %v, reason %q, since %s", state, st.Ready, st.Reason, time.Since(st.Since))
			}
		}
		wants(NoCheckpoint, "store cannot be reached")
		w.do(func() { w.storeDown = false })
		wants(Streaming)

		time.Sleep(time.Hour)
		w.do(func() { w.stalled = true })
		w.commit("a")
		wants(Stalled, "delivery waits: brokers cannot be reached")
		if st := r.relay.Status(); !st.InStream {
			t.Error("a stalled relay reads the stream")
		}
		time.Sleep(time.Hour)
		w.do(func() { w.down = true })
		w.cut(errNet)
		time.Sleep(time.Minute)
		if st := r.relay.Status(); st.State != Stalled || st.InStream || !strings.Contains(st.Reason, "brokers cannot be reached") || !strings.Contains(st.Reason, "refused") {
			t.Errorf("source and Kafka are down: %s, in the stream %v, %s", st.State, st.InStream, st.Reason)
		}
		w.do(func() { w.stalled = false })
		wants(Connecting, "refused")
		w.do(func() { w.down = false })
		wants(Streaming)
	})
}

func TestStatesAreWorstFirst(t *testing.T) {
	order := []State{Halted, Hung, Stalled, Connecting, SlotAtRisk, Standby, CopyingRows, Streaming}
	for i, s := range order[1:] {
		if !order[i].Worse(s) || s.Worse(order[i]) || s.Worse(s) {
			t.Errorf("%s must be worse than %s", order[i], s)
		}
	}
	if all := slices.Compact(slices.Sorted(slices.Values(States))); len(all) != len(States) || len(all) != 12 {
		t.Errorf("States has %v", all)
	}
}
