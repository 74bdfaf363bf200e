package relay

import (
	"strings"
	"testing"
	"time"

	"github.com/walpost/walpost/internal/parking"
)

func TestAnEventWaitsForTheSchemaRegistry(t *testing.T) {
	story(t, func(t *testing.T, w *world) {
		r := w.start(Config{})
		w.commit(keys(7)...)
		w.want(t, time.Second, "all delivered", w.allDelivered)
		w.do(func() { w.unanswered = true })
		w.commit(keys(5)...)
		confirms := look(w, &w.confirms)
		time.Sleep(50 * time.Second)
		if st := r.relay.Status(); st.Ready || st.State != Stalled || !strings.Contains(st.Reason, "schema registry: connection refused") || st.Bad != nil {
			t.Errorf("%+v", st)
		}
		if n := look(w, &w.confirms) - confirms; n < 48 {
			t.Errorf("%d confirms in 50 s", n)
		}
		w.do(func() { w.unanswered = false })
		w.want(t, 100*time.Millisecond, "all delivered", w.allDelivered)
		time.Sleep(time.Second)
		if st := r.relay.Status(); !st.Ready {
			t.Errorf("%+v", st)
		}
		r.stopped(t, time.Second)
		r.wantLog(t, "delivery stalled", 1)
		r.wantLog(t, "delivery recovered", 1)
		if ids := w.twice(); len(ids) > 0 {
			t.Errorf("delivered twice: %v", ids)
		}
	})
}

// The event that waits is not counted as handled, whatever ends the wait.
func TestAnEventThatWaitsComesAgain(t *testing.T) {
	for name, end := range map[string]func(w *world, r *run) *run{
		"lost session": func(w *world, r *run) *run { w.cut(errNet); return r },
		"stop":         func(w *world, r *run) *run { r.stop(); return w.start(Config{}) },
	} {
		t.Run(name, func(t *testing.T) {
			story(t, func(t *testing.T, w *world) {
				r := w.start(Config{})
				w.commit(keys(3)...)
				w.want(t, time.Second, "all delivered", w.allDelivered)
				w.do(func() { w.unanswered = true })
				w.commit(keys(5)...)
				w.commit(keys(2)...)
				time.Sleep(time.Second)
				r = end(w, r)
				time.Sleep(time.Second)
				w.do(func() { w.unanswered = false })
				w.want(t, 10*time.Second, "all delivered", w.allDelivered)
				r.stopped(t, time.Second)
				if ids := w.twice(); len(ids) > 0 {
					t.Errorf("delivered twice: %v", ids)
				}
			})
		})
	}
}

// A parked key whose next event waits for the schema registry is told, and nothing of it is delivered out of order. A key that is dropped
// waits no longer.
func TestAParkedKeyWaitsForTheSchemaRegistry(t *testing.T) {
	for name, end := range map[string]func(w *world){
		"answered": func(w *world) { w.do(func() { w.unanswered = false }) },
		"dropped": func(w *world) {
			w.do(func() {
				for _, e := range w.park.backlog.Entries(w.park.backlog.Keys()[0]) {
					w.landParked(parking.DropRequest(parkTopic, "shop", e, "a test", time.Now()))
				}
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			story(t, func(t *testing.T, w *world) {
				w.clean = false
				r := w.start(w.parking())
				w.do(func() { w.unrouted[w.commitLocked([]string{"a", "b"}).rows[0].id] = true })
				w.commit("a", "a", "b")
				w.want(t, time.Minute, "parked", func() bool { return w.park.events() == 3 && w.id.SlotFound.Confirmed == w.pos })
				w.mend()
				w.do(func() { w.unanswered = true })
				w.retry(anyKey)
				time.Sleep(20 * time.Second)
				if st := r.relay.Status(); st.State != Stalled || !strings.Contains(st.Reason, "schema registry: connection refused") || st.Parked.Events != 3 {
					t.Errorf("%+v", st)
				}
				end(w)
				w.want(t, time.Minute, "nothing is parked", func() bool { return w.park.events() == 0 })
				time.Sleep(5 * time.Second)
				if st := r.relay.Status(); !st.Ready {
					t.Errorf("%+v", st)
				}
				w.do(func() { w.unanswered = false })
				if name == "answered" {
					w.want(t, time.Minute, "all delivered", w.allDelivered)
				}
				r.stopped(t, time.Second)
				r.wantLog(t, "delivery stalled", 1)
			})
		})
	}
}
