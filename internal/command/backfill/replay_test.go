package backfill

import (
	"testing"
	"time"
)

func TestTheLowestRatesAreNoRateWithoutALimit(t *testing.T) {
	for _, rate := range []float64{1e-3, 1e-11, 5e-324} {
		r := &replay{Replaying: Replaying{ReplayOptions: ReplayOptions{Rate: rate}}}
		if first, second := r.turn(), r.turn(); second.Sub(first) < 1000*time.Second {
			t.Errorf("--rate %g: the second event %v after the first", rate, second.Sub(first))
		}
	}
}
