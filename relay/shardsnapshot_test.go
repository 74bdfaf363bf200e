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
