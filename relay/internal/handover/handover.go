// Package handover says whether a relay may take over the rows of relays with another number of shards:
// whether their checkpoint records say that they have delivered what comes before, and whether they
// still have parked keys. The relay does not know these keys, and would deliver their later events
// first.
package handover

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/checkpoint"
	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/internal/parking"
	"github.com/walpost/walpost/relay/internal/records"
)

// A Held says that a relay has parked keys, so no other relay may deliver its rows.
type Held struct {
	Slot    string // of the relay that waits
	Relay   string // the name of the relay that has parked keys
	Shard   cdc.Shard
	Counts  parking.Counts
	Dropped bool // the relay's slot is gone
}

func (h *Held) Error() string {
	run := "Let that relay run"
	if h.Dropped {
		run = "The slot of that relay is gone: create it again with walpost recover " + checkpoint.ShardFlag(h.Shard) + ". Let that relay run"
	}
	return fmt.Sprintf("slot %s waits to take over: relay %s has %d parked keys with %d events. "+
		"%s, and release them with \"walpost dead retry\" or give them up with \"walpost dead drop\" (\"walpost dead list\" shows them)",
		h.Slot, h.Relay, h.Counts.Keys, h.Counts.Events, run)
}

// Others are the relays with other numbers of shards, as one relay sees them. It must be used by one
// goroutine at a time.
type Others struct {
	Name string // of the relay that takes over
	// Records returns what the store has of the relays whose names differ from Name in the suffix of
	// the shard, which is own in Name. nil is for a store that no other relay uses.
	Records func(ctx context.Context, own cdc.Shard) (map[string][]byte, error)
	Lot

	made bool                // this process made the slot
	seen []checkpoint.Former // as of the newest Judge
}

// Made reports whether this process made the slot that was judged.
func (o *Others) Made() bool { return o.made }

// Judge is checkpoint.Judge. It also asks the records of the others, and for their parked keys.
func (o *Others) Judge(ctx context.Context, rec *checkpoint.Record, found cdc.Identity) (cdc.Position, error) {
	o.made = o.made || found.SlotFound.Created
	if err := o.known(ctx, &found); err != nil {
		return 0, err
	}
	start, err := checkpoint.Judge(rec, found)
	if err != nil && !fault.Retryable(err) || rec != nil && (err != nil || len(found.Shards.Others()) == 0) {
		return start, err
	}
	former, peers, unread := o.read(ctx, &found)
	o.seen = former
	switch {
	case unread != nil:
		return 0, unread
	case rec != nil:
		return start, checkpoint.TakenOver(rec, found, former)
	}
	gap := checkpoint.HandedOver(found, former)
	if fault.Retryable(gap) {
		return 0, gap
	}
	// Before the gap, because nobody asks for parked keys once it is closed.
	if before := overlapping(&found, former); len(before) > 0 && o.Read != nil {
		if err := o.Check(ctx, o.Name, &found, before); err != nil {
			return 0, err
		}
	}
	if gap == nil && err == nil {
		gap = checkpoint.Together(found, former, peers)
	}
	if gap != nil {
		return 0, gap
	}
	return start, err
}

// Begin sets what rec says of the others, if rec is the first record of a relay. It does so too if others have delivered
// since the relay began. begins reports whether it did.
func (o *Others) Begin(ctx context.Context, rec *checkpoint.Record, found cdc.Identity, first bool) (begins bool, err error) {
	if err := o.known(ctx, &found); err != nil || found.Poll != "" {
		return first, err
	}
	former, err := o.former(ctx, &found)
	since := func(f checkpoint.Former) bool { return f.Record.Generation >= rec.Generation }
	if err != nil || !first && !slices.ContainsFunc(former, since) {
		return false, err
	}
	rec.Begin(&found, former)
	return true, nil
}

// Fenced looks once more at the records of the others, when rec is durable. A relay sends nothing before
// that, and rec is its fence: of two relays with different numbers of shards that start at the same moment, at least one
// sees the record of the other one. Their slots do not tell that, because a session can end unnoticed. begins says that
// rec takes over.
func (o *Others) Fenced(ctx context.Context, rec *checkpoint.Record, found cdc.Identity, begins bool) error {
	if err := o.known(ctx, &found); err != nil || len(found.Shards.Others()) == 0 {
		return err
	}
	before := o.seen
	former, _, err := o.read(ctx, &found)
	if err != nil {
		return err
	}
	if err := checkpoint.TakenOver(rec, found, former); err != nil || !begins {
		return err
	}
	for i := range former {
		f := &former[i]
		same := func(b checkpoint.Former) bool {
			return b.Shard == f.Shard && b.Record.HolderKey() == f.Record.HolderKey()
		}
		if f.Record.Generation < rec.Generation && !slices.ContainsFunc(before, same) {
			return &checkpoint.Waiting{Err: fmt.Errorf("slot %s waits to take over: relay %s has started again. Stop that relay", found.Slot, f.Name)}
		}
	}
	return nil
}

// overlapping are the relays with other numbers of shards: those that have slots, and those that have only records.
func overlapping(found *cdc.Identity, former []checkpoint.Former) (all []cdc.Shard) {
	for _, other := range found.Shards.Others() {
		all = append(all, other.Shard)
	}
	for _, f := range former {
		if !slices.Contains(all, f.Shard) {
			all = append(all, f.Shard)
		}
	}
	return all
}

// Base returns the record to judge the source by: rec, or nil if rec is superseded. makes says that the
// relay has to make its slot, which create allows. The error says that the relays of the other slots can
// hand nothing over. If the slot existed, nobody would ask what becomes of the rows from before it.
func (o *Others) Base(ctx context.Context, rec *checkpoint.Record, found cdc.Identity, create bool) (base *checkpoint.Record, makes bool, err error) {
	if found.Poll != "" && rec == nil {
		if err := o.sharded(ctx, &found); err != nil {
			return nil, false, err
		}
	}
	if err := o.known(ctx, &found); err != nil {
		return nil, false, err
	}
	makes = create && rec == nil && !found.SlotFound.Exists
	if len(found.Shards.Others()) == 0 || rec == nil && !makes {
		return rec, makes, nil
	}
	former, err := o.former(ctx, &found)
	if err != nil || rec != nil && !checkpoint.Superseded(rec, found, former) {
		return rec, false, err
	}
	if makes = create && !found.SlotFound.Exists; makes {
		err = checkpoint.HandedOver(found, former)
	}
	return nil, makes, err
}

// known adds to the slots of the others those of relays that have a record, whatever the name of their publication is.
func (o *Others) known(ctx context.Context, found *cdc.Identity) error {
	if len(found.Shards.Unknown) == 0 {
		return nil
	}
	former, err := o.former(ctx, found)
	for _, slot := range found.Shards.Unknown {
		if slices.ContainsFunc(former, func(f checkpoint.Former) bool { return f.Shard == slot.Shard && f.Reads(found) }) {
			found.Shards.Slots = append(slices.Clip(found.Shards.Slots), slot)
		}
	}
	return err
}

// sharded returns an error if shards delivered the rows of a relay that polls and has no record. It would
// begin behind the rows that are there, whatever the shards have delivered.
func (o *Others) sharded(ctx context.Context, found *cdc.Identity) error {
	former, err := o.former(ctx, found)
	if err != nil || len(former) == 0 {
		return err
	}
	return fault.Config(fmt.Errorf("there is no checkpoint of %s, but checkpoint %s belongs to a relay that reads one shard of the same rows", o.Name, former[0].Record.Key()),
		"If source.kind has changed: change it back, and first let one relay without source.shard take over from the shards (docs/sharding.md). Then change source.kind and run "+
			fault.Command("recover")+". If this is another relay, give it another name.")
}

// Before reports whether the store knows relays with other numbers of shards. Then Judge decides about a first start,
// also if their slots are gone.
func (o *Others) Before(ctx context.Context, found *cdc.Identity) (bool, error) {
	former, err := o.former(ctx, found)
	return len(former) > 0, err
}

func (o *Others) former(ctx context.Context, found *cdc.Identity) ([]checkpoint.Former, error) {
	former, _, err := o.read(ctx, found)
	return former, err
}

// read reads the records of the relays with another number of shards, and of those with the same number.
func (o *Others) read(ctx context.Context, found *cdc.Identity) (former, peers []checkpoint.Former, err error) {
	if o.Records == nil {
		return nil, nil, nil
	}
	values, err := o.Records(ctx, found.Shards.Own)
	if err != nil {
		return nil, nil, records.Waitable(fmt.Errorf("read the checkpoints of the relays with another number of shards: %w", err))
	}
	if former, err = checkpoint.Formers(o.Name, found, values); err == nil {
		peers, err = checkpoint.Peers(o.Name, found, values)
	}
	return former, peers, err
}

// A Lot reads the topic of parked events from where the former Check ended. It must be used by one
// goroutine at a time.
type Lot struct {
	Read func(ctx context.Context, from int64, each func(*kgo.Record) bool) (next int64, err error)

	lots map[string]*parking.Lot // by the name of a relay
	next int64
}

// Own returns an error if the relay of a name has parked keys: see parking.None.
func (l *Lot) Own(ctx context.Context, name string) error {
	if l.Read == nil {
		return nil
	}
	return parking.None(ctx, l.Read, name)
}

// Check returns a *checkpoint.Waiting for a *Held if one of the others has parked keys. name is the name of
// the relay that takes over. The others have the same name but for the suffix of the shard.
func (l *Lot) Check(ctx context.Context, name string, found *cdc.Identity, others []cdc.Shard) error {
	base := strings.TrimSuffix(name, found.Shards.Own.Suffix())
	for _, other := range others {
		if l.lots[base+other.Suffix()] == nil { // the lots lack what was read before
			l.lots, l.next = map[string]*parking.Lot{}, 0
			for _, other := range others {
				l.lots[base+other.Suffix()] = parking.New(base+other.Suffix(), false)
			}
			break
		}
	}
	next, err := l.Read(ctx, l.next, func(rec *kgo.Record) bool {
		it := parking.Read(rec)
		for _, lot := range l.lots {
			lot.Add(it)
		}
		return ctx.Err() == nil
	})
	if l.next = next; err != nil {
		l.lots = nil // the topic may have been made again
		return fault.Retry(fmt.Errorf("slot %s waits to take over: read the topic of parked events: %w", found.Slot, err))
	}
	for _, other := range others {
		if c := l.lots[base+other.Suffix()].Counts(); c.Events > 0 {
			return &checkpoint.Waiting{Err: &Held{Slot: found.Slot, Relay: base + other.Suffix(), Shard: other, Counts: c, Dropped: found.Shards.Find(other) == nil}}
		}
	}
	return nil
}
