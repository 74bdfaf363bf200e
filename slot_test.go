package walpost

import (
	"context"
	"errors"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"

	"github.com/walpost/walpost/replication"
)

var limits = MonitorConfig{Interval: 10 * time.Second, RetainedWarn: 1 << 30, RetainedCritical: 10 << 30}

func TestSlotIsJudgedByItsWorst(t *testing.T) {
	fine := func() SlotStatus {
		return SlotStatus{Known: true, Exhaustion: math.Inf(1), Health: replication.Health{
			Exists: true, Active: true, WALStatus: "reserved", RetainedBytes: 100, UnconfirmedBytes: 10,
		}}
	}
	for _, c := range []struct {
		name   string
		change func(*SlotStatus)
		want   Level
		says   string
	}{
		{"fine", func(*SlotStatus) {}, Fine, ""},
		{"extended is still kept", func(s *SlotStatus) { s.WALStatus = "extended" }, Fine, ""},
		{"not looked at", func(s *SlotStatus) { s.Known = false }, Unknown, "not looked at yet"},
		{"cannot be looked at", func(s *SlotStatus) { s.Known, s.Err = false, "refused" }, Unknown, "refused"},
		{"missing", func(s *SlotStatus) { s.Exists = false }, Critical, "does not exist (a first walpost run makes it; one that was there is replaced by walpost recover"},
		{"lost", func(s *SlotStatus) { s.WALStatus = "lost" }, Critical, "is lost"},
		{"invalidated", func(s *SlotStatus) { s.Invalidation = "idle_timeout" }, Critical, "is lost (idle_timeout): its WAL is gone; walpost recover"},
		{"unreserved", func(s *SlotStatus) { s.WALStatus = "unreserved" }, Critical, "unreserved"},
		{"below the warning", func(s *SlotStatus) { s.RetainedBytes = 1<<30 - 1 }, Fine, ""},
		{"at the warning", func(s *SlotStatus) { s.RetainedBytes = 1 << 30 }, Warning, "holds 1.0 GiB"},
		{"at the critical bound", func(s *SlotStatus) { s.RetainedBytes = 10 << 30 }, Critical, "holds 10.0 GiB"},
		{"inactive", func(s *SlotStatus) { s.Active = false }, Warning, "nobody"},
		{"inactive and critical", func(s *SlotStatus) { s.Active, s.RetainedBytes = false, 10<<30 }, Critical, "nobody"},
		{"lost in an hour", func(s *SlotStatus) { s.Exhaustion = 3600 }, Warning, "lost in 1h0m0s"},
		{"lost in a day", func(s *SlotStatus) { s.Exhaustion = 86400 }, Fine, ""},
		{"the disk is full in an hour", func(s *SlotStatus) { s.Exhaustion, s.Limit, s.Left = 3600, ByDisk, 1 }, Warning, "the disk is full of WAL in 1h0m0s"},
		{"the disk is full", func(s *SlotStatus) { s.Exhaustion, s.Limit = 0, ByDisk }, Critical, "monitor.wal_disk_size"},
		{"waits for a standby", func(s *SlotStatus) { s.WaitEvent = "WaitForStandbyConfirmation" }, Warning, "synchronized_standby_slots"},
		{"clocks differ", func(s *SlotStatus) { s.ClockSkew = -3 * time.Second }, Warning, "differ by 3s"},
		{"clocks seem to differ over a slow line", func(s *SlotStatus) { s.ClockSkew, s.RoundTrip = -3*time.Second, 4*time.Second }, Fine, ""},
		{"blocked", func(s *SlotStatus) {
			s.Blocker = &replication.Blocker{Kind: replication.BlockedByTransaction, PID: 7, Age: time.Hour, End: "SELECT pg_terminate_backend(7);"}
		}, Warning, "transaction of pid 7, for 1h0m0s; to end it: SELECT pg_terminate_backend(7);"},
	} {
		s := fine()
		c.change(&s)
		s.judge(limits)
		if said := strings.Join(s.Findings, "\n"); s.Level != c.want || !strings.Contains(said, c.says) || (c.says == "") != (said == "") {
			t.Errorf("%s: %s, %q; want %s, %q", c.name, s.Level, said, c.want, c.says)
		}
	}
}

// scripted answers looks in turn, the last one for ever.
type scripted struct {
	answers []error
	closed  bool
}

func (s *scripted) Read(context.Context) (replication.Health, error) {
	err := s.answers[0]
	if len(s.answers) > 1 {
		s.answers = s.answers[1:]
	}
	return replication.Health{Slot: "walpost", At: time.Now(), Exists: true, Active: true, WALStatus: "reserved"}, err
}

func (s *scripted) Close() { s.closed = true }

func TestMonitorGoesOnAfterErrorsAndSaysWhatIsOld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var w watch
		w.begin("walpost", "shop", limits)
		if s := w.status(time.Now()); s.Level != Unknown || s.Slot != "walpost" || s.Database != "shop" {
			t.Errorf("before the first look: %+v", s)
		}
		refused := errors.New("refused")
		monitor := &scripted{answers: []error{nil, refused, refused, refused, refused, nil}}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			w.run(ctx, monitor, nil, zerolog.Nop())
			close(done)
		}()
		expect := func(after time.Duration, level Level, known bool, err string) {
			t.Helper()
			time.Sleep(after)
			synctest.Wait()
			if s := w.status(time.Now()); s.Level != level || s.Known != known || s.Err != err {
				t.Errorf("%s, known %v, %q; want %s, %v, %q", s.Level, s.Known, s.Err, level, known, err)
			}
		}
		expect(0, Fine, true, "")
		expect(10*time.Second, Fine, true, "refused")
		expect(20*time.Second, Fine, true, "refused")
		expect(10*time.Second, Unknown, false, "refused")
		expect(10*time.Second, Fine, true, "")
		cancel()
		<-done
		if !monitor.closed {
			t.Error("the connection was left open")
		}
	})
}

func TestSizesReadWhatTheyPrint(t *testing.T) {
	for text, want := range map[string]Size{"0": 0, "1024": 1024, "64MiB": 64 << 20, "10GiB": 10 << 30, "1 KiB": 1024, "2MB": 2e6, "-5": -5, "7B": 7} {
		var s, again Size
		if err := s.UnmarshalText([]byte(text)); err != nil || s != want {
			t.Errorf("%s: %d, %v; want %d", text, s, err, want)
		}
		if err := again.UnmarshalText([]byte(s.String())); err != nil || again != s {
			t.Errorf("%s prints as %s, which reads as %d", text, s, again)
		}
	}
	for _, text := range []string{"", "MiB", "1.5GiB", "64 M", "99999999TiB", "9223372036854775808"} {
		var s Size
		if err := s.UnmarshalText([]byte(text)); err == nil {
			t.Errorf("%q reads as %d", text, s)
		}
	}
}
