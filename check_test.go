package walpost

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/walpost/walpost/doctor"
	"github.com/walpost/walpost/slot"
)

func TestTheDatabasesClockIsJudgedWithinWhatIsKnown(t *testing.T) {
	for _, c := range []struct {
		ahead, within time.Duration
		verdict       doctor.Verdict
		why           string
	}{
		{0, time.Millisecond, OK, "the database's is 0.000s ahead of this machine's (within 1ms)"},
		{slot.MaxClockSkew + time.Millisecond, time.Millisecond, OK, "2.001s ahead of"},
		{slot.MaxClockSkew + 2*time.Millisecond, time.Millisecond, Warn, "2.002s ahead of"},
		{-time.Minute, 3 * time.Second, Warn, "60.000s behind this machine's (within 3s)"},
		{time.Minute, time.Minute, OK, "60.000s ahead of this machine's (within 1m0s)"},
	} {
		f := judgeClock(c.ahead, c.within)
		if f.Side != "postgres" || f.Name != "clock" || f.Verdict != c.verdict || !strings.Contains(f.Why, c.why) || (len(f.Fix) == 0) != (c.verdict == OK) {
			t.Errorf("%s within %s: %+v", c.ahead, c.within, f)
		}
	}
}

// What was interrupted is no finding: nobody should be told that a server is down because of it.
func TestACheckThatIsInterruptedFindsNothing(t *testing.T) {
	cfg := DefaultConfig()
	cfg.Source.DSN, cfg.Source.Table, cfg.Kafka.Brokers = "postgres://walpost@127.0.0.1:1/shop", "public.outbox", []string{"127.0.0.1:1"}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if found, err := Check(ctx, cfg); !errors.Is(err, context.Canceled) || found != nil {
		t.Errorf("%+v, %v", found, err)
	}
}
