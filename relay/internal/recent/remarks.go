package recent

import (
	"context"
	"log/slog"
	"time"
)

// Remarks logs what a router passes over. The first case of a kind is logged at once, and later cases
// are summed up.
type Remarks struct{ told map[string]*CountLog }

// Log logs what is due, and returns how often each kind came. remarks is Router.Remarks. end says that
// no other call comes.
func (r *Remarks) Log(remarks func(each func(what string, severe bool, count uint64, last string)), now time.Time, end bool, log *slog.Logger) (counts map[string]uint64) {
	remarks(func(what string, severe bool, count uint64, last string) {
		if counts == nil {
			counts = map[string]uint64{}
		}
		if counts[what] = count; r.told == nil {
			r.told = map[string]*CountLog{}
		}
		if r.told[what] == nil {
			r.told[what] = new(CountLog)
		}
		level := slog.LevelWarn
		if severe {
			level = slog.LevelError
		}
		r.told[what].Due(count, now, end, log).LogAttrs(context.Background(), level, what, slog.String("last", last))
	})
	return counts
}
