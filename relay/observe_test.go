package relay

import (
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/deadletter"
	"github.com/walpost/walpost/internal/parking"
)

// An observed keeps what it is told.
type observed struct {
	mu  sync.Mutex
	all []Delivery
}

func (o *observed) Ended(d *Delivery) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.all = append(o.all, *d)
}

// of returns what was told of an event, in order.
func (o *observed) of(id string) (all []Delivery) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, d := range o.all {
		if d.EventID == id {
			all = append(all, d)
		}
	}
	return all
}

func (o *observed) reasons(id string) (all []string) {
	for _, d := range o.of(id) {
		all = append(all, d.Topic+" "+d.Reason)
	}
	return all
}

// The observer hears once of each event: that it is delivered, or that the brokers have its dead letter, and why. The time goes from the
// commit to the acknowledgement.
func TestAnObserverHearsOfEachEvent(t *testing.T) {
	story(t, func(t *testing.T, w *world) {
		cfg, o := w.buried(), new(observed)
		cfg.Observer = o
		r := w.start(cfg)
		w.want(t, time.Second, "record", func() bool { return w.newest() != nil })
		w.do(func() { w.stalled = true })
		txn := w.commit("a", "!", "b")
		time.Sleep(3 * time.Second)
		w.do(func() { w.stalled, w.cursed[txn.rows[2].id] = false, true })
		w.want(t, time.Minute, "done", w.allDelivered)
		r.stopped(t, time.Second)
		for i, want := range []string{"a ", deadTopic + " unroutable", deadTopic + " too_large"} {
			id := txn.rows[i].id
			if got := o.reasons(id); !slices.Equal(got, []string{want}) {
				t.Errorf("event %d: %q, must be %q", i, got, want)
				continue
			}
			d := o.of(id)[0]
			if took := d.Ended.Sub(d.Committed); !d.Committed.Equal(txn.time) || took < 3*time.Second || took > 10*time.Second || (d.Why == "") != (i == 0) || i != 1 && string(d.Key) != txn.rows[i].key {
				t.Errorf("event %d: %+v took %s", i, d, took)
			}
		}
		if len(o.all) != 3 {
			t.Errorf("%d deliveries", len(o.all))
		}
	})
}

// A delivery ends with the acknowledgement, and not when the loop looks. A commit in the future, by a server's clock that is ahead, leaves the
// loop's look.
func TestADeliveryEndsWithTheAcknowledgement(t *testing.T) {
	commit := time.Now()
	look := commit.Add(time.Minute)
	for latency, want := range map[time.Duration]time.Time{3 * time.Second: commit.Add(3 * time.Second), 0: look} {
		o := new(observed)
		p := &parts{opener: &opener{cfg: Config{Observer: o}}, board: &board{now: look}, traffic: &traffic{}}
		p.observe(&cdc.Ack{Record: &cdc.Record{Committed: commit}, Topic: "a", Latency: latency})
		if len(o.all) != 1 || !o.all[0].Ended.Equal(want) {
			t.Errorf("%s: %+v, must be at %s", latency, o.all, want)
		}
	}
}

// The observer hears of an event that halts the relay, whether the router or the brokers refuse it.
func TestAnObserverHearsOfAnEventThatHalts(t *testing.T) {
	for key, want := range map[string]string{"!": " unroutable", "b": "b too_large"} {
		story(t, func(t *testing.T, w *world) {
			o := new(observed)
			w.do(func() { w.stalled = true })
			txn := w.commit("a", key)
			w.do(func() { w.stalled, w.cursed[txn.rows[1].id] = false, key == "b" })
			r := w.start(Config{Observer: o})
			<-r.done
			badOf(t, r.err)
			d := o.of(txn.rows[1].id)
			if got := o.reasons(txn.rows[1].id); !slices.Equal(got, []string{want}) || d[0].Why == "" || d[0].Offset != -1 || !d[0].Committed.Equal(txn.time) {
				t.Errorf("%q, must be %q: %+v", got, want, d)
			}
			if got := o.reasons(txn.rows[0].id); !slices.Equal(got, []string{"a "}) {
				t.Errorf("the event before: %q", got)
			}
		})
	}
}

// The observer hears of an event when it is parked, with the reason, and of none of the marks in the topic.
func TestAnObserverHearsOfParkedEvents(t *testing.T) {
	story(t, func(t *testing.T, w *world) {
		cfg, o := w.parking(), new(observed)
		cfg.Observer = o
		r := w.parked(t, cfg)
		w.do(func() { w.stalled = true })
		refused := w.commit("c").rows[0].id
		w.do(func() { w.stalled, w.cursed[refused] = false, true })
		w.want(t, time.Minute, "parked", func() bool { return w.park.events() == 2 && w.id.SlotFound.Confirmed == w.pos })
		behind := w.commit("c").rows[0].id
		w.want(t, time.Minute, "parked behind it", func() bool { return w.park.events() == 3 && w.id.SlotFound.Confirmed == w.pos })
		for id, want := range map[string]cdc.Reason{w.log[0].rows[1].id: cdc.Unroutable, refused: cdc.TooLarge, behind: deadletter.Behind} {
			if got := o.reasons(id); !slices.Equal(got, []string{parkTopic + " " + string(want)}) {
				t.Errorf("%q, must be %s", got, want)
			}
		}
		w.do(func() { w.cursed[refused] = false })
		w.retry(func(k parking.Key) bool { return k.Key == "c" })
		w.want(t, time.Minute, "released", func() bool { return w.count[refused] == 1 && w.count[behind] == 1 })
		w.want(t, time.Minute, "the key is free", func() bool { return w.park.events() == 1 })
		r.stopped(t, time.Second)
		for _, id := range []string{refused, behind} {
			if got := o.reasons(id); len(got) != 2 || got[1] != "c " {
				t.Errorf("%q, must end with the delivery", got)
			}
		}
		if len(o.all) != 2+3+2 {
			t.Errorf("%d deliveries: %+v", len(o.all), o.all)
		}
	})
}

// The age of a row that was read from the table is no delay.
func TestAnObserverHearsNoCommitTimeOfARowOfTheTable(t *testing.T) {
	story(t, func(t *testing.T, w *world) {
		w.before(2)
		time.Sleep(time.Hour)
		cfg, o := snapshot(w), new(observed)
		cfg.Observer = o
		r := w.start(cfg)
		w.want(t, time.Minute, "published", w.allDelivered)
		w.want(t, 2*time.Second, "the stream", func() bool { return w.newest().Copy == nil })
		later := w.commit("a")
		w.want(t, time.Minute, "delivered", w.allDelivered)
		r.stopped(t, time.Second)
		row, event := o.of(w.log[0].rows[0].id), o.of(later.rows[0].id)
		if len(row) != 1 || !row[0].Committed.IsZero() || row[0].Ended.IsZero() || len(event) != 1 || !event[0].Committed.Equal(later.time) {
			t.Fatalf("row %+v, event %+v", row, event)
		}
		if at := slices.IndexFunc(row[0].Headers, func(h cdc.Header) bool { return h.Key == OriginHeader }); at < 0 {
			t.Errorf("%+v", row[0].Headers)
		}
	})
}
