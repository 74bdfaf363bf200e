package slot

import (
	"cmp"
	"fmt"
	"math"
	"time"

	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/internal/size"
)

// A Severity says how healthy a slot is.
type Severity string

// The severities.
const (
	OK       Severity = "ok"
	Warning  Severity = "warning"
	Critical Severity = "critical" // events are lost, or soon will be
	Unknown  Severity = "unknown"  // the newest Health is missing or too old
)

// Status is the newest Health of the slot, with its forecast and a judgement.
type Status struct {
	Health // of the newest read that succeeded; with nothing but the names before the first

	// Known says that Health is not older than three intervals of the monitor.
	Known bool `json:"known"`
	// Err is why the newest read failed; "" if it succeeded.
	Err string `json:"error"`
	Forecast

	Severity Severity `json:"state"`
	Reasons  []string `json:"findings"` // why Severity is not OK
}

const (
	// exhaustionWarn is when a forecast becomes a warning: time enough for a person to come.
	exhaustionWarn = 4 * time.Hour
	// blockerWarn is the age from which a blocker is a warning.
	blockerWarn = 10 * time.Minute
	// MaxClockSkew is the largest difference of two clocks that NTP synchronizes.
	MaxClockSkew = 2 * time.Second
)

// judge sets Severity and Reasons.
func (s *Status) judge(limits Config) {
	s.Severity, s.Reasons = OK, nil
	add := func(severity Severity, format string, args ...any) {
		if severity == Critical || s.Severity == OK {
			s.Severity = severity
		}
		s.Reasons = append(s.Reasons, fmt.Sprintf(format, args...))
	}
	if !s.Known {
		s.Severity, s.Reasons = Unknown, []string{cmp.Or(s.Err, "walpost has not checked the slot yet")}
		return
	}
	next := fault.Command("recover")
	if limits.Tableless {
		next = fault.Command("run") + " to see the gap"
	}
	if !s.Exists {
		add(Critical, "the slot does not exist: the first walpost run creates it; if it existed before, run %s", next)
		return
	}
	switch {
	case s.lost():
		add(Critical, "the slot is lost (%s): its WAL is gone; run %s", cmp.Or(s.Invalidation, "lost"), next)
		return
	case s.WALStatus == "unreserved":
		add(Critical, "wal_status is unreserved: the next checkpoint of Postgres may remove WAL that the slot needs")
	case s.Limit == ByDisk && s.Left <= 0:
		add(Critical, "pg_wal holds as much as monitor.wal_disk_size, %v", limits.WALDiskSize)
	}
	switch retained := size.Bytes(s.RetainedBytes); {
	case retained >= limits.RetainedCritical:
		add(Critical, "the slot holds %s of WAL (monitor.retained_critical is %v)", retained.Roughly(), limits.RetainedCritical)
	case retained >= limits.RetainedWarn:
		add(Warning, "the slot holds %s of WAL (monitor.retained_warn is %v)", retained.Roughly(), limits.RetainedWarn)
	}
	if !math.IsInf(s.Exhaustion, 1) && s.Exhaustion < exhaustionWarn.Seconds() {
		what := "the slot is lost"
		if s.Limit == ByDisk {
			what = "the disk is full of WAL"
		}
		add(Warning, "at this rate %s in %s", what, rounded(s.Exhaustion))
	}
	if !s.Active {
		add(Warning, "nobody is reading the slot")
	}
	if s.WaitEvent == "WaitForStandbyConfirmation" {
		add(Warning, "the walsender waits for a standby: all slots in synchronized_standby_slots must exist and be read")
	}
	if skew := s.ClockSkew.Abs(); skew > MaxClockSkew && skew > s.RoundTrip {
		add(Warning, "the clocks of the database and of this machine differ by %s: ages and latencies are off by this difference", s.ClockSkew.Round(time.Millisecond).Abs())
	}
	if b := s.Blocker; b != nil && b.Age >= blockerWarn {
		add(Warning, "WAL is held back by %s; to end it: %s", b, b.End)
	}
}
