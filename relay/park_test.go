package relay

import (
	"testing"
	"time"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/deadletter"
	"github.com/walpost/walpost/internal/parking"
)

// The checkpoint was lost, and the topic of parked events has marks of much higher epochs than the new one. What is parked stays parked,
// and is delivered ahead of what is new when a person asks for it.
func TestATopicThatIsOlderThanTheCheckpointStaysInOrder(t *testing.T) {
	story(t, func(t *testing.T, w *world) {
		cfg := w.parking()
		txn := w.commit("a", "a")
		former := deadletter.Writer{Epoch: 57, Holder: "former"}
		w.do(func() {
			w.gapsOK = true
			first := txn.rows[0]
			w.landParked(parking.OpenedMark(parkTopic, "shop", former, time.Now()))
			letter := deadletter.Letter{
				Token: "t", Reason: cdc.TooLarge, Table: first.relation().String(), ID: first.id, Key: []byte("a"), KeyKnown: true, Attempts: 1,
				CommitTime: txn.time, Topic: "a", Partition: -1, Name: "shop", SystemID: "6", Timeline: 1, Commit: 9, Row: 1, Writer: former,
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
		w.want(t, 20*time.Second, "the event behind is parked", func() bool { return w.parkLot.Counts().Events == 2 })
		if st := r.relay.Status(); w.arrivals != 0 || st.Epoch > 2 {
			t.Errorf("%d arrivals; epoch %d", w.arrivals, st.Epoch)
		}
		w.retry(anyKey)
		w.want(t, 30*time.Second, "both are delivered", func() bool { return w.arrivals == 2 && w.parkLot.Counts().Events == 0 })
		r.stopped(t, time.Second)
	})
}

// Another process opens the topic although this one holds the slot: what this one writes is void, so it takes the slot once more.
func TestAHolderWhoseLettersAreVoidStartsOver(t *testing.T) {
	story(t, func(t *testing.T, w *world) {
		w.clean = false
		r := w.start(w.parking())
		w.want(t, 10*time.Second, "streaming", func() bool { return r.relay.Status().State == Streaming })
		w.do(func() {
			w.landParked(parking.OpenedMark(parkTopic, "shop", deadletter.Writer{Epoch: 90, Holder: "other"}, time.Now()))
			for _, row := range w.commitLocked([]string{"a", "a", "b"}).rows[:1] {
				w.unrouted[row.id] = true
			}
		})
		w.want(t, time.Minute, "the key is parked by who counts", func() bool { return w.parkLot.Opened().Epoch > 90 && w.parkLot.Counts().Events == 2 })
		w.want(t, time.Minute, "all confirmed", func() bool { return w.id.SlotFound.Confirmed == w.pos })
		w.mend()
		w.retry(anyKey)
		w.want(t, 30*time.Second, "all delivered", func() bool { return w.parkLot.Counts().Events == 0 && w.allDelivered() })
		r.stopped(t, time.Second)
	})
}
