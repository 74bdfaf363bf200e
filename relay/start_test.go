package relay

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/checkpoint"
	"github.com/walpost/walpost/internal/fault"
)

func TestFirstOpenIsWaitedOutOnlyWhereThatCanHelp(t *testing.T) {
	for name, c := range map[string]struct {
		err          error
		ends, person bool
	}{
		"network":       {errNet, false, false},
		"configuration": {fault.Config(errors.New("no such table"), ""), true, false},
		"plain":         {errors.New("what is this"), true, false},
		"person":        {fault.Person(errors.New("slot of another plugin"), ""), true, true},
		"login":         {fault.Repair(errors.New("wrong password")), true, false},
	} {
		t.Run(name, func(t *testing.T) {
			story(t, func(t *testing.T, w *world) {
				w.openErr = c.err
				r := w.start(Config{HaltLinger: time.Second})
				if c.ends {
					<-r.done
					if !errors.Is(r.err, c.err) || fault.NeedsPerson(r.err) != c.person || look(w, &w.opens) != 1 {
						t.Errorf("%v after %d attempts", r.err, look(w, &w.opens))
					}
					return
				}
				time.Sleep(time.Minute)
				if st := r.relay.Status(); st.State != Connecting || st.Ready || !strings.Contains(st.Reason, "reset") {
					t.Errorf("%+v", st)
				}
				w.do(func() { w.openErr = nil })
				w.want(t, 31*time.Second, "ready", func() bool { return r.relay.Status().Ready })
				r.stopped(t, time.Second)
			})
		})
	}
}

// Somebody who changes a password causes such an error for a moment.
func TestARelayThatHasWorkedWaitsForWhatCanBeRepaired(t *testing.T) {
	story(t, func(t *testing.T, w *world) {
		r := w.start(Config{})
		w.commit("a")
		w.want(t, time.Second, "delivered", w.allDelivered)
		w.do(func() {
			w.openErr = fault.Repair(fault.WithHint(errors.New("wrong password"), "Check the password."))
			w.session.dead = fault.Repair(errors.New("a right is missing"))
		})
		time.Sleep(time.Hour)
		w.commit("b")
		if st := r.relay.Status(); st.State != Connecting || st.Ready || !strings.Contains(st.Reason, "wrong password") || !strings.Contains(r.logs.String(), "Check the password.") {
			t.Errorf("%+v\n%s", st, r.logs.String())
		}
		w.do(func() { w.openErr = nil })
		w.want(t, 31*time.Second, "delivered again", w.allDelivered)
		w.do(func() { w.openErr = fault.Config(errors.New("no such table"), "") })
		w.cut(errNet)
		<-r.done
		if !fault.Misconfigured(r.err) {
			t.Error(r.err)
		}
	})
}

// The start is not over when Open has worked. A command at a terminal ends, too, instead of waiting.
func TestAStartEndsWhereARightIsMissing(t *testing.T) {
	missing := fault.Repair(errors.New("a right is missing"))
	for name, c := range map[string]struct {
		config func(w *world) Config
		breaks func(w *world)
	}{
		"to stream":                      {func(*world) Config { return Config{} }, func(w *world) { w.startErr = missing }},
		"to read the rows of a snapshot": {snapshot, func(w *world) { w.rowsErr = missing }},
		"to read the rows of a recover":  {func(w *world) Config { return recovering(w, new([]*checkpoint.Copy)) }, func(w *world) { w.rowsErr = missing }},
	} {
		t.Run(name, func(t *testing.T) {
			story(t, func(t *testing.T, w *world) {
				if strings.HasSuffix(name, "recover") {
					lostSlot(t, w)
				} else if strings.HasSuffix(name, "snapshot") {
					w.before(3)
				}
				w.do(func() { c.breaks(w) })
				r := w.start(c.config(w))
				select {
				case <-r.done:
				case <-time.After(time.Minute):
					t.Fatalf("it waits: %+v", r.relay.Status())
				}
				if !errors.Is(r.err, missing) || !strings.Contains(r.logs.String(), "does not try again") {
					t.Errorf("%v\n%s", r.err, r.logs.String())
				}
			})
		})
	}
}

// A snapshot that has begun waits, like a stream.
func TestASnapshotThatHasReadRowsWaitsForWhatCanBeRepaired(t *testing.T) {
	story(t, func(t *testing.T, w *world) {
		w.before(60)
		r := w.start(snapshot(w))
		w.want(t, 10*time.Second, "rows are delivered", func() bool { return w.arrivals > 3 })
		w.do(func() { w.rowsErr = fault.Repair(fault.WithHint(errors.New("a right is missing"), "Give it back.")) })
		w.cut(errNet)
		time.Sleep(time.Hour)
		if st := r.relay.Status(); st.Ready || !strings.Contains(r.logs.String(), "Give it back.") {
			t.Errorf("%+v\n%s", st, r.logs.String())
		}
		w.do(func() { w.rowsErr = nil })
		w.want(t, time.Minute, "the rest", w.allDelivered)
		r.stopped(t, 5*time.Second)
	})
}

// A hot standby has no session of its own, and its start is over all the same: it waits for the other relay, or for its login.
func TestAStandbyWaitsForWhatCanBeRepaired(t *testing.T) {
	story(t, func(t *testing.T, w *world) {
		a := w.start(Config{})
		w.want(t, 10*time.Second, "the first holds the slot", func() bool { return w.session != nil })
		b := w.start(Config{})
		w.want(t, 10*time.Second, "the second waits", func() bool { return b.relay.Status().State == Standby })
		w.do(func() { w.openErr, b.away = fault.Repair(errors.New("wrong password")), true })
		time.Sleep(time.Minute)
		if st := b.relay.Status(); st.State != Connecting || !strings.Contains(st.Reason, "wrong password") {
			t.Errorf("%+v", st)
		}
		w.do(func() { w.openErr, b.away = nil, false })
		a.stopped(t, 5*time.Second)
		w.commit("a")
		w.want(t, time.Minute, "the second goes on", w.allDelivered)
		b.stopped(t, 5*time.Second)
	})
}

func TestErrorThatNoRetryHelpsEndsTheRunWithWhatIsSafe(t *testing.T) {
	story(t, func(t *testing.T, w *world) {
		r := w.start(Config{HaltLinger: time.Hour})
		time.Sleep(time.Second)
		end := w.commit("a").end
		w.want(t, time.Second, "delivered", w.allDelivered)
		time.Sleep(100 * time.Millisecond)
		w.do(func() { w.session.dead = errors.New("malformed message") })
		from := time.Now()
		<-r.done
		if r.err == nil || fault.NeedsPerson(r.err) || time.Since(from) > time.Second || w.record().Position != end {
			t.Errorf("after %s: %v, record %+v", time.Since(from), r.err, w.record())
		}
	})
}

func TestNothingIsConfirmedWhileTheStoreIsDown(t *testing.T) {
	story(t, func(t *testing.T, w *world) {
		r := w.start(Config{})
		time.Sleep(time.Second)
		w.do(func() { w.storeDown = true })
		before, confirms := look(w, &w.id.SlotFound.Confirmed), look(w, &w.confirms)
		for range 10 {
			w.commit("a", "b")
			time.Sleep(5 * time.Second)
		}
		w.want(t, time.Second, "delivery goes on", w.allDelivered)
		if look(w, &w.id.SlotFound.Confirmed) != before || look(w, &w.confirms)-confirms < 4 {
			t.Errorf("slot at %s, %d confirms", look(w, &w.id.SlotFound.Confirmed), look(w, &w.confirms)-confirms)
		}
		if st := r.relay.Status(); st.Ready || st.State != NoCheckpoint || !st.InStream || !strings.Contains(st.Reason, "store cannot be reached") || st.CheckpointError == "" {
			t.Errorf("%+v", st)
		}
		w.do(func() { w.storeDown = false })
		w.want(t, 11*time.Second, "confirmed", func() bool { return w.id.SlotFound.Confirmed == w.pos })
		time.Sleep(time.Second)
		if st := r.relay.Status(); !st.Ready || st.CheckpointError != "" {
			t.Errorf("%+v", st)
		}
		r.stopped(t, time.Second)
		r.wantLog(t, "checkpoint cannot be written", 1)
		r.wantLog(t, "the checkpoint can be written again", 1)
	})
}

func TestAStoreThatIsDownAtTheStartIsNoFaultOfTheSource(t *testing.T) {
	story(t, func(t *testing.T, w *world) {
		w.do(func() { w.storeDown = true })
		r := w.start(Config{})
		time.Sleep(time.Minute)
		w.do(func() { w.storeDown = false })
		w.commit("a")
		w.want(t, time.Minute, "all delivered", w.allDelivered)
		r.stopped(t, time.Second)
		r.wantLog(t, `"checkpoint store recovered"`, 1)
		r.wantLog(t, `"connected"`, 1)
		r.wantLog(t, "source recovered", 0)
	})
}

// Without enough in-sync replicas the topic can be read, and the Kafka client waits for ever with a record.
func TestAFirstRecordThatIsNotAcknowledgedIsShownAndTriedAgain(t *testing.T) {
	story(t, func(t *testing.T, w *world) {
		r := w.start(Config{})
		w.commit("a")
		w.want(t, time.Second, "delivered", w.allDelivered)
		w.do(func() { r.stuck = "shop/2." + r.relay.holder })
		w.cut(errNet)
		w.commit("b")
		w.want(t, 2*time.Minute, "the state", func() bool {
			st := r.relay.Status()
			return st.State == NoCheckpoint && strings.Contains(st.Reason, "write checkpoint shop/2")
		})
		w.want(t, time.Minute, "delivered again", w.allDelivered)
		r.stopped(t, time.Second)
	})
}

func TestSlowStoreHoldsUpNoSignOfLife(t *testing.T) {
	story(t, func(t *testing.T, w *world) {
		w.status = time.Second
		w.do(func() { w.storeHang = true })
		r := w.start(Config{})
		time.Sleep(time.Second)
		w.do(func() { w.storeHang = false; w.storeMax = 0 })
		r.stopped(t, 2*time.Second)
		r = w.start(Config{})
		w.want(t, time.Second, "held", func() bool { return w.session != nil })
		w.do(func() { w.storeMax = 20 * time.Second })
		for range 20 {
			w.commit(keys(20)...)
			time.Sleep(2 * time.Second)
		}
		w.cut(errNet) // the next session reads and writes records for a long time, and holds the slot meanwhile
		time.Sleep(2 * time.Minute)
		w.want(t, time.Minute, "all delivered", w.allDelivered)
		if look(w, &w.maxGap) > time.Second+100*time.Millisecond {
			t.Errorf("%s between two confirms", look(w, &w.maxGap))
		}
		w.do(func() { w.storeMax = 0 })
		time.Sleep(time.Minute)
		r.stopped(t, time.Second)
	})
}

func TestOneBigTransactionNeedsNoSilence(t *testing.T) {
	story(t, func(t *testing.T, w *world) {
		w.status = time.Second
		w.do(func() { w.maxDelay = 500 * time.Millisecond })
		r := w.start(Config{Window: Window{Events: 50}})
		w.commit(keys(1500)...)
		w.want(t, 10*time.Minute, "all delivered", w.allDelivered)
		if look(w, &w.maxGap) > 1100*time.Millisecond {
			t.Errorf("%s between two confirms", look(w, &w.maxGap))
		}
		r.stopped(t, 2*time.Second)
	})
}

// gap leaves a record and a slot that somebody advanced beyond it.
func gap(t *testing.T, w *world) {
	t.Helper()
	r := w.start(Config{})
	w.commit("a")
	w.want(t, time.Second, "delivered", w.allDelivered)
	r.stopped(t, time.Second)
	for range 3 {
		w.commit("b")
	}
	w.do(func() {
		for _, tx := range w.log {
			w.count[tx.rows[0].id] = 1 // lost, and accepted as such
		}
		w.landed["b"] = []int{2}
		w.id.SlotFound.Confirmed = w.pos
	})
	w.commit("b", "c")
}

func refusedToken(t *testing.T, w *world, cfg Config) string {
	t.Helper()
	r := w.start(cfg)
	<-r.done
	var ref *checkpoint.Refusal
	if !errors.As(r.err, &ref) || !fault.NeedsPerson(r.err) || !strings.Contains(fault.Hint(r.err), ref.Token) {
		t.Fatalf("%v, hint %q", r.err, fault.Hint(r.err))
	}
	if len(r.sink.queues) > 0 {
		t.Error("something was delivered")
	}
	return ref.Token
}

func TestGapIsSteppedOverOnlyWithItsToken(t *testing.T) {
	story(t, func(t *testing.T, w *world) {
		gap(t, w)
		token := refusedToken(t, w, Config{})
		if again := refusedToken(t, w, Config{AcceptGap: "another"}); again != token {
			t.Errorf("token %s, then %s", token, again)
		}
		r := w.start(Config{AcceptGap: token})
		w.want(t, time.Second, "delivered", w.allDelivered)
		w.cut(errNet)
		w.commit("c")
		w.want(t, time.Second, "delivered", w.allDelivered)
		r.stopped(t, time.Second)
		r.wantLog(t, "GAP ACCEPTED", 1)
		if look(w, &w.creates) != 0 {
			t.Error("a slot was made")
		}
		w.start(Config{AcceptGap: token}).stopped(t, time.Second) // of no effect any more
	})
}

func TestLostSlotIsMadeAgainOnlyWithItsToken(t *testing.T) {
	for name, slot := range map[string]cdc.SlotState{"missing": {}, "lost": {Exists: true, Confirmed: 100, WALStatus: "lost", Invalidation: "wal_removed"}} {
		t.Run(name, func(t *testing.T) {
			story(t, func(t *testing.T, w *world) {
				gap(t, w)
				w.do(func() {
					w.id.SlotFound = slot
					for _, row := range w.log[4].rows {
						w.count[row.id] = 1
					}
					w.landed["b"], w.landed["c"] = []int{3}, []int{0}
				})
				token := refusedToken(t, w, Config{Create: true})
				if look(w, &w.creates) != 0 {
					t.Error("a slot was made")
				}
				r := w.start(Config{AcceptGap: token})
				w.want(t, time.Second, "streaming", func() bool { return w.session != nil })
				w.commit("c")
				w.want(t, time.Second, "delivered", w.allDelivered)
				r.stopped(t, time.Second)
				if look(w, &w.creates) != 1 || w.record().Position != w.pos {
					t.Errorf("%d slots made, %+v", look(w, &w.creates), w.record())
				}
			})
		})
	}
}

func TestRecordThatCannotBeReadIsNotNone(t *testing.T) {
	story(t, func(t *testing.T, w *world) {
		w.records["shop/1"] = []byte("{")
		r := w.start(Config{Create: true})
		<-r.done
		if r.err == nil || look(w, &w.opens) > 0 || !fault.NeedsPerson(r.err) {
			t.Error(r.err)
		}
	})
}

func TestHolderAtWorkIsNoGapForOneWhoWaits(t *testing.T) {
	story(t, func(t *testing.T, w *world) {
		a := w.start(Config{})
		w.commit("a")
		w.want(t, time.Second, "delivered", w.allDelivered)
		w.mu.Lock()
		w.slowOpen = 5 * time.Second // the second reads the record, and the slot only then
		w.mu.Unlock()
		b := w.start(Config{})
		time.Sleep(time.Second)
		end := w.commit("a", "b").end
		w.want(t, 3*time.Second, "confirmed", func() bool { return w.id.SlotFound.Confirmed >= end })
		time.Sleep(10 * time.Second)
		w.mu.Lock()
		w.slowOpen = 0
		w.mu.Unlock()
		if st := b.relay.Status(); st.State == Halted || st.State == Stopped {
			t.Errorf("the second is %s: %s", st.State, st.Reason)
		}
		a.stopped(t, time.Second)
		w.commit("a")
		w.want(t, 10*time.Second, "delivered by the second", w.allDelivered)
		b.stopped(t, time.Second)
	})
}

func TestRunIDIsMadeOnceAndKept(t *testing.T) {
	story(t, func(t *testing.T, w *world) {
		a := w.start(Config{})
		w.commit("a")
		w.want(t, time.Second, "delivered", w.allDelivered)
		id := w.record().RunID
		if len(id) != 36 || id[14] != '7' || !strings.ContainsRune("89ab", rune(id[19])) {
			t.Errorf("%q is no UUID of version 7", id)
		}
		if st := a.relay.Status(); st.RunID != id || st.Holder != a.relay.holder || w.record().Holder != st.Holder {
			t.Errorf("status has run id %q, holder %q", st.RunID, st.Holder)
		}
		a.stopped(t, time.Second)
		b := w.start(Config{})
		w.commit("b")
		w.want(t, time.Second, "delivered", w.allDelivered)
		b.stopped(t, time.Second)
		if rec := w.record(); rec.RunID != id || rec.Holder != b.relay.holder || b.relay.holder == a.relay.holder || rec.Epoch != 2 {
			t.Errorf("%+v, want run id %s", rec, id)
		}
	})
}

// A store that has lost records cannot tell a relay that is new from one that ran before. Only a person can.
func TestNoSlotIsMadeWhereTheStoreHasLostRecords(t *testing.T) {
	gone := cdc.SlotState{Exists: true, Confirmed: 100, WALStatus: "lost", Invalidation: "wal_removed"}
	for name, slot := range map[string]cdc.SlotState{"missing": {}, "there": {Exists: true, Confirmed: 100}} {
		t.Run(name, func(t *testing.T) {
			story(t, func(t *testing.T, w *world) {
				w.do(func() { w.storeLost, w.id.SlotFound = true, slot })
				for _, token := range []string{"", "another"} {
					r := w.start(Config{Create: true, AcceptGap: token})
					<-r.done
					var lost LostRecords
					if !errors.As(r.err, &lost) || !fault.NeedsPerson(r.err) || look(w, &w.creates) != 0 {
						t.Fatalf("%v, %d slots made", r.err, look(w, &w.creates))
					}
				}
				r := w.start(Config{Create: true, AcceptGap: "t-lost"})
				w.want(t, time.Second, "streaming", func() bool { return w.session != nil && len(w.records) > 0 })
				w.commit("c")
				w.want(t, time.Second, "delivered", w.allDelivered)
				r.stopped(t, time.Second)
				r.wantLog(t, "GAP ACCEPTED", 1)
				// Nobody knows what is in Kafka of the rows before the slot, so the cleanup must not remove them.
				if open := w.record().Accepted; (len(open) == 1 && open[0].Token == "t-lost") != slot.Exists {
					t.Errorf("accepted: %v", open)
				}
				w.start(Config{Create: true}).stopped(t, time.Second) // its record is there
			})
		})
	}
	t.Run("lost", func(t *testing.T) {
		story(t, func(t *testing.T, w *world) {
			w.do(func() { w.storeLost, w.id.SlotFound = true, gone })
			token := refusedToken(t, w, Config{Create: true})
			r := w.start(Config{Create: true, AcceptGap: token})
			w.want(t, time.Second, "streaming", func() bool { return w.session != nil })
			w.commit("c")
			w.want(t, time.Second, "delivered", w.allDelivered)
			r.stopped(t, time.Second)
		})
	})
}
