package relay

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/checkpoint"
	"github.com/walpost/walpost/internal/fault"
)

// slots are the ways in which the slot of an unfinished copy goes away.
var slots = map[string]func(w *world){
	"lost":     func(w *world) { w.id.SlotFound.Invalidation = "wal_removed" },
	"missing":  func(w *world) { w.id.SlotFound = cdc.SlotState{} },
	"advanced": func(w *world) { w.id.SlotFound.Confirmed = w.pos },
}

// A gap is stepped over, and the snapshot that it interrupted is not: its rows are in the tables. Rows that were written to a finished table
// since the slot was created are in no stream, so that table is read again.
func TestAnAcceptedGapLeavesOutNoRowOfTheSnapshot(t *testing.T) {
	for name, lose := range slots {
		t.Run(name, func(t *testing.T) {
			story(t, func(t *testing.T, w *world) {
				w.clean = false
				w.before(60)
				cfg := snapshot(w)
				cfg.Window.Events = 3
				r := w.start(cfg)
				w.want(t, 20*time.Second, "a finished table, and one in the middle", func() bool {
					rec := w.newest()
					return rec != nil && rec.Copy != nil && len(rec.Copy.Finished) == 1 && rec.Copy.At.Table != ""
				})
				r.stopped(t, 5*time.Second)
				published := w.record().Copy.Rows
				w.commit("a", "b", "c", "d")
				w.do(func() { lose(w) })
				w.commit("a", "b", "c", "d")
				token := refusedToken(t, w, cfg)
				r = w.start(cfg)
				<-r.done
				if want := fmt.Sprintf("the snapshot is not finished: %d rows of the table are published", published); !strings.Contains(r.err.Error(), want) {
					t.Errorf("%v does not say %q", r.err, want)
				}
				cfg.AcceptGap = token
				r = w.start(cfg)
				w.want(t, time.Minute, "every row", w.allDelivered)
				w.want(t, time.Minute, "the stream", func() bool { return w.newest().Copy == nil })
				w.commit("a", "c")
				w.want(t, time.Minute, "the stream goes on", w.allDelivered)
				r.stopped(t, 5*time.Second)
				r.wantLog(t, "GAP ACCEPTED", 1)
			})
		})
	}
}

// recovering is a recover whose questions are answered with yes, and the gaps that it was asked about.
func recovering(w *world, begun *[]*checkpoint.Copy) Config {
	return Config{Create: true, Window: Window{Events: 3}, Copying: &Copying{
		Origin: checkpoint.OriginRecover, Tables: &fakeTables{w: w},
		Gap: func(_ context.Context, _ *checkpoint.Refusal, was, next *checkpoint.Copy) error {
			*begun = append(*begun, was)
			next.Since = w.began
			return nil
		},
	}}
}

// lostSlot is a world whose relay has delivered something, and whose slot is lost behind it.
func lostSlot(t *testing.T, w *world) {
	t.Helper()
	r := w.start(Config{Create: true})
	w.commit("a", "c")
	w.want(t, 10*time.Second, "delivered", w.allDelivered)
	r.stopped(t, time.Second)
	for range 100 {
		w.commit("a", "c")
	}
	w.do(func() {
		w.clean = false
		w.id.SlotFound.Invalidation = "wal_removed"
	})
}

// A recover is planned again from its gap when its own slot is lost, while it runs or between two of its starts.
func TestARecoverWhoseNewSlotIsLostBeginsAgain(t *testing.T) {
	for name, stop := range map[string]bool{"between two starts": true, "while it runs": false} {
		t.Run(name, func(t *testing.T) {
			story(t, func(t *testing.T, w *world) {
				lostSlot(t, w)
				from := w.record().Position
				var begun []*checkpoint.Copy
				cfg := recovering(w, &begun)
				r := w.start(cfg)
				w.want(t, 20*time.Second, "a finished table, and one in the middle", func() bool {
					rec := w.newest()
					return rec.Copy != nil && len(rec.Copy.Finished) == 1 && rec.Copy.At.Table != ""
				})
				if stop {
					r.stopped(t, 5*time.Second)
				}
				w.commit("a", "b", "c", "d")
				w.do(func() { w.id.SlotFound.Invalidation = "wal_removed" })
				w.commit("a", "b", "c", "d")
				if stop {
					r = w.start(cfg)
				} else {
					w.cut(errNet)
				}
				<-r.done
				if r.err != nil || !w.everything() || w.record().Copy != nil {
					t.Errorf("recover: %v, record %+v", r.err, w.record())
				}
				if len(begun) != 2 || begun[0] != nil || begun[1] == nil || begun[1].From != from || begun[1].Rows == 0 {
					t.Errorf("asked about %+v, the gap begins at %s", begun, from)
				}
				r = w.start(Config{Create: true})
				w.commit("a")
				w.want(t, 10*time.Second, "the stream", w.allDelivered)
				r.stopped(t, time.Second)
			})
		})
	}
}

// What a snapshot has not published is part of the gap that its lost slot leaves.
func TestARecoverFinishesASnapshotWhoseSlotIsLost(t *testing.T) {
	story(t, func(t *testing.T, w *world) {
		w.before(40)
		cfg := snapshot(w)
		cfg.Window.Events = 3
		r := w.start(cfg)
		w.want(t, 10*time.Second, "some rows", func() bool { return len(w.count) > 5 })
		r.stopped(t, 5*time.Second)
		w.do(func() { w.id.SlotFound.Invalidation, w.clean = "wal_removed", false })
		w.commit("a", "b", "c", "d")
		var begun []*checkpoint.Copy
		r = w.start(recovering(w, &begun))
		<-r.done
		if r.err != nil || !w.everything() || w.record().Copy != nil {
			t.Errorf("recover: %v, record %+v", r.err, w.record())
		}
		if len(begun) != 1 || begun[0] == nil || begun[0].Origin != checkpoint.OriginSnapshot {
			t.Errorf("asked about %+v", begun)
		}
	})
}

// A recover that cannot go on is given up by a run with its token. The next run refuses what else is in the way.
func TestARunGivesUpARecoverOnlyWithTheTokenOfItsGap(t *testing.T) {
	story(t, func(t *testing.T, w *world) {
		lostSlot(t, w)
		var begun []*checkpoint.Copy
		cfg := recovering(w, &begun)
		r := w.start(cfg)
		w.want(t, 10*time.Second, "some rows", func() bool { rec := w.newest(); return rec.Copy != nil && rec.Copy.Rows > 5 })
		r.stopped(t, 5*time.Second)
		r = w.start(Config{Create: true, AcceptGap: "another"})
		<-r.done
		if !fault.NeedsPerson(r.err) || !strings.Contains(fault.Hint(r.err), "walpost recover continues") {
			t.Errorf("with a token of no gap: %v", r.err)
		}
		w.do(func() { w.id.SystemID = "8" })
		r = w.start(cfg)
		<-r.done
		var ref *checkpoint.Refusal
		token := w.newest().Unfinished().Token
		if !errors.As(r.err, &ref) || !strings.Contains(r.err.Error(), "the recover is not finished") || !strings.Contains(fault.Hint(r.err), "--accept-gap="+token) {
			t.Fatalf("%v, hint %q", r.err, fault.Hint(r.err))
		}
		w.do(func() { w.gapsOK = true })
		r = w.start(Config{Create: true, AcceptGap: token})
		<-r.done
		if rec := w.newest(); !errors.As(r.err, &ref) || rec.Copy != nil || len(rec.Accepted) != 1 || rec.Accepted[0].Token != token {
			t.Fatalf("%v, record %+v", r.err, rec)
		}
		r = w.start(Config{Create: true, AcceptGap: ref.Token})
		w.want(t, 10*time.Second, "given up", func() bool { return w.newest().Copy == nil })
		r.stopped(t, 5*time.Second)
	})
}

// Rows that are written between two slots are in no stream. What the copy of the first slot had in flight must not finish a table for the second.
func TestWhatAFormerCopyHadInFlightFinishesNoTableOfTheNewSlot(t *testing.T) {
	story(t, func(t *testing.T, w *world) {
		lostSlot(t, w)
		var begun []*checkpoint.Copy
		cfg := recovering(w, &begun)
		cfg.Window.Events = 3
		r := w.start(cfg)
		w.want(t, 20*time.Second, "a finished table, and one in the middle", func() bool {
			rec := w.newest()
			return rec.Copy != nil && len(rec.Copy.Finished) == 1 && rec.Copy.At.Table != ""
		})
		w.do(func() { w.stalled = true })
		time.Sleep(time.Second)
		w.commit("a", "b", "c", "d")
		w.do(func() { w.id.SlotFound.Invalidation = "wal_removed" })
		w.cut(errNet)
		epoch := w.record().Epoch
		w.want(t, 20*time.Second, "the record of the new slot", func() bool { rec := w.newest(); return rec.Epoch > epoch+1 && rec.Copy.Slot })
		w.do(func() { w.stalled = false })
		<-r.done
		if r.err != nil || !w.everything() || w.record().Copy != nil {
			t.Errorf("recover: %v, record %+v", r.err, w.record())
		}
	})
}

// A first start made its slot, and was gone before its first record: nothing was ever delivered. The server may have given up that slot by
// now. No row is lost with it, so the snapshot begins again, with a slot of its own.
func TestASnapshotBeginsAgainWhereItsFirstSlotWasLost(t *testing.T) {
	story(t, func(t *testing.T, w *world) {
		w.before(10)
		rec := &checkpoint.Record{
			Name: "shop", Epoch: 1, SystemID: w.id.SystemID, Timeline: 1, Slot: w.id.Slot, Database: w.id.Database, Position: 100,
			Copy: &checkpoint.Copy{Origin: checkpoint.OriginSnapshot}, Holder: "gone",
		}
		w.do(func() {
			w.records[rec.HolderKey()] = rec.Encode()
			w.id.SlotFound = cdc.SlotState{Exists: true, Confirmed: 100, Invalidation: "wal_removed"}
		})
		r := w.start(snapshot(w))
		w.want(t, 20*time.Second, "every row", w.allDelivered)
		w.commit("a", "c")
		w.want(t, 20*time.Second, "the stream", w.allDelivered)
		r.stopped(t, 5*time.Second)
	})
}

// Who leaves the token of an earlier gap in the command line has accepted that gap, and no other.
func TestATokenDoesNotReplaceARecoverWhoseSlotIsNotMade(t *testing.T) {
	for name, cfg := range map[string]func(w *world) Config{
		"without a snapshot": func(*world) Config { return Config{Create: true} },
		"with a snapshot":    snapshot,
	} {
		t.Run(name, func(t *testing.T) {
			story(t, func(t *testing.T, w *world) {
				lostSlot(t, w)
				rec := w.record()
				rec.Epoch, rec.Next, rec.Copy = rec.Epoch+1, nil, &checkpoint.Copy{Origin: checkpoint.OriginRecover, From: rec.Position}
				w.do(func() { w.records[rec.HolderKey()] = rec.Encode() })
				c := cfg(w)
				c.AcceptGap = "another"
				made := look(w, &w.creates)
				r := w.start(c)
				<-r.done
				if !fault.NeedsPerson(r.err) || !strings.Contains(fault.Hint(r.err), "walpost recover continues") || look(w, &w.creates) != made {
					t.Errorf("%v, %d slots made", r.err, look(w, &w.creates)-made)
				}
				c.AcceptGap = rec.Unfinished().Token
				r = w.start(c)
				<-r.done
				var lost *checkpoint.Refusal
				if !errors.As(r.err, &lost) || lost.Reason != checkpoint.SlotLost || look(w, &w.creates) != made {
					t.Errorf("given up: %v, %d slots made", r.err, look(w, &w.creates)-made)
				}
			})
		})
	}
}

// A change of the source trusts the record of the former source. If the server goes back before the new slot exists, rows that
// nobody has delivered have places that this record counts as delivered.
func TestAnUnfinishedChangeOfTheSourceIsNotContinuedOnAServerThatWentBack(t *testing.T) {
	story(t, func(t *testing.T, w *world) {
		lostSlot(t, w)
		rec := w.record()
		was := *rec
		was.Polled, was.Slot, was.Position, was.WAL, was.Next, was.Published = &cdc.Polled{Strategy: "cursor"}, "", cdc.Numbered(7), rec.Position.LSN()+1<<30, nil, nil
		was.Delivered = 0
		rec.Epoch, rec.Next, rec.Copy = rec.Epoch+1, nil, &checkpoint.Copy{Origin: checkpoint.OriginRecover, From: rec.Position, Former: &was}
		w.do(func() { w.records[rec.HolderKey()] = rec.Encode() })
		var begun []*checkpoint.Copy
		made := look(w, &w.creates)
		r := w.start(recovering(w, &begun))
		<-r.done
		if !fault.NeedsPerson(r.err) || !strings.Contains(r.err.Error(), "restored from an earlier copy") || look(w, &w.creates) != made {
			t.Errorf("%v, %d slots made", r.err, look(w, &w.creates)-made)
		}
	})
}
