package relay

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/walpost/walpost/internal/fault"
)

// The breaker's word counts also when it comes while the relay halts, in the seconds for the last acknowledgements or the last checkpoint.
func TestAHaltFromOutsideIsNotLostWhileTheRelayEnds(t *testing.T) {
	for name, by := range map[string]func(w *world, r *run){
		"waiting for acknowledgements": func(w *world, r *run) {
			w.do(func() { w.stalled = true })
			w.commit("a")
			w.do(func() { w.checkErr = fault.Person(errors.New("the publication is gone"), "") })
		},
		"writing the last checkpoint": func(w *world, r *run) {
			w.do(func() { w.storeHang = true })
			w.commit("a", "!")
		},
	} {
		t.Run(name, func(t *testing.T) {
			story(t, func(t *testing.T, w *world) {
				w.gapsOK = true
				r := w.start(Config{HaltLinger: -1})
				w.want(t, time.Second, "record", func() bool { return w.newest() != nil })
				by(w, r)
				w.want(t, 20*time.Second, "halted", func() bool { return r.relay.Status().State == Halted })
				time.Sleep(time.Second)
				calls := 0
				r.relay.Halt(fault.Person(errors.New("too much WAL"), ""), func() { w.do(func() { calls++ }) })
				time.Sleep(time.Minute)
				w.do(func() {
					if calls != 1 {
						t.Errorf("%d calls", calls)
					}
				})
				if st := r.relay.Status(); st.State != Halted || st.Reason != "too much WAL" {
					t.Errorf("%+v", st)
				}
				r.stop()
			})
		})
	}
}

// A stop that writes its last checkpoint when the breaker comes.
func TestAHaltFromOutsideIsNotLostWhileTheRelayStops(t *testing.T) {
	story(t, func(t *testing.T, w *world) {
		w.gapsOK = true
		r := w.start(Config{})
		w.want(t, time.Second, "record", func() bool { return w.newest() != nil })
		w.do(func() { w.storeHang = true })
		w.commit("a")
		w.want(t, time.Second, "delivered", w.allDelivered)
		r.cancel()
		time.Sleep(time.Second)
		calls := 0
		r.relay.Halt(fault.Person(errors.New("too much WAL"), ""), func() { calls++ })
		<-r.done
		if calls != 1 || !fault.NeedsPerson(r.err) {
			t.Errorf("%v, %d calls", r.err, calls)
		}
	})
}

// While a Confirm hangs, several looks at the source end. The first one that needs a person halts
// the relay, although a later one finds nothing.
func TestNoLookAtTheSourceIsLostWhileTheLoopWaits(t *testing.T) {
	story(t, func(t *testing.T, w *world) {
		w.gapsOK = true
		p := &proc{w: w}
		p.sink = newFakeSink(p, 1)
		cfg := DefaultConfig()
		cfg.Name, cfg.MonitorInterval, cfg.Window.Events = "shop", time.Second, 1
		relay := New(cfg, fakeSource{p}, &fakeRouter{w: w}, p.sink, &fakeStore{p: p})
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		done := make(chan error, 1)
		go func() { done <- relay.Run(ctx) }()
		w.do(func() { w.stalled = true })
		w.commit("a")
		w.want(t, time.Second, "the window is full", func() bool { return relay.Status().InFlight.Events == 1 })
		w.do(func() { w.blocked = true })
		w.want(t, time.Minute, "the loop waits", func() bool { return time.Since(relay.Status().Turned) > time.Second })
		w.do(func() { w.checkErr = fault.Person(errors.New("the publication is gone"), "") })
		time.Sleep(time.Second)
		w.do(func() { w.checkErr, w.blocked = nil, false })
		select {
		case err := <-done:
			if !fault.NeedsPerson(err) {
				t.Error(err)
			}
		case <-time.After(time.Minute):
			t.Errorf("the relay goes on: %+v", relay.Status())
			cancel()
			<-done
		}
	})
}
