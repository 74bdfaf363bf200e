package doctor

import (
	"strings"
	"testing"
	"time"

	"github.com/walpost/walpost/slot"
)

func TestTheDatabasesClockIsJudgedWithinWhatIsKnown(t *testing.T) {
	for _, c := range []struct {
		ahead, within time.Duration
		verdict       Verdict
		why           string
	}{
		{0, time.Millisecond, OK, "the database's clock is 0.000s ahead of this machine's clock (within 1ms)"},
		{slot.MaxClockSkew + time.Millisecond, time.Millisecond, OK, "2.001s ahead of"},
		{slot.MaxClockSkew + 2*time.Millisecond, time.Millisecond, Warn, "2.002s ahead of"},
		{-time.Minute, 3 * time.Second, Warn, "60.000s behind this machine's clock (within 3s)"},
		{time.Minute, time.Minute, OK, "60.000s ahead of this machine's clock (within 1m0s)"},
	} {
		f := judgeClock(c.ahead, c.within)
		if f.Side != "postgres" || f.Name != "clock" || f.Verdict != c.verdict || !strings.Contains(f.Why, c.why) || (len(f.Fix) == 0) != (c.verdict == OK) {
			t.Errorf("%s within %s: %+v", c.ahead, c.within, f)
		}
	}
}
