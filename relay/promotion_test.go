package relay

import (
	"testing"
	"time"

	"github.com/walpost/walpost/cdc"
)

// A standby is promoted that lacks the newest WAL of the old primary. If that had no events, nothing is lost: the relay goes on where the
// histories part, also by itself, and delivers events whose positions the old primary has given to others.
func TestAPromotionThatLosesOnlyWALWithoutEventsIsNoGap(t *testing.T) {
	for name, running := range map[string]bool{"running": true, "stopped": false} {
		t.Run(name, func(t *testing.T) {
			story(t, func(t *testing.T, w *world) {
				r := w.start(Config{})
				w.commit("a")
				w.want(t, 10*time.Second, "delivered", w.allDelivered)
				fork := look(w, &w.pos)
				w.other()
				w.other()
				at := look(w, &w.pos)
				w.want(t, time.Minute, "a checkpoint behind it", func() bool { return w.newest().Position == at })
				if !running {
					r.stopped(t, time.Second)
				}
				w.do(func() {
					w.id.History, w.id.Timeline = []cdc.Fork{{Timeline: 1, End: fork.LSN()}}, 2
					w.pos, w.id.SlotFound.Confirmed = fork, 100
					if running {
						w.cutLocked(errNet)
					}
				})
				w.commit("a") // where the old primary had other WAL
				if look(w, &w.pos) > at {
					t.Fatal("the transaction ends behind the checkpoint: this says nothing")
				}
				if !running {
					r = w.start(Config{})
				}
				w.want(t, time.Minute, "the event of the new primary", w.allDelivered)
				if again := w.twice(); len(again) > 0 {
					t.Errorf("%d events came twice", len(again))
				}
				r.wantLog(t, "the missing WAL had no events", 1)
				r.stopped(t, time.Second)
				if rec := w.record(); rec.Timeline != 2 || rec.Position != w.pos || rec.Delivered != w.pos {
					t.Errorf("%+v, and the source is at %s", rec, w.pos)
				}
			})
		})
	}
}

// A standby that a relay reads from is promoted and goes on streaming. The next session isn't taken for one on a server that has lost what was
// delivered since.
func TestAStandbyThatIsPromotedWhileItStreamsLosesNothing(t *testing.T) {
	story(t, func(t *testing.T, w *world) {
		r := w.start(Config{MonitorInterval: time.Second})
		w.commit("a")
		w.want(t, 10*time.Second, "delivered", w.allDelivered)
		w.do(func() { w.id.History, w.id.Timeline = []cdc.Fork{{Timeline: 1, End: w.pos.LSN()}}, 2 })
		w.commit("b")
		w.want(t, 10*time.Second, "delivered", w.allDelivered)
		w.want(t, time.Minute, "a checkpoint that knows of it", func() bool { return w.newest().Timeline == 2 })
		w.cut(errNet)
		w.commit("c")
		w.want(t, time.Minute, "delivered by the next session", w.allDelivered)
		r.stopped(t, time.Second)
	})
}
