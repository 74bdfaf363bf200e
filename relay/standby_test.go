package relay

import (
	"testing"
	"time"
)

// A second process that waits for the slot must go on where the first one stopped, also where the first one's last record differs from the
// one before it only in how far a transaction, or a copy, has come.
func TestAStandbyGoesOnWhereTheFirstStopped(t *testing.T) {
	for name, c := range map[string]struct {
		config  func(w *world) Config
		prepare func(w *world)
		when    func(w *world) bool
	}{
		"within a big transaction": {
			config:  func(*world) Config { return Config{} },
			prepare: func(w *world) { w.commit(keys(500)...) },
			when:    func(w *world) bool { return len(w.count) > 100 },
		},
		"within a snapshot": {
			config:  snapshot,
			prepare: func(w *world) { w.before(60) },
			when:    func(w *world) bool { return len(w.count) > 30 },
		},
		"behind a snapshot": {
			config:  snapshot,
			prepare: func(w *world) { w.before(10) },
			when:    func(w *world) bool { rec := w.newest(); return rec != nil && rec.Copy == nil },
		},
	} {
		t.Run(name, func(t *testing.T) {
			story(t, func(t *testing.T, w *world) {
				w.do(func() { w.stalled = true })
				c.prepare(w)
				a := w.start(c.config(w))
				w.want(t, 10*time.Second, "the first holds the slot", func() bool { return w.session != nil && len(w.records) > 0 })
				time.Sleep(time.Second)
				opens := look(w, &w.opens)
				b := w.start(c.config(w))
				w.want(t, 10*time.Second, "the second waits for it", func() bool { return w.opens > opens })
				time.Sleep(time.Second)
				w.do(func() { w.stalled = false })
				w.want(t, time.Minute, "the first delivers", func() bool { return c.when(w) })
				a.stopped(t, 5*time.Second)
				w.commit("a") // of the stream, so behind all rows of a copy
				w.want(t, time.Minute, "the second delivers the rest", w.allDelivered)
				b.stopped(t, 5*time.Second)
			})
		})
	}
}
