package handover

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/checkpoint"
	"github.com/walpost/walpost/internal/deadletter"
	"github.com/walpost/walpost/internal/fault"
)

type topic struct {
	t    *testing.T
	recs []*kgo.Record
	err  error
	read int // records, over all calls
}

func (p *topic) add(rec *cdc.Record, err error) {
	if err != nil {
		p.t.Fatal(err)
	}
	r := &kgo.Record{Key: rec.Key, Value: rec.Value, Offset: int64(len(p.recs))}
	for _, h := range rec.Headers {
		r.Headers = append(r.Headers, kgo.RecordHeader{Key: h.Key, Value: h.Value})
	}
	p.recs = append(p.recs, r)
}

func (p *topic) Read(_ context.Context, from int64, each func(*kgo.Record) bool) (int64, error) {
	if p.err != nil {
		return from, p.err
	}
	for _, r := range p.recs[from:] {
		p.read++
		each(r)
	}
	return int64(len(p.recs)), nil
}

// letter and mark are of one relay, whose first process opens the topic.
func (p *topic) letter(name, key string) {
	l := &deadletter.Letter{
		Token: key + name, Reason: cdc.Unroutable, Table: "public.outbox", Commit: 5, Row: 1, CommitTime: time.Unix(9, 0), Name: name, SystemID: "7",
		Writer: deadletter.Writer{Epoch: 1, Holder: "h"}, Key: []byte(key), KeyKnown: true, Record: &cdc.Record{Value: []byte("v")},
	}
	p.add(l.Encode("parked"))
}

func (p *topic) mark(name, key string, state deadletter.State) {
	m := &deadletter.Mark{Token: key + name, State: state, Name: name, Table: "public.outbox", Time: time.Unix(9, 0), Writer: deadletter.Writer{Epoch: 1, Holder: "h"}}
	p.add(m.Encode("parked", []byte(key), 0), nil)
}

func TestARelayWaitsForTheKeysOfOthersOnly(t *testing.T) {
	p := &topic{t: t}
	lot := Lot{Read: p.Read}
	own := cdc.Shard{Index: 1, Of: 4}
	found := &cdc.Identity{Slot: "s_1_of_4", Shards: cdc.Shards{Own: own, Base: "s", Slots: []cdc.ShardSlot{
		{Shard: cdc.Shard{Index: 2, Of: 4}}, {Shard: cdc.Shard{Index: 1, Of: 2}}, {Shard: cdc.Shard{Index: 2, Of: 2}}, {Shard: cdc.Shard{}},
	}}}
	check := func() error { return lot.Check(t.Context(), "shop.s_1_of_4", found, overlapping(found, nil)) }
	held := func(relay string, keys, events int) {
		t.Helper()
		h := new(Held)
		if err := check(); !errors.As(err, &h) || h.Relay != relay || h.Counts.Keys != keys || h.Counts.Events != events || !fault.Retryable(err) {
			t.Errorf("%v, want %s with %d keys and %d events", err, relay, keys, events)
		}
	}
	free := func() {
		t.Helper()
		if err := check(); err != nil {
			t.Error(err)
		}
	}
	free()
	for _, name := range []string{"shop.s_1_of_4", "shop.s_2_of_4", "other.s_1_of_2", "shop.s_1_of_2", "shop.s"} {
		p.mark(name, "", deadletter.Opened)
	}
	for _, name := range []string{"shop.s_1_of_4", "shop.s_2_of_4", "other.s_1_of_2"} {
		p.letter(name, "k")
	}
	free()
	p.letter("shop.s_1_of_2", "a")
	p.letter("shop.s_1_of_2", "b")
	held("shop.s_1_of_2", 2, 2)
	p.mark("shop.s_1_of_2", "a", deadletter.Released)
	held("shop.s_1_of_2", 1, 1)
	p.mark("shop.s_1_of_2", "b", deadletter.Dropped)
	free()
	p.letter("shop.s", "k")
	held("shop.s", 1, 1)
	if p.read != len(p.recs) {
		t.Errorf("%d records were read of a topic of %d", p.read, len(p.recs))
	}

	// Another relay appears, and the topic cannot be read.
	found.Shards.Slots = append(found.Shards.Slots, cdc.ShardSlot{Shard: cdc.Shard{Index: 1, Of: 3}})
	held("shop.s", 1, 1)
	p.err = errors.New("gone")
	if err := check(); !errors.Is(err, p.err) || !fault.Retryable(err) {
		t.Error(err)
	}
	p.err, p.recs = nil, nil // made again
	free()
}

// four is shard 1/4 of four that have slots at 0/4000, beside relays of two shards with records at a position.
func four(p *topic, delivered cdc.Position, slots bool) (*Others, cdc.Identity) {
	found := cdc.Identity{
		SystemID: "7", Timeline: 1, Database: "shop", Slot: "s_1_of_4", Server: 0x9000,
		SlotFound: cdc.SlotState{Exists: true, Confirmed: 0x4000, WALStatus: "reserved"},
		Shards:    cdc.Shards{Own: cdc.Shard{Index: 1, Of: 4}, Base: "s"},
	}
	for i := 2; i <= 4; i++ {
		found.Shards.Slots = append(found.Shards.Slots, cdc.ShardSlot{Shard: cdc.Shard{Index: i, Of: 4}, Confirmed: 0x4000})
	}
	values := map[string][]byte{}
	for _, shard := range (cdc.Shard{Of: 2}).All() {
		slot := "s" + shard.Suffix()
		if slots {
			found.Shards.Slots = append(found.Shards.Slots, cdc.ShardSlot{Shard: shard, Slot: slot, Confirmed: delivered})
		}
		r := &checkpoint.Record{Name: "shop." + slot, Epoch: 1, SystemID: "7", Timeline: 1, Slot: slot, Database: "shop", LSN: delivered, Holder: "h", Time: time.Unix(9, 0)}
		values[r.Key()] = r.Encode()
	}
	read := func(context.Context, cdc.Shard) (map[string][]byte, error) { return values, nil }
	return &Others{Name: "shop.s_1_of_4", Records: read, Lot: Lot{Read: p.Read}}, found
}

// A parked event counts as delivered, so the records alone would let another relay deliver later events of its key first.
func TestParkedKeysHoldAfterTheirSlotIsDropped(t *testing.T) {
	for _, c := range []struct {
		delivered cdc.Position
		slots     bool
		says      string
	}{
		{0x5000, true, "Let that relay run"},
		{0x5000, false, "create it again with walpost recover --shard 1/2"},
		{0x3000, false, "create it again with walpost recover --shard 1/2"}, // there is a gap, too
	} {
		p := &topic{t: t}
		o, found := four(p, c.delivered, c.slots)
		p.mark("shop.s_1_of_2", "", deadletter.Opened)
		p.letter("shop.s_1_of_2", "a")
		if _, err := o.Judge(t.Context(), nil, found); !errors.As(err, new(*Held)) || !fault.Retryable(err) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%+v: %v", c, err)
		}
		p.mark("shop.s_1_of_2", "a", deadletter.Dropped)
		if _, err := o.Judge(t.Context(), nil, found); errors.As(err, new(*checkpoint.Refusal)) != (c.delivered < 0x4000) || errors.As(err, new(*Held)) {
			t.Errorf("%+v, dropped: %v", c, err)
		}
	}
}

// A relay that polls begins behind the rows that are there.
func TestARelayThatPollsDoesNotBeginWhereShardsWere(t *testing.T) {
	o, found := four(&topic{t: t}, 0x3000, false)
	found.Slot, found.Poll, found.SlotFound, found.Shards = "", "cursor", cdc.SlotState{}, cdc.Shards{}
	o.Name = "shop.s"
	_, _, err := o.Base(t.Context(), nil, found, true)
	if !fault.Misconfigured(err) || !strings.Contains(err.Error(), "no checkpoint of shop.s, but checkpoint shop.s_1_of_2/1 belongs to a relay that reads one shard") {
		t.Error(err)
	}
	if base, makes, err := o.Base(t.Context(), &checkpoint.Record{}, found, true); base == nil || makes || err != nil {
		t.Error(base, makes, err)
	}
	o.Name = "shop.other"
	if _, makes, err := o.Base(t.Context(), nil, found, true); !makes || err != nil {
		t.Error(makes, err)
	}
}

// The name of a publication can change together with the number of shards. Then the records tell whose slots they are.
func TestAnOldSlotIsKnownByItsRecord(t *testing.T) {
	o, found := four(&topic{t: t}, 0x5000, true)
	all := found.Shards.Slots
	found.Shards.Slots, found.Shards.Unknown = all[:3], slices.Clone(all[3:])
	if start, err := o.Judge(t.Context(), nil, found); err != nil || start != 0x5000 {
		t.Error(start, err)
	}
	found.Shards.Unknown[1].ActivePID = 9
	for _, rec := range []*checkpoint.Record{nil, {Name: o.Name, SystemID: "7", Timeline: 1, Database: "shop", Slot: found.Slot, LSN: 0x6000}} {
		if _, err := o.Judge(t.Context(), rec, found); !fault.Retryable(err) || !strings.Contains(err.Error(), "Stop that relay") {
			t.Error(err)
		}
	}
	found.Shards.Unknown[1].Shard.Of = 3 // nobody has a record of it
	if _, err := o.Judge(t.Context(), nil, found); err == nil || strings.Contains(err.Error(), "Stop that relay") {
		t.Error(err)
	}
}

// The relay before lost its session without notice. It may start again while another relay takes over, and neither sees
// the other one's slot in use. At least one of them sees the record of the other one before it sends anything.
func TestTwoNumbersOfShardsNeverBeginTogether(t *testing.T) {
	o, found := four(&topic{t: t}, 0x5000, true)
	values, err := o.Records(t.Context(), found.Shards.Own)
	if err != nil {
		t.Fatal(err)
	}
	start, err := o.Judge(t.Context(), nil, found)
	if err != nil {
		t.Fatal(err)
	}
	fence := &checkpoint.Record{Name: o.Name, Epoch: 1, SystemID: "7", Timeline: 1, Slot: found.Slot, Database: "shop", LSN: start, Holder: "n", Time: time.Unix(9, 0)}
	if begins, err := o.Begin(t.Context(), fence, found, true); err != nil || !begins || fence.Generation != 1 || fence.Began != 0x9000 {
		t.Fatalf("%+v %v", fence, err)
	}
	if begins, err := o.Begin(t.Context(), fence, found, false); err != nil || begins || fence.Generation != 1 {
		t.Fatalf("nobody has delivered since: %+v %v", fence, err)
	}
	if err := o.Fenced(t.Context(), fence, found, true); err != nil {
		t.Errorf("nobody else has started: %v", err)
	}
	old, err := checkpoint.Decode("shop.s_1_of_2/1", values["shop.s_1_of_2/1"])
	if err != nil {
		t.Fatal(err)
	}
	again := *old
	again.Epoch, again.Holder = 2, "again"
	values[again.HolderKey()] = again.Encode() // after the judgement, and before the fence
	if err := o.Fenced(t.Context(), fence, found, true); !fault.Retryable(err) || !strings.Contains(err.Error(), "relay shop.s_1_of_2 has started again. Stop that relay") {
		t.Errorf("the other relay has started: %v", err)
	}
	if err := o.Fenced(t.Context(), fence, found, false); err != nil {
		t.Errorf("a later start: %v", err)
	}

	// The other relay looks once more, too, when its record is durable.
	values[fence.HolderKey()] = fence.Encode()
	of := &Others{Name: "shop.s_1_of_2", Records: o.Records}
	its := found
	its.Slot, its.SlotFound.Confirmed = "s_1_of_2", 0x5000
	its.Shards = cdc.Shards{Own: cdc.Shard{Index: 1, Of: 2}, Base: "s", Slots: append(slices.Clone(found.Shards.Slots[:3]), cdc.ShardSlot{Shard: found.Shards.Own, Slot: found.Slot, Confirmed: 0x4000}, found.Shards.Slots[4])}
	if err := of.Fenced(t.Context(), &again, its, false); !fault.Retryable(err) || !strings.Contains(err.Error(), "took over") {
		t.Errorf("the relay before sees no fence: %v", err)
	}
	if _, err := of.Judge(t.Context(), &again, its); !fault.Retryable(err) || !strings.Contains(err.Error(), "took over") {
		t.Errorf("the next start of the relay before: %v", err)
	}
}
