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
	// Exhaustion is in how many seconds the slot is lost if WAL goes on as in the last minutes. It is +Inf where that is
	// not in sight: no limit is set, or what is left does not shrink.
	Exhaustion float64

	Level    Level
	Findings []string // why Level is not Fine
}

// exhaustionWarn is when a slot that is going to be lost becomes a warning: time enough for a person to come.
const exhaustionWarn = 4 * time.Hour

// blockerWarn is how long something may hold WAL back before it is worth a word.
const blockerWarn = 10 * time.Minute

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
		add(Critical, "the slot does not exist")
		return
	}
	switch {
	case s.Invalidation != "" || s.WALStatus == "lost":
		reason := s.Invalidation
		if reason == "" {
			reason = "lost"
		}
		add(Critical, "the slot is lost (%s): its WAL is gone", reason)
		return
	case s.WALStatus == "unreserved":
		add(Critical, "wal_status is unreserved: the next checkpoint may take the slot's WAL")
	}
	switch retained := Size(s.RetainedBytes); {
	case retained >= limits.RetainedCritical:
		add(Critical, "the slot holds %s of WAL (monitor.retained_critical is %v)", retained.Roughly(), limits.RetainedCritical)
	case retained >= limits.RetainedWarn:
		add(Warning, "the slot holds %s of WAL (monitor.retained_warn is %v)", retained.Roughly(), limits.RetainedWarn)
	}
	if !math.IsInf(s.Exhaustion, 1) && s.Exhaustion < exhaustionWarn.Seconds() {
		add(Warning, "at this rate the slot is lost in %s", time.Duration(s.Exhaustion*float64(time.Second)).Round(time.Second))
	}
	if !s.Active {
		add(Warning, "nobody is reading the slot")
	}
	if b := s.Blocker; b != nil && b.Age >= blockerWarn {
		add(Warning, "WAL is held back by %s; to end it: %s", DescribeBlocker(b), b.End)
	}
}

// DescribeBlocker is what holds WAL back, in words.
func DescribeBlocker(b *replication.Blocker) string {
	text := string(b.Kind)
	if b.Name != "" {
		text += " " + b.Name
	}
	if b.PID != 0 {
		text += fmt.Sprintf(" of pid %d", b.PID)
	}
	if b.User != "" {
		text += " (" + b.User + ")"
	}
	if b.Database != "" {
		text += " in " + b.Database
	}
	if b.State != "" {
		text += ", " + b.State
	}
	if b.Age > 0 {
		text += ", for " + b.Age.Round(time.Second).String()
	}
	return text
}

// A forecast tells when a slot is lost from how fast what is left of its WAL limit shrinks.
type forecast struct {
	// patience is how long a slot with more than half of its limit left is looked at before a loss is in sight: restart_lsn of a
	// healthy slot stands still for many seconds, and from its first looks alone every slot would be doomed.
	patience time.Duration

	since time.Time // the first look
	at    time.Time
	left  int64
	rate  float64 // bytes that are used up a second, smoothed; below zero while it grows
	looks int
}

// forecastOver is the time over which the rate is smoothed. restart_lsn moves in steps of many seconds, so less would
// show each step as a rescue and the time between as a doom.
const forecastOver = 2 * time.Minute

// forecastPatience is the patience of a relay; status, which was asked for a forecast, has none.
const forecastPatience = time.Minute

// look takes one look at the slot into account, and returns the seconds that are left.
func (f *forecast) look(h *replication.Health) float64 {
	switch {
	case h.Exists && (h.WALStatus == "lost" || h.Invalidation != ""):
		*f = forecast{patience: f.patience}
		return 0
	case !h.Exists || !h.SafeKnown:
		*f = forecast{patience: f.patience}
		return math.Inf(1)
	}
	if passed := h.At.Sub(f.at).Seconds(); f.looks > 0 && passed > 0 {
		weight := 1 - math.Exp(-passed/forecastOver.Seconds())
		if f.looks == 1 {
			weight = 1 // the first rate is all there is
		}
		f.rate += weight * (float64(f.left-h.SafeBytes)/passed - f.rate)
	}
	if f.looks == 0 {
		f.since = h.At
	}
	f.at, f.left, f.looks = h.At, h.SafeBytes, f.looks+1
	switch {
	case h.SafeBytes <= 0:
		return 0
	case f.rate <= 0:
		return math.Inf(1)
	case h.At.Sub(f.since) < f.patience && h.SafeBytes > h.KeepBytes/2:
		return math.Inf(1)
	}
	return float64(h.SafeBytes) / f.rate
}

// watch keeps the newest look at the slot.
type watch struct {
	limits MonitorConfig

	mu       sync.Mutex
	newest   SlotStatus
	forecast forecast
}

func (w *watch) begin(slot, database string, limits MonitorConfig) {
	w.limits, w.forecast.patience = limits, forecastPatience
	w.newest = SlotStatus{Health: replication.Health{Slot: slot, Database: database}, Exhaustion: math.Inf(1)}
}

// A reader reads a slot's health: replication.Monitor.
type reader interface {
	Read(ctx context.Context) (replication.Health, error)
	Close()
}

// run looks at the slot at once and then at every interval, until ctx ends.
func (w *watch) run(ctx context.Context, monitor reader, log zerolog.Logger) {
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
	w.newest.Exhaustion = w.forecast.look(&h)
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
	r.slot.forecast.patience = 0 // two looks are all that there will be
	monitor := r.source.Monitor()
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
