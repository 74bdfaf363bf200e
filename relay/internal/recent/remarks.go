package recent

import (
	"time"

	"github.com/rs/zerolog"
)

// Remarks logs what a router passes over. The first case of a kind is logged at once, and later cases
// are summed up.
type Remarks struct{ told map[string]*CountLog }

// Log logs what is due, and returns how often each kind came. remarks is Router.Remarks. end says that
// no other call comes.
func (r *Remarks) Log(remarks func(each func(what string, severe bool, count uint64, last string)), now time.Time, end bool, log *zerolog.Logger) (counts map[string]uint64) {
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
		level := zerolog.WarnLevel
		if severe {
			level = zerolog.ErrorLevel
		}
		r.told[what].Due(count, now, end, log.WithLevel(level)).Str("last", last).Msg(what)
	})
	return counts
}
