package relay

import (
	"testing"
	"time"
)

func TestWhatTheRouterPassesOverIsCountedAndLoggedNowAndThen(t *testing.T) {
	story(t, func(t *testing.T, w *world) {
		r := w.start(Config{})
		logged := func(n int) {
			t.Helper()
			time.Sleep(time.Second)
			r.wantLog(t, "ignored on purpose", n)
		}
		logged(0)
		w.commit("-a", "a")
		logged(1)
		for range 5 {
			w.commit("-a")
			logged(1) // not for each
		}
		time.Sleep(time.Minute)
		logged(2)
		time.Sleep(5 * time.Minute)
		logged(2) // there was nothing new
		w.commit("-a", "-b")
		logged(3)
		w.commit("-a")
		time.Sleep(time.Second)
		if n := r.relay.Status().Remarks["ignored on purpose"]; n != 9 {
			t.Errorf("%d counted, not 9", n)
		}
		r.stopped(t, time.Second)
		r.wantLog(t, "ignored on purpose", 4) // and nothing is kept back
		r.wantLog(t, `"times":5,"in_all":6`, 1)
		r.wantLog(t, `"level":"ERROR"`, 4)
	})
}
