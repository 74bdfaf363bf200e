package slot

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/walpost/walpost/internal/fault"
)

func TestTheBreakerTripsOnceAfterThreeLooks(t *testing.T) {
	b, limits := &trip{}, Config{RetainedCritical: 100, BreakerForecast: time.Hour}
	look := func(retained int64, exhaustion float64, change ...func(*Status)) string {
		s := &Status{Known: true, Forecast: Forecast{DiskFull: exhaustion}, Health: Health{Slot: "s", Exists: true, RetainedBytes: retained, WALStatus: "extended"}}
		for _, c := range change {
			c(s)
		}
		return b.add(s, limits)
	}
	never := math.Inf(1)
	for i, c := range []struct {
		retained   int64
		exhaustion float64
		want       string
	}{
		{99, never, ""}, {100, never, ""}, {100, never, ""}, {99, never, ""}, // one good look begins anew
		{100, never, ""}, {100, never, ""}, {100, never, "holds 100 B"}, {100, never, ""}, {1000, 0, ""}, // once
		{99, 3600, ""}, // well again
		{0, 3599, ""}, {0, 3599, ""}, {0, 3599, "59m59s"}, {0, 1, ""},
	} {
		if got := look(c.retained, c.exhaustion); (c.want == "") != (got == "") || !strings.Contains(got, c.want) {
			t.Errorf("look %d: %q, want %q", i, got, c.want)
		}
	}
	for name, change := range map[string]func(*Status){
		"not known": func(s *Status) { s.Known = false },
		"gone":      func(s *Status) { s.Exists = false },
		"lost":      func(s *Status) { s.WALStatus = "lost" },
		"invalid":   func(s *Status) { s.Invalidation = "wal_removed" },
	} {
		look(0, never)
		for range 5 {
			if got := look(1000, 0, change); got != "" {
				t.Errorf("a slot that is %s trips it: %s", name, got)
			}
		}
	}
	limits.BreakerForecast = 0
	for range 5 {
		if got := look(0, 0); got != "" {
			t.Errorf("tripped by a forecast that nobody asked for: %s", got)
		}
	}
}

// What the breaker does is told by Status, and an old slot of somebody else's is no reason to give ours up, until it goes.
func TestTheBreakerTellsItsState(t *testing.T) {
	look := func(retained int64, other bool) Status {
		s := Status{Known: true, Forecast: Forecast{DiskFull: math.Inf(1)}, Health: Health{Slot: "s", Exists: true, RetainedBytes: retained, WALStatus: "extended"}}
		if s.Restart = 2; other {
			s.Oldest, s.Blocker = 1, &Blocker{Kind: BlockedBySlot, Name: "old"}
		}
		return s
	}
	type step struct {
		retained int64
		other    bool
		state    BreakerState
		reason   string // a part
		halts    int
		logs     int
	}
	for action, steps := range map[string][]step{
		BreakerAlert: {
			{0, false, BreakerArmed, "", 0, 0},
			{100, false, BreakerArmed, "", 0, 0},
			{100, false, BreakerArmed, "", 0, 0},
			{100, false, BreakerTripped, "holds 100 B", 0, 1},
			{200, false, BreakerTripped, "holds 100 B", 0, 1},
			{0, false, BreakerArmed, "", 0, 1},
		},
		BreakerDrop: {
			{100, true, BreakerArmed, "", 0, 0},
			{100, true, BreakerArmed, "", 0, 0},
			{100, true, BreakerTripped, "another slot holds older WAL: slot old", 0, 1},
			{100, true, BreakerTripped, "another slot", 0, 1},
			{0, true, BreakerArmed, "", 0, 1},
			{100, true, BreakerArmed, "", 0, 1},
			{100, true, BreakerArmed, "", 0, 1},
			{300, true, BreakerTripped, "holds 300 B", 0, 2},
			{300, false, BreakerTripped, "holds 300 B", 1, 3},
			{400, false, BreakerTripped, "holds 300 B", 1, 3},
			{0, false, BreakerTripped, "holds 300 B", 1, 3},
		},
	} {
		var logged strings.Builder
		halts := 0
		b := NewBreaker(action, func(err error, freed func()) {
			if halts++; !fault.NeedsPerson(err) || !strings.Contains(fault.Hint(err), "walpost recover") || freed == nil {
				t.Errorf("halted by %v, hint %q", err, fault.Hint(err))
			}
		}, nil, slog.New(slog.NewJSONHandler(&logged, nil)))
		for i, c := range steps {
			b.Observe(look(c.retained, c.other), Config{RetainedCritical: 100})
			got := b.Status()
			logs := strings.Count(logged.String(), "circuit breaker: ")
			if got.Action != action || got.State != c.state || !strings.Contains(got.Reason, c.reason) || (c.reason == "") != (got.Reason == "") || halts != c.halts || logs != c.logs {
				t.Errorf("%s, look %d: %+v, %d halts, %d log lines; want %+v", action, i, got, halts, logs, c)
			}
		}
	}
}

// A transaction may be what holds both slots back; that dropping ours frees nothing is a matter of the older slot.
func TestTheBreakerKeepsTheSlotBehindAnOlderOne(t *testing.T) {
	halts := 0
	b := NewBreaker(BreakerDrop, func(error, func()) { halts++ }, nil, slog.New(slog.DiscardHandler))
	s := Status{Known: true, Forecast: Forecast{DiskFull: math.Inf(1)}, Health: Health{
		Slot: "s", Exists: true, RetainedBytes: 100, WALStatus: "extended", Oldest: 1, Restart: 2, Blocker: &Blocker{Kind: BlockedByTransaction},
	}}
	for range 2 * tripAfter {
		b.Observe(s, Config{RetainedCritical: 100})
	}
	if got := b.Status(); halts != 0 || got.State != BreakerTripped || !strings.Contains(got.Reason, "another slot") {
		t.Errorf("%d halts, %+v", halts, got)
	}
}

// walpost recover refuses without a table.
func TestTheBreakerAdvisesNoRecoverWithoutATable(t *testing.T) {
	hint := ""
	b := NewBreaker(BreakerDrop, func(err error, _ func()) { hint = fault.Hint(err) }, nil, slog.New(slog.DiscardHandler))
	for range tripAfter {
		b.Observe(Status{Known: true, Forecast: Forecast{Exhaustion: math.Inf(1)}, Health: Health{Slot: "s", Exists: true, RetainedBytes: 70, WALStatus: "extended"}}, Config{RetainedCritical: 50, Tableless: true})
	}
	if strings.Contains(hint, "recover") || !strings.Contains(hint, "Run walpost run to see the gap") {
		t.Errorf("the hint is %q", hint)
	}
}

// Whoever looks at a database whose disk fills learns at once why the slot is still there.
func TestTheBreakerSaysAtOnceWhyTheSlotIsNotDropped(t *testing.T) {
	for name, tries := range map[string]int{"a right that comes back": 4, "a right that stays away": math.MaxInt} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var logged strings.Builder
				n, early := 0, ""
				b := NewBreaker(BreakerDrop, nil, func(context.Context) error {
					if n++; n == 2 {
						early = logged.String()
					}
					if n < tries {
						return fault.Repair(errors.New("must have the REPLICATION attribute"))
					}
					return nil
				}, slog.New(slog.NewJSONHandler(&logged, nil)))
				b.dropSlot("s", "the slot holds 1 TB")
				want := BreakerDropped
				if tries == math.MaxInt {
					want = BreakerTripped
				}
				if log := logged.String(); !strings.Contains(early, "must have the REPLICATION attribute") || strings.Count(log, "trying again") != 1 || b.Status().State != want {
					t.Errorf("%+v after %d tries; before the second one the log was\n%safterwards\n%s", b.Status(), n, early, log)
				}
			})
		})
	}
}
