package relay

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/walpost/walpost/internal/fault"
)

func TestNewestEventsAreKeptByTopicAndBounded(t *testing.T) {
	var r recent
	at := time.Now()
	for i := range 3 * recentTopics {
		for n := range 8 {
			at = at.Add(time.Millisecond)
			r.add(fmt.Sprintf("t%d", i), fmt.Sprintf("%d-%d", i, n), at)
		}
	}
	if !r.due(at, false) {
		t.Error("nothing new to list")
	}
	all := r.list(at)
	newest := all[fmt.Sprintf("t%d", 3*recentTopics-1)]
	if len(all) != recentTopics || len(newest) != recentEvents || newest[0].EventID != fmt.Sprintf("%d-7", 3*recentTopics-1) || newest[4].EventID != fmt.Sprintf("%d-3", 3*recentTopics-1) {
		t.Errorf("%d topics, of the newest %v", len(all), newest)
	}
	if _, ok := all["t0"]; ok {
		t.Error("the oldest topic is kept")
	}
	r.add("t", "x", at)
	if r.due(at.Add(recentEvery/2), false) || !r.due(at.Add(recentEvery), false) || !r.due(at, true) {
		t.Error("listed too often, or too late")
	}
}

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
			if len(st.Recent) != 1 || !st.LastAck.Equal(acked) {
				t.Fatalf("newest events %v, last acknowledgement %s", st.Recent, st.LastAck)
			}
			for _, events := range st.Recent {
				if events[0].EventID != first || events[0].At.After(acked) {
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

// unknown is a stall of which the sink does not know the cause.
type unknown struct{ error }

func (unknown) CauseKnown() bool { return false }

func TestAnOutageIsOneErrorWithItsNewestKnownReason(t *testing.T) {
	at := time.Now()
	silent, refused := unknown{errors.New("no acknowledgement")}, errors.New("connection refused")
	var all []Trouble
	for range 2 { // outages
		var o outage
		for _, err := range []error{silent, silent, errors.New("reset"), refused, refused, silent} {
			at = at.Add(time.Second)
			all = o.waits(all, err, nil, at)
		}
	}
	if len(all) != 1 || all[0].Text != "connection refused" || all[0].Times != 2 {
		t.Errorf("%+v", all)
	}
	// The store is in Kafka, too, so its errors come between.
	mixed, o := []Trouble(nil), outage("")
	for i := range 6 {
		at = at.Add(time.Second)
		mixed = o.waits(mixed, fmt.Errorf("reason %d", i), nil, at)
		mixed = troubled(mixed, errors.New("store"), nil, at)
	}
	if len(mixed) != 2 || mixed[0].Text != "store" || mixed[1].Text != "reason 5" || mixed[1].Times != 1 {
		t.Errorf("%+v", mixed)
	}
	o = ""
	if all = o.waits(all, silent, nil, at); len(all) != 2 || all[0].Text != "no acknowledgement" {
		t.Errorf("%+v", all)
	}
}

func TestNewestErrorsAreCountedAndBounded(t *testing.T) {
	var all []Trouble
	at := time.Now()
	for i := range 9 {
		all = troubled(all, fmt.Errorf("error %d", i), nil, at)
	}
	lost := fault.WithHint(errors.New("lost"), "look")
	for i := range 4 {
		all = troubled(all, lost, nil, at.Add(time.Duration(i)*time.Second))
	}
	all = troubled(all, lost, nil, at.Add(3*time.Second)) // the same fault, told of by two places
	if len(all) != recentErrors || all[0].Times != 4 || all[0].Hint != "look" || all[1].Text != "error 8" || !all[0].At.Equal(at.Add(3*time.Second)) {
		t.Errorf("%+v", all)
	}
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
