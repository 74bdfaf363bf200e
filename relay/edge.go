package relay

import "time"

// An edge makes few log lines of a repeated fault: one when the fault begins, one a minute while it
// lasts, and one when it is over.
type edge struct {
	since, logged time.Time
	times         int
}

func (e *edge) fault(now time.Time, log func(times int, since time.Duration)) {
	if e.times++; e.times == 1 {
		e.since = now
	} else if now.Sub(e.logged) < time.Minute {
		return
	}
	e.logged = now
	log(e.times, now.Sub(e.since))
}

func (e *edge) over(now time.Time, log func(times int, since time.Duration)) {
	if e.times > 0 {
		log(e.times, now.Sub(e.since))
		*e = edge{}
	}
}
