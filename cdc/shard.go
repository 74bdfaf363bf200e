package cdc

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// A Shard says that a relay delivers only a part of the rows: those whose key has one of Of
// remainders. The zero Shard has all rows. The other relays have the other values of Index.
type Shard struct {
	Index int // from 1 to Of
	Of    int // 0 for all rows
}

// MostShards bounds Of. Each shard costs the server a walsender that decodes all WAL.
const MostShards = 64

var shardSuffix = regexp.MustCompile(`^_([0-9]+)_of_([0-9]+)$`)

// UnmarshalText reads what String returns, such as 2/4.
func (s *Shard) UnmarshalText(text []byte) error {
	*s = Shard{}
	if len(text) == 0 {
		return nil
	}
	index, of, ok := strings.Cut(string(text), "/")
	read, ok2 := shard(index, of)
	if !ok || !ok2 {
		return fmt.Errorf("must be a shard such as 2/4 (the second of four shards), with at most %d shards (got %q)", MostShards, text)
	}
	*s = read
	return nil
}

func shard(index, of string) (Shard, bool) {
	i, err1 := strconv.Atoi(index)
	n, err2 := strconv.Atoi(of)
	s := Shard{Index: i, Of: n}
	return s, err1 == nil && err2 == nil && s.valid()
}

func (s Shard) valid() bool {
	return s.Of >= 2 && s.Of <= MostShards && s.Index >= 1 && s.Index <= s.Of
}

// String returns 2/4, and "" for all rows.
func (s Shard) String() string {
	if s.Of == 0 {
		return ""
	}
	return fmt.Sprintf("%d/%d", s.Index, s.Of)
}

// Suffix is what the names of the shard's slot, publication and checkpoint end in: _2_of_4, and ""
// for all rows.
func (s Shard) Suffix() string {
	if s.Of == 0 {
		return ""
	}
	return fmt.Sprintf("_%d_of_%d", s.Index, s.Of)
}

// ShardOfSuffix reads what Suffix returns.
func ShardOfSuffix(suffix string) (Shard, bool) {
	if suffix == "" {
		return Shard{}, true
	}
	found := shardSuffix.FindStringSubmatch(suffix)
	if found == nil {
		return Shard{}, false
	}
	s, ok := shard(found[1], found[2])
	return s, ok && s.Suffix() == suffix
}

// ShardOfSlot is the shard whose relay reads a slot of that name.
func ShardOfSlot(slot string) Shard {
	_, s := CutShard(slot)
	return s
}

// CutShard takes the suffix of the shard off the name of a slot or of a relay. The shard is zero if
// the name has no such suffix.
func CutShard(name string) (base string, s Shard) {
	for i := range name {
		if s, ok := ShardOfSuffix(name[i:]); ok {
			return name[:i], s
		}
	}
	return name, Shard{}
}

// All returns all shards of the same number, s included.
func (s Shard) All() []Shard {
	if s.Of == 0 {
		return []Shard{s}
	}
	all := make([]Shard, s.Of)
	for i := range all {
		all[i] = Shard{Index: i + 1, Of: s.Of}
	}
	return all
}

// Shards are the slots of the relays that share out the rows of the same tables.
type Shards struct {
	Own  Shard
	Base string // Own's slot without the suffix
	// Slots are the slots of other relays of the same tables, of Own.Of and of other numbers of shards.
	Slots []ShardSlot
	// Unknown are slots with the name of a shard, where the publication of that name has none of the tables. The
	// slot can be of other rows, or the publication has got another name.
	Unknown []ShardSlot
}

// A ShardSlot is the slot of another relay.
type ShardSlot struct {
	Shard
	Slot      string
	Confirmed Position
	ActivePID int32 // 0 if nobody reads the slot
	// Unpublished is, for one of Shards.Unknown, the name of a publication that does not exist: its relay would read that
	// one. "" if that publication exists, so that it is of other tables.
	Unpublished string
}

// Others are the slots of other numbers of shards. Their relays deliver the same keys.
func (s *Shards) Others() (others []ShardSlot) {
	for _, slot := range s.Slots {
		if slot.Of != s.Own.Of {
			others = append(others, slot)
		}
	}
	return others
}

// Delivered reports whether all slots of another number of shards exist. Then their relays deliver the
// rows from before a slot that is made now. A single slot is left over from something else.
func (s *Shards) Delivered() bool {
	return slices.ContainsFunc(s.Others(), func(other ShardSlot) bool { return s.Missing(other.Shard) == "" })
}

// Find returns the slot of a shard, or nil.
func (s *Shards) Find(shard Shard) *ShardSlot {
	for i := range s.Slots {
		if s.Slots[i].Shard == shard {
			return &s.Slots[i]
		}
	}
	return nil
}

// Peers are the other shards of the relay's own number. One whose slot does not exist has only the
// name that the slot would have.
func (s *Shards) Peers() (peers []ShardSlot) {
	for _, shard := range s.Own.All() {
		if shard == s.Own {
			continue
		}
		peer := ShardSlot{Shard: shard, Slot: s.Base + shard.Suffix()}
		if found := s.Find(shard); found != nil {
			peer = *found
		}
		peers = append(peers, peer)
	}
	return peers
}

// Missing returns the first slot that is missing among those of the number of shards that of belongs
// to, or "".
func (s *Shards) Missing(of Shard) string {
	for _, shard := range of.All() {
		if shard != s.Own && s.Find(shard) == nil {
			return s.Base + shard.Suffix()
		}
	}
	return ""
}
