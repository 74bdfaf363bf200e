package backoff

import (
	"math"
	"testing"
	"time"
)

func TestThePauseDoublesUpToItsMost(t *testing.T) {
	for _, b := range []Backoff{
		{time.Second, 10 * time.Second},
		{time.Second, 8 * time.Second},
		{time.Second, time.Second},
		{time.Minute, time.Second},
		{time.Second, math.MaxInt64},
		{1, math.MaxInt64},
	} {
		want := float64(min(b.Min, b.Max))
		for failures := 1; failures < 200; failures++ {
			limit := b.Limit(failures)
			if float64(limit) != math.Min(want, float64(b.Max)) {
				t.Fatalf("%+v after %d failures: at most %s, want %s", b, failures, limit, time.Duration(want))
			}
			if p := b.Pause(failures); p < limit/2 || p > limit {
				t.Fatalf("%+v after %d failures: %s, want between a half of %s and all", b, failures, p, limit)
			}
			want *= 2
		}
		if got := b.Limit(0); got != min(b.Min, b.Max) {
			t.Errorf("%+v without a failure: %s", b, got)
		}
	}
}
