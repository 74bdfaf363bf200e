package doctor

import (
	"strings"
	"testing"

	"github.com/walpost/walpost/cdc"
	ipg "github.com/walpost/walpost/internal/pg"
	"github.com/walpost/walpost/replication"
)

func TestCheckNamesEachShardThatNobodyDelivers(t *testing.T) {
	one := cdc.Shard{Index: 1, Of: 3}
	at := func(index, of int, pid int32) cdc.ShardSlot {
		s := cdc.Shard{Index: index, Of: of}
		return cdc.ShardSlot{Shard: s, Slot: "walpost" + s.Suffix(), Confirmed: 1, ActivePID: pid}
	}
	unpublished := func(s cdc.ShardSlot) cdc.ShardSlot {
		s.Unpublished = "old" + s.Suffix()
		return s
	}
	for _, c := range []struct {
		what  string
		own   cdc.Shard
		begun bool
		slots []cdc.ShardSlot
		want  []string // what each warning says

		unknown []cdc.ShardSlot
	}{
		{"a relay of all rows", cdc.Shard{}, true, nil, nil, nil},
		{"the first start of the first shard", one, false, nil, nil, nil},
		{"all are read", one, true, []cdc.ShardSlot{at(2, 3, 8), at(3, 3, 9)}, nil, nil},
		{
			"one is missing, and nobody reads the other", one, true,
			[]cdc.ShardSlot{at(2, 3, 0)},
			[]string{"nobody reads slot walpost_2_of_3: no relay delivers shard 2/3", "slot walpost_3_of_3 does not exist: no relay delivers shard 3/3"},
			nil,
		},
		{
			"the number was changed", one, true,
			[]cdc.ShardSlot{at(0, 0, 7), at(2, 3, 8), at(3, 3, 9)},
			[]string{"slot walpost belongs to a relay that delivers all rows"},
			nil,
		},
		{
			"a relay of all rows beside shards",
			cdc.Shard{},
			true,
			[]cdc.ShardSlot{at(2, 3, 8)},
			[]string{"slot walpost_2_of_3 belongs to one of the relays of a setup with 3 shards"},
			nil,
		},
		{
			"slots without a publication, and one of other tables",
			cdc.Shard{},
			true, nil,
			[]string{
				"slot walpost_1_of_2 has the name of a relay for a part of these rows, but its publication old_1_of_2 does not exist, and nobody reads it",
				"publication old_2_of_2 does not exist, and server process 8 reads it",
			},
			[]cdc.ShardSlot{unpublished(at(1, 2, 0)), at(1, 4, 9), unpublished(at(2, 2, 8))},
		},
	} {
		x := &examination{cfg: &replication.Config{Shard: c.own}, f: &ipg.Facts{Shards: cdc.Shards{Own: c.own, Base: "walpost", Slots: c.slots}}}
		x.f.Shards.Unknown = c.unknown
		if c.begun {
			x.f.Slot = &ipg.Slot{}
		}
		x.shards()
		for i, found := range x.found {
			if i >= len(c.want) || found.Verdict != Warn || !strings.Contains(found.Why, c.want[i]) || found.FixText() == "" ||
				c.unknown == nil && strings.Contains(found.FixText(), "pg_drop_replication_slot") != strings.HasPrefix(found.FixText(), "If this relay has the old number of shards, leave the slot.") {
				t.Errorf("%s: %+v", c.what, found)
			}
		}
		if len(x.found) != len(c.want) {
			t.Errorf("%s: %d findings, want %d", c.what, len(x.found), len(c.want))
		}
	}
}
