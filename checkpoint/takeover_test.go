package checkpoint

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/fault"
)

// handover is a source whose slot is that of shard 1/4, made at 0/4000, beside the slots of the others.
func handover(slots ...cdc.ShardSlot) cdc.Identity {
	_, found := judged()
	found.Slot = "walpost_1_of_4"
	found.SlotFound.Confirmed = 0x4000
	found.Shards = cdc.Shards{Own: cdc.Shard{Index: 1, Of: 4}, Base: "walpost"}
	for _, s := range slots {
		s.Slot = "walpost" + s.Suffix()
		found.Shards.Slots = append(found.Shards.Slots, s)
	}
	return *found
}

func at(index, of int, confirmed cdc.Position, pid int32) cdc.ShardSlot {
	return cdc.ShardSlot{Shard: cdc.Shard{Index: index, Of: of}, Confirmed: confirmed, ActivePID: pid}
}

// peers are the other slots of four shards, which have not begun.
var peers = []cdc.ShardSlot{at(2, 4, 0x4010, 0), at(3, 4, 0x4020, 0), at(4, 4, 0x4030, 0)}

func TestAFirstStartWaitsForTheOtherNumberOfShards(t *testing.T) {
	for _, c := range []struct {
		what  string
		found cdc.Identity
		start cdc.Position
		says  string // of the wait; "" for none
	}{
		{"nobody else", handover(), 0x4000, ""},
		{"peers alone", handover(peers...), 0x4000, ""},
		{"two shards that stopped", handover(append(peers, at(1, 2, 0x4100, 0), at(2, 2, 0x4200, 0))...), 0x4100, ""},
		{"a relay of all rows that stopped", handover(append(peers, at(0, 0, 0x4100, 0))...), 0x4100, ""},
		{"both kinds", handover(append(peers, at(0, 0, 0x4050, 0), at(1, 2, 0x4100, 0), at(2, 2, 0x4200, 0))...), 0x4050, ""},
		{"a peer that has begun", handover(at(2, 4, 0x9000, 5), peers[1], peers[2], at(0, 0, 0x4100, 0)), 0x4100, ""},
		{
			"one that runs", handover(append(peers, at(1, 2, 0x4100, 9), at(2, 2, 0x4200, 0))...), 0,
			"slot walpost_1_of_2 is in use by server process 9, and its relay delivers the same keys. Stop that relay",
		},
		{"one that runs and is behind", handover(append(peers, at(1, 2, 0x3900, 9), at(2, 2, 0x4200, 0))...), 0, "the relay of slot walpost_1_of_2 has confirmed 0/3900, but must confirm 0/4000 first"},
		{"one that stopped too early", handover(append(peers, at(1, 2, 0x3900, 0), at(2, 2, 0x4200, 0))...), 0, "the relay of slot walpost_1_of_2 stopped at 0/3900. Start that relay again, and let it run until it has confirmed 0/4000"},
		{"a peer without a slot", handover(peers[0], peers[2], at(0, 0, 0x4100, 0)), 0, "slot walpost_3_of_4 does not exist yet"},
		{"a slot of the others that was dropped", handover(append(peers, at(2, 2, 0x4200, 0))...), 0, "slot walpost_2_of_2 exists, but slot walpost_1_of_2 does not"},
		{"a peer whose slot is beyond what the others delivered", handover(peers[0], peers[1], at(4, 4, 0x4400, 0), at(0, 0, 0x4100, 0)), 0, "nobody reads slot walpost_4_of_4, which is at 0/4400, and the slots of the other number of shards are at 0/4100"},
	} {
		start, err := Judge(nil, c.found)
		switch {
		case c.says == "" && (err != nil || start != c.start):
			t.Errorf("%s: %s %v", c.what, start, err)
		case c.says != "" && (!fault.Retryable(err) || !strings.Contains(err.Error(), c.says)):
			t.Errorf("%s: %v", c.what, err)
		}
	}
}

// A relay that has a record waits only while another number of shards runs.
func TestALaterStartWaitsWhileAnotherNumberOfShardsRuns(t *testing.T) {
	rec, found := judged()
	found.Shards.Slots = []cdc.ShardSlot{at(1, 2, 0x100, 0), at(2, 2, 0x9000, 0)}
	if start, err := Judge(rec, *found); err != nil || start != rec.LSN {
		t.Errorf("%s %v", start, err)
	}
	found.Shards.Slots[0].ActivePID = 9
	if _, err := Judge(rec, *found); !fault.Retryable(err) {
		t.Errorf("%v", err)
	}
	found.Shards.Own.Of = 2 // they are peers
	if _, err := Judge(rec, *found); err != nil {
		t.Errorf("%v", err)
	}
}

// recordsOf is what the store has of the relays of slots: each is at the position of its slot.
func recordsOf(slots ...cdc.ShardSlot) (former []Former) {
	for _, slot := range slots {
		rec, _ := judged()
		rec.Name, rec.Slot, rec.LSN = "shop.walpost"+slot.Suffix(), "walpost"+slot.Suffix(), slot.Confirmed
		former = append(former, Former{rec.Name, slot.Shard, rec})
	}
	return former
}

// with changes the last record.
func with(former []Former, change func(*Record)) []Former {
	change(former[len(former)-1].Record)
	return former
}

func TestAFirstStartBelievesRecordsAndNotSlots(t *testing.T) {
	old := []cdc.ShardSlot{at(1, 2, 0x4100, 0), at(2, 2, 0x4200, 0)}
	none := []cdc.ShardSlot{}
	elsewhere := func(former []Former) []Former {
		for _, f := range former {
			f.Record.SystemID = "999"
		}
		return former
	}
	polled := func(r *Record) { r.Slot, r.Poll, r.Published = "", "cursor", nil }
	recovering := func(r *Record) { r.Copy = &Copy{Origin: OriginRecover} }
	promoted := func(r *Record) { r.Timeline = 2 }
	for _, c := range []struct {
		what   string
		slots  []cdc.ShardSlot
		former []Former
		says   string // of a wait
		from   cdc.Position
		gap    string // of a refusal, from where on
	}{
		{what: "all at their slots", slots: old, former: recordsOf(old...)},
		{what: "no record", slots: old, former: recordsOf(old[0]), says: "no checkpoint of the relay of slot walpost_2_of_2 is stored, so that relay may have delivered nothing. Run walpost run --shard 2/2,"},
		{what: "the record of a slot is of another server", slots: old, former: elsewhere(recordsOf(old...)), says: "slot walpost_1_of_2 exists, but checkpoint shop.walpost_1_of_2/7 was written for another server, with the system identifier 999"},
		{what: "a relay that polled, beside its slot from before", slots: []cdc.ShardSlot{at(0, 0, 0x4100, 0)}, former: with(recordsOf(at(0, 0, 0x4100, 0)), polled), says: "slot walpost exists, but checkpoint shop.walpost/7 was written for the table"},
		{what: "a leftover beside them", slots: append(slices.Clip(old), at(1, 3, 0x9000, 0)), former: recordsOf(old...), says: "SELECT pg_drop_replication_slot('walpost_1_of_3');"},
		{what: "an unfinished recover", slots: old, former: with(recordsOf(old...), recovering), says: "the recovery of relay shop.walpost_2_of_2 is not finished. Run walpost recover --shard 2/2"},
		{what: "a slot that was advanced", slots: old, former: with(recordsOf(old...), func(r *Record) { r.LSN = 0x41FF }), says: "slot walpost_2_of_2 is at 0/4200, beyond checkpoint shop.walpost_2_of_2/7 at 0/41FF"},
		{what: "a record of a history that ended", slots: old, former: with(recordsOf(old...), promoted), says: "slot walpost_2_of_2 is at 0/4200"},
		{what: "nobody ran before", slots: none},
		{what: "slots dropped in time", slots: none, former: recordsOf(at(1, 2, 0x4000, 0), at(2, 2, 0x4200, 0))},
		{what: "slots dropped too early", slots: none, former: recordsOf(at(1, 2, 0x3FFF, 0), at(2, 2, 0x4200, 0)), from: 0x3FFF, gap: "relay of slot \"walpost_1_of_2\" stopped at 0/3FFF: events from 0/3FFF to 0/4000"},
		{what: "a relay that never ran", slots: none, former: recordsOf(old[1]), gap: "relay of slot \"walpost_1_of_2\" did not finish: events before 0/4000"},
		{what: "a dropped slot of a recover", slots: none, former: with(recordsOf(old...), recovering), gap: "relay of slot \"walpost_2_of_2\" did not finish"},
		{what: "a history that ended", slots: none, former: with(recordsOf(old...), promoted), from: 0x1000, gap: "relay of slot \"walpost_2_of_2\" stopped at 0/1000"},
		{what: "another server", slots: none, former: elsewhere(recordsOf(old...)), gap: "slot \"walpost_1_of_4\" is new, and checkpoint shop.walpost_1_of_2/7 of the relay that delivered these rows before was written for another server, with the system identifier 999: events before 0/4000"},
		{what: "a relay that polled", slots: none, former: with(recordsOf(at(0, 0, 0x4100, 0)), polled), gap: "checkpoint shop.walpost/7 of the relay that delivered these rows before was written for the table, with source.poll.strategy cursor: events before 0/4000"},
		{what: "a number from long ago", slots: none, former: append(recordsOf(at(0, 0, 0x100, 0)), recordsOf(old...)...)},
		{what: "a number that was begun", slots: none, former: append(recordsOf(old...), recordsOf(at(1, 3, 0x9000, 0))...)},
	} {
		found := handover(c.slots...)
		err := HandedOver(found, c.former)
		ref, refused := errors.AsType[*Refusal](err)
		switch {
		case c.gap != "":
			if !refused || ref.Reason != NotHandedOver || ref.From != c.from || !strings.Contains(err.Error(), c.gap) || !ref.KeepsSlot() || ref.NeedsSlot() {
				t.Errorf("%s: %v", c.what, err)
				continue
			}
			if start, err := AcceptedStart(ref, found); err != nil || start != 0x4000 {
				t.Errorf("%s, accepted: %s %v", c.what, start, err)
			}
			found.SlotFound.Confirmed++
			if other, ok := errors.AsType[*Refusal](HandedOver(found, c.former)); !ok || other.Token == ref.Token {
				t.Errorf("%s: another gap has the same token", c.what)
			}
		case c.says == "" && err != nil, c.says != "" && (refused || !fault.Retryable(err) || !strings.Contains(err.Error(), c.says)):
			t.Errorf("%s: %v", c.what, err)
		}
	}
}

func TestFormersAreTheRecordsOfTheSameRows(t *testing.T) {
	values := map[string][]byte{"shop.walpost_1_of_2/halt/12": []byte("no record")}
	keep := func(f Former, change func(*Record)) {
		change(f.Record)
		values[f.Record.Key()] = f.Record.Encode()
	}
	as := func(name string) func(*Record) { return func(r *Record) { r.Name = name } }
	all := recordsOf(at(1, 2, 0x4000, 0), at(2, 2, 0x4000, 0), at(0, 0, 0x4000, 0), at(2, 4, 0x4000, 0))
	for _, f := range all {
		keep(f, func(*Record) {})
	}
	keep(all[0], func(r *Record) { r.Epoch, r.LSN = r.Epoch+1, 0x5000 })
	keep(all[0], as("shop.walpost_x"))
	keep(all[0], as("shop.walpost_1_of_3")) // its slot is another one
	keep(all[1], func(r *Record) { r.Name, r.Slot, r.Database = "shop.walpost_1_of_5", "walpost_1_of_5", "other" })
	keep(all[0], func(r *Record) { r.Name, r.Slot, r.SystemID = "shop.walpost_1_of_6", "walpost_1_of_6", "999" })
	keep(all[2], func(r *Record) { r.Epoch, r.Slot, r.Poll, r.Published = r.Epoch+1, "", "cursor", nil })
	found := handover()
	former, err := Formers("shop.walpost_1_of_4", &found, values)
	var got []string
	for _, f := range former {
		got = append(got, f.Name+" "+f.Record.LSN.String())
	}
	if want := "shop.walpost 0/4000, shop.walpost_1_of_2 0/5000, shop.walpost_1_of_6 0/5000, shop.walpost_2_of_2 0/4000"; err != nil || strings.Join(got, ", ") != want {
		t.Errorf("%q %v, want %s", got, err, want)
	}
}

// A relay whose slot was not dropped would deliver everything again that the relays that replaced it have delivered.
func TestAReplacedRelayWaitsUntilItsSlotIsDropped(t *testing.T) {
	others := []cdc.ShardSlot{at(1, 2, 0x2001, 0), at(2, 2, 0x4800, 0)}
	behind := []cdc.ShardSlot{at(1, 2, 0x1FFF, 0), others[1]}
	later := func(former []Former) []Former {
		for _, f := range former {
			f.Record.Generation, f.Record.Time = 1, f.Record.Time.Add(-time.Hour) // by the clock, they came before
		}
		return former
	}
	older := func(after time.Duration, former []Former) []Former { // of a version without generations
		for _, f := range former {
			f.Record.Time = f.Record.Time.Add(after)
		}
		return former
	}
	again := []cdc.ShardSlot{at(1, 2, 0x9000, 0), at(2, 2, 0x9000, 0)}
	for _, c := range []struct {
		what   string
		slots  []cdc.ShardSlot
		former []Former
		says   string // of the wait; "" for none
	}{
		{"replaced", others, later(recordsOf(others...)), "SELECT pg_drop_replication_slot('walpost_1_of_4');"},
		{"a relay that has taken over, beside records beyond the slots of those before it", others, recordsOf(others...), ""},
		{"one of the others has taken over", others, with(later(recordsOf(others...)), func(r *Record) { r.Generation = 0 }), "SELECT pg_drop_replication_slot('walpost_1_of_4');"},
		{"one of the others has not begun", others, later(recordsOf(others[0])), "relay shop.walpost_1_of_2 took over from slot walpost_1_of_4, and the relay of slot walpost_2_of_2 has not delivered everything before 0/2000 yet"},
		{"one of the others is behind", behind, later(recordsOf(behind...)), "the relay of slot walpost_1_of_2 has not delivered"},
		{"the slots of the others are gone", nil, later(recordsOf(others...)), ""},
		{"one slot of the others is gone", others[:1], later(recordsOf(others...)), "Let the relays that took over run"},
		{"the others are of another server", others, with(later(recordsOf(others...)[:1]), func(r *Record) { r.SystemID = "999" }), ""},
		{"the change was undone, and is tried again", again, later(recordsOf(others...)), ""},
		{"the change was undone, and one of the others has begun again", again, with(later(recordsOf(behind...)), func(r *Record) { r.LSN = 0x9000 }), "relay shop.walpost_2_of_2 took over from slot walpost_1_of_4"},
		{"the slots of the others are made again", again, with(later(recordsOf(others...)), func(r *Record) { r.Copy = &Copy{Origin: OriginRecover} }), "relay shop.walpost_2_of_2 took over"},
		{"older records of replaced relays", others, older(time.Second, recordsOf(others...)), "SELECT pg_drop_replication_slot('walpost_1_of_4');"},
		{"older records, one before", others, with(older(time.Second, recordsOf(others...)), func(r *Record) { r.Time = r.Time.Add(-time.Minute) }), ""},
		{"older records, one behind", behind, older(time.Second, recordsOf(behind...)), ""},
		{"older records, one of the slots is gone", others[:1], older(time.Second, recordsOf(others...)), ""},
	} {
		rec, _ := judged()
		rec.Slot = "walpost_1_of_4"
		err := TakenOver(rec, handover(c.slots...), c.former)
		if (err != nil) != (c.says != "") || err != nil && (!fault.Retryable(err) || !strings.Contains(err.Error(), c.says)) {
			t.Errorf("%s: %v", c.what, err)
		}
	}
}

// The record of a slot that was dropped after a change of the number of shards is void when the number changes back. In every other
// case, a slot that is gone or ahead is a gap.
func TestARecordFromBeforeAnotherNumberOfShardsIsVoid(t *testing.T) {
	two := []cdc.ShardSlot{at(1, 2, 0x2000, 0), at(2, 2, 0x4800, 0)}
	behind := []cdc.ShardSlot{at(1, 2, 0x1FFF, 0), two[1]}
	for _, c := range []struct {
		what   string
		slots  []cdc.ShardSlot
		former []Former
		slot   cdc.SlotState
		void   bool
	}{
		{"dropped", two, recordsOf(two...), cdc.SlotState{}, true},
		{"dropped, and one of the others has no record", two, recordsOf(two[0]), cdc.SlotState{}, false},
		{"dropped, and the slot of one of the others is beyond its record", two, with(recordsOf(two...), func(r *Record) { r.LSN-- }), cdc.SlotState{}, false},
		{"made again", two, recordsOf(two...), cdc.SlotState{Exists: true, Confirmed: 0x4000}, true},
		{"as it was", two, recordsOf(two...), cdc.SlotState{Exists: true, Confirmed: 0x1F00}, false},
		{"dropped, and the others stopped before", behind, recordsOf(behind...), cdc.SlotState{}, false},
		{"dropped, and one of the others too", two[1:], recordsOf(two...), cdc.SlotState{}, false},
		{"dropped, beside peers", peers, recordsOf(peers...), cdc.SlotState{}, false},
		{"dropped alone", nil, nil, cdc.SlotState{}, false},
	} {
		rec, _ := judged()
		rec.Slot = "walpost_1_of_4"
		found := handover(c.slots...)
		found.SlotFound = c.slot
		if got := Superseded(rec, found, c.former); got != c.void {
			t.Errorf("%s: %t", c.what, got)
		}
		if rec.Copy = (&Copy{Origin: OriginRecover, Slot: true}); Superseded(rec, found, c.former) {
			t.Errorf("%s: an unfinished recover is void", c.what)
		}
		rec.Copy = nil
		if _, err := Judge(rec, found); (c.slot.Confirmed == 0x1F00) == errors.As(err, new(*Refusal)) {
			t.Errorf("%s: %v", c.what, err)
		}
	}
	if Superseded(nil, handover(two...), recordsOf(two...)) {
		t.Error("no record is void")
	}
}

// All shards of a number begin together. What one leaves out that begins later is a gap.
func TestAShardThatBeginsLateIsAGap(t *testing.T) {
	begun := func(generation uint64, began cdc.Position) []Former {
		peer := recordsOf(at(2, 4, 0x5000, 9))
		peer[0].Record.Generation, peer[0].Record.Began = generation, began
		return peer
	}
	older := recordsOf(at(1, 2, 0x4200, 0), at(2, 2, 0x4200, 0))
	for _, c := range []struct {
		what          string
		slots         []cdc.ShardSlot
		former, peers []Former
		says          string // of a wait
		gap           bool
	}{
		{what: "all slots exist", slots: peers},
		{what: "a slot is missing", slots: peers[:2], says: "slot walpost_1_of_4 waits for the other shards: slot walpost_4_of_4 does not exist yet. Start its relay"},
		{what: "a slot is missing, and the others have begun", slots: peers[:2], peers: begun(0, 0x4000)},
		{what: "the others began when the slot existed", slots: peers, peers: begun(0, 0x4000)},
		{what: "the others began before", slots: peers, peers: begun(0, 0x3FFF), gap: true},
		{what: "a record of an older version", slots: peers, peers: begun(0, 0)},
		{what: "the others began before, in the present generation", slots: peers, former: older, peers: begun(1, 0x3FFF), gap: true},
		{what: "the others ran long ago, with relays of another number since then", slots: peers, former: older, peers: begun(0, 0x300)},
		{what: "a change that was undone is tried again", slots: peers, former: older, peers: with(begun(1, 0x300), func(r *Record) { r.LSN = 0x310 })},
		{what: "a change that was undone is tried again, by this shard first", slots: peers[1:], former: older, peers: with(begun(1, 0x300), func(r *Record) { r.LSN = 0x310 }), says: "slot walpost_2_of_4 does not exist yet"},
		{what: "a change that was undone is tried again, and one has begun", slots: peers, former: older, peers: append(with(begun(1, 0x300), func(r *Record) { r.LSN = 0x310 }), with(begun(1, 0x3FFF), func(*Record) {})...), gap: true},
		{what: "the slot of one that has begun is made again", slots: peers, former: older, peers: with(begun(1, 0x3FFF), func(r *Record) { r.LSN, r.Copy = 0x310, &Copy{Origin: OriginRecover} }), gap: true},
	} {
		found := handover(c.slots...)
		err := Together(found, c.former, c.peers)
		ref, refused := errors.AsType[*Refusal](err)
		if c.gap {
			if !refused || ref.Reason != BeganLate || ref.From != 0x3FFF || ref.To != 0x4000 || !ref.KeepsSlot() || ref.NeedsSlot() || !strings.Contains(ref.Hint(), "walpost recover") ||
				!strings.Contains(err.Error(), "the other shards began at 0/3FFF (checkpoint shop.walpost_2_of_4/7)") || !strings.Contains(err.Error(), "events from 0/3FFF to 0/4000 may be missing") {
				t.Errorf("%s: %v", c.what, err)
				continue
			}
			if start, err := AcceptedStart(ref, found); err != nil || start != 0x4000 {
				t.Errorf("%s, accepted: %s %v", c.what, start, err)
			}
			continue
		}
		if c.says == "" && err != nil || c.says != "" && (refused || !fault.Retryable(err) || !strings.Contains(err.Error(), c.says)) {
			t.Errorf("%s: %v", c.what, err)
		}
	}
	one := handover()
	one.Shards = cdc.Shards{Base: one.Slot}
	if err := Together(one, nil, nil); err != nil {
		t.Errorf("a relay without shards: %v", err)
	}
}

// A relay that takes over has a higher generation than all relays before it, and a shard says where its number began.
func TestAFirstRecordOrdersTheRelays(t *testing.T) {
	older := recordsOf(at(1, 2, 0x4200, 0), at(2, 2, 0x4200, 0))
	older[1].Record.Generation = 3
	for _, c := range []struct {
		what       string
		found      cdc.Identity
		former     []Former
		generation uint64
		began      cdc.Position
	}{
		{"nobody before", handover(peers...), nil, 0, 0x9000},
		{"a slot that is newer than the look at the server", handover(at(2, 4, 0x9001, 0)), nil, 0, 0x9001},
		{"relays before", handover(peers...), older, 4, 0x9000},
		{"relays before without a record", handover(at(0, 0, 0x4100, 0)), nil, 1, 0x9000},
	} {
		c.found.Server = 0x9000
		rec, _ := judged()
		if rec.Begin(&c.found, c.former); rec.Generation != c.generation || rec.Began != c.began {
			t.Errorf("%s: generation %d, began at %s", c.what, rec.Generation, rec.Began)
		}
		next := *rec
		if next.Follow(rec, rec, false); next.Generation != c.generation || next.Began != c.began || next.Epoch != rec.Epoch+1 {
			t.Errorf("%s, the next epoch: %+v", c.what, next)
		}
	}
}
