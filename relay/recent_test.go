package relay

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/walpost/walpost/internal/fault"
)

// Kafka may be down for an hour: an event is new when it is acknowledged, and not when it is sent. The outage is one error,
// with its newest reason, and a second outage is counted.
func TestNewestEventsAndErrorsDuringAnOutage(t *testing.T) {
	story(t, func(t *testing.T, w *world) {
		r := w.start(Config{})
		first := w.commit("a").rows[0].id
		w.want(t, time.Minute, "listed", func() bool { return len(r.relay.Status().Recent) == 1 })
		acked := r.relay.Status().LastAck
		for outage := 1; outage <= 2; outage++ {
			w.do(func() { w.stalled = true })
			second := w.commit("a").rows[0].id
			time.Sleep(time.Hour)
			st := r.relay.Status()
			if len(st.Recent) != 1 || !st.LastAck.Equal(acked.Time) {
				t.Fatalf("newest events %v, last acknowledgement %s", st.Recent, st.LastAck)
			}
			for _, events := range st.Recent {
				if events[0].EventID != first || events[0].At.After(acked.Time) {
					t.Errorf("the newest event is %v, and only %s is acknowledged, at %s", events[0], first, acked)
				}
			}
			if len(st.Troubles) != 1 || st.Troubles[0].Times != outage || st.Troubles[0].Text != "delivery waits: brokers cannot be reached" {
				t.Errorf("outage %d: %+v", outage, st.Troubles)
			}
			w.do(func() { w.stalled = false })
			w.want(t, time.Minute, "the second event is listed", func() bool {
				for _, events := range r.relay.Status().Recent {
					return events[0].EventID == second
				}
				return false
			})
			first, acked = second, r.relay.Status().LastAck
		}
	})
}

// Each error says when its fault was over. An error that returns lasts again.
func TestAnErrorIsOverWhenItsFaultIs(t *testing.T) {
	story(t, func(t *testing.T, w *world) {
		r := w.start(Config{})
		w.commit("a")
		w.want(t, time.Minute, "delivered", func() bool { return r.relay.Status().Events == 1 })
		for _, f := range []struct {
			text string
			set  func(on bool)
		}{
			{"connection refused", func(on bool) {
				if w.down = on; on {
					w.cutLocked(errNet)
				}
			}},
			{"no permission", func(on bool) {
				if w.checkErr = nil; on {
					w.checkErr = fault.Retry(errors.New("no permission"))
				}
			}},
			{"store cannot be reached", func(on bool) { w.storeDown = on }},
			{"delivery waits: brokers cannot be reached", func(on bool) { w.stalled = on }},
		} {
			newest := func(over bool) func() bool {
				return func() bool {
					all := r.relay.Status().Troubles
					return len(all) > 0 && strings.Contains(all[0].Text, f.text) && !all[0].Over.IsZero() == over
				}
			}
			for range 2 {
				w.do(func() { f.set(true) })
				w.commit("a")
				w.want(t, time.Hour, f.text+" lasts", newest(false))
				time.Sleep(time.Hour)
				if !newest(false)() {
					t.Errorf("%s is over before its end: %+v", f.text, r.relay.Status().Troubles)
				}
				from := time.Now()
				w.do(func() { f.set(false) })
				w.want(t, time.Hour, f.text+" is over", newest(true))
				if at := r.relay.Status().Troubles[0].Over; at.Before(from) {
					t.Errorf("%s: over at %s, and lasted until %s", f.text, at, from)
				}
			}
		}
		for _, e := range r.relay.Status().Troubles {
			if e.Over.IsZero() {
				t.Errorf("nothing is wrong any more, but %q lasts", e.Text)
			}
		}
	})
}
