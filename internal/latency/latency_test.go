package latency

import (
	"testing"
	"time"
)

func TestAQuantileLiesInItsBucketAndNotAboveTheLongest(t *testing.T) {
	var h Histogram
	if got := h.Quantile(0.5); got != 0 {
		t.Errorf("the median of nothing is %v s", got)
	}
	for range 100 {
		h.Add(4 * time.Millisecond) // above 2.5 ms, up to 5 ms
	}
	if got := h.Quantile(0.5); got < 0.0032 || got > 0.0033 {
		t.Errorf("the median is %v s; want half the way from 2.5 ms to the longest, 4 ms", got)
	}
	h.Add(time.Minute)
	if got := h.Quantile(0.5); got < 0.0025 || got > 0.005 {
		t.Errorf("the median is %v s; want between 2.5 and 5 ms", got)
	}
	if got := h.Quantile(1); got != 60 {
		t.Errorf("the longest is %v s; want 60 s", got)
	}
}

// After an outage every event is as old as the outage was long, or younger. The 99th percentile says how long it was.
func TestTheLatencyOfAnOutageIsThatOfTheOutage(t *testing.T) {
	for _, outage := range []time.Duration{
		12 * time.Second, 35 * time.Second, 72 * time.Second, 100 * time.Second, 4 * time.Minute, 8 * time.Minute, 20 * time.Minute,
		50 * time.Minute, 3 * time.Hour, 10 * time.Hour,
	} {
		var before Histogram
		for range 1000 {
			before.Add(3 * time.Millisecond)
		}
		h := before
		for i := range 1000 {
			h.Add(outage - outage*time.Duration(i)/20_000) // the newest is a twentieth younger
		}
		got := h.Since(before).Quantile(0.99)
		if longest := outage.Seconds(); got > longest || got < 0.9*longest {
			t.Errorf("after an outage of %s the 99th percentile is %.1f s", outage, got)
		}
	}
}

// A shorter outage that comes after a longer one is at worst taken for the upper end of its bucket.
func TestAnEarlierOutageDoesNotHideALaterOne(t *testing.T) {
	var before Histogram
	before.Add(10 * time.Hour)
	for d := 10 * time.Second; d < 4*time.Hour; d += d / 7 {
		h := before
		h.Add(d)
		if got := h.Since(before).Quantile(0.99); got > 2*d.Seconds() || got < d.Seconds()/2 {
			t.Errorf("an outage of %s is shown as %.1f s", d, got)
		}
	}
}
