package relay

import (
	"errors"
	"time"

	"github.com/rs/zerolog"
)

// An edge makes few log lines of a repeated fault: one when the fault begins, one a minute while it
// lasts, and one when it is over.
type edge struct {
	since, logged time.Time
	times         int
	known         bool // the cause was known at one of the times
}

// cause has the next fault logged at once if err is the first error that tells the cause.
func (e *edge) cause(err error) *edge {
	if causeKnown(err) && !e.known {
		e.known, e.logged = true, time.Time{}
	}
	return e
}

func causeKnown(err error) bool {
	var says interface{ CauseKnown() bool }
	return !errors.As(err, &says) || says.CauseKnown()
}

// fault counts the fault. It returns log with how often and how long the fault has come, or nil if
// it is not time to log.
func (e *edge) fault(now time.Time, log *zerolog.Event) *zerolog.Event {
	if e.times++; e.times == 1 {
		e.since = now
	} else if now.Sub(e.logged) < time.Minute {
		return log.Discard()
	}
	e.logged = now
	return log.Int("times", e.times).Dur("for", now.Sub(e.since).Round(time.Millisecond))
}

// over ends the fault. It returns log as fault does, or nil if there was no fault.
func (e *edge) over(now time.Time, log *zerolog.Event) *zerolog.Event {
	if e.times == 0 {
		return log.Discard()
	}
	log.Int("times", e.times).Dur("for", now.Sub(e.since).Round(time.Millisecond))
	*e = edge{}
	return log
}

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
