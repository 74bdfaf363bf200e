package relay

import (
	"time"

	"github.com/rs/zerolog"
)

// An edge makes few log lines of a repeated fault: one when the fault begins, one a minute while it
// lasts, and one when it is over.
type edge struct {
	since, logged time.Time
	times         int
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
	return log.Int("times", e.times).Dur("for", now.Sub(e.since))
}

// over ends the fault. It returns log as fault does, or nil if there was no fault.
func (e *edge) over(now time.Time, log *zerolog.Event) *zerolog.Event {
	if e.times == 0 {
		return log.Discard()
	}
	log.Int("times", e.times).Dur("for", now.Sub(e.since))
	*e = edge{}
	return log
}
