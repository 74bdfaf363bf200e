package relay

import (
	"log/slog"
	"slices"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/checkpoint"
	"github.com/walpost/walpost/relay/internal/records"
)

// passOver returns the request of a person to pass over the event that b.rec was made of, nil for
// none. The event is number row of the transaction at commit.
func (b *badEvents) passOver(ev *cdc.Event, commit cdc.Position, row int) *checkpoint.Halt {
	asked := b.skipping.Asked[records.Spot{Commit: commit, Row: row}]
	if len(asked) == 0 {
		return nil
	}
	h := b.names().Halt(commit, row, ev.Relation(), b.rec.EventID)
	i := slices.IndexFunc(asked, func(a *checkpoint.Halt) bool { return a.Token == h.Token })
	if i < 0 {
		b.log.Warn("a skip request does not name the event at this place: walpost ignores the request",
			"asked", asked[0].Token, "found", h.Token, "id", h.EventID, "table", h.Table, slog.String(commit.Log()))
		return nil
	}
	what := "EVENT SKIPPED, because walpost skip requested it: the event goes to the dead letter topic"
	if asked[i].Discard {
		what = "EVENT SKIPPED, because walpost skip --discard requested it: the event is not delivered"
	}
	b.st.Skipped++
	b.log.Warn(what, "token", h.Token, "id", h.EventID, "table", h.Table, slog.String(commit.Log()), "row", row, "why", asked[i].Why)
	return asked[i]
}
