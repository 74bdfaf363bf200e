package relay

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/walpost/walpost/internal/fault"
)

// halted waits until r is halted.
func (r *run) halted(t *testing.T) {
	t.Helper()
	r.w.want(t, 10*time.Second, "halted", func() bool { return r.relay.Status().State == Halted })
}

// A good event waits, as for a missing topic, and the next one cannot be routed. The halt is announced at once and reads nothing more. The
// good event is delivered, checkpointed and confirmed when its topic is there, however late.
func TestAHaltByABadEventDeliversWhatIsInFlight(t *testing.T) {
	story(t, func(t *testing.T, w *world) {
		w.gapsOK = true
		r := w.start(Config{HaltLinger: time.Hour})
		w.want(t, time.Second, "record", func() bool { return w.newest() != nil })
		w.do(func() { w.hold = "0/74-0" })
		good := w.commit("a")
		if good.rows[0].id != "0/74-0" {
			t.Fatal(good.rows[0].id)
		}
		bad := w.commit("b", "!", "c")
		w.commit("d")
		r.halted(t)
		time.Sleep(10 * time.Minute)
		st := r.relay.Status()
		if st.Ready || st.InFlight.Events != 1 || len(st.Waiting) != 1 || st.Waiting[0] != (Waiting{Topic: "a", Events: 1, Why: "slow"}) ||
			!strings.Contains(st.Reason, "aggregate_type is null; events that still wait to be delivered: 1 for topic a (slow)") {
			t.Errorf("%+v", st)
		}
		if b := st.Bad; b == nil || b.EventID != bad.rows[1].id || b.Table != tableRel || b.Commit != bad.begin || b.Row != 2 || b.Topic != "" || b.Err == nil {
			t.Errorf("%+v", b)
		}
		if look(w, &w.session) == nil {
			t.Error("the slot is free before the event is delivered")
		}
		sends := r.sink.sent()
		w.commit("d")
		w.do(func() { w.hold = "" })
		w.want(t, 5*time.Second, "the good one is confirmed, and the slot is free", func() bool {
			return w.id.SlotFound.Confirmed == good.end && w.session == nil
		})
		if rec := w.record(); rec.Position != good.end || rec.Next == nil || rec.Next.Rows != 1 || r.sink.sent() != sends {
			t.Errorf("%+v, next %+v, %d sends after %d", rec, rec.Next, r.sink.sent(), sends)
		}
		if st := r.relay.Status(); st.State != Halted || len(st.Waiting) != 0 || strings.Contains(st.Reason, "wait") {
			t.Errorf("%+v", st)
		}
		<-r.done
		if !fault.NeedsPerson(r.err) || strings.Contains(fault.Hint(r.err), "SELECT") {
			t.Errorf("%v, hint %s", r.err, fault.Hint(r.err))
		}
		r.wantLog(t, `"halted: this needs an operator"`, 1)
	})
}

// Without a linger, what is in flight has the time that a stop gives it.
func TestAHaltWithoutLingerWaitsAsAStopDoes(t *testing.T) {
	for name, back := range map[string]bool{"and it is delivered": true, "and it is not": false} {
		t.Run(name, func(t *testing.T) {
			story(t, func(t *testing.T, w *world) {
				w.gapsOK = true
				r := w.start(Config{ShutdownGrace: 30 * time.Second})
				w.want(t, time.Second, "record", func() bool { return w.newest() != nil })
				w.do(func() { w.hold = "0/74-0" })
				good := w.commit("a")
				w.commit("!")
				r.halted(t)
				from := time.Now()
				time.Sleep(25 * time.Second)
				w.do(func() {
					if back {
						w.hold = ""
					}
				})
				<-r.done
				if took := time.Since(from); took < 25*time.Second || took > 31*time.Second || !fault.NeedsPerson(r.err) {
					t.Errorf("%s: %v", took, r.err)
				}
				if got := look(w, &w.id.SlotFound.Confirmed) == good.end; got != back {
					t.Errorf("confirmed: %t", got)
				}
				r.wantLog(t, "walpost reads these events again at the next start", map[bool]int{true: 0, false: 1}[back])
			})
		})
	}
}

// SIGTERM during a halt is a stop: it waits for shutdown_grace at most, and the exit code stays that of the halt.
func TestAStopEndsAHalt(t *testing.T) {
	story(t, func(t *testing.T, w *world) {
		w.gapsOK = true
		r := w.start(Config{HaltLinger: -1})
		w.want(t, time.Second, "record", func() bool { return w.newest() != nil })
		w.do(func() { w.hold = "0/74-0" })
		w.commit("a")
		w.commit("!")
		r.halted(t)
		time.Sleep(time.Hour)
		if took := r.stop(); took < 20*time.Second || took > 21*time.Second || !fault.NeedsPerson(r.err) {
			t.Errorf("%s: %v", took, r.err)
		}
	})
}

// What is behind a refused record in its topic cannot be delivered any more: only the other topics are waited for.
func TestARefusedRecordHoldsUpOnlyItsTopic(t *testing.T) {
	story(t, func(t *testing.T, w *world) {
		w.gapsOK = true
		r := w.start(Config{HaltLinger: time.Hour})
		w.want(t, time.Second, "record", func() bool { return w.newest() != nil })
		w.do(func() { w.stalled = true })
		good := w.commit("a")
		bad := w.commit("b", "c", "c", "d")
		w.do(func() { w.stalled, w.hold = false, good.rows[0].id; w.poison[bad.rows[1].id] = true })
		r.halted(t)
		time.Sleep(time.Minute)
		st := r.relay.Status()
		if !strings.Contains(st.Reason, "1 for topic a (slow); events that walpost reads again at the next start: 1 after the refused event in topic c") {
			t.Error(st.Reason)
		}
		if b := st.Bad; b == nil || b.Row != 2 || b.Commit != bad.begin || b.Topic != "c" || b.EventID != bad.rows[1].id || b.Table != tableRel {
			t.Errorf("%+v", b)
		}
		w.do(func() { w.hold = "" })
		w.want(t, 5*time.Second, "the slot is free", func() bool { return w.id.SlotFound.Confirmed == good.end && w.session == nil })
		r.stop()
	})
}

// A session that is lost during a halt is not replaced: the rest is delivered and checkpointed without one, and Postgres can shut down.
func TestASessionThatIsLostDuringAHaltChangesNothing(t *testing.T) {
	story(t, func(t *testing.T, w *world) {
		w.gapsOK = true
		r := w.start(Config{HaltLinger: time.Hour})
		w.want(t, time.Second, "record", func() bool { return w.newest() != nil })
		w.do(func() { w.hold = "0/74-0" })
		good := w.commit("a")
		w.commit("!")
		r.halted(t)
		time.Sleep(time.Minute)
		opens := look(w, &w.opens)
		w.cut(errNet)
		time.Sleep(15 * time.Second)
		w.do(func() { w.hold = "" })
		w.want(t, 5*time.Second, "checkpoint", func() bool { return w.newest().Position == good.end })
		if st := r.relay.Status(); st.State != Halted || look(w, &w.opens) != opens {
			t.Errorf("%+v, %d sessions after %d", st, w.opens, opens)
		}
		r.stop()
	})
}

// Another process may take the slot of a halted relay that has lost its session, and deliver everything anew. What the halted one delivered
// hours later would come behind newer events of its key.
func TestAHaltWithoutASessionLeavesTheEventsToTheNextHolder(t *testing.T) {
	story(t, func(t *testing.T, w *world) {
		w.gapsOK = true
		a := w.start(Config{HaltLinger: -1})
		w.want(t, time.Second, "record", func() bool { return w.newest() != nil })
		w.do(func() { w.hold = "0/74-0" })
		good := w.commit("a")
		w.commit("!")
		a.halted(t)
		w.skip(everyHalt)
		w.cut(errNet)
		b := w.start(Config{})
		w.want(t, 10*time.Second, "the second holds the slot", func() bool { return w.session != nil && w.session.p == b.proc })
		w.commit("a", "a")
		time.Sleep(time.Hour)
		if st := a.relay.Status(); st.State != Halted || st.Bad == nil {
			t.Errorf("%+v", st)
		}
		w.do(func() { w.hold = "" })
		w.want(t, 10*time.Second, "all delivered", w.allDelivered)
		time.Sleep(time.Minute)
		if n := w.count[good.rows[0].id]; n != 1 {
			t.Errorf("delivered %d times: %v", n, w.landed["a"])
		}
		b.stop()
		a.stop()
	})
}

// A store that is away for longer than the last checkpoint may take gets the halt when it is back. Else walpost skip would refuse the token that
// the halt has printed.
func TestAHaltIsWrittenWhenTheStoreIsBack(t *testing.T) {
	for name, fault := range map[string]func(w *world) *bool{
		"refuses": func(w *world) *bool { return &w.storeDown },
		"hangs":   func(w *world) *bool { return &w.storeHang },
	} {
		t.Run(name, func(t *testing.T) {
			story(t, func(t *testing.T, w *world) {
				w.gapsOK = true
				r := w.start(Config{HaltLinger: -1})
				w.want(t, time.Second, "record", func() bool { return w.newest() != nil })
				w.do(func() { *fault(w) = true })
				w.commit("!")
				r.halted(t)
				w.want(t, 20*time.Second, "the slot is free", func() bool { return w.session == nil })
				time.Sleep(10 * time.Minute)
				w.do(func() { *fault(w) = false })
				w.want(t, 2*time.Minute, "the halt is in the store", func() bool { return w.halts() == 1 })
				saves := look(w, &w.saves)
				time.Sleep(10 * time.Minute)
				if n := look(w, &w.saves); n != saves {
					t.Errorf("written %d times more", n-saves)
				}
				r.stop()
			})
		})
	}
}

// A session that ends by an error which every session would meet again changes nothing either: the bad event is before it.
func TestASessionErrorDuringAHaltKeepsTheBadEvent(t *testing.T) {
	story(t, func(t *testing.T, w *world) {
		w.gapsOK = true
		r := w.start(Config{HaltLinger: time.Hour})
		w.want(t, time.Second, "record", func() bool { return w.newest() != nil })
		w.do(func() { w.hold = "0/74-0" })
		good := w.commit("a")
		w.commit("!")
		r.halted(t)
		w.cut(errors.New("ERROR: invalid memory alloc request size (SQLSTATE XX000)"))
		time.Sleep(15 * time.Second)
		if st := r.relay.Status(); st.Bad == nil || !strings.Contains(st.Reason, "aggregate_type is null") {
			t.Errorf("%+v", st)
		}
		w.do(func() { w.hold = "" })
		w.want(t, 5*time.Second, "checkpoint", func() bool { return w.newest().Position == good.end })
		r.stop()
		if !fault.NeedsPerson(r.err) {
			t.Error(r.err)
		}
	})
}

// What concerns the slot ends a delivering halt at once.
func TestAFaultOfTheSourceEndsTheDeliveryOfAHalt(t *testing.T) {
	story(t, func(t *testing.T, w *world) {
		w.gapsOK = true
		r := w.start(Config{HaltLinger: time.Hour})
		w.want(t, time.Second, "record", func() bool { return w.newest() != nil })
		w.do(func() { w.hold = "0/74-0" })
		good := w.commit("a")
		w.commit("!")
		r.halted(t)
		w.do(func() { w.checkErr = fault.Person(errors.New("the slot is gone"), "walpost recover") })
		w.want(t, 20*time.Second, "the slot is given up", func() bool {
			return w.session == nil && strings.Contains(r.relay.Status().Reason, "the slot is gone")
		})
		w.do(func() { w.hold = "" })
		time.Sleep(time.Minute)
		if n := w.count[good.rows[0].id]; n != 0 {
			t.Error("delivered although the slot is gone")
		}
		r.stop()
		if !strings.Contains(r.err.Error(), "the slot is gone") {
			t.Error(r.err)
		}
	})
}

// A record that is refused while the relay stops takes nothing from what is in other topics.
func TestARefusalDuringAStopLetsTheRestBeDelivered(t *testing.T) {
	story(t, func(t *testing.T, w *world) {
		w.gapsOK = true
		r := w.start(Config{})
		w.want(t, time.Second, "record", func() bool { return w.newest() != nil })
		w.do(func() { w.stalled = true })
		good := w.commit("a")
		bad := w.commit("b")
		w.want(t, time.Second, "sent", func() bool { return r.relay.Status().InFlight.Events == 2 })
		w.do(func() { w.stalled, w.hold = false, good.rows[0].id; w.poison[bad.rows[0].id] = true })
		r.cancel()
		time.Sleep(5 * time.Second)
		w.do(func() { w.hold = "" })
		<-r.done
		if !fault.NeedsPerson(r.err) || !strings.Contains(r.err.Error(), bad.rows[0].id) {
			t.Error(r.err)
		}
		if got := look(w, &w.id.SlotFound.Confirmed); got != good.end {
			t.Errorf("confirmed %s, and the good event ends at %s", got, good.end)
		}
	})
}

// The circuit breaker acts whatever the relay is halted by, and also when it stops: the slot is free when freed is called.
func TestAHaltFromOutsideEndsAHalt(t *testing.T) {
	for name, by := range map[string]func(w *world, r *run){
		"by a bad event, nothing in flight": func(w *world, _ *run) { w.commit("!") },
		"by a bad event that waits":         func(w *world, _ *run) { w.do(func() { w.hold = "0/74-0" }); w.commit("a"); w.commit("!") },
		"by a fault of the source": func(w *world, _ *run) {
			w.do(func() { w.checkErr = fault.Person(errors.New("the publication is gone"), "") })
		},
	} {
		t.Run(name, func(t *testing.T) {
			story(t, func(t *testing.T, w *world) {
				w.gapsOK = true
				r := w.start(Config{HaltLinger: -1})
				w.want(t, time.Second, "record", func() bool { return w.newest() != nil })
				by(w, r)
				w.want(t, 20*time.Second, "halted", func() bool { return r.relay.Status().State == Halted })
				time.Sleep(time.Hour)
				held, calls := false, 0
				r.relay.Halt(fault.Person(errors.New("too much WAL"), ""), func() { w.do(func() { held, calls = w.session != nil, calls+1 }) })
				w.want(t, 10*time.Second, "freed", func() bool { return calls == 1 })
				time.Sleep(time.Hour)
				if st := r.relay.Status(); held || st.State != Halted || st.Reason != "too much WAL" || st.Bad != nil {
					t.Errorf("held %t, %+v", held, st)
				}
				r.stop()
				if !strings.Contains(r.err.Error(), "too much WAL") || calls != 1 {
					t.Errorf("%v, %d calls", r.err, calls)
				}
			})
		})
	}
}

func TestAHaltFromOutsideFreesTheSlotOfARelayThatStops(t *testing.T) {
	story(t, func(t *testing.T, w *world) {
		w.gapsOK = true
		r := w.start(Config{})
		w.want(t, time.Second, "record", func() bool { return w.newest() != nil })
		w.do(func() { w.stalled = true })
		w.commit("a")
		w.want(t, time.Second, "sent", func() bool { return r.relay.Status().InFlight.Events == 1 })
		r.cancel()
		time.Sleep(5 * time.Second)
		calls := 0
		r.relay.Halt(fault.Person(errors.New("too much WAL"), ""), func() { calls++ })
		<-r.done
		if !fault.NeedsPerson(r.err) || calls != 1 {
			t.Errorf("%v, %d calls", r.err, calls)
		}
	})
}

// What the breaker has come to must be scraped, also where halt_linger is short.
func TestAHaltFromOutsideIsSeen(t *testing.T) {
	story(t, func(t *testing.T, w *world) {
		r := w.start(Config{})
		w.want(t, time.Second, "record", func() bool { return w.newest() != nil })
		var freed time.Time
		r.relay.Halt(fault.Person(errors.New("too much WAL"), ""), func() {
			time.Sleep(20 * time.Second) // dropping the slot takes its time
			freed = time.Now()
		})
		<-r.done
		if seen := time.Since(freed); seen < time.Minute || seen > 61*time.Second {
			t.Errorf("it was there for %s", seen)
		}
	})
}
