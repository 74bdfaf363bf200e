package records

import (
	"maps"
	"slices"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/checkpoint"
)

// Skips is what the store has of events that halted a relay. A request to pass over an event
// stays in the store until a position behind the event is confirmed. A start before that passes
// over the event once more.
type Skips struct {
	// Asked holds the requests by place. A place can have several requests, because another
	// configuration may give the event another id.
	Asked map[Spot][]*checkpoint.Halt
	// keys are the keys in the store, each with the commit record behind which it is of no use.
	keys map[string]cdc.Position
}

// A Spot is the place of an event in the stream.
type Spot struct {
	Commit cdc.Position
	Row    int
}

// Take takes over what a new session found in the store. gives reports whether the source can give
// the event of a halt. The other halts and requests are of no use at any position.
func (s *Skips) Take(found *checkpoint.Stored, gives func(*checkpoint.Halt) bool) {
	s.Asked, s.keys = map[Spot][]*checkpoint.Halt{}, map[string]cdc.Position{}
	for _, h := range found.Halts {
		if s.keys[h.Key()] = h.Commit; !gives(h) {
			s.keys[h.Key()] = 0
		}
	}
	for _, h := range found.Skips {
		if s.keys[h.SkipKey()] = h.Commit; !gives(h) {
			s.keys[h.SkipKey()] = 0
			continue
		}
		at := Spot{h.Commit, h.Row}
		s.Asked[at] = append(s.Asked[at], h)
	}
}

// Drop returns the keys that are of no use any more once confirmed is confirmed.
func (s *Skips) Drop(confirmed cdc.Position) (keys []string) {
	for key, commit := range s.keys {
		if commit < confirmed {
			keys = append(keys, key)
			delete(s.keys, key)
		}
	}
	if len(keys) > 0 {
		maps.DeleteFunc(s.Asked, func(at Spot, _ []*checkpoint.Halt) bool { return at.Commit < confirmed })
		slices.Sort(keys)
	}
	return keys
}
