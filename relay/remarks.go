package relay

import (
	"github.com/rs/zerolog"

	"github.com/walpost/walpost/relay/internal/recent"
)

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
		if l.told[what] == nil {
			l.told[what] = new(recent.Told)
		}
		level := zerolog.WarnLevel
		if severe {
			level = zerolog.ErrorLevel
		}
		l.told[what].Due(count, l.now, end, l.log.WithLevel(level)).Str("last", last).Msg(what)
	})
}
