package relay

import (
	"maps"
	"slices"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/checkpoint"
)

// skipping is what the store has of events that halted a relay. A request to pass over an event
// stays in the store until a position behind the event is confirmed. A start before that passes
// over the event once more.
type skipping struct {
	// asked holds the requests by place. A place can have several requests, because another
	// configuration may give the event another id.
	asked map[spot][]*checkpoint.Halt
	// keys are the keys in the store, each with the commit record behind which it is of no use.
	keys map[string]cdc.Position
}

// A spot is the place of an event in the stream.
type spot struct {
	commit cdc.Position
	row    int
}

// take takes over what a new session found in the store.
func (s *skipping) take(a *attempt) {
	s.asked, s.keys = map[spot][]*checkpoint.Halt{}, map[string]cdc.Position{}
	for _, h := range a.halts {
		s.keys[h.Key()] = h.Commit
	}
	for _, h := range a.skips {
		s.keys[h.SkipKey()] = h.Commit
		at := spot{h.Commit, h.Row}
		s.asked[at] = append(s.asked[at], h)
	}
}

// drop returns the keys that are of no use any more once confirmed is confirmed.
func (s *skipping) drop(confirmed cdc.Position) (keys []string) {
	for key, commit := range s.keys {
		if commit < confirmed {
			keys = append(keys, key)
			delete(s.keys, key)
		}
	}
	if len(keys) > 0 {
		maps.DeleteFunc(s.asked, func(at spot, _ []*checkpoint.Halt) bool { return at.commit < confirmed })
		slices.Sort(keys)
	}
	return keys
}

// passOver reports whether a person asked to pass over the event that l.rec was made of. The event
// is number row of the transaction at commit.
func (l *loop) passOver(ev *cdc.Event, commit cdc.Position, row int) bool {
	asked := l.skipping.asked[spot{commit, row}]
	if len(asked) == 0 {
		return false
	}
	h := l.haltOf(commit, row, relationOf(ev), l.rec.EventID)
	if !slices.ContainsFunc(asked, func(a *checkpoint.Halt) bool { return a.Token == h.Token }) {
		l.log.Warn().Str("asked", asked[0].Token).Str("found", h.Token).Str("id", h.EventID).Str("table", h.Table).Str("lsn", commit.String()).
			Msg("a skip request does not name the event at this place: walpost ignores the request")
		return false
	}
	l.st.Skipped++
	l.log.Warn().Str("token", h.Token).Str("id", h.EventID).Str("table", h.Table).Str("lsn", commit.String()).Int("row", row).
		Msg("EVENT PASSED OVER, as walpost skip asked: it is not delivered")
	return true
}
