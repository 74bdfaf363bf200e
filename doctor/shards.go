package doctor

import (
	"fmt"

	"github.com/walpost/walpost/internal/fix"
	"github.com/walpost/walpost/internal/pg"
)

// shards is about the other relays that share out the rows of the tables: rows that no relay delivers, and slots that are left
// over from another number of shards. What the own publication has is a precondition (replication.Config.Unmet).
func (x *examination) shards() {
	const name = "other shards"
	all, own := &x.f.Shards, x.cfg.Shard
	others := all.Others()
	for _, other := range others {
		what := "the relays of " + fmt.Sprint(max(other.Of, 1)) + " shards"
		if other.Of == 0 {
			what = "a relay of all rows"
		}
		x.add(Warn, name, fix.Fix{
			fix.Words("Once its relay is stopped, and each relay of the new number of shards has taken over (walpost status shows it as streaming):"),
			fix.SQL("SELECT pg_drop_replication_slot(" + pg.QuoteLiteral(other.Slot) + ");"),
		}, "slot %s is of %s, which deliver the same rows. Only one number of shards may run, and a slot that nobody reads holds WAL", other.Slot, what)
	}
	if own.Of == 0 || len(others) == 0 && x.f.Slot == nil { // none of them has begun
		return
	}
	for _, shard := range own.All() {
		if shard != own && all.Find(shard) == nil {
			x.add(Warn, name, fix.ByWords("Start its relay, with --shard "+shard.String()+"."),
				"slot %s does not exist: no relay delivers shard %s of the rows", all.Base+shard.Suffix(), shard)
		}
	}
}
