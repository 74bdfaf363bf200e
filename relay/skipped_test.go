package relay

import (
	"errors"
	"fmt"
	"testing"
	"time"
)

// Two requests for the same place: of the event as it was named at the first halt, and as it is named now.
func TestTwoRequestsForOnePlaceAreBothKnown(t *testing.T) {
	for n := range 10 {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			story(t, func(t *testing.T, w *world) {
				r := w.startAfterSkipOfAnother(t)
				<-r.done
				badOf(t, r.err)
				w.skip(everyHalt)
				r = w.start(Config{})
				w.want(t, 10*time.Second, "all delivered", func() bool { return r.ended() || w.allDelivered() && w.halts() == 0 })
				if r.ended() {
					t.Errorf("halted once more: %v", r.err)
				}
			})
		})
	}
}

// Events without an id, and two bad ones in a transaction: each skip passes over one, whatever is stopped or killed.
func TestSkipsOfEventsWithoutAnID(t *testing.T) {
	for _, id := range []string{"", "same"} {
		for step := range 3 {
			for _, how := range []string{"stop", "kill"} {
				story(t, func(t *testing.T, w *world) {
					w.gapsOK, w.clean = true, false
					ks := keys(30)
					ks[7], ks[19] = "!", "!"
					w.commit(ks...)
					for _, k := range []string{"a", "b", "c", "d"} {
						w.commit(k)
					}
					w.do(func() {
						for _, x := range w.log {
							for i := range x.rows {
								x.rows[i].id = id
							}
						}
						clear(w.times)
					})
					for n := range 16 {
						r := w.start(Config{Window: Window{Events: 3}})
						time.Sleep(time.Duration(20+(n*31+step*17)%250) * time.Millisecond)
						if how == "stop" {
							r.stop()
						} else {
							r.kill()
							<-r.done
						}
						var bad *BadEvent
						if errors.As(r.err, &bad) {
							if bad.Row != 8 && bad.Row != 20 {
								t.Errorf("%+v", bad)
							}
						}
						w.skip(everyHalt)
					}
					r := w.start(Config{})
					for range 3 {
						time.Sleep(10 * time.Second)
						if r.ended() {
							w.skip(everyHalt)
							r = w.start(Config{})
						}
					}
					if !w.eventually(30*time.Second, func() bool { return w.id.SlotFound.Confirmed == w.pos && w.halts() == 0 }) {
						t.Fatalf("%q %d %s: %+v\n%s\n%v", id, step, how, r.relay.Status(), r.logs.String(), r.err)
					}
					r.stop()
					w.do(func() {
						for k, n := range w.perKey {
							if k == "!" {
								continue
							}
							if l := w.landed[k]; l[len(l)-1] != n-1 {
								t.Errorf("key %s: %v of %d", k, l, n)
							}
						}
						if how == "stop" {
							for k, l := range w.landed {
								if len(l) != w.perKey[k] {
									t.Errorf("key %s: %v of %d", k, l, w.perKey[k])
								}
							}
						}
					})
				})
			}
		}
	}
}
