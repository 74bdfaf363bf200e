package badevents

import (
	"strings"
	"testing"
	"time"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/deadletter"
	"github.com/walpost/walpost/internal/parking"
)

// parks writes the letters of parked events, as the holder of the slot does.
func (w *world) parks(holder deadletter.Writer, letters ...*deadletter.Letter) {
	w.Helper()
	for _, l := range letters {
		l.Name, l.SystemID, l.Timeline, l.Writer = "shop.walpost", "1", 1, holder
		rec, err := l.Encode(w.cfg.Parking)
		if err != nil {
			w.Fatal(err)
		}
		w.produce(rec)
	}
}

// A retry of parked events asks the holder once for each key, and waits until it has delivered them or an event is refused again. A
// dropped event leaves the others of its key parked.
func TestParkedKeysAreReleasedByTheRelay(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.kafka.CreateTopic(t, w.cfg.Parking, 1, nil)
	holder := deadletter.Writer{Epoch: 3, Holder: "h"}
	key := func(k string) parking.Key { return parking.Key{Table: "public.outbox", Key: k} }
	w.produce(parking.OpenedMark(w.cfg.Parking, "shop.walpost", holder, began))
	a, b, c, d := w.letter("a", "1", "x", "A"), w.letter("b", "1", "x", "B"), w.letter("c", "2", "x", "C"), w.letter("d", "3", "x", "D")
	b.Reason = deadletter.Behind
	w.parks(holder, a, b, c, d)
	w.write(w.letter("e", "1", "x", "E")) // a dead letter beside them
	topics := w.open()
	got := ""
	for _, e := range w.entries(topics, nil) {
		got += e.ID + " " + string(e.Where) + ", "
	}
	if got != "e dead, a parked, b parked, c parked, d parked, " {
		t.Errorf("open: %s", got)
	}
	steps, value, _, err := topics.History(t.Context(), w.entries(topics, &Filter{Tokens: []string{"t-b"}})[0])
	if err != nil || len(steps) != 1 || string(value) != "B" {
		t.Errorf("history: %v %q %v", steps, value, err)
	}
	if dropped, left, err := topics.DropParked(t.Context(), w.entries(topics, &Filter{Tokens: []string{"t-a"}}), "a test"); dropped != 1 || left != 1 || err != nil {
		t.Errorf("drop: %d, left %d, %v", dropped, left, err)
	}
	asks := func(want Release) {
		t.Helper()
		topics := w.open()
		events := w.entries(topics, nil)
		if would := topics.WouldRelease(events); would.Keys != want.Keys || would.Remaining != want.Remaining {
			t.Errorf("would release %+v", would)
		}
		if r, err := topics.Release(t.Context(), events, false); err != nil || *r != want {
			t.Errorf("release: %+v, %v, want %+v", r, err, want)
		}
	}
	asks(Release{Keys: 3, Asked: 3, Remaining: 3})
	asks(Release{Keys: 3, Remaining: 3}) // the second retry asks for nothing
	topics = w.open()
	go func() {
		c.Attempts = 2
		w.parks(holder, c)
		w.produce(parking.ReleasedMark(w.cfg.Parking, "shop.walpost", holder, key("1"), "t-b", time.Now()))
		w.produce(parking.ReleasedMark(w.cfg.Parking, "shop.walpost", holder, key("3"), "t-d", time.Now()))
	}()
	if r, err := topics.Release(t.Context(), w.entries(topics, nil), true); err != nil || *r != (Release{Keys: 3, Released: 2, Refused: 1, Remaining: 1}) {
		t.Errorf("after the wait: %+v, %v", r, err)
	}
	if said := strings.Join(w.said, "\n"); !strings.Contains(said, "waiting until relay shop.walpost has delivered") {
		t.Errorf("said %s", said)
	}
	if got := w.states(); got != "e open 1, a dropped 1, b released 1, c open 2, d released 1" {
		t.Error(got)
	}
	if topics := w.open(); topics.Dead.Fold.Newest != "" || topics.Parked.Lots["shop.walpost"].Damaged > 0 {
		t.Errorf("%+v", topics.Dead.Fold)
	}
}

func TestAForeignTopicOfParkedEventsIsRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.kafka.CreateTopic(t, w.cfg.Parking, 1, nil)
	w.produce(&cdc.Record{Topic: w.cfg.Parking, Value: []byte("an order"), Time: began})
	if _, err := Open(t.Context(), w.cfg); err == nil || !strings.Contains(err.Error(), w.cfg.Parking) {
		t.Error(err)
	}
}
