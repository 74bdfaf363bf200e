package statuspage

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/poll"
)

// A Poll is the polled table, in /api/status and in walpost status --json.
type Poll struct {
	Table    string       `json:"table"`
	Strategy string       `json:"strategy"`
	Interval float64      `json:"interval_seconds"`
	Wake     string       `json:"wake_up"`                // notify, if a trigger notifies walpost; interval; "" if it is not known
	Position cdc.Position `json:"position"`               // everything below it is delivered; 0 if it is not known
	Pending  *int         `json:"pending_rows"`           // that are not delivered
	More     bool         `json:"more_pending_rows"`      // there are more, which were not counted
	Oldest   *float64     `json:"oldest_pending_seconds"` // null if there are none, or if nothing tells when a row was written

	Blocker     string        `json:"blocker"`     // the transaction that delays them
	BlockerEnd  string        `json:"blocker_end"` // the SQL that ends it
	BlockerFull *poll.Blocker `json:"blocker_detail"`

	Claims *poll.ClaimCounts `json:"claims"` // null for the strategy cursor

	CheckedAgo *float64 `json:"checked_seconds_ago"`
	Error      string   `json:"error"`
}

// PollOf is what is known of a polled table now, nil if the WAL is read.
func PollOf(s *poll.Status, now time.Time) *Poll {
	if s == nil {
		return nil
	}
	v := &Poll{Table: s.Table, Strategy: s.Strategy, Interval: s.Interval.Seconds(), Error: s.BacklogErr}
	b := s.Backlog
	if b == nil {
		return v
	}
	v.Wake = "interval"
	if b.Notify {
		v.Wake = "notify"
	}
	v.Position, v.Pending, v.More, v.Oldest = b.Position, &b.Rows, b.More, ago(b.Oldest, now)
	v.CheckedAgo = ago(b.At, now)
	if v.Claims = b.Claims; b.Claims != nil {
		v.Position = 0
	}
	if x := b.Blocker; x != nil {
		v.Blocker, v.BlockerEnd, v.BlockerFull = x.String(), x.End(), x
	}
	return v
}

var (
	ofTable = []string{"table", "database"}

	pollPending = desc("walpost_poll_pending_rows", "Undelivered rows, counted up to 10000.", ofTable...)
	pollOldest  = desc("walpost_poll_oldest_pending_seconds", "Age of the oldest undelivered row, 0 if none; absent if no column has the time (source.time_column).", ofTable...)
	pollBlocker = desc("walpost_poll_blocker_age_seconds", "Age of the transaction that delays rows, 0 if none; absent if the role lacks pg_monitor.", ofTable...)
	pollClaimed = desc("walpost_poll_claimed_rows", "Claimed rows among the oldest 10000. Only with claim and delete.", ofTable...)
	pollWaiting = desc("walpost_poll_waiting_rows", "Refused rows that wait for their next attempt. Only with claim and delete.", ofTable...)
	pollWorkers = desc("walpost_poll_workers", "Workers that share the table. Only with claim and delete.", ofTable...)
	pollLooks   = desc("walpost_poll_looks_total", "Polls of the table.", ofTable...)
)

// collectPoll sends only the polls of a process that does not deliver, because another process delivers.
func collectPoll(s *poll.Status, now time.Time, gauge, counter func(*prometheus.Desc, float64, ...string)) {
	if s == nil {
		return
	}
	labels := []string{s.Table, s.Database}
	counter(pollLooks, float64(s.Looks), labels...)
	b := s.Backlog
	if b != nil || s.BacklogErr != "" {
		gauge(monitorSuccess, stamp(s.BacklogAt))
	}
	if b == nil {
		return
	}
	gauge(pollPending, float64(b.Rows), labels...)
	if age := ago(b.Oldest, now); age != nil {
		gauge(pollOldest, *age, labels...)
	} else if b.Rows == 0 {
		gauge(pollOldest, 0, labels...)
	}
	if c := b.Claims; c != nil {
		gauge(pollClaimed, float64(c.Claimed), labels...)
		gauge(pollWaiting, float64(c.Waiting), labels...)
		gauge(pollWorkers, float64(c.Workers), labels...)
		return
	}
	switch {
	case b.Blocker == nil:
		gauge(pollBlocker, 0, labels...)
	case !b.Blocker.Since.IsZero():
		gauge(pollBlocker, now.Sub(b.Blocker.Since.Time).Seconds(), labels...)
	}
}
