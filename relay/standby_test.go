package relay

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/walpost/walpost/checkpoint"
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
				w.want(t, 10*time.Second, "the second says for whom it waits", func() bool {
					return strings.Contains(b.relay.Status().Reason, "is in use by server process 4711: waiting for it")
				})
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

// A process may lose its session while it writes the record of its new epoch. Whoever takes the slot then must not meet it under one key:
// the older of the two positions could be written last, and the slot would be ahead of it.
func TestTwoProcessesNeverWriteUnderOneKey(t *testing.T) {
	story(t, func(t *testing.T, w *world) {
		w.clean, w.status = false, time.Second
		a := w.start(Config{})
		w.want(t, time.Second, "the first holds the slot", func() bool { return w.session != nil })
		w.commit("a")
		w.want(t, time.Second, "delivered", w.allDelivered)
		time.Sleep(2 * time.Second)
		late := w.commit("b") // is acknowledged when the second holds the slot
		w.do(func() { w.hold, a.stuck = late.rows[0].id, "shop/2."+a.relay.holder })
		time.Sleep(time.Second)
		w.cut(errNet)
		w.want(t, 5*time.Second, "the first writes its second epoch", func() bool { return a.inStuck })
		b := w.start(Config{})
		time.Sleep(time.Second)
		w.cut(errNet)
		w.want(t, 5*time.Second, "the second holds the slot", func() bool { return w.session != nil && w.session.p == b.proc })
		time.Sleep(time.Second)
		w.do(func() { w.hold = "" })
		w.commit("c")
		w.want(t, 30*time.Second, "delivered", w.allDelivered)
		time.Sleep(30 * time.Second)
		a.stop()
		b.stop()
	})
}

// A first record that was given up may arrive between the two looks of the next start. Another process may have looked before it came, so
// it's as if another one had moved the checkpoint: the start begins anew.
func TestALateFirstRecordIsNoProgress(t *testing.T) {
	story(t, func(t *testing.T, w *world) {
		a := w.start(Config{})
		w.commit("a")
		w.want(t, time.Second, "delivered", w.allDelivered)
		time.Sleep(2 * time.Second)
		w.do(func() { a.late = "shop/2." + a.relay.holder })
		w.cut(errNet)
		w.commit("a")
		w.want(t, 10*time.Second, "delivered", w.allDelivered)
		a.stopped(t, 5*time.Second)
		a.wantLog(t, "the checkpoint moved while this process waited for the slot", 1)
		if epoch := w.newest().Epoch; epoch != 3 {
			t.Errorf("epoch %d", epoch)
		}
	})
}

// A process that takes the slot after another one, and fails behind its first record, must not take that record for a sign that nobody else
// had the slot: the other one has come further.
func TestAFailedAttemptDoesNotHideTheOtherHolder(t *testing.T) {
	story(t, func(t *testing.T, w *world) {
		w.before(150)
		cfg := snapshot(w)
		cfg.Window.Events = 3
		holds := func(r *run) func() bool { return func() bool { return w.session != nil && w.session.p == r.proc } }
		rows := func() uint64 {
			if rec := w.newest(); rec != nil && rec.Copy != nil {
				return rec.Copy.Rows
			}
			return 0
		}
		a := w.start(cfg)
		w.want(t, 10*time.Second, "the first publishes", func() bool { return holds(a)() && rows() > 5 })
		b := w.start(cfg)
		w.do(func() { a.away, w.clean = true, false }) // what is not in the record yet comes again
		w.cut(errNet)
		w.want(t, 10*time.Second, "the second publishes more", func() bool { return holds(b)() && rows() > 150 })
		w.do(func() { a.away, a.lies, w.clean = false, "shop/4."+a.relay.holder, true })
		b.stopped(t, 5*time.Second)
		w.want(t, time.Minute, "the first publishes the rest", w.allDelivered)
		if a.lies != "" {
			t.Error("no attempt failed: this says nothing")
		}
		a.stopped(t, 5*time.Second)
	})
}

// Two holders have written records of one epoch that are equally far: the other one took the epoch and held the slot, while the record of
// this one was still on its way to the store. The own record is the newest by its key alone, so it does not tell that nobody else had the slot.
func TestAnEqualRecordOfAnotherHolderIsNotOverlooked(t *testing.T) {
	story(t, func(t *testing.T, w *world) {
		a := w.start(Config{})
		w.commit("a")
		w.want(t, 10*time.Second, "checkpointed and confirmed", func() bool { return w.id.SlotFound.Confirmed == w.pos })
		w.do(func() {
			a.away = true
			other := *w.newest()
			other.Holder = "0" // sorts before every holder that a process gives itself
			w.records[other.HolderKey()] = other.Encode()
		})
		w.cut(errNet)
		time.Sleep(time.Second)
		w.do(func() { a.away = false })
		w.commit("b")
		w.want(t, time.Minute, "delivered", w.allDelivered)
		if !strings.Contains(a.logs.String(), "another process held the slot in the meantime") {
			t.Errorf("the other holder was overlooked:\n%s", a.logs.String())
		}
		a.stopped(t, 5*time.Second)
	})
}

// A write that was given up can arrive while the next attempt is under way: then the newest record is the process's own, and behind the
// one that the session was started by. A session that begins beyond its record would not bring what the record says comes next.
func TestAnOwnRecordThatArrivesLateDoesNotMoveTheStart(t *testing.T) {
	story(t, func(t *testing.T, w *world) {
		first := w.start(Config{})
		part := w.commit("a", "b")
		w.want(t, 10*time.Second, "confirmed", func() bool { return w.id.SlotFound.Confirmed == w.pos })
		first.stopped(t, 5*time.Second)
		w.do(func() { w.slowOpen, w.id.SlotFound.Confirmed, w.clean = 2*time.Second, 100, false })
		opens := look(w, &w.opens)
		second := w.start(Config{})
		w.want(t, time.Second, "the second has read the checkpoint", func() bool { return w.opens > opens })
		w.do(func() {
			late := *w.newest()
			late.Epoch, late.Holder, late.Position = late.Epoch+1, second.relay.holder, 100
			late.Next = &checkpoint.Next{Commit: part.begin, Rows: 1, LastEventID: part.rows[0].id}
			w.records[late.HolderKey()] = late.Encode()
		})
		w.commit("a")
		w.want(t, time.Minute, "delivered", w.allDelivered)
		second.stopped(t, 5*time.Second)
		if n := w.count[part.rows[0].id]; n != 1 {
			t.Errorf("an event that both records say is delivered came %d times:\n%s", n, second.logs.String())
		}
	})
}

// A process that lost the slot may learn only while it waits for the slot that its successor has fenced it.
func TestAProcessLearnsThatItIsFencedWhileItWaits(t *testing.T) {
	story(t, func(t *testing.T, w *world) {
		w.tx = &txBroker{}
		held := w.commit("a")
		w.hold = held.rows[0].id
		a := w.start(Config{})
		w.want(t, 10*time.Second, "the first has an open transaction", func() bool { return w.session != nil && a.sink.sent() > 0 })
		b := w.start(Config{})
		w.do(func() { a.away = true })
		w.cut(errNet)
		w.want(t, 10*time.Second, "the second holds the slot", func() bool { return w.session != nil && w.session.p == b.proc && b.sink.sent() > 0 })
		w.do(func() { a.away = false })
		w.want(t, time.Minute, "the first waits for it", func() bool {
			return strings.Contains(a.relay.Status().Reason, "is in use by server process 4711: waiting for it")
		})
		time.Sleep(time.Minute)
		if a.ended() {
			t.Fatalf("the first ended before it could know: %v", a.err)
		}
		w.do(func() { w.hold = "" })
		w.want(t, 10*time.Second, "the first ends", a.ended)
		if !errors.As(a.err, new(*superseded)) {
			t.Errorf("the first ended with %v", a.err)
		}
		w.commit("b")
		w.want(t, time.Minute, "the second delivers", w.allDelivered)
		b.stopped(t, 5*time.Second)
	})
}
