package walpost

import (
	"context"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/walpost/walpost/replication"
)

// A Level says how well a slot is.
type Level string

// The levels of a slot.
const (
	Fine     Level = "ok"
	Warning  Level = "warning"
	Critical Level = "critical" // events are lost, or soon will be
	Unknown  Level = "unknown"  // cannot be told now
)

// SlotStatus is the newest look at the slot.
type SlotStatus struct {
	replication.Health // of the newest look that succeeded; with nothing but the names before the first

	// Known says that Health is not older than three intervals of the monitor.
	Known bool
	// Err is why the newest look failed; "" when it did not.
	Err string
	// Exhaustion is in how many seconds max_slot_wal_keep_size, or the disk where its size is configured and it ends first, is
	// used up if WAL goes on as now. It is +Inf where that is not in sight: no limit is known, or what is left does not
	// shrink. From 0 on the next checkpoint of the server may take the slot's WAL.
	Exhaustion float64
	// Limit is what Exhaustion is about, and Left how much of it is left; NoLimit where neither limit is known.
	Limit Limit
	Left  int64
	// WALRate is how many bytes of WAL the server writes a second, smoothed; -1 before it can be told.
	WALRate float64

	Level    Level
	Findings []string // why Level is not Fine
}

// exhaustionWarn is when a slot that is going to be lost becomes a warning: time enough for a person to come.
const exhaustionWarn = 4 * time.Hour

// blockerWarn is how long something may hold WAL back before it is worth a word.
const blockerWarn = 10 * time.Minute

// skewWarn is from when on two clocks differ more than NTP lets them.
const skewWarn = 2 * time.Second

// judge says how well the slot is, and why.
func (s *SlotStatus) judge(limits MonitorConfig) {
	s.Level, s.Findings = Fine, nil
	add := func(level Level, format string, args ...any) {
		if level == Critical || s.Level == Fine {
			s.Level = level
		}
		s.Findings = append(s.Findings, fmt.Sprintf(format, args...))
	}
	if !s.Known {
		text := "not looked at yet"
		if s.Err != "" {
			text = s.Err
		}
		s.Level, s.Findings = Unknown, []string{text}
		return
	}
	if !s.Exists {
		add(Critical, "the slot does not exist (a first walpost run makes it; one that was there is replaced by walpost recover, which closes the gap)")
		return
	}
	switch {
	case s.Invalidation != "" || s.WALStatus == "lost":
		reason := s.Invalidation
		if reason == "" {
			reason = "lost"
		}
		add(Critical, "the slot is lost (%s): its WAL is gone; walpost recover shows the gap, makes a new slot and publishes what is missing", reason)
		return
	case s.WALStatus == "unreserved":
		add(Critical, "wal_status is unreserved: the next checkpoint may take the slot's WAL")
	case s.Invalidation == "" && s.Limit == ByDisk && s.Left <= 0:
		add(Critical, "pg_wal holds as much as monitor.wal_disk_size, %v", limits.WALDiskSize)
	}
	switch retained := Size(s.RetainedBytes); {
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
		add(Warning, "at this rate %s in %s", what, time.Duration(s.Exhaustion*float64(time.Second)).Round(time.Second))
	}
	if !s.Active {
		add(Warning, "nobody is reading the slot")
	}
	if s.WaitEvent == "WaitForStandbyConfirmation" {
		add(Warning, "the walsender waits for a standby: all slots in synchronized_standby_slots must exist and be read")
	}
	if skew := s.ClockSkew.Abs(); skew > skewWarn && skew > s.RoundTrip {
		add(Warning, "the clocks of the database and of this machine differ by %s: ages and latencies are off by that", s.ClockSkew.Round(time.Millisecond).Abs())
	}
	if b := s.Blocker; b != nil && b.Age >= blockerWarn {
		add(Warning, "WAL is held back by %s; to end it: %s", DescribeBlocker(b), b.End)
	}
}

// DescribeBlocker is what holds WAL back, in words.
func DescribeBlocker(b *replication.Blocker) string {
	text := string(b.Kind)
	if b.Kind == replication.BlockedByPrepared {
		text += " transaction"
	}
	if b.Name != "" {
		text += " " + b.Name
	}
	if b.PID != 0 {
		text += fmt.Sprintf(" of pid %d", b.PID)
	}
	switch {
	case b.User != "" && b.Application != "":
		text += fmt.Sprintf(" (%s, %s)", b.User, b.Application)
	case b.User != "":
		text += " (" + b.User + ")"
	}
	if b.Database != "" {
		text += " in " + b.Database
	}
	if b.State != "" && b.Kind != replication.BlockedByPrepared {
		text += ", " + b.State
	}
	if b.Age > 0 {
		text += ", for " + b.Age.Round(time.Second).String()
	}
	if b.QueryAge > 0 && b.Kind == replication.BlockedByTransaction {
		text += ", its newest statement began " + b.QueryAge.Round(time.Second).String() + " ago"
	}
	return text
}

// watch keeps the newest look at the slot.
type watch struct {
	limits MonitorConfig

	mu       sync.Mutex
	newest   SlotStatus
	forecast forecast
}

func (w *watch) begin(slot, database string, limits MonitorConfig) {
	w.limits = limits
	w.forecast.begin(limits, forecastPatience)
	w.newest = SlotStatus{Health: replication.Health{Slot: slot, Database: database}, Exhaustion: math.Inf(1), WALRate: -1}
}

// A reader reads a slot's health: replication.Monitor.
type reader interface {
	Read(ctx context.Context) (replication.Health, error)
	Close()
}

// run looks at the slot at once and then at every interval, until ctx ends. looked, where not nil, is told of every look that succeeded.
func (w *watch) run(ctx context.Context, monitor reader, looked func(SlotStatus), log zerolog.Logger) {
	defer monitor.Close()
	tick := time.NewTicker(w.limits.Interval)
	defer tick.Stop()
	failures := 0
	for {
		h, err := monitor.Read(ctx)
		if ctx.Err() != nil {
			return
		}
		switch w.took(h, err); {
		case err != nil:
			if failures++; failures == 1 {
				log.Warn().Err(err).Msg("slot cannot be monitored")
			}
		case failures > 0:
			log.Info().Int("times", failures).Msg("slot is monitored again")
			failures = 0
		}
		if err == nil && looked != nil {
			looked(w.status(time.Now()))
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func (w *watch) took(h replication.Health, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err != nil {
		w.newest.Err = err.Error()
		return
	}
	w.newest.Health, w.newest.Err = h, ""
	f := w.forecast.look(&h)
	w.newest.Exhaustion, w.newest.Limit, w.newest.Left, w.newest.WALRate = f.seconds, f.limit, f.left, f.rate
}

func (w *watch) status(now time.Time) SlotStatus {
	w.mu.Lock()
	s := w.newest
	w.mu.Unlock()
	s.Known = !s.At.IsZero() && now.Sub(s.At) <= 3*w.limits.Interval
	s.judge(w.limits)
	return s
}

// ReadSlot looks at the slot once, and where apart is not 0 once more after that time, which gives a forecast.
func ReadSlot(ctx context.Context, cfg Config, apart time.Duration) (SlotStatus, error) {
	r, err := New(cfg)
	if err != nil {
		return SlotStatus{}, err
	}
	r.slot.forecast.begin(cfg.Monitor, 0) // two looks are all that there will be
	monitor := r.monitor()
	defer monitor.Close()
	h, err := monitor.Read(ctx)
	r.slot.took(h, err)
	if err == nil && apart > 0 {
		select {
		case <-time.After(apart):
			h, err = monitor.Read(ctx)
			r.slot.took(h, err)
		case <-ctx.Done():
		}
	}
	return r.slot.status(time.Now()), err
}
