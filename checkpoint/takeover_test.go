package checkpoint

import (
	"errors"
	"strings"
	"testing"

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
		{"one that runs and is behind", handover(append(peers, at(1, 2, 0x3900, 9), at(2, 2, 0x4200, 0))...), 0, "the relay of slot walpost_1_of_2 has confirmed 0/3900 of 0/4000"},
		{"one that stopped too early", handover(append(peers, at(1, 2, 0x3900, 0), at(2, 2, 0x4200, 0))...), 0, "the relay of slot walpost_1_of_2 stopped at 0/3900. Start it again until it has confirmed 0/4000"},
		{"a peer without a slot", handover(peers[0], peers[2], at(0, 0, 0x4100, 0)), 0, "slot walpost_3_of_4 does not exist yet"},
		{"a slot of the others that was dropped", handover(append(peers, at(2, 2, 0x4200, 0))...), 0, "slot walpost_2_of_2 exists, and slot walpost_1_of_2 does not"},
		{"a peer whose slot is beyond what the others delivered", handover(peers[0], peers[1], at(4, 4, 0x4400, 0), at(0, 0, 0x4100, 0)), 0, "slot walpost_4_of_4 is at 0/4400, and the others are at 0/4100"},
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

// The record of a slot that was dropped after a change of the number of shards is void when the number changes back. In every other
// case, a slot that is gone or ahead is a gap.
func TestARecordFromBeforeAnotherNumberOfShardsIsVoid(t *testing.T) {
	two := []cdc.ShardSlot{at(1, 2, 0x2000, 0), at(2, 2, 0x4800, 0)}
	running := []cdc.ShardSlot{at(1, 2, 0x2000, 8), at(2, 2, 0x4800, 9)}
	for _, c := range []struct {
		what  string
		slots []cdc.ShardSlot
		slot  cdc.SlotState
		void  bool
	}{
		{"dropped", running, cdc.SlotState{}, true},
		{"dropped, and nobody reads the others", two, cdc.SlotState{}, false},
		{"dropped, and nobody reads one of the others", []cdc.ShardSlot{running[0], two[1]}, cdc.SlotState{}, false},
		{"made again", two, cdc.SlotState{Exists: true, Confirmed: 0x4000}, true},
		{"as it was", two, cdc.SlotState{Exists: true, Confirmed: 0x1F00}, false},
		{"dropped, and the others stopped before", []cdc.ShardSlot{at(1, 2, 0x1FFF, 8), running[1]}, cdc.SlotState{}, false},
		{"dropped, and one of the others too", running[1:], cdc.SlotState{}, false},
		{"dropped, beside peers", peers, cdc.SlotState{}, false},
		{"dropped alone", nil, cdc.SlotState{}, false},
	} {
		rec, _ := judged()
		rec.Slot = "walpost_1_of_4"
		found := handover(c.slots...)
		found.SlotFound = c.slot
		if got := Superseded(rec, found); got != c.void {
			t.Errorf("%s: %t", c.what, got)
		}
		for i := range found.Shards.Slots {
			found.Shards.Slots[i].ActivePID = 0 // beside relays that run, it waits
		}
		if _, err := Judge(rec, found); (c.slot.Confirmed == 0x1F00) == errors.As(err, new(*Refusal)) {
			t.Errorf("%s: %v", c.what, err)
		}
	}
	if Superseded(nil, handover(two...)) {
		t.Error("no record is void")
	}
}
