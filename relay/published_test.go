package relay

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/checkpoint"
	"github.com/walpost/walpost/internal/fault"
)

func publishing(w *world) {
	w.do(func() {
		w.id.Published = cdc.Published{Publication: "walpost", OID: 5, XMin: 700, Tables: []cdc.PublishedTable{
			{Name: "public.outbox", OID: 6, Entries: []cdc.PublishedEntry{{By: cdc.PublishedByTable, OID: 7, XMin: 700}}},
		}}
	})
}

func refusalOf(err error) *checkpoint.Refusal {
	var ref *checkpoint.Refusal
	errors.As(err, &ref)
	return ref
}

// The gap of a publication that is changed after the process dies begins at the newest look that is in the record. In an outage of
// Kafka nothing is safe for hours, and the look must get there all the same.
func TestALookIsRememberedWhileNothingIsDelivered(t *testing.T) {
	story(t, func(t *testing.T, w *world) {
		publishing(w)
		w.start(Config{})
		time.Sleep(time.Second)
		w.do(func() { w.stalled = true })
		w.commit("a")
		lsn := w.record().Position
		for range 6 {
			w.other()
			time.Sleep(10 * time.Second)
		}
		w.other()
		at := look(w, &w.pos)
		w.want(t, 25*time.Second, "the look is in the record", func() bool { return w.newest().Looked().Position() == at })
		if rec := w.record(); rec.Position != lsn || rec.Epoch != 1 {
			t.Errorf("record %+v", rec)
		}
		// A server that writes nothing costs no records.
		saves := look(w, &w.saves)
		time.Sleep(5 * time.Minute)
		if n := look(w, &w.saves); n != saves {
			t.Errorf("%d records while nothing moved", n-saves)
		}
		w.do(func() { w.stalled = false })
		w.want(t, 2*time.Minute, "delivered", w.allDelivered)
	})
}

// A record of an older walpost does not know what was published: the first session completes it.
func TestARecordThatDoesNotKnowWhatIsPublishedIsCompleted(t *testing.T) {
	story(t, func(t *testing.T, w *world) {
		r := w.start(Config{})
		time.Sleep(time.Second)
		r.stopped(t, time.Second)
		if p := w.record().Published; p != nil {
			t.Fatalf("published: %+v", p)
		}
		publishing(w)
		r = w.start(Config{})
		w.want(t, time.Second, "completed", func() bool { return w.newest().Published != nil })
		r.stopped(t, time.Second)
	})
}

// The look and the next start refuse the same gap, nothing is changed meanwhile, and a token lets the stream go on where it was.
func TestAChangedPublicationHaltsAndGoesOnWhereItWas(t *testing.T) {
	story(t, func(t *testing.T, w *world) {
		publishing(w)
		r := w.start(Config{HaltLinger: 30 * time.Second})
		w.commit("a", "b")
		w.want(t, time.Second, "delivered", w.allDelivered)
		time.Sleep(15 * time.Second) // a look
		seen := w.pos
		w.commit("a")
		w.do(func() { w.id.Published.XMin++ })
		w.want(t, 11*time.Second, "halted", func() bool { return r.relay.Status().State == Halted })
		if st := r.relay.Status(); st.Ready || !strings.Contains(st.Reason, `publication "walpost" was altered`) {
			t.Errorf("%+v", st)
		}
		<-r.done
		first := refusalOf(r.err)
		if first == nil || first.Reason != checkpoint.PublicationChanged || first.From < seen || first.From > w.pos || !strings.Contains(fault.Hint(r.err), first.Token) {
			t.Fatalf("%v, refusal %+v", r.err, first)
		}
		last := w.commit("b", "c")
		before := string(w.record().Encode())
		r = w.start(Config{})
		<-r.done
		if again := refusalOf(r.err); again == nil || again.Token != first.Token || again.From != first.From || string(w.record().Encode()) != before {
			t.Fatalf("%v: %+v, before %+v", r.err, again, first)
		}
		if w.allDelivered() {
			t.Error("delivered over the gap")
		}
		// A transaction that was delivered in part goes on behind that part.
		rec := w.record()
		rec.Next = &checkpoint.Next{Commit: last.begin, Rows: 1, LastEventID: last.rows[0].id}
		w.do(func() {
			w.records[rec.HolderKey()] = rec.Encode()
			w.count[last.rows[0].id] = 1
		})
		r = w.start(Config{AcceptGap: first.Token})
		w.want(t, 5*time.Second, "delivered", func() bool { return w.count[last.rows[1].id] == 1 }) // once each: the world is clean
		r.stopped(t, 5*time.Second)
		if n := w.count[last.rows[0].id]; n != 1 {
			t.Error("what the record says was delivered came again")
		}
		if rec := w.record(); rec.Published.XMin != 701 {
			t.Errorf("record %+v", rec.Published)
		}
	})
}

// Recover makes no slot, and what a snapshot that is cut short has yet to publish is not left out.
func TestARecoverKeepsTheSlotOfAChangedPublication(t *testing.T) {
	for _, snapshot := range []bool{false, true} {
		story(t, func(t *testing.T, w *world) {
			publishing(w)
			w.clean = false
			tables := &fakeTables{w: w}
			cfg := Config{Window: Window{Events: 3}, Create: true}
			if snapshot {
				w.do(func() { w.id.SlotFound = cdc.SlotState{} })
				for range 40 {
					w.commit("a", "d")
				}
				cfg.Copying = &Copying{Origin: checkpoint.OriginSnapshot, Tables: tables}
			}
			r := w.start(cfg)
			if snapshot {
				w.want(t, 10*time.Second, "some rows", func() bool { return len(w.count) > 5 })
			} else {
				time.Sleep(time.Second)
			}
			r.stopped(t, 5*time.Second)
			w.do(func() {
				w.id.Published.Tables[0].Entries = []cdc.PublishedEntry{{By: cdc.PublishedByTable, OID: 8, XMin: 701}}
			})
			w.commit("a", "d")
			r = w.start(cfg)
			<-r.done
			gap := refusalOf(r.err)
			if gap == nil || gap.Reason != checkpoint.PublicationChanged || snapshot != (gap.Record.Copy != nil) {
				t.Fatalf("%v: %+v", r.err, gap)
			}
			slot, creates := w.id.SlotFound.Confirmed, w.creates
			asked := func(_ context.Context, of *checkpoint.Refusal, begun, _ *checkpoint.Copy) error {
				if of.Token != gap.Token || snapshot != (begun != nil) {
					t.Errorf("asked about %+v, begun %+v", of, begun)
				}
				return nil
			}
			r = w.start(Config{Create: true, Copying: &Copying{Origin: checkpoint.OriginRecover, Tables: tables, Gap: asked}})
			<-r.done
			if r.err != nil || w.creates != creates || w.id.SlotFound.Confirmed != slot {
				t.Errorf("recover: %v, %d slots made, at %s and was at %s", r.err, w.creates-creates, w.id.SlotFound.Confirmed, slot)
			}
			if !w.allDelivered() || w.record().Copy != nil {
				t.Errorf("not all is published, record %+v", w.record())
			}
			r = w.start(cfg)
			w.commit("a")
			w.want(t, 5*time.Second, "delivered", func() bool { return w.allDelivered() && r.relay.Status().Ready })
		})
	}
}

// What a look found to be missing is written down, also where nothing else has to be: put right, it may leave no trace.
func TestWhatKeptRowsOutOfTheStreamIsRefusedOnceItIsMended(t *testing.T) {
	story(t, func(t *testing.T, w *world) {
		publishing(w)
		r := w.start(Config{})
		w.commit("a")
		w.want(t, time.Second, "delivered", w.allDelivered)
		time.Sleep(time.Minute)
		w.do(func() {
			w.checkErr = fault.Person(errors.New("the table is gone"), "")
			w.id.Unpublished = "the table is gone"
		})
		<-r.done
		if !strings.Contains(r.err.Error(), "the table is gone; events after ") {
			t.Errorf("halted by %v", r.err)
		}
		w.do(func() { w.checkErr, w.id.Unpublished = nil, "" })
		r = w.start(Config{})
		w.want(t, time.Minute, "refused", func() bool { return r.relay.Status().State == Stopped })
		<-r.done
		gap := refusalOf(r.err)
		if gap == nil || !strings.Contains(gap.Error(), "a check found that the table is gone") {
			t.Fatalf("%v", r.err)
		}
		w.start(Config{AcceptGap: gap.Token})
		w.commit("a")
		w.want(t, 5*time.Second, "delivered", w.allDelivered)
		if p := w.record().Published; p.Unpublished != "" {
			t.Errorf("still in the record: %+v", p)
		}
	})
}

// A column that was dropped keeps no row out of the stream, and the slot waits for its return.
func TestALookThatFindsNothingLostDoesNotTellOfMissingEvents(t *testing.T) {
	story(t, func(t *testing.T, w *world) {
		publishing(w)
		r := w.start(Config{})
		w.commit("a")
		w.want(t, time.Second, "delivered", w.allDelivered)
		w.do(func() { w.checkErr = fault.Person(errors.New("there is no column payload"), "") })
		<-r.done
		if err := r.err.Error(); !strings.Contains(err, "no column payload") || strings.Contains(err, "events after") {
			t.Errorf("halted by %v", err)
		}
	})
}

// A lost slot has lost what was not delivered, and not only what was written since the newest look.
func TestALookThatFindsTheSlotLostNamesWhatIsNotDelivered(t *testing.T) {
	story(t, func(t *testing.T, w *world) {
		publishing(w)
		r := w.start(Config{})
		w.commit("a")
		w.want(t, time.Second, "delivered", w.allDelivered)
		w.do(func() { w.stalled = true })
		from := w.commit("a").begin
		for range 6 {
			w.commit("a")
			time.Sleep(10 * time.Second)
		}
		w.do(func() {
			w.checkErr = fault.Person(errors.New("the slot is lost"), "")
			w.id.SlotFound.Invalidation = "wal_removed"
		})
		<-r.done
		var gap cdc.Position
		if _, at, ok := strings.Cut(r.err.Error(), "events after "); ok {
			gap, _ = cdc.ParsePosition(strings.Fields(at)[0]) // 0 where it is none
		}
		if gap == 0 || gap > from {
			t.Errorf("events are missing from %s on: %v", from, r.err)
		}
	})
}
