package relay

import (
	"time"

	"github.com/rs/zerolog"
)

// remarkEvery is the least time between two log lines of one kind of remark.
const remarkEvery = time.Minute

// A told is what the log has of one kind of remark.
type told struct {
	count uint64
	at    time.Time
}

// remark logs dead letters, and counts and logs what the router passed over. It logs the first case
// of a kind at once and sums up later cases. At the end it logs the rest.
func (l *loop) remark(end bool) {
	l.sayBuried(end)
	l.parker.say(end)
	l.st.Remarks = nil // Status has given the former map away
	l.router.Remarks(func(what string, severe bool, count uint64, last string) {
		if l.st.Remarks == nil {
			l.st.Remarks = map[string]uint64{}
		}
		l.st.Remarks[what] = count
		was := l.told[what]
		if count == was.count || !end && l.now.Sub(was.at) < remarkEvery {
			return
		}
		level := zerolog.WarnLevel
		if severe {
			level = zerolog.ErrorLevel
		}
		l.log.WithLevel(level).Uint64("times", count-was.count).Uint64("in_all", count).Str("last", last).Msg(what)
		l.told[what] = told{count: count, at: l.now}
	})
}
