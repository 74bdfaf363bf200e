package relay

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/checkpoint"
	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/relay/internal/badevent"
)

// buried is a world whose policy is dead_letter, with a configuration for it.
func (w *world) buried() Config {
	w.bury = true
	return Config{Poison: burying}
}

// foresee is what a start with cfg would end with.
func (w *world) foresee(cfg Config) error {
	cfg.Name = "shop"
	p := &proc{w: w}
	_, err := Foresee(context.Background(), cfg, fakeSource{p}, (&fakeStore{p: p}).Load)
	return err
}

// Bad events of both kinds go to the dead letter topic, all others are delivered, and the relay stays ready. The log has a line at
// once and one for the rest, and Status counts by reason.
func TestBadEventsGoToTheTopicOfDeadLetters(t *testing.T) {
	story(t, func(t *testing.T, w *world) {
		r := w.start(w.buried())
		w.want(t, time.Second, "record", func() bool { return w.newest() != nil })
		for range 20 {
			w.do(func() { w.cursed[w.commitLocked([]string{"a", "!", "b", "b", "c"}).rows[2].id] = true })
			w.want(t, 10*time.Second, "done", w.allDelivered)
		}
		w.want(t, time.Minute, "all confirmed", func() bool { return w.id.SlotFound.Confirmed == w.pos })
		st := r.relay.Status()
		if st.State != Streaming || !st.Ready || st.DeadLetters[cdc.Unroutable] != 20 || st.DeadLetters[cdc.TooLarge] != 20 || st.Events != 100 || st.Bad != nil || w.halts() != 0 {
			t.Errorf("%+v", st)
		}
		newest := st.NewestDead[0]
		if len(st.NewestDead) != badevent.Newest || newest.Token == "" || newest.Table != "public.outbox" || newest.Text == "" || newest.Reason == cdc.TooLarge && newest.Topic != "b" {
			t.Errorf("%+v", st.NewestDead)
		}
		r.stopped(t, time.Second)
		said := strings.Count(r.logs.String(), "goes to the dead letter topic dead")
		if said < 2 || said > 3 || !strings.Contains(r.logs.String(), `"in_all":40`) || strings.Contains(r.logs.String(), "delivery stalled") {
			t.Errorf("%d lines:\n%s", said, r.logs.String())
		}
	})
}

// One reason halts and the others do not. While the relay is halted, what is in flight is delivered, or becomes a letter.
func TestWhatIsInFlightBecomesALetterWhileHalted(t *testing.T) {
	story(t, func(t *testing.T, w *world) {
		cfg := w.buried()
		cfg.Poison.Policies = Policies{DefaultPolicy: PolicyDeadLetter, string(cdc.Unroutable): PolicyHalt}
		cfg.HaltLinger = time.Minute
		r := w.start(cfg)
		w.want(t, time.Second, "record", func() bool { return w.newest() != nil })
		w.do(func() { w.stalled = true })
		first := w.commit("a", "b")
		last := w.commit("!", "c")
		w.do(func() { w.cursed[first.rows[0].id] = true })
		r.halted(t)
		w.do(func() { w.stalled = false })
		w.want(t, 10*time.Second, "confirmed up to the event that halts", func() bool { return w.id.SlotFound.Confirmed == first.end })
		if w.dead[first.rows[0].id] != 1 || w.dead[last.rows[0].id] != 0 {
			t.Errorf("letters %v", w.dead)
		}
		<-r.done
		if bad := badOf(t, r.err); bad.EventID != last.rows[0].id || bad.Because != cdc.Unroutable {
			t.Errorf("%+v", bad)
		}
	})
}

// A letter that is refused itself halts the relay, and a start after the topic is repaired goes on.
func TestALetterThatIsRefusedHalts(t *testing.T) {
	for name, key := range map[string]string{"of a row": "!", "of a record": "b"} {
		t.Run(name, func(t *testing.T) {
			story(t, func(t *testing.T, w *world) {
				w.clean = false
				cfg := w.buried()
				w.do(func() { w.stalled, w.lettersTooLarge = true, true })
				txn := w.commit("a", key, "b")
				w.do(func() { w.stalled, w.cursed[txn.rows[1].id] = false, key == "b" })
				r := w.start(cfg)
				<-r.done
				bad := badOf(t, r.err)
				if bad.EventID != txn.rows[1].id || bad.Topic != deadTopic || bad.Because != cdc.TooLarge || bad.Commit != txn.begin || bad.Row != 2 || bad.Token == "" {
					t.Errorf("%+v", bad)
				}
				discard := `walpost skip --discard --reason "the dead letter was refused" ` + bad.Token + " " // without --discard, the letter is refused again
				if err := w.foresee(cfg); !fault.NeedsPerson(err) || !strings.Contains(fault.Hint(err), discard) || !strings.Contains(fault.Hint(bad), discard) {
					t.Errorf("a start does not expect the halt: %v, %s; %s", err, fault.Hint(err), fault.Hint(bad))
				}
				w.do(func() { w.lettersTooLarge = false })
				r = w.start(cfg)
				w.want(t, 10*time.Second, "all delivered, nothing left in the store", func() bool { return w.allDelivered() && w.halts() == 0 })
				r.stopped(t, time.Second)
			})
		})
	}
}

// An event that halted the relay goes to the dead letter topic once the policy says so, and a look ahead knows that.
func TestAPolicyThatChangesEndsAHalt(t *testing.T) {
	story(t, func(t *testing.T, w *world) {
		w.gapsOK = true
		txn := w.commit("a", "!", "b")
		r := w.start(Config{})
		<-r.done
		badOf(t, r.err)
		cfg := w.buried()
		if halt, bury := w.foresee(Config{}), w.foresee(cfg); halt == nil || bury != nil {
			t.Errorf("a start with halt: %v; with dead_letter: %v", halt, bury)
		}
		r = w.start(cfg)
		w.want(t, 10*time.Second, "all delivered", func() bool { return w.allDelivered() && w.halts() == 0 })
		if w.dead[txn.rows[1].id] != 1 {
			t.Errorf("letters %v", w.dead)
		}
		r.stopped(t, time.Second)
	})
}

// Each record of a topic is refused. The loop hears of each refusal soon, although the stream has nothing new.
func TestRefusalsOfOneTopicFollowEachOtherSoon(t *testing.T) {
	story(t, func(t *testing.T, w *world) {
		cfg := w.buried()
		cfg.Window.Events = 1000
		r := w.start(cfg)
		w.want(t, time.Second, "record", func() bool { return w.newest() != nil })
		w.do(func() { w.stalled, w.maxDelay = true, 0 })
		ks := make([]string, 500)
		for i := range ks {
			ks[i] = "b"
		}
		txn := w.commit(ks...)
		from := time.Now()
		w.do(func() {
			w.stalled = false
			for _, row := range txn.rows {
				w.cursed[row.id] = true
			}
		})
		w.want(t, time.Minute, "500 letters", func() bool { return len(w.dead) == 500 })
		if took := time.Since(from); took > 2*time.Second { // by the clock of the simulation
			t.Errorf("500 letters in %s", took)
		}
		r.stopped(t, time.Second)
	})
}

// A request to pass over an event does not end the halt at its letter. A start expects that halt, until the letter is given up too.
func TestARequestThatDidNotHelpIsForeseen(t *testing.T) {
	story(t, func(t *testing.T, w *world) {
		w.gapsOK, w.clean = true, false
		cfg := Config{Poison: Poison{Topic: deadTopic, Version: "test"}}
		w.commit("a", "!", "b")
		w.do(func() { w.lettersTooLarge = true })
		for n := range 2 {
			r := w.start(cfg)
			<-r.done
			badOf(t, r.err)
			if err := w.foresee(cfg); !fault.NeedsPerson(err) {
				t.Errorf("start %d halted, and another one does not expect the halt: %v", n+1, err)
			}
			w.skip(func(h *checkpoint.Halt) bool { h.Time = time.Now(); h.Discard = n == 1; return true })
			if err := w.foresee(cfg); err != nil {
				t.Errorf("request %d: %v", n+1, err)
			}
		}
		r := w.start(cfg)
		w.want(t, 10*time.Second, "all the others, and nothing left in the store", func() bool { return w.allDelivered() && w.halts() == 0 })
		r.stopped(t, time.Second)
	})
}

// If the dead letter topic refused a letter that was asked for, a start after its limit was raised writes the letter without a new request.
func TestARaisedLimitNeedsNoNewRequest(t *testing.T) {
	story(t, func(t *testing.T, w *world) {
		w.gapsOK, w.clean = true, false
		cfg := Config{Poison: Poison{Topic: deadTopic, Version: "test"}}
		w.commit("a", "!", "b")
		w.do(func() { w.lettersTooLarge = true })
		for n := range 2 {
			r := w.start(cfg)
			<-r.done
			badOf(t, r.err)
			if n == 0 {
				w.skip(func(h *checkpoint.Halt) bool { h.Time = time.Now(); return true })
			}
		}
		w.do(func() { w.lettersTooLarge = false })
		r := w.start(cfg)
		w.want(t, 10*time.Second, "all the others, and nothing left in the store", func() bool { return w.allDelivered() && w.halts() == 0 })
		r.stopped(t, time.Second)
	})
}

// A stop within a transaction remembers the letters of its first part. The next start does not write them again, and does not halt at
// them under another policy.
func TestAStartDoesNotDealWithALetterAgain(t *testing.T) {
	story(t, func(t *testing.T, w *world) {
		ks := keys(60)
		ks[2], ks[4] = "!", "!"
		cfg := w.buried()
		cfg.Window.Events = 4
		w.do(func() { w.maxDelay = 300 * time.Millisecond })
		txn := w.commit(ks...)
		r := w.start(cfg)
		w.want(t, 10*time.Second, "two letters", func() bool { return w.dead[txn.rows[4].id] == 1 })
		r.stopped(t, 10*time.Second)
		if next := w.record().Next; next == nil || next.Rows < 5 || next.Rows == 60 {
			t.Fatalf("%+v", next)
		}
		r = w.start(Config{Window: Window{Events: 4}})
		w.want(t, time.Minute, "all delivered", w.allDelivered)
		if st := r.relay.Status(); len(st.DeadLetters) != 0 {
			t.Errorf("%+v", st.DeadLetters)
		}
		r.stopped(t, 10*time.Second)
	})
}

// The dead letter topic cannot be written: nothing passes the bad event, and the others flow.
func TestALetterIsWaitedFor(t *testing.T) {
	story(t, func(t *testing.T, w *world) {
		r := w.start(w.buried())
		w.want(t, time.Second, "record", func() bool { return w.newest() != nil })
		w.do(func() { w.noLetters = true })
		txn := w.commit("!", "a")
		w.commit("a", "b")
		w.want(t, 10*time.Second, "the good ones", func() bool { return w.arrivals == 3 })
		time.Sleep(20 * time.Second)
		if at := look(w, &w.id.SlotFound.Confirmed); at >= txn.end {
			t.Errorf("confirmed %s, the letter of %s is not written", at, txn.end)
		}
		w.do(func() { w.noLetters = false })
		w.want(t, 10*time.Second, "all confirmed", func() bool { return w.id.SlotFound.Confirmed == w.pos })
		r.stopped(t, time.Second)
	})
}

// An event that a person has passed over goes to the dead letter topic, whatever the policy, also over stops and kills. With
// Discard it goes nowhere.
func TestASkippedEventGoesToTheTopicOfDeadLetters(t *testing.T) {
	for name, key := range map[string]string{"of a row": "!", "of a record": "b"} {
		for _, discard := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				story(t, func(t *testing.T, w *world) {
					w.gapsOK, w.clean = true, false
					cfg := Config{Poison: Poison{Topic: deadTopic, Version: "test"}, Window: Window{Events: 3}}
					w.do(func() { w.stalled = true })
					txn := w.commit("a", key, "b", "c", "a")
					w.do(func() { w.stalled, w.cursed[txn.rows[1].id] = false, key == "b" })
					r := w.start(cfg)
					<-r.done
					badOf(t, r.err)
					w.skip(func(h *checkpoint.Halt) bool { h.Discard = discard; return true })
					for n := range 3 {
						r = w.start(cfg)
						time.Sleep(time.Duration(30+n*70) * time.Millisecond)
						r.kill()
						<-r.done
					}
					r = w.start(cfg)
					w.want(t, time.Minute, "all the others, and nothing left in the store", func() bool { return w.allDelivered() && w.halts() == 0 })
					id := txn.rows[1].id
					if w.count[id] != 0 || discard != (w.dead[id] == 0) {
						t.Errorf("discard %t: %d times in its topic, %d dead letters", discard, w.count[id], w.dead[id])
					}
					r.stopped(t, time.Second)
				})
			})
		}
	}
}
