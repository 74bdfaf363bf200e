package recent

import (
	"errors"
	"log/slog"
	"time"
)

// silent is the logger of what the log already has.
var silent = slog.New(slog.DiscardHandler)

// A FaultLog makes few log lines of a repeated fault: one when the fault begins, one a minute while it
// lasts, and one when it is over.
type FaultLog struct {
	since, logged time.Time
	Times         int  // since the fault began; 0 if there is none
	known         bool // the cause was known at one of the times
}

// Cause has the next fault logged at once if err is the first error that tells the cause.
func (e *FaultLog) Cause(err error) *FaultLog {
	if causeKnown(err) && !e.known {
		e.known, e.logged = true, time.Time{}
	}
	return e
}

func causeKnown(err error) bool {
	var says interface{ CauseKnown() bool }
	return !errors.As(err, &says) || says.CauseKnown()
}

// Fault counts the fault. It returns log with how often and how long the fault has come, or a silent
// logger if it is not time to log.
func (e *FaultLog) Fault(now time.Time, log *slog.Logger) *slog.Logger {
	if e.Times++; e.Times == 1 {
		e.since = now
	} else if now.Sub(e.logged) < time.Minute {
		return silent
	}
	e.logged = now
	return e.summed(now, log)
}

// A CountLog counts what came of one kind, and how much of it the log has. It makes few log lines: one
// for the first case, and one a minute that sums up later cases.
type CountLog struct {
	said uint64
	at   time.Time
}

// Due returns log with how many cases the log does not have yet. It returns a silent logger if there
// is none, or if it is not time to log. end says that no other call comes.
func (t *CountLog) Due(count uint64, now time.Time, end bool, log *slog.Logger) *slog.Logger {
	if count == t.said || !end && now.Sub(t.at) < time.Minute {
		return silent
	}
	log = log.With("times", count-t.said, "in_all", count)
	t.said, t.at = count, now
	return log
}

// Over ends the fault. It returns log as Fault does, or a silent logger if there was no fault.
func (e *FaultLog) Over(now time.Time, log *slog.Logger) *slog.Logger {
	if e.Times == 0 {
		return silent
	}
	log = e.summed(now, log)
	*e = FaultLog{}
	return log
}

func (e *FaultLog) summed(now time.Time, log *slog.Logger) *slog.Logger {
	return log.With("times", e.Times, "for", now.Sub(e.since).Round(time.Millisecond))
}
