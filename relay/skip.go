package relay

import (
	"slices"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/checkpoint"
	"github.com/walpost/walpost/relay/internal/records"
)

// passOver returns the request of a person to pass over the event that l.rec was made of, nil for
// none. The event is number row of the transaction at commit.
func (l *loop) passOver(ev *cdc.Event, commit cdc.Position, row int) *checkpoint.Halt {
	asked := l.skipping.Asked[records.Spot{Commit: commit, Row: row}]
	if len(asked) == 0 {
		return nil
	}
	h := l.names().Halt(commit, row, ev.Relation(), l.rec.EventID)
	i := slices.IndexFunc(asked, func(a *checkpoint.Halt) bool { return a.Token == h.Token })
	if i < 0 {
		l.log.Warn().Str("asked", asked[0].Token).Str("found", h.Token).Str("id", h.EventID).Str("table", h.Table).Str(l.found.At(commit)).
			Msg("a skip request does not name the event at this place: walpost ignores the request")
		return nil
	}
	what := "EVENT SKIPPED, because walpost skip requested it: the event goes to the dead letter topic"
	if asked[i].Discard {
		what = "EVENT SKIPPED, because walpost skip --discard requested it: the event is not delivered"
	}
	l.st.Skipped++
	l.log.Warn().Str("token", h.Token).Str("id", h.EventID).Str("table", h.Table).Str(l.found.At(commit)).Int("row", row).
		Str("why", asked[i].Why).Msg(what)
	return asked[i]
}
