package badevents

import (
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/deadletter"
	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/internal/parking"
)

// parks writes the letters of parked events, as the holder of the slot does.
func (w *world) parks(letters ...*deadletter.Letter) {
	w.Helper()
	for _, l := range letters {
		l.Name, l.Database, l.SystemID, l.Timeline = "shop.walpost", "shop", "1", 1
		rec, err := l.Encode(w.cfg.Parking)
		if err != nil {
			w.Fatal(err)
		}
		w.produce(rec)
	}
}

// entry is the entry of a letter, for the mark of its result.
func entry(l *deadletter.Letter) *parking.Entry {
	return &parking.Entry{Token: l.Token, Key: parking.Key{Table: l.Table, Key: string(l.Key)}, Why: "a test"}
}

func (w *world) released(letters ...*deadletter.Letter) {
	w.Helper()
	var entries []*parking.Entry
	for _, l := range letters {
		entries = append(entries, entry(l))
	}
	w.produce(parking.ReleasedMark(w.cfg.Parking, "shop.walpost", entries, time.Now()))
}

func (w *world) dropped(l *deadletter.Letter) {
	w.Helper()
	w.produce(parking.DroppedMark(w.cfg.Parking, "shop.walpost", entry(l), time.Now()))
}

// marks are the marks in the topic of parked events, as "state token".
func (w *world) marks() (all string) {
	w.Helper()
	r := readAll(w.client, w.cfg.Parking, 0, func(rec *kgo.Record) {
		if _, m, err := deadletter.Decode(rec); err != nil {
			w.Error(err)
		} else if m != nil {
			all += string(m.State) + " " + m.Token + ", "
		}
	})
	if err := r.ToEnd(w.Context()); err != nil {
		w.Fatal(err)
	}
	return all
}

// A retry asks the relay once for each key, and tells what became of each event.
func TestParkedKeysAreReleasedByTheRelay(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.kafka.CreateTopic(t, w.cfg.Parking, 1, nil)
	a, b, c, d, f := w.letter("a", "1", "x", "A"), w.letter("b", "1", "x", "B"), w.letter("c", "2", "x", "C"), w.letter("d", "2", "x", "D"), w.letter("f", "3", "x", "F")
	b.Reason, d.Reason = deadletter.Behind, deadletter.Behind
	w.parks(a, b, c, d, f)
	w.write(w.letter("e", "1", "x", "E")) // a dead letter beside them
	topics := w.open()
	got := ""
	for _, e := range w.entries(topics, nil) {
		got += e.ID + " " + string(e.Where) + ", "
	}
	if got != "e dead, a parked, b parked, c parked, d parked, f parked, " {
		t.Errorf("open: %s", got)
	}
	steps, value, _, err := topics.History(t.Context(), w.entries(topics, &Filter{Tokens: []string{"t-b"}})[0])
	if err != nil || len(steps) != 1 || string(value) != "B" {
		t.Errorf("history: %v %q %v", steps, value, err)
	}
	asks := func(events []*Event, would, want Requested) {
		t.Helper()
		if got := topics.WouldRelease(events); *got != would {
			t.Errorf("would release %+v, want %+v", *got, would)
		}
		if got, err := topics.Release(t.Context(), events, false); err != nil || *got != want {
			t.Errorf("release: %+v, %v, want %+v", *got, err, want)
		}
	}
	asks(w.entries(topics, nil), Requested{Keys: 3, Events: 5, Parked: 5}, Requested{Keys: 3, Events: 5, Requests: 3, Waiting: 5})
	topics = w.open()
	asks(w.entries(topics, nil), Requested{Keys: 3, Events: 5, Waiting: 5}, Requested{Keys: 3, Events: 5, Requests: 3, Waiting: 5})
	for _, e := range w.entries(topics, nil) {
		if e.Releasing != (e.Where == InParking) || e.Dropping {
			t.Errorf("%s: releasing %t, dropping %t", e.ID, e.Releasing, e.Dropping)
		}
	}
	go func() {
		for strings.Count(w.marks(), "release ") < 9 && t.Context().Err() == nil { // of three retries
		}
		c.Attempts = 2
		w.parks(c)
		w.dropped(f)
		w.released(a)
		w.released(b)
	}()
	if got, err := topics.Release(t.Context(), w.entries(topics, nil), true); err != nil || *got != (Requested{Keys: 3, Events: 5, Requests: 3, Released: 2, Dropped: 1, Refused: 1, Parked: 1}) {
		t.Errorf("after the wait: %+v, %v", got, err)
	}
	if got := w.states(); got != "e open 1, c open 2, d open 1, a released 1, b released 1, f dropped 1" {
		t.Error(got)
	}
	if topics := w.open(); topics.Dead.Fold.Newest != "" || topics.Parked.relays["shop.walpost"].backlog.Damaged > 0 {
		t.Errorf("%+v", topics.Dead.Fold)
	}
}

// Another relay's dead letter can be retried with this configuration. Its parked event can't.
func TestAParkedEventNeedsItsOwnRelay(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.kafka.CreateTopic(t, w.cfg.Parking, 1, nil)
	w.write(w.letter("a", "1", "x", "A"))
	w.parks(w.letter("b", "2", "x", "B"))
	w.cfg.Name = "another"
	topics := w.open()
	for token, says := range map[string]string{"t-a": "pass --relay=shop.walpost", "t-b": "set name: shop.walpost again"} {
		_, err := topics.Select(&Filter{Tokens: []string{token}})
		if hint := fault.Hint(err); !fault.Misconfigured(err) || !strings.Contains(hint, says) || token == "t-b" && strings.Contains(hint, "--relay") {
			t.Errorf("%s: %v, hint %q", token, err, hint)
		}
	}
}

// A drop is carried out by the relay, which may be delivering the event just then. The command tells which of the two it was, and
// leaves the request when no relay answers.
func TestParkedEventsAreDroppedByTheRelay(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.kafka.CreateTopic(t, w.cfg.Parking, 1, nil)
	a, b, c, d := w.letter("a", "1", "x", "A"), w.letter("b", "1", "x", "B"), w.letter("c", "2", "x", "C"), w.letter("d", "3", "x", "D")
	w.parks(a, b, c, d)
	drops := func(limit time.Duration, want Requested, tokens ...string) {
		t.Helper()
		topics := w.open()
		if got, err := topics.DropParked(t.Context(), w.entries(topics, &Filter{Tokens: tokens}), "INC-17", limit); err != nil || *got != want {
			t.Errorf("drop %v: %+v, %v, want %+v", tokens, *got, err, want)
		}
	}
	drops(0, Requested{Keys: 1, Events: 1, Requests: 1, Waiting: 1}, "t-a")
	if e := w.entries(w.open(), &Filter{Tokens: []string{"t-a"}})[0]; !e.Dropping || e.State != deadletter.Open || e.Why != "INC-17" {
		t.Errorf("%+v", e)
	}
	if got := w.marks(); got != "drop t-a, " {
		t.Errorf("marks: %s", got)
	}
	go func() {
		for !strings.Contains(w.marks(), "drop t-c") && t.Context().Err() == nil {
		}
		w.dropped(a)
		w.released(c)
	}()
	drops(time.Hour, Requested{Keys: 2, Events: 2, Requests: 1, Dropped: 1, Released: 1}, "t-a", "t-c")
	if got := w.states(); got != "b open 1, d open 1, a dropped 1, c released 1" {
		t.Error(got)
	}

	// The relay deletes records that it does not need any more, and they may have been the result.
	topics := w.open()
	events := w.entries(topics, &Filter{Tokens: []string{"t-b"}})
	end, err := kadm.NewClient(w.client).ListEndOffsets(t.Context(), w.cfg.Parking)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := kadm.NewClient(w.client).DeleteRecords(t.Context(), end.Offsets()); err != nil {
		t.Fatal(err)
	}
	if got, err := topics.DropParked(t.Context(), events, "INC-17", time.Hour); err != nil || *got != (Requested{Keys: 1, Events: 1, Requests: 1, Closed: 1}) {
		t.Errorf("%+v, %v", *got, err)
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
