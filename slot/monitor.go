package slot

import (
	"cmp"
	"context"
	"log/slog"
	"math"
	"sync"
	"time"

	"github.com/walpost/walpost/internal/wait"
)

// A Monitor keeps the newest Status of a slot. Run is called once; the other methods by any goroutine, at any time.
type Monitor struct {
	mu       sync.Mutex
	cfg      Config
	newest   Status
	forecast forecaster
}

// NewMonitor returns a Monitor that has read nothing yet.
func NewMonitor(cfg Config, slot, database string) *Monitor {
	return &Monitor{
		cfg: cfg, forecast: newForecaster(cfg, stillPatience),
		newest: Status{Health: Health{Slot: slot, Database: database}, Forecast: Forecast{Exhaustion: math.Inf(1), DiskFull: math.Inf(1), WALRate: -1}},
	}
}

// A healthReader is a Reader, or stands for one in a test.
type healthReader interface {
	Read(ctx context.Context, walDir bool) (Health, error)
	Close()
}

// Run reads the slot at once and then at every interval, until ctx ends, and closes reader. After each read that
// succeeded it calls observe, if it is not nil, with what was read and the limits that it is judged by. A nil log is slog.Default().
func (m *Monitor) Run(ctx context.Context, reader healthReader, observe func(s Status, limits Config), log *slog.Logger) {
	defer reader.Close()
	log = cmp.Or(log, slog.Default())
	tick := time.NewTicker(m.config().Interval)
	defer tick.Stop()
	failures := 0
	for {
		h, err := reader.Read(ctx, m.config().WALDiskSize > 0)
		if ctx.Err() != nil {
			return
		}
		switch m.add(h, err); {
		case err != nil:
			if failures++; failures == 1 {
				log.Warn("slot cannot be monitored", "err", err)
			}
		case failures > 0:
			log.Info("slot is monitored again", "times", failures)
			failures = 0
		}
		if err == nil && observe != nil {
			observe(m.Status(time.Now(), time.Time{}), m.config())
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// config is how the Monitor judges the slot now.
func (m *Monitor) config() Config {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.cfg
}

// SetLimits replaces the limits by those of another Config, from the next read or Status on. Interval and Breaker stay.
func (m *Monitor) SetLimits(limits Config) {
	m.mu.Lock()
	defer m.mu.Unlock()
	limits.Interval, limits.Breaker, limits.Tableless = m.cfg.Interval, m.cfg.Breaker, m.cfg.Tableless
	m.cfg = limits
	m.forecast.disk = int64(limits.WALDiskSize)
}

// add takes the result of one read.
func (m *Monitor) add(h Health, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err != nil {
		m.newest.Err = err.Error()
		return
	}
	m.newest.Health, m.newest.Err, m.newest.Forecast = h, "", m.forecast.add(&h)
}

// Status returns the newest Status, judged at now. opened is when the reader's newest session began, zero for none. If the
// slot was missing or lost before that, the session has made a new one, which is not known yet.
func (m *Monitor) Status(now, opened time.Time) Status {
	m.mu.Lock()
	s, cfg := m.newest, m.cfg
	m.mu.Unlock()
	s.Known = !s.At.IsZero() && now.Sub(s.At) <= 3*cfg.Interval && !(s.At.Before(opened) && (!s.Exists || s.lost()))
	s.judge(cfg)
	return s
}

// Once reads the slot without a Monitor that runs: once, and where apart is not 0 once more after
// that time, which gives a forecast. It closes reader. The Status also says why a read failed.
func Once(ctx context.Context, cfg Config, slot, database string, reader healthReader, apart time.Duration) (Status, error) {
	defer reader.Close()
	m := NewMonitor(cfg, slot, database)
	m.forecast = newForecaster(cfg, 0) // there will be no more than two reads
	h, err := reader.Read(ctx, cfg.WALDiskSize > 0)
	m.add(h, err)
	if err == nil && apart > 0 && wait.For(ctx, apart) {
		h, err = reader.Read(ctx, cfg.WALDiskSize > 0)
		m.add(h, err)
	}
	return m.Status(time.Now(), time.Time{}), err
}
