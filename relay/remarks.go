package relay

import (
	"time"

	"github.com/rs/zerolog"
)

// remarkEvery is how often a kind of remark is logged while there are new ones.
const remarkEvery = time.Minute

// A told is what was logged of one kind of remark.
type told struct {
	count uint64
	at    time.Time
}

// remark counts and logs what the router passed over: the first at once, further ones together, now and then, and all that are left
// at the end.
func (l *loop) remark(end bool) {
	r, ok := l.router.(Remarker)
	if !ok {
		return
	}
	r.Remarks(func(what string, severe bool, count uint64, last string) {
		was := l.told[what]
		if count == was.count || !end && l.now.Sub(was.at) < remarkEvery {
			return
		}
		level := zerolog.WarnLevel
		if severe {
			level = zerolog.ErrorLevel
		}
		l.log.WithLevel(level).Uint64("times", count-was.count).Uint64("in_all", count).Str("last", last).Msg(what)
		if l.told == nil {
			l.told = map[string]told{}
		}
		l.told[what] = told{count: count, at: l.now}
	})
}

// remarks is Status.Remarks; the caller holds the lock.
func (l *loop) remarks(st *Status) {
	st.Remarks = nil // the former is in the hands of who asked for it
	if r, ok := l.router.(Remarker); ok {
		r.Remarks(func(what string, _ bool, count uint64, _ string) {
			if st.Remarks == nil {
				st.Remarks = map[string]uint64{}
			}
			st.Remarks[what] = count
		})
	}
}
