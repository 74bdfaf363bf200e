package slot

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"
)

// scripted answers looks in turn, the last one for ever.
type scripted struct {
	answers []error
	closed  bool
}

func (s *scripted) Read(context.Context, bool) (Health, error) {
	err := s.answers[0]
	if len(s.answers) > 1 {
		s.answers = s.answers[1:]
	}
	return Health{Slot: "walpost", At: time.Now(), Exists: true, Active: true, WALStatus: "reserved"}, err
}

func (s *scripted) Close() { s.closed = true }

func TestMonitorGoesOnAfterErrorsAndSaysWhatIsOld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := NewMonitor(limits, "walpost", "shop")
		if s := m.Status(time.Now(), time.Time{}); s.Severity != Unknown || s.Slot != "walpost" || s.Database != "shop" {
			t.Errorf("before the first look: %+v", s)
		}
		refused := errors.New("refused")
		reader := &scripted{answers: []error{nil, refused, refused, refused, refused, nil}}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			m.Run(ctx, reader, nil, slog.New(slog.DiscardHandler))
			close(done)
		}()
		expect := func(after time.Duration, level Severity, known bool, err string) {
			t.Helper()
			time.Sleep(after)
			synctest.Wait()
			if s := m.Status(time.Now(), time.Time{}); s.Severity != level || s.Known != known || s.Err != err {
				t.Errorf("%s, known %v, %q; want %s, %v, %q", s.Severity, s.Known, s.Err, level, known, err)
			}
		}
		expect(0, OK, true, "")
		expect(10*time.Second, OK, true, "refused")
		expect(20*time.Second, OK, true, "refused")
		expect(10*time.Second, Unknown, false, "refused")
		expect(10*time.Second, OK, true, "")
		cancel()
		<-done
		if !reader.closed {
			t.Error("the connection was left open")
		}
	})
}

// The first run looks at the slot before it makes the slot, and an accepted gap replaces a lost slot.
func TestASlotThatTheSessionMadeIsNotCalledMissing(t *testing.T) {
	look := time.Now()
	for name, c := range map[string]struct {
		found  Health
		before Severity // the session began after the look
	}{
		"missing":   {Health{}, Unknown},
		"lost":      {Health{Exists: true, WALStatus: "lost"}, Unknown},
		"in danger": {Health{Exists: true, Active: true, WALStatus: "unreserved"}, Critical},
	} {
		m := NewMonitor(limits, "walpost", "shop")
		c.found.At = look
		m.add(c.found, nil)
		for opened, want := range map[time.Time]Severity{{}: Critical, look.Add(-time.Second): Critical, look.Add(time.Second): c.before} {
			if s := m.Status(look.Add(2*time.Second), opened); s.Severity != want || s.Known != (want != Unknown) {
				t.Errorf("%s, session at %s: %s %q", name, opened, s.Severity, s.Reasons)
			}
		}
	}
}

// New limits count from the next look on, for the state and for the breaker. The interval and what the breaker does stay.
func TestLimitsChangeWhileTheMonitorRuns(t *testing.T) {
	cfg := DefaultConfig()
	cfg.Breaker = BreakerAlert
	m := NewMonitor(cfg, "s", "d")
	b := NewBreaker(cfg.Breaker, nil, nil, slog.New(slog.DiscardHandler))
	look := func() (Severity, BreakerState) {
		m.add(Health{Slot: "s", At: time.Now(), Exists: true, RetainedBytes: 5 << 30, WALStatus: "extended", WALDirBytes: 6 << 30}, nil)
		s := m.Status(time.Now(), time.Time{})
		for range tripAfter {
			b.Observe(s, m.config())
		}
		return s.Severity, b.Status().State
	}
	if severity, state := look(); severity != Warning || state != BreakerArmed {
		t.Fatalf("%s, %s", severity, state)
	}
	lower := Config{Interval: time.Hour, RetainedWarn: 1, RetainedCritical: 4 << 30, Breaker: BreakerDrop}
	m.SetLimits(lower)
	if severity, state := look(); severity != Critical || state != BreakerTripped {
		t.Errorf("below: %s, %s", severity, state)
	}
	higher := Config{RetainedWarn: 8 << 30, RetainedCritical: 9 << 30, WALDiskSize: 6 << 30}
	m.SetLimits(higher)
	severity, state := look()
	if s := m.Status(time.Now(), time.Time{}); severity != Critical || s.Limit != ByDisk || state != BreakerArmed {
		t.Errorf("above, on a full disk: %s by %q, %s", severity, s.Limit, state)
	}
	if got := m.config(); got.Interval != cfg.Interval || got.Breaker != BreakerAlert || b.Status().Action != BreakerAlert {
		t.Errorf("%+v", got)
	}
}
