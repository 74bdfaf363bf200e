package relay

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/checkpoint"
	"github.com/walpost/walpost/internal/fault"
)

// Relays of another number of shards take over while this relay has no session. They deliver what it has read, so it must not
// deliver it behind their newer events.
func TestARelayThatWasReplacedGivesUpWhatIsInFlight(t *testing.T) {
	story(t, func(t *testing.T, w *world) {
		r := w.start(Config{})
		w.commit("a")
		w.want(t, time.Minute, "delivered", w.allDelivered)
		w.do(func() { w.stalled = true })
		w.commit("b")
		w.want(t, time.Minute, "in flight", func() bool { return r.relay.Status().InFlightEvents > 0 })
		w.do(func() {
			w.id.Shards = cdc.Shards{Base: w.id.Slot, Slots: []cdc.ShardSlot{{Shard: cdc.Shard{Index: 1, Of: 2}, Slot: w.id.Slot + "_1_of_2", Confirmed: w.pos, ActivePID: 9}}}
		})
		w.cut(errNet)
		select {
		case <-r.done:
		case <-time.After(time.Minute):
			t.Errorf("it runs: %+v", r.relay.Status())
			r.stopped(t, time.Second)
		}
		if r.err == nil || fault.NeedsPerson(r.err) || !strings.Contains(r.err.Error(), "leaves 1 undelivered events to other relays") {
			t.Error(r.err)
		}
	})
}

// sharded makes w's slot that of shard 1/2, beside the slots of the other shard and of the relay of all rows.
func sharded(w *world, all ...cdc.ShardSlot) {
	slot := w.id.Slot
	two := cdc.ShardSlot{Shard: cdc.Shard{Index: 2, Of: 2}, Slot: slot + "_2_of_2", Confirmed: w.pos}
	for i := range all {
		all[i].Slot = slot
	}
	w.id.Slot, w.id.SlotFound = slot+"_1_of_2", cdc.SlotState{Exists: true, Confirmed: w.pos}
	w.id.Shards = cdc.Shards{Own: cdc.Shard{Index: 1, Of: 2}, Base: slot, Slots: append(all, two)}
}

// sibling is the record of another relay of w's rows.
func sibling(w *world, shard cdc.Shard, change func(*checkpoint.Record)) map[string][]byte {
	r := &checkpoint.Record{
		Name: "shop" + shard.Suffix(), Epoch: 1, SystemID: w.id.SystemID, Timeline: 1, Slot: w.id.Shards.Base + shard.Suffix(),
		Database: w.id.Database, LSN: w.pos, Holder: "other", Time: time.Now(),
	}
	change(r)
	return map[string][]byte{r.HolderKey(): r.Encode()}
}

// The relay before starts again after the judgement, and its record is there when that of this relay is durable. Nothing is sent.
func TestARelayThatTakesOverLooksAgainBehindItsFence(t *testing.T) {
	story(t, func(t *testing.T, w *world) {
		sharded(w, cdc.ShardSlot{Confirmed: w.pos})
		r := w.start(Config{Siblings: func(context.Context, cdc.Shard) (values map[string][]byte, err error) {
			w.do(func() {
				values = sibling(w, cdc.Shard{}, func(r *checkpoint.Record) { r.LSN = w.made })
				if len(w.records) > 0 {
					maps.Copy(values, sibling(w, cdc.Shard{}, func(r *checkpoint.Record) { r.LSN, r.Epoch, r.Holder = w.made, 2, "again" }))
					w.id.Shards.Slots = slices.Clone(w.id.Shards.Slots)
					w.id.Shards.Slots[0].ActivePID = 9
				}
			})
			return values, nil
		}})
		w.commit("a")
		w.want(t, time.Minute, "it waits for that relay", func() bool {
			return strings.Contains(r.relay.Status().Reason, "Stop that relay") && w.saves > 0
		})
		time.Sleep(time.Minute)
		if sent := look(w, &w.arrivals); sent > 0 || r.relay.Status().Ready {
			t.Errorf("%d events are sent: %+v", sent, r.relay.Status())
		}
		r.stopped(t, time.Second)
	})
}

// An accepted gap says anew where the relay stands among the others, if they have delivered since its record, or if it has none that counts.
func TestAGapThatIsClosedOrdersTheRelaysAnew(t *testing.T) {
	for what, c := range map[string]struct {
		held       uint64          // the generation of the relay's own record; 0: it has none
		all        uint64          // that of the relay of all rows
		slots      []cdc.ShardSlot // of that relay
		generation uint64          // after the gap
		began      cdc.Position
	}{
		"a late first start, beside a slot that is left over": {all: 1, slots: []cdc.ShardSlot{{Confirmed: 500}}, generation: 2, began: 300},
		"a late first start, with a record that is void":      {held: 1, slots: []cdc.ShardSlot{{Confirmed: 500}}, generation: 1, began: 300},
		"others came since then, and are gone":                {held: 1, all: 2, generation: 3, began: 300},
		"others came before":                                  {held: 2, all: 1, slots: []cdc.ShardSlot{{Confirmed: 50}}, generation: 2, began: 90},
	} {
		t.Run(what, func(t *testing.T) {
			story(t, func(t *testing.T, w *world) {
				w.do(func() {
					w.pos, w.gapsOK = 300, true
					sharded(w, c.slots...)
					if c.held > 0 {
						maps.Copy(w.records, sibling(w, w.id.Shards.Own, func(r *checkpoint.Record) { r.Name, r.LSN, r.Generation, r.Began = "shop", 100, c.held, 90 }))
					}
				})
				values := sibling(w, cdc.Shard{}, func(r *checkpoint.Record) { r.LSN, r.Generation = 500, c.all })
				maps.Copy(values, sibling(w, cdc.Shard{Index: 2, Of: 2}, func(r *checkpoint.Record) { r.LSN, r.Generation, r.Began = 500, c.all+1, 200 }))
				cfg := Config{Siblings: func(context.Context, cdc.Shard) (map[string][]byte, error) { return values, nil }}
				cfg.AcceptGap = refusedToken(t, w, cfg)
				r := w.start(cfg)
				w.want(t, time.Minute, "ready", func() bool { return r.relay.Status().Ready })
				if rec := w.record(); rec.Generation != c.generation || rec.Began != c.began {
					t.Errorf("%+v", rec)
				}
				r.stopped(t, time.Second)
			})
		})
	}
}

// A recover, too.
func TestARecoverOrdersTheRelaysAnew(t *testing.T) {
	story(t, func(t *testing.T, w *world) {
		lostSlot(t, w)
		w.do(func() {
			w.id.Shards = cdc.Shards{Base: w.id.Slot}
			held := w.newest()
			held.Generation = 1
			w.records[held.StoredKey()] = held.Encode()
		})
		values := sibling(w, cdc.Shard{Index: 1, Of: 2}, func(r *checkpoint.Record) { r.Generation = 1 })
		var begun []*checkpoint.Copy
		cfg := recovering(w, &begun)
		cfg.Siblings = func(context.Context, cdc.Shard) (map[string][]byte, error) { return values, nil }
		r := w.start(cfg)
		<-r.done
		if rec := w.record(); r.err != nil || rec.Copy != nil || rec.Generation != 2 {
			t.Errorf("%v, record %+v", r.err, rec)
		}
	})
}

// A shard has made its slot and waits, and the slots of the relays before it are dropped. Their records decide, whatever
// source.snapshot says.
func TestASnapshotIsNoMatterForAShardWhoseFormersSlotsAreGone(t *testing.T) {
	for what, behind := range map[string]cdc.Position{"delivered enough": 0, "behind": 1} {
		t.Run(what, func(t *testing.T) {
			story(t, func(t *testing.T, w *world) {
				slot := w.id.Slot
				w.id.Slot = slot + "_1_of_2"
				w.id.Shards = cdc.Shards{Own: cdc.Shard{Index: 1, Of: 2}, Base: slot, Slots: []cdc.ShardSlot{{Shard: cdc.Shard{Index: 2, Of: 2}, Slot: slot + "_2_of_2", Confirmed: w.pos}}}
				w.id.SlotFound = cdc.SlotState{Exists: true, Confirmed: w.pos}
				old := &checkpoint.Record{Name: "shop", Epoch: 1, SystemID: w.id.SystemID, Timeline: 1, Slot: slot, Database: w.id.Database, LSN: w.pos - behind, Holder: "gone", Time: time.Now()}
				cfg := snapshot(w)
				cfg.Name = "shop_1_of_2"
				cfg.Siblings = func(context.Context, cdc.Shard) (map[string][]byte, error) {
					return map[string][]byte{old.Key(): old.Encode()}, nil
				}
				r := w.start(cfg)
				if behind == 0 {
					w.want(t, time.Minute, "ready", func() bool { return r.relay.Status().Ready })
					r.stopped(t, time.Second)
					return
				}
				select {
				case <-r.done:
				case <-time.After(time.Minute):
					t.Errorf("it runs: %+v", r.relay.Status())
					r.stopped(t, time.Second)
				}
				if gap, ok := errors.AsType[*checkpoint.Refusal](r.err); !ok || gap.Reason != checkpoint.NotHandedOver {
					t.Error(r.err)
				}
			})
		})
	}
}
