package parking

import (
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/deadletter"
)

// Events whose places can't be compared keep the order of their first letters, also for who begins behind these.
func TestTheOrderIsTheSameFromTheAnchor(t *testing.T) {
	for name, second := range map[string]deadletter.Letter{
		"row of a copy": {SystemID: "6", Token: "2", Reason: deadletter.Behind},
		"other system":  {SystemID: "7", Timeline: 1, Commit: 50, Row: 1, Token: "2", Reason: deadletter.Behind},
	} {
		t.Run(name, func(t *testing.T) {
			var topic []*kgo.Record
			put := func(l deadletter.Letter) {
				l.Name, l.Table, l.Key, l.KeyKnown, l.ID, l.CommitTime = "shop", "t", []byte("k"), true, l.Token, time.Now()
				l.Record = &cdc.Record{Topic: "x", Key: l.Key, Value: []byte("v"), Partition: -1}
				rec, err := l.Encode("parked")
				if err != nil {
					t.Fatal(err)
				}
				stored := &kgo.Record{Key: rec.Key, Value: rec.Value, Offset: int64(len(topic))}
				for _, h := range rec.Headers {
					stored.Headers = append(stored.Headers, kgo.RecordHeader{Key: h.Key, Value: h.Value})
				}
				topic = append(topic, stored)
			}
			bad := deadletter.Letter{SystemID: "6", Timeline: 1, Commit: 100, Row: 1, Token: "1", Reason: cdc.TooLarge, Attempts: 1}
			put(bad)
			second.Attempts = 1
			put(second)
			bad.Attempts = 2 // an operator had it released, and it was refused again
			bad.First = 0
			put(bad)
			before := New("shop")
			for _, rec := range topic {
				before.Add(Read(rec))
			}
			at := before.Anchor(3)
			after := New("shop")
			for _, rec := range topic[at:] {
				after.Add(Read(rec))
			}
			k := Key{"t", "k"}
			for i, e := range before.Entries(k) {
				if got := after.Entries(k)[i]; got.Token != e.Token {
					t.Errorf("place %d: %s before the restart, %s after", i, e.Token, got.Token)
				}
			}
			if after.Releases(k) {
				t.Error("released without a request")
			}
		})
	}
}

// An id that one of the two doesn't know, and an end that is too early for a moment, are no loss.
func TestWhatIsNoLoss(t *testing.T) {
	for name, c := range map[string]struct {
		anchor, now string
		end         int64
		loss        Loss
	}{
		"the same":      {"a", "a", 9, ""},
		"an upgrade":    {"", "a", 9, ""},
		"an old broker": {"a", "", 9, ""},
		"an early end":  {"a", "a", 4, Short},
		"another topic": {"a", "b", 9, Recreated},
	} {
		_, err := Judge("p", &cdc.Anchor{Topic: "p", ID: c.anchor, Offset: 5, Open: 2}, cdc.LogState{ID: c.now, End: c.end})
		lost, _ := err.(*Lost) //nolint:errorlint // Judge returns it bare
		if (lost == nil) != (c.loss == "") || lost != nil && (lost.Loss != c.loss || lost.NeedsPerson() == (c.loss == Short)) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
