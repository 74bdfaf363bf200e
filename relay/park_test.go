package relay

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/deadletter"
	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/internal/parking"
)

// parked starts a relay with one parked key, "!", in a world where everything else is delivered.
func (w *world) parked(t *testing.T, cfg Config) *run {
	t.Helper()
	w.clean = false
	r := w.start(cfg)
	w.commit("a", "!", "b")
	w.want(t, time.Minute, "parked and confirmed", func() bool { return w.park.events() == 1 && w.id.SlotFound.Confirmed == w.pos })
	w.want(t, time.Minute, "the record has the anchor", func() bool { p := w.newest().Parking; return p != nil && p.Open == 1 })
	return r
}

// The topic of parked events is lost while the relay is down. No newer event of a parked key is delivered then, and the error says what is
// lost. The relay goes on only once an operator has accepted just that loss.
func TestALostTopicOfParkedEventsIsRefused(t *testing.T) {
	recreate := func(w *world, _ *Config) {
		w.park.id, w.park.records, w.park.backlog = "b", nil, parking.History("shop", func(*parking.Entry) {})
	}
	for loss, lose := range map[parking.Loss]func(w *world, cfg *Config){
		parking.Renamed:   func(w *world, cfg *Config) { recreate(w, cfg); w.park.id, cfg.Poison.ParkingTopic = "", "other" }, // and missing
		parking.Missing:   func(w *world, _ *Config) { w.park.id = "" },
		parking.Recreated: recreate,
		parking.Truncated: func(w *world, _ *Config) {
			w.park.start, w.park.records = w.park.end(), nil
			w.park.observe()
		},
	} {
		t.Run(string(loss), func(t *testing.T) {
			story(t, func(t *testing.T, w *world) {
				w.gapsOK = true
				cfg := w.parking()
				w.parked(t, cfg).stopped(t, time.Second)
				w.do(func() { lose(w, &cfg) })
				newer := w.commit("!", "c")
				r := w.start(cfg)
				halts := loss
				if loss == parking.Missing { // waited for: it may appear again
					w.want(t, time.Minute, "not ready, with the reason", func() bool {
						st := r.relay.Status()
						return st.State == Connecting && strings.Contains(st.Reason, "does not exist")
					})
					r.wantLog(t, "Create the topic again", 1)
					r.wantLog(t, "--accept-gap", 0) // while this process waits, another one is its standby
					w.do(func() { recreate(w, nil) })
					halts = parking.Recreated
				}
				var lost *parking.Lost
				if <-r.done; !errors.As(r.err, &lost) || lost.Loss != halts || !fault.NeedsPerson(r.err) {
					t.Fatalf("%v", r.err)
				}
				w.do(func() {
					if w.count[newer.rows[1].id] > 0 || lost.Anchor.Open != 1 {
						t.Errorf("%+v; newer events arrived: %v", lost, w.count)
					}
				})
				r.stop()
				cfg.AcceptGap = "parked-other"
				if r = w.start(cfg); true {
					<-r.done
				}
				if !errors.As(r.err, &lost) {
					t.Errorf("another token: %v", r.err)
				}
				cfg.AcceptGap = lost.GapToken()
				r = w.start(cfg)
				w.want(t, time.Minute, "newer events are delivered, and the key is parked anew", func() bool { return w.count[newer.rows[1].id] > 0 && w.newest().Position == w.pos })
				r.wantLog(t, "GAP ACCEPTED", 1)
				w.want(t, time.Minute, "the cleanup keeps the rows of what is lost", func() bool {
					open := w.newest().Accepted
					return len(open) == 1 && open[0].Token == lost.GapToken() && len(r.relay.Status().Accepted) == 1
				})
				r.stopped(t, time.Second)
			})
		})
	}
}

// A topic without open events may be lost: nothing was in it.
func TestATopicWithoutOpenEventsMayGo(t *testing.T) {
	story(t, func(t *testing.T, w *world) {
		cfg := w.parking()
		r := w.parked(t, cfg)
		w.retry(anyKey)
		w.do(func() { clear(w.unrouted) })
		w.drop(w.rng)
		w.want(t, time.Minute, "nothing is open", func() bool { p := w.newest().Parking; return w.park.events() == 0 && p.Open == 0 })
		r.stopped(t, time.Second)
		w.do(func() { w.park.id = "" })
		r = w.start(cfg)
		w.want(t, time.Minute, "streaming", func() bool { return r.relay.Status().Ready })
		r.stopped(t, time.Second)
	})
}

// Records that the relay has deleted itself are not lost, also if another process has read a record from before. Nothing that is open goes.
func TestTheTopicIsTrimmedUpToTheAnchor(t *testing.T) {
	story(t, func(t *testing.T, w *world) {
		cfg := w.parking()
		r := w.parked(t, cfg)
		var before *cdc.Anchor
		w.do(func() {
			before = w.newest().Parking
			for range trimEvery + 10 { // what other commands wrote, for example
				w.landParked(parking.DropRequest(parkTopic, "shop", &parking.Entry{Token: "gone"}, "", time.Now()))
			}
		})
		w.retry(anyKey)
		w.want(t, time.Minute, "refused again, behind the others", func() bool { return w.park.backlog.Entry(w.park.tokens[w.log[0].rows[1].id]).Attempts == 2 })
		w.want(t, time.Minute, "trimmed", func() bool { return w.park.start > before.Offset && w.park.events() == 1 })
		r.stopped(t, time.Second)
		w.do(func() { // the record of a time before
			rec := *w.newest()
			rec.Parking = before
			w.records[rec.HolderKey()] = rec.Encode()
		})
		r = w.start(cfg)
		w.want(t, time.Minute, "what is parked is known", func() bool { st := r.relay.Status(); return st.Ready && st.Parked.Events == 1 })
		r.stopped(t, time.Second)
	})
}

// Keys that are parked stay parked under every policy.
func TestParkedKeysOutliveTheirPolicy(t *testing.T) {
	for _, policy := range []string{PolicyHalt, PolicyDeadLetter} {
		t.Run(policy, func(t *testing.T) {
			story(t, func(t *testing.T, w *world) {
				cfg := w.parking()
				w.parked(t, cfg).stopped(t, time.Second)
				cfg.Poison.Policies = Policies{DefaultPolicy: policy}
				w.do(func() { w.park.slow = true }) // its user may not write there any more
				r := w.start(cfg)
				newer := w.commit("b", "c")
				w.want(t, time.Minute, "the start waits", func() bool { return r.relay.Status().State == Connecting })
				time.Sleep(10 * time.Second)
				w.do(func() {
					if w.count[newer.rows[1].id] > 0 {
						t.Error("something is delivered although nobody knows what is parked")
					}
					w.park.slow = false
				})
				w.want(t, time.Minute, "parked still", func() bool { return r.relay.Status().Parked.Events == 1 })
				r.stop()
			})
		})
	}
}

// A dead letter that --all delivers comes behind newer events of its key.
func TestTheHintsReleaseNoDeadLetters(t *testing.T) {
	renamed := &parking.Lost{Loss: parking.Renamed, Anchor: cdc.Anchor{Topic: "was"}}
	for _, hint := range []string{(&limitReached{}).Hint(), renamed.Hint()} {
		if !strings.Contains(hint, "(walpost dead retry)") {
			t.Error(hint)
		}
	}
}

// A limit that is reached within one transaction stops the reading, and not the relay: releases and drops make room, and then it goes on.
func TestALimitWithinATransactionIsNoTrap(t *testing.T) {
	for _, way := range []string{"release", "drop", "raise"} {
		t.Run(way, func(t *testing.T) {
			story(t, func(t *testing.T, w *world) {
				w.clean = false
				cfg := w.parking()
				cfg.Poison.ParkLimit = parking.Limit{Keys: 1000, Events: 3}
				r := w.start(cfg)
				many := make([]string, 20)
				for i := range many {
					many[i] = "a"
				}
				w.do(func() { w.unrouted[w.commitLocked(many).rows[0].id] = true })
				w.commit("b")
				limit := func() bool {
					var reached *limitReached
					st := r.relay.Status()
					return st.State == Stalled && !st.Ready && errors.As(st.Stall, &reached) && reached.limit.Events == 3
				}
				w.want(t, time.Minute, "the relay waits", limit)
				time.Sleep(time.Minute)
				if r.ended() || !limit() {
					t.Fatalf("%v", r.err)
				}
				switch way {
				case "release":
					w.mend()
					w.retry(anyKey)
				case "drop": // the others follow, because none of them is bad
					w.do(func() {
						e := w.park.backlog.Entries(w.park.backlog.Keys()[0])[0]
						w.landParked(parking.DropRequest(parkTopic, "shop", e, "a test", time.Now()))
					})
				case "raise":
					r.stopped(t, time.Second)
					cfg.Poison.ParkLimit.Events = 100
					w.mend()
					w.retry(anyKey)
					r = w.start(cfg)
				}
				w.want(t, 5*time.Minute, "everything is delivered", func() bool { return w.park.events() == 0 && w.allDelivered() && w.id.SlotFound.Confirmed == w.pos })
				r.stopped(t, 2*time.Second)
			})
		})
	}
}

// Clean stops deliver nothing twice, whatever is parked and released meanwhile.
func TestStopsWithParkedTrafficRepeatNothing(t *testing.T) {
	story(t, func(t *testing.T, w *world) {
		cfg := w.parking()
		r := w.start(cfg)
		for i := range 100 {
			w.do(func() {
				rows := w.commitLocked([]string{"a", "b", "a", "a", "c"}).rows
				if i%3 == 0 {
					w.unrouted[rows[0].id] = true
				}
				if i%5 == 0 {
					w.poison[rows[3].id] = true
				}
			})
			var pause time.Duration
			w.do(func() { pause = time.Duration(w.rng.Int64N(int64(2 * time.Second))) })
			time.Sleep(pause)
			if i%4 == 0 {
				w.mend()
				w.retry(anyKey)
			}
			r.stopped(t, 3*time.Second)
			r = w.start(cfg)
		}
		w.mend()
		w.retry(anyKey)
		w.want(t, time.Minute, "everything is delivered", func() bool { return w.park.events() == 0 && w.allDelivered() })
		if again := w.twice(); len(again) > 0 {
			t.Errorf("%d events arrived twice: %v", len(again), again)
		}
		r.stopped(t, time.Second)
	})
}

// A topic that takes nothing holds up only the keys that go there. An event that waits for it can be dropped, and is not delivered later.
func TestOneTopicHoldsUpNoOtherRelease(t *testing.T) {
	story(t, func(t *testing.T, w *world) {
		w.clean = false
		cfg := w.parking()
		r := w.start(cfg)
		var stuck, other *row
		w.do(func() {
			rows := w.commitLocked([]string{"a", "b", "b"}).rows
			stuck, other = rows[0], rows[1]
			w.unrouted[stuck.id], w.unrouted[other.id] = true, true
		})
		w.want(t, time.Minute, "parked", func() bool { return w.park.events() == 3 && w.id.SlotFound.Confirmed == w.pos })
		w.do(func() { w.missing = "a" })
		w.mend()
		w.retry(anyKey)
		w.want(t, time.Minute, "the other key is released", func() bool { return w.count[other.id] == 1 && len(w.park.backlog.Keys()) == 1 })
		w.do(func() {
			for _, e := range w.park.backlog.Entries(w.park.backlog.Keys()[0]) {
				w.landParked(parking.DropRequest(parkTopic, "shop", e, "a test", time.Now()))
			}
		})
		w.want(t, time.Minute, "the others are dropped", func() bool { return w.park.events() == 0 })
		w.do(func() { w.missing = "" })
		last := w.commit("a").rows[0]
		w.want(t, time.Minute, "the key goes on", func() bool { return w.count[last.id] > 0 })
		w.do(func() {
			if w.count[stuck.id] > 0 {
				t.Error("a dropped event was delivered")
			}
		})
		r.stopped(t, time.Second)
	})
}

// The drop of an event that is being released ends in one state, and the key goes on.
func TestADropDuringAReleaseEndsInOneState(t *testing.T) {
	for i := range 40 {
		story(t, func(t *testing.T, w *world) {
			w.maxDelay = 200 * time.Millisecond
			r := w.parked(t, w.parking())
			token := w.park.tokens[w.log[0].rows[1].id]
			newer := w.commit("!")
			w.do(func() { w.unrouted[newer.rows[0].id] = false })
			w.retry(anyKey)
			time.Sleep(time.Duration(i) * 50 * time.Millisecond)
			w.do(func() {
				if e := w.park.backlog.Entry(token); e != nil {
					w.landParked(parking.DropRequest(parkTopic, "shop", e, "a test", time.Now()))
				}
			})
			w.want(t, time.Minute, "it ends", func() bool { return w.park.closed[token] != nil || w.park.backlog.Entry(token).Attempts > 1 })
			r.stopped(t, time.Second)
		})
	}
}

// A table that is renamed while a key is parked keeps the order of the key, also after a restart.
func TestARenamedTableKeepsTheOrderOfItsParkedKeys(t *testing.T) {
	story(t, func(t *testing.T, w *world) {
		cfg := w.parking()
		w.clean = false
		r := w.start(cfg)
		w.do(func() { w.unrouted[w.commitLocked([]string{"a"}).rows[0].id] = true })
		w.want(t, time.Minute, "parked", func() bool { return w.park.events() == 1 && w.id.SlotFound.Confirmed == w.pos })
		w.do(func() {
			w.renamed = &cdc.Relation{ID: tableRel.ID, Schema: "public", Name: "renamed", Columns: tableRel.Columns}
		})
		w.commit("a")
		w.want(t, time.Minute, "the next event is parked behind", func() bool { return w.park.events() == 2 && w.id.SlotFound.Confirmed == w.pos })
		r.stopped(t, time.Second)
		r = w.start(cfg)
		w.commit("a")
		w.want(t, time.Minute, "and so is one after a restart", func() bool { return w.park.events() == 3 })
		w.mend()
		w.retry(anyKey)
		w.want(t, time.Minute, "all arrive in order", func() bool { return w.park.events() == 0 && w.allDelivered() })
		r.stopped(t, time.Second)
	})
}

// A damaged record is told. A parked event that its topic has no more halts the relay when its key is released.
func TestALostParkedEventHalts(t *testing.T) {
	story(t, func(t *testing.T, w *world) {
		r := w.parked(t, w.parking())
		lost := w.park.tokens[w.log[0].rows[1].id]
		w.do(func() {
			w.park.records = append(w.park.records, &kgo.Record{Offset: w.park.end(), Headers: []kgo.RecordHeader{
				{Key: "walpost.dead.form", Value: []byte("?")}, {Key: "walpost.dead.headers", Value: []byte("2")},
			}})
			for i, rec := range w.park.records {
				if it := parking.Read(rec); it.Letter != nil && it.Letter.Token == lost {
					w.park.records[i] = &kgo.Record{Offset: rec.Offset}
				}
			}
		})
		w.want(t, time.Minute, "the damaged record is told", func() bool { return strings.Contains(r.logs.String(), "are ignored: walpost verify") })
		if ids, err := r.relay.ParkedEvents(t.Context()); err != nil || len(ids) != 1 { // so its row is kept
			t.Errorf("%v, %v", ids, err)
		}
		w.retry(anyKey)
		<-r.done
		if !fault.NeedsPerson(r.err) || !strings.Contains(r.err.Error(), lost) || !strings.Contains(fault.Hint(r.err), "verify") {
			t.Errorf("%v: %s", r.err, fault.Hint(r.err))
		}
	})
}

// A relay that cannot write or read the topic of parked events is not ready, and says why. Other keys go on until the window is full.
func TestAnUnusableTopicOfParkedEventsStalls(t *testing.T) {
	story(t, func(t *testing.T, w *world) {
		r := w.parked(t, w.parking())
		w.do(func() { w.park.unread = true })
		w.retry(anyKey)
		w.want(t, time.Minute, "stalled", func() bool {
			st := r.relay.Status()
			return st.State == Stalled && !st.Ready && st.Stall != nil
		})
		w.do(func() { w.park.unread = false })
		w.want(t, time.Minute, "ready again", func() bool { return r.relay.Status().Ready })
		r.stopped(t, time.Second)
	})
}

// Nobody may conclude that nothing is parked from a relay that does not know.
func TestWhatIsParkedIsUnknownWithoutASession(t *testing.T) {
	story(t, func(t *testing.T, w *world) {
		r := w.parked(t, w.parking())
		id := w.log[0].rows[1].id
		if ids, err := r.relay.ParkedEvents(t.Context()); err != nil || fmt.Sprint(ids) != "["+id+"]" {
			t.Errorf("%v, %v", ids, err)
		}
		w.do(func() { r.away = true; w.cutLocked(errNet) })
		w.want(t, time.Minute, "unknown without a session", func() bool {
			w.mu.Unlock()
			defer w.mu.Lock()
			_, err := r.relay.ParkedEvents(t.Context())
			return errors.Is(err, errParkedUnknown)
		})
		w.do(func() { r.away = false })
		r.stop()
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := r.relay.ParkedEvents(short); !errors.Is(err, errParkedUnknown) {
			t.Errorf("after the end: %v", err)
		}
	})
}

// An event without a known key halts although the policy is to park. The next start expects that.
func TestAnEventThatCannotBeParkedIsForeseen(t *testing.T) {
	story(t, func(t *testing.T, w *world) {
		w.gapsOK, w.clean = true, false
		cfg := w.parking()
		w.commit("a", "!keyless", "b")
		r := w.start(cfg)
		<-r.done
		if bad := badOf(t, r.err); !bad.Keyless || !strings.Contains(bad.Hint(), "is not parked") {
			t.Errorf("%+v", bad)
		}
		if err := w.foresee(cfg); !fault.NeedsPerson(err) {
			t.Errorf("a start does not expect the halt: %v", err)
		}
	})
}

// The checkpoint was lost, and the topic still has letters. What is parked stays parked, and goes ahead of what is new when it is released.
func TestALostCheckpointKeepsWhatIsParked(t *testing.T) {
	story(t, func(t *testing.T, w *world) {
		cfg := w.parking()
		txn := w.commit("a", "a")
		w.do(func() {
			w.gapsOK = true
			first := txn.rows[0]
			letter := deadletter.Letter{
				Token: "t", Reason: cdc.TooLarge, Table: first.relation().String(), ID: first.id, Key: []byte("a"), KeyKnown: true, Attempts: 1,
				CommitTime: txn.time, Topic: "a", Partition: -1, Name: "shop", SystemID: "6", Timeline: 1, Commit: 9, Row: 1,
				Record: &cdc.Record{Topic: "a", Key: []byte("a"), Partition: -1, Value: indexText(0), Time: txn.time.Truncate(time.Millisecond), EventID: first.id, Committed: txn.time},
			}
			rec, err := letter.Encode(parkTopic)
			if err != nil {
				t.Fatal(err)
			}
			w.landParked(rec)
			txn.rows = txn.rows[1:] // the stream has only the second
		})
		r := w.start(cfg)
		w.want(t, 20*time.Second, "the event behind is parked", func() bool { return w.park.events() == 2 })
		if w.arrivals != 0 {
			t.Errorf("%d arrivals", w.arrivals)
		}
		w.retry(anyKey)
		w.want(t, 30*time.Second, "both are delivered", func() bool { return w.arrivals == 2 && w.park.events() == 0 })
		r.stopped(t, time.Second)
	})
}

// Another process becomes the writer although this one holds the slot: this one fences it in turn, keeps the slot, and loses and repeats
// nothing.
func TestAFencedHolderFencesOnceMore(t *testing.T) {
	story(t, func(t *testing.T, w *world) {
		r := w.start(w.parking())
		w.want(t, 10*time.Second, "streaming", func() bool { return r.relay.Status().State == Streaming })
		w.do(func() {
			w.park.gen++
			w.park.writer = nil
			for _, row := range w.commitLocked([]string{"a", "a", "b"}).rows[:1] {
				w.unrouted[row.id] = true
			}
		})
		w.want(t, time.Minute, "the key is parked", func() bool { return w.park.events() == 2 })
		if n := look(w, &w.opens); n != 1 {
			t.Errorf("%d sessions", n)
		}
		w.want(t, time.Minute, "all confirmed", func() bool { return w.id.SlotFound.Confirmed == w.pos })
		w.mend()
		w.retry(anyKey)
		w.want(t, 30*time.Second, "all delivered", func() bool { return w.park.events() == 0 && w.allDelivered() })
		if again := w.twice(); len(again) > 0 {
			t.Errorf("twice: %v", again)
		}
		r.stopped(t, time.Second)
	})
}

// A relay that polled has parked a key. Places of two sources can't be compared, so an accepted gap doesn't lead past the parked events.
func TestAnAcceptedChangeOfTheSourceKeepsParkedKeys(t *testing.T) {
	story(t, func(t *testing.T, w *world) {
		w.gapsOK = true
		cfg := w.parking()
		w.parked(t, cfg).stopped(t, time.Second)
		rec := w.newest()
		rec.Polled, rec.Slot, rec.Position, rec.WAL, rec.Next, rec.Published = &cdc.Polled{Strategy: "cursor"}, "", cdc.Numbered(7), rec.Position.LSN(), nil, nil
		w.do(func() { w.records = map[string][]byte{rec.HolderKey(): rec.Encode()} })
		cfg.AcceptGap = refusedToken(t, w, cfg)
		r := w.start(cfg)
		<-r.done
		if r.err == nil || !strings.Contains(r.err.Error(), "parked keys cannot be moved to another source") {
			t.Errorf("%v", r.err)
		}
	})
}
