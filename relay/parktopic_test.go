package relay

import (
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/deadletter"
	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/internal/parking"
)

// A relay whose checkpoint is lost, and that begins again with the first epoch, takes the topic of parked events over from the holder
// of a higher epoch.
func TestALostCheckpointDoesNotLockTheTopicOfParkedEvents(t *testing.T) {
	story(t, func(t *testing.T, w *world) {
		w.clean = false
		cfg := w.parking()
		w.do(func() {
			w.landParked(parking.OpenedMark(parkTopic, "shop", deadletter.Writer{Epoch: 57, Holder: "former"}, time.Now()))
		})
		r := w.start(cfg)
		txn := w.commit("a", "!", "b")
		w.want(t, time.Minute, "the others delivered", func() bool { return w.count[txn.rows[0].id] > 0 && w.count[txn.rows[2].id] > 0 })
		w.want(t, time.Minute, "the bad event parked", func() bool { return w.parkLot.Counts().Events == 1 })
		w.do(func() {
			if got := w.parkLot.Opened(); got.Epoch != 58 || w.opens != 2 {
				t.Errorf("%+v after %d sessions", got, w.opens)
			}
		})
		r.stopped(t, time.Second)
	})
}

// Whoever never parks writes nothing to the topic, although other relays park events in it. What it parked before its policy changed
// stays parked.
func TestARelayThatNeverParksLeavesTheTopicAlone(t *testing.T) {
	for name, parked := range map[string]int{"shop": 1, "other": 0} {
		t.Run(name, func(t *testing.T) {
			story(t, func(t *testing.T, w *world) {
				w.clean = false
				cfg := w.parking()
				cfg.Poison.Policies = Policies{DefaultPolicy: PolicyHalt}
				holder := deadletter.Writer{Epoch: 57, Holder: "former"}
				l := deadletter.Letter{Token: "t", Table: "public.outbox", Key: []byte("a"), KeyKnown: true, Commit: 50, Row: 1, Attempts: 1, Reason: cdc.Unroutable, Name: name, SystemID: "7", Timeline: 1, Writer: holder, Record: &cdc.Record{}}
				rec, err := l.Encode(parkTopic)
				if err != nil {
					t.Fatal(err)
				}
				w.do(func() {
					w.landParked(parking.OpenedMark(parkTopic, name, holder, time.Now()))
					w.landParked(rec)
					w.parkSlow = parked == 0 // its user has no right to write there
				})
				r := w.start(cfg)
				txn := w.commit("a", "b")
				w.want(t, time.Minute, "delivered", func() bool { return w.count[txn.rows[1].id] > 0 })
				w.want(t, time.Minute, "the key of the other event", func() bool {
					if parked == 1 {
						return w.parkLot.Counts().Events == 2
					}
					return w.count[txn.rows[0].id] > 0 && len(w.parkTopic) == 2
				})
				r.stopped(t, time.Second)
			})
		})
	}
}

// A damaged record is told. A parked event that its topic has no more halts the relay when its key is released.
func TestALostParkedEventHalts(t *testing.T) {
	story(t, func(t *testing.T, w *world) {
		w.clean = false
		r := w.start(w.parking())
		txn := w.commit("!")
		w.want(t, time.Minute, "parked", func() bool { return w.parkLot.Counts().Events == 1 && w.id.SlotFound.Confirmed == w.pos })
		lost := w.parkTokens[txn.rows[0].id]
		w.do(func() {
			w.parkTopic = append(w.parkTopic, &kgo.Record{Offset: int64(len(w.parkTopic)), Headers: []kgo.RecordHeader{
				{Key: "walpost.dead.form", Value: []byte("?")}, {Key: "walpost.dead.headers", Value: []byte("2")},
			}})
			for i, rec := range w.parkTopic {
				if it := parking.Read(rec); it.Letter != nil && it.Letter.Token == lost {
					w.parkTopic[i] = &kgo.Record{Offset: rec.Offset}
				}
			}
		})
		w.want(t, time.Minute, "the damaged record is told", func() bool { return strings.Contains(r.logs.String(), "are ignored: walpost verify") })
		w.retry(anyKey)
		<-r.done
		if !fault.NeedsPerson(r.err) || !strings.Contains(r.err.Error(), lost) || !strings.Contains(fault.Hint(r.err), "verify") {
			t.Errorf("%v: %s", r.err, fault.Hint(r.err))
		}
	})
}

// A relay whose letters cannot be read back is not ready, and says why.
func TestAnUnreadableTopicOfParkedEventsStalls(t *testing.T) {
	story(t, func(t *testing.T, w *world) {
		w.clean = false
		r := w.start(w.parking())
		w.want(t, time.Minute, "ready", func() bool { return r.relay.Status().Ready })
		w.do(func() { w.parkUnread = true })
		w.commit("!")
		w.want(t, time.Minute, "stalled", func() bool {
			st := r.relay.Status()
			return st.State == Stalled && strings.Contains(st.Reason, "parked events cannot be read")
		})
		w.do(func() { w.parkUnread = false })
		w.want(t, time.Minute, "ready again", func() bool { return r.relay.Status().Ready && w.id.SlotFound.Confirmed == w.pos })
		r.stopped(t, time.Second)
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
