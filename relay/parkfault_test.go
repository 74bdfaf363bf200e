package relay

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/internal/parking"
)

// anchored starts a relay, and waits until it has delivered an event and its durable record names the topic.
func (w *world) anchored(t *testing.T, cfg Config) *run {
	t.Helper()
	r := w.start(cfg)
	w.commit("b")
	w.want(t, time.Minute, "streaming", func() bool { return w.id.SlotFound.Confirmed == w.pos && w.newest().Parking != nil })
	return r
}

// A holder whose Fence is slow loses the slot meanwhile. Its Fence comes behind that of the next holder.
func TestAFenceThatComesLateWritesNothing(t *testing.T) {
	story(t, func(t *testing.T, w *world) {
		w.clean = false
		cfg := w.parking()
		a := w.start(cfg)
		w.commit("b")
		w.want(t, time.Minute, "A streams", func() bool { return w.id.SlotFound.Confirmed == w.pos })
		b := w.start(cfg)
		w.want(t, time.Minute, "B waits", func() bool { return b.relay.Status().State == Standby })
		// A has a letter that is not written, because its producer breaks. So A opens the topic again, slowly.
		var first *row
		w.do(func() {
			a.lateLetters = true
			first = w.commitLocked([]string{"a"}).rows[0]
			w.unrouted[first.id] = true
		})
		time.Sleep(2 * time.Second)
		w.do(func() {
			w.park.gen++
			w.park.writer = nil
			a.slowFence(20 * time.Second)
			a.breakLog(errFenced)
			a.lateLetters = false
		})
		time.Sleep(3 * time.Second) // A has the slot again, and fences
		w.mend()                    // the cause is repaired
		w.do(func() { a.away = true; w.cutLocked(errNet) })
		w.want(t, 15*time.Second, "B delivers", func() bool { return w.count[first.id] == 1 })
		next := w.commit("a").rows[0]
		w.want(t, 10*time.Second, "B delivers the next event of the key", func() bool { return w.count[next.id] == 1 && w.id.SlotFound.Confirmed == w.pos })
		time.Sleep(time.Minute) // the Fence of A ends
		w.do(func() {
			if n := w.park.events(); n > 0 {
				t.Errorf("%d events are parked that are delivered: %+v", n, w.park.backlog.Entries(w.park.backlog.Keys()[0])[0])
			}
		})
		w.do(func() { a.away = false })
		w.retry(anyKey)
		time.Sleep(time.Minute)
		b.stopped(t, time.Second)
		time.Sleep(time.Minute)
		w.retry(anyKey)
		time.Sleep(time.Minute)
		t.Log(w.twice(), w.park.events(), w.count[first.id], w.count[next.id])
	})
}

// The topic is made anew while nothing is open and the relay runs.
func TestATopicWithoutOpenEventsMayBeMadeAnewMeanwhile(t *testing.T) {
	story(t, func(t *testing.T, w *world) {
		cfg := w.parking()
		r := w.parked(t, cfg)
		w.drop(w.rng)
		w.want(t, time.Minute, "nothing is open", func() bool { p := w.newest().Parking; return w.park.events() == 0 && p.Open == 0 })
		time.Sleep(10 * time.Second)
		w.do(func() {
			w.park.id, w.park.records = "b", nil
			w.park.observe()
			w.park.gen++
			w.park.writer = nil
		})
		w.do(func() { w.unrouted[w.commitLocked([]string{"a", "a"}).rows[0].id] = true })
		time.Sleep(time.Minute)
		if r.ended() {
			t.Error(r.err)
			r = w.start(cfg)
			time.Sleep(time.Minute)
			if r.ended() {
				t.Fatal("and the next start: ", r.err)
			}
		}
		w.want(t, time.Minute, "parked", func() bool { return w.park.events() == 2 })
		r.stopped(t, time.Second)
	})
}

// A failover, and the session is lost once more before the topic is opened: the next session does not know any more that the source changed.
func TestAFailoverIsRememberedWhileTheTopicIsOpened(t *testing.T) {
	story(t, func(t *testing.T, w *world) {
		w.clean = false
		cfg := w.parking()
		r := w.start(cfg)
		w.commit("b")
		w.want(t, time.Minute, "streaming", func() bool { return w.id.SlotFound.Confirmed == w.pos })
		var bad *row
		w.do(func() {
			w.park.slow = true
			bad = w.commitLocked([]string{"a"}).rows[0]
			w.unrouted[bad.id] = true
		})
		time.Sleep(2 * time.Second) // its letter is not written
		w.failOver(w.rng, false)
		time.Sleep(3 * time.Second) // the topic cannot be opened
		w.cut(errNet)
		time.Sleep(3 * time.Second)
		w.do(func() { w.park.slow = false })
		w.commit("b")
		time.Sleep(time.Minute)
		w.do(func() {
			t.Logf("confirmed %s of %s, parked %d, arrived %d; bad event %s at %s", w.id.SlotFound.Confirmed, w.pos, w.park.events(), w.count[bad.id], bad.id, w.log[1].begin)
			if w.park.events() == 0 && w.count[bad.id] == 0 {
				t.Error("LOST: the position is beyond the event, and its letter is not in the topic")
			}
		})
		r.stop()
	})
}

// After a crash, letters are ahead of the checkpoint. Above the limit they are released although earlier events of their key come again.
func TestAReleaseAboveTheLimitWaitsForWhatComesAgain(t *testing.T) {
	story(t, func(t *testing.T, w *world) {
		w.clean = false
		cfg := w.parking()
		cfg.Poison.ParkLimit = parking.Limit{Keys: 1000, Events: 1}
		r := w.anchored(t, cfg)
		w.do(func() { w.shared = map[byte]string{'x': "s", 'k': "s"}; w.missing = "s" })
		x := w.commit("x").rows[0] // its topic is missing, so the checkpoint stays before it
		k1 := w.commit("k").rows[0]
		time.Sleep(time.Second)
		w.do(func() {
			rows := w.commitLocked([]string{"k", "k"}).rows
			w.unrouted[rows[0].id] = true
		})
		w.want(t, time.Minute, "k is parked", func() bool { return w.park.events() == 2 })
		r.kill()
		<-r.done
		w.do(func() { w.missing = ""; clear(w.unrouted); w.unrouted[x.id] = true })
		w.retry(anyKey)
		r = w.start(cfg)
		w.want(t, time.Minute, "released", func() bool { return w.park.backlog.Counts().Events <= 1 })
		w.mend()
		w.retry(anyKey)
		time.Sleep(time.Minute)
		t.Log(w.twice(), w.byKey["k"][0].id, w.byKey["k"][1].id, w.byKey["k"][2].id, "first", w.count[k1.id], "second", w.count[w.byKey["k"][1].id])
		r.stopped(t, time.Second)
	})
}

// Above the limit, a failover takes the process back to its checkpoint. What is parked is not released before the earlier events of its
// key that come again: a consumer would be left with one of those as the newest.
func TestAReleaseWaitsForWhatAFailoverRepeats(t *testing.T) {
	story(t, func(t *testing.T, w *world) {
		w.clean = false
		cfg := w.parking()
		cfg.Poison.ParkLimit = parking.Limit{Keys: 1000, Events: 1}
		r := w.anchored(t, cfg)
		w.do(func() { w.hold = w.commitLocked([]string{"x"}).rows[0].id }) // so the checkpoint stays before it
		first := w.commit("k").rows[0]
		w.want(t, time.Minute, "the first event of k arrives", func() bool { return w.count[first.id] == 1 })
		w.do(func() { w.poison[w.commitLocked([]string{"k", "k"}).rows[0].id] = true })
		w.want(t, time.Minute, "k is parked", func() bool { return w.park.events() == 2 })
		w.mend()
		w.retry(anyKey)
		time.Sleep(2 * time.Second) // nothing is released while x is in flight
		w.failOver(w.rng, false)
		w.want(t, time.Minute, "the next session waits for what is in flight", func() bool {
			return w.newest().Epoch == 2 && r.relay.Status().Parked.Events == 2 && strings.Contains(r.logs.String(), "starting over")
		})
		w.do(func() { w.hold, w.unanswered, w.park.slow = "", true, true }) // nothing can be read, and no result of a release be written
		time.Sleep(5 * time.Second)
		w.do(func() { w.unanswered = false })
		w.want(t, time.Minute, "the first event of k comes again", func() bool { return w.count[first.id] == 2 })
		w.do(func() { w.park.slow = false })
		w.want(t, time.Minute, "k is released", func() bool { return w.park.events() == 0 && w.id.SlotFound.Confirmed == w.pos })
		if got, want := look(w, &w.landed)["k"], []int{0, 0, 1, 2}; !slices.Equal(got, want) {
			t.Errorf("the events of k arrived as %v, not as %v", got, want)
		}
		r.stopped(t, time.Second)
	})
}

// Nor is it if the source makes the process start over, and the release has begun before.
func TestAReleaseGoesBackWhereASourceDoesNotRepeatItself(t *testing.T) {
	story(t, func(t *testing.T, w *world) {
		w.clean = false
		cfg := w.parking()
		cfg.Poison.ParkLimit = parking.Limit{Keys: 1000, Events: 2}
		cfg.Window.Events = 100 // the checkpoint covers no part of the transaction
		r := w.anchored(t, cfg)
		var tx *txn
		w.do(func() {
			tx = w.commitLocked([]string{"k", "k", "k", "j"})
			w.unrouted[tx.rows[1].id], w.unrouted[tx.rows[3].id] = true, true
		})
		w.want(t, time.Minute, "the limit is reached within a transaction", func() bool { return w.park.events() == 3 && w.count[tx.rows[0].id] == 1 })
		w.mend()
		w.do(func() { w.hold = tx.rows[1].id })
		w.retry(func(key parking.Key) bool { return key.Key == "k" })
		w.want(t, time.Minute, "the release of k has begun", func() bool { return r.sink.sent() == 4 })
		w.do(func() { w.strays[1] = true })
		w.cut(errNet)
		w.want(t, time.Minute, "the next session", func() bool { return w.newest().Epoch == 2 })
		w.do(func() { // so that there is room, and the transaction is read again
			w.slowOpen = time.Second
			j := w.park.entry(w.park.tokens[tx.rows[3].id])
			w.landParked(parking.DropRequest(parkTopic, "shop", j, "a test", time.Now()))
		})
		w.want(t, time.Minute, "noticed", func() bool { return strings.Contains(r.logs.String(), "did not send again") })
		w.do(func() { clear(w.strays) })
		w.want(t, time.Minute, "the first event of k is sent again", func() bool { return r.sink.sent() == 5 })
		w.do(func() { w.hold = "" })
		w.want(t, time.Minute, "k is released", func() bool { return w.park.events() == 0 && w.id.SlotFound.Confirmed == w.pos })
		if got, want := look(w, &w.landed)["k"], []int{0, 1, 0, 1, 2}; !slices.Equal(got, want) {
			t.Errorf("the events of k arrived as %v, not as %v", got, want)
		}
		r.stopped(t, time.Second)
	})
}

// Nothing was ever parked, and the policy is another one now. Once the relay has seen that, its user may lose the rights on the topic, or
// the topic may go.
func TestAPolicyThatParksNothingNeedsNoTopic(t *testing.T) {
	for name, restarts := range map[string]bool{"another start": true, "another session": false} {
		t.Run(name, func(t *testing.T) {
			story(t, func(t *testing.T, w *world) {
				cfg := w.parking()
				w.anchored(t, cfg).stopped(t, time.Second)
				cfg.Poison.Policies = Policies{DefaultPolicy: PolicyHalt}
				r := w.start(cfg)
				w.want(t, time.Minute, "no anchor", func() bool { return w.newest().Parking == nil })
				if restarts {
					r.stopped(t, time.Second)
				}
				w.do(func() { w.park.slow, w.park.unread = true, true })
				if restarts {
					r = w.start(cfg)
				} else { // which begins at the checkpoint
					w.do(func() {
						w.id.History, w.id.Timeline = []cdc.Fork{{Timeline: 1, End: w.pos.LSN()}}, 2
						w.cutLocked(errNet)
					})
				}
				next := w.commit("b").rows[0]
				time.Sleep(10 * time.Minute)
				w.do(func() {
					if w.count[next.id] == 0 {
						t.Errorf("nothing is delivered: %s", r.relay.Status().Reason)
					}
				})
				r.stop()
			})
		})
	}
}

// The same, and the topic is missing.
func TestAPolicyThatParksNothingLetsTheTopicGo(t *testing.T) {
	story(t, func(t *testing.T, w *world) {
		cfg := w.parking()
		w.anchored(t, cfg).stopped(t, time.Second)
		w.do(func() { w.park.id = "" })
		cfg.Poison.Policies = Policies{DefaultPolicy: PolicyHalt}
		r := w.start(cfg)
		next := w.commit("b").rows[0]
		w.want(t, time.Minute, "delivered, and no anchor", func() bool { return w.count[next.id] == 1 && w.newest().Parking == nil })
		r.stopped(t, time.Second)
	})
}

// A letter is written at once, and the record that counts it follows. A process that is killed between them has parked the key nevertheless.
func TestAKeyIsParkedBeforeTheRecordCountsIt(t *testing.T) {
	for _, policy := range []string{PolicyParkKey, PolicyDeadLetter} {
		t.Run(policy, func(t *testing.T) {
			story(t, func(t *testing.T, w *world) {
				w.clean = false
				cfg := w.parking()
				r := w.anchored(t, cfg)
				w.do(func() { w.storeDown = true })
				var bad *row
				w.do(func() {
					bad = w.commitLocked([]string{"a"}).rows[0]
					w.unrouted[bad.id] = true
				})
				w.want(t, time.Minute, "parked", func() bool { return w.park.events() == 1 })
				r.kill()
				<-r.done
				w.do(func() {
					if p := w.newest().Parking; p.Open != 0 {
						t.Errorf("the record counts the letter: %+v", p)
					}
					w.storeDown = false
				})
				cfg.Poison.Policies = Policies{DefaultPolicy: policy}
				r = w.start(cfg)
				next := w.commit("a").rows[0]
				w.want(t, time.Minute, "read", func() bool { return w.id.SlotFound.Confirmed == w.pos })
				w.do(func() {
					if w.park.events() != 2 || w.count[next.id] > 0 || w.dead[bad.id] > 0 {
						t.Errorf("%d events are parked; the bad one was buried %d times, and the next one delivered %d times", w.park.events(), w.dead[bad.id], w.count[next.id])
					}
				})
				r.stopped(t, time.Second)
			})
		})
	}
}

// A stop while the topic cannot be opened again.
func TestAStopWhileTheTopicCannotBeOpenedRepeatsNothing(t *testing.T) {
	story(t, func(t *testing.T, w *world) {
		w.clean = false
		cfg := w.parking()
		r := w.anchored(t, cfg)
		w.do(func() { w.missing = "c" })
		w.commit("c", "c", "c")
		w.commit("b", "b")
		time.Sleep(2 * time.Second)
		w.do(func() {
			w.park.slow = true
			r.breakLog(errFenced)
		})
		time.Sleep(3 * time.Second)
		w.do(func() { w.missing = "" }) // everything is acknowledged now
		time.Sleep(20 * time.Second)
		took := r.stop()
		w.do(func() { w.park.slow = false })
		r2 := w.start(cfg)
		time.Sleep(20 * time.Second)
		if again := w.twice(); len(again) > 0 {
			t.Errorf("a clean stop (%s) repeats %v", took, again)
		}
		r2.stop()
	})
}

// One transaction of the parking topic has no answer, and another process stands by.
func TestABrokenTransactionKeepsTheSlot(t *testing.T) {
	story(t, func(t *testing.T, w *world) {
		w.clean = false
		cfg := w.parking()
		r := w.anchored(t, cfg)
		b := w.start(cfg)
		w.want(t, time.Minute, "B waits", func() bool { return b.relay.Status().State == Standby })
		w.do(func() { w.missing = "c" })
		w.commit("c", "c", "c")
		w.commit("b", "b")
		time.Sleep(2 * time.Second)
		r.breakLog(errNet)
		time.Sleep(3 * time.Second)
		t.Log(r.relay.Status().State, b.relay.Status().State)
		w.do(func() { w.missing = "" })
		time.Sleep(20 * time.Second)
		if again := w.twice(); len(again) > 0 {
			t.Errorf("repeats %v", again)
		}
		r.stop()
		b.stop()
	})
}

// A letter that is gone behind the anchor, damaged or compacted, is no letter of nobody: the start is refused.
func TestALetterThatIsGoneRefusesTheStart(t *testing.T) {
	for how, headers := range map[string][]kgo.RecordHeader{
		"damaged":   {{Key: "walpost.dead.form", Value: []byte("?")}, {Key: "walpost.dead.headers", Value: []byte("2")}},
		"compacted": nil,
	} {
		t.Run(how, func(t *testing.T) {
			story(t, func(t *testing.T, w *world) {
				w.gapsOK = true
				cfg := w.parking()
				w.parked(t, cfg).stopped(t, time.Second)
				w.do(func() {
					for i, rec := range w.park.records {
						if parking.Read(rec).Letter != nil {
							w.park.records[i] = &kgo.Record{Offset: rec.Offset, Headers: headers}
						}
					}
				})
				r := w.start(cfg)
				next := w.commit("!").rows[0]
				<-r.done
				var lost *parking.Lost
				if !errors.As(r.err, &lost) || lost.Loss != parking.Incomplete || !fault.NeedsPerson(r.err) || look(w, &w.count)[next.id] > 0 {
					t.Errorf("%v", r.err)
				}
			})
		})
	}
}

// A relay that runs notices that records it needs were deleted, and the rows of its events are kept.
func TestARunningRelayNoticesLostLetters(t *testing.T) {
	story(t, func(t *testing.T, w *world) {
		w.gapsOK = true
		r := w.parked(t, w.parking())
		w.do(func() {
			n := len(w.park.records)
			w.park.start, w.park.records = w.park.start+int64(n), nil
		})
		<-r.done
		var lost *parking.Lost
		if !errors.As(r.err, &lost) || lost.Loss != parking.Truncated || lost.Anchor.Open != 1 {
			t.Errorf("%v", r.err)
		}
	})
}
