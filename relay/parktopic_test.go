package relay

import (
	"testing"
	"time"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/deadletter"
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
