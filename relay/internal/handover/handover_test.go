package handover

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/walpost/walpost/cdc"
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
	check := func() error { return lot.Check(t.Context(), "shop.s_1_of_4", found) }
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
