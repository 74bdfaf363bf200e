package doctor

import (
	"fmt"

	"github.com/walpost/walpost/internal/fix"
	"github.com/walpost/walpost/internal/pg"
)

// OtherShards is the name of the findings about slots of other shards.
const OtherShards = "other shards"

// shards is about the other relays that share out the rows of the tables: rows that no relay delivers, and slots that are left
// over from another number of shards. What the own publication has is a precondition (replication.Config.Unmet).
func (x *examination) shards() {
	const name = OtherShards
	all, own := &x.f.Shards, x.cfg.Shard
	others := all.Others()
	for _, other := range others {
		what := fmt.Sprintf("one of the relays of a setup with %d shards, which deliver the same rows as this relay", other.Of)
		if other.Of == 0 {
			what = "a relay that delivers all rows, including the rows of this relay"
		}
		x.add(Warn, name, fix.Fix{
			fix.Words("If this relay has the old number of shards, leave the slot. If this relay has the new number of shards, wait until walpost status shows \"Stop that relay\" for each relay with the new number. Then stop the relay of slot " + other.Slot + ". When each relay with the new number of shards is streaming, run:"),
			fix.SQL("SELECT pg_drop_replication_slot(" + pg.QuoteLiteral(other.Slot) + ");"),
		}, "slot %s belongs to %s. Only relays with the same number of shards may run, and a slot that nobody reads holds WAL", other.Slot, what)
	}
	for _, other := range all.Unknown {
		if other.Unpublished == "" { // it is of other tables
			continue
		}
		use := "nobody reads it, so it holds WAL"
		if other.ActivePID != 0 {
			use = fmt.Sprintf("server process %d reads it", other.ActivePID)
		}
		x.add(Warn, name, fix.Fix{
			fix.Words("Find out which relay the slot belongs to. If it delivers rows of these tables with another source.publication, only relays with the same number of shards may run (docs/sharding.md). If nobody needs the slot, run:"),
			fix.SQL("SELECT pg_drop_replication_slot(" + pg.QuoteLiteral(other.Slot) + ");"),
		}, "slot %s has the name of a relay for a part of these rows, but its publication %s does not exist, and %s", other.Slot, other.Unpublished, use)
	}
	if own.Of == 0 || len(others) == 0 && x.f.Slot == nil { // none of them has begun
		return
	}
	for _, peer := range all.Peers() {
		what := ""
		switch {
		case peer.Confirmed == 0:
			what = "slot %s does not exist: no relay delivers shard %s of the rows"
		case peer.ActivePID == 0:
			what = "nobody reads slot %s: no relay delivers shard %s of the rows, and the slot holds WAL"
		default:
			continue
		}
		x.add(Warn, name, fix.ByWords("Start its relay, with --shard "+peer.String()+"."), what, peer.Slot, peer.Shard)
	}
}
