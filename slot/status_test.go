package slot

import (
	"math"
	"strings"
	"testing"
	"time"
)

var limits = Config{Interval: 10 * time.Second, RetainedWarn: 1 << 30, RetainedCritical: 10 << 30}

func TestSlotIsJudgedByItsWorst(t *testing.T) {
	fine := func() Status {
		return Status{Known: true, Forecast: Forecast{Exhaustion: math.Inf(1)}, Health: Health{
			Exists: true, Active: true, WALStatus: "reserved", RetainedBytes: 100, UnconfirmedBytes: 10,
		}}
	}
	for _, c := range []struct {
		name   string
		change func(*Status)
		want   Severity
		says   string
	}{
		{"fine", func(*Status) {}, OK, ""},
		{"extended is still kept", func(s *Status) { s.WALStatus = "extended" }, OK, ""},
		{"not looked at", func(s *Status) { s.Known = false }, Unknown, "walpost has not checked the slot yet"},
		{"cannot be looked at", func(s *Status) { s.Known, s.Err = false, "refused" }, Unknown, "refused"},
		{"missing", func(s *Status) { s.Exists = false }, Critical, "does not exist: the first walpost run creates it; if it existed before, run walpost recover"},
		{"lost", func(s *Status) { s.WALStatus = "lost" }, Critical, "is lost"},
		{"invalidated", func(s *Status) { s.Invalidation = "idle_timeout" }, Critical, "is lost (idle_timeout): its WAL is gone; run walpost recover"},
		{"unreserved", func(s *Status) { s.WALStatus = "unreserved" }, Critical, "unreserved"},
		{"below the warning", func(s *Status) { s.RetainedBytes = 1<<30 - 1 }, OK, ""},
		{"at the warning", func(s *Status) { s.RetainedBytes = 1 << 30 }, Warning, "holds 1.0 GiB"},
		{"at the critical bound", func(s *Status) { s.RetainedBytes = 10 << 30 }, Critical, "holds 10.0 GiB"},
		{"inactive", func(s *Status) { s.Active = false }, Warning, "nobody"},
		{"inactive and critical", func(s *Status) { s.Active, s.RetainedBytes = false, 10<<30 }, Critical, "nobody"},
		{"lost in an hour", func(s *Status) { s.Exhaustion = 3600 }, Warning, "lost in 1h0m0s"},
		{"lost in a day", func(s *Status) { s.Exhaustion = 86400 }, OK, ""},
		{"the disk is full in an hour", func(s *Status) { s.Exhaustion, s.Limit, s.Left = 3600, ByDisk, 1 }, Warning, "the disk is full of WAL in 1h0m0s"},
		{"the disk is full", func(s *Status) { s.Exhaustion, s.Limit = 0, ByDisk }, Critical, "monitor.wal_disk_size"},
		{"waits for a standby", func(s *Status) { s.WaitEvent = "WaitForStandbyConfirmation" }, Warning, "synchronized_standby_slots"},
		{"clocks differ", func(s *Status) { s.ClockSkew = -3 * time.Second }, Warning, "differ by 3s"},
		{"clocks seem to differ over a slow line", func(s *Status) { s.ClockSkew, s.RoundTrip = -3*time.Second, 4*time.Second }, OK, ""},
		{"blocked", func(s *Status) {
			s.Blocker = &Blocker{Kind: BlockedByTransaction, PID: 7, Age: time.Hour, End: "SELECT pg_terminate_backend(7);"}
		}, Warning, "transaction of pid 7, for 1h0m0s; to end it: SELECT pg_terminate_backend(7);"},
	} {
		s := fine()
		c.change(&s)
		s.judge(limits)
		if said := strings.Join(s.Reasons, "\n"); s.Severity != c.want || !strings.Contains(said, c.says) || (c.says == "") != (said == "") {
			t.Errorf("%s: %s, %q; want %s, %q", c.name, s.Severity, said, c.want, c.says)
		}
	}
	onlyMessages := limits
	onlyMessages.Tableless = true
	for _, c := range []func(*Status){func(s *Status) { s.Exists = false }, func(s *Status) { s.WALStatus = "lost" }} {
		s := fine()
		c(&s)
		s.judge(onlyMessages)
		if said := strings.Join(s.Reasons, "\n"); !strings.Contains(said, "run walpost run to see the gap") || strings.Contains(said, "recover") {
			t.Errorf("without a table: %q", said)
		}
	}
}
