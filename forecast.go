package walpost

import (
	"math"
	"time"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/replication"
)

// A Limit is what bounds the WAL that the server keeps for the slot.
type Limit string

// The limits of a slot.
const (
	NoLimit   Limit = ""
	ByKeep    Limit = "max_slot_wal_keep_size"
	ByDisk    Limit = "monitor.wal_disk_size"
	ByRemoval Limit = "lost" // there is nothing left to lose
)

// forecastPatience is how long restart_lsn may stand still before that counts: a server moves the restart_lsn of a healthy slot every
// 15 seconds or so, when it logs its running transactions, and from the time between alone every slot would be doomed.
const forecastPatience = time.Minute

// forecastOver is the longest time that a rate is measured over.
const forecastOver = 10 * time.Minute

// A forecast tells when the limits of a slot are used up, from the looks of the last minutes.
type forecast struct {
	disk     int64 // 0 is unknown
	interval time.Duration
	keep     trend // of the slot
	all      trend // of the slot that holds the oldest WAL, which is what fills the disk
}

func (f *forecast) begin(limits MonitorConfig, patience time.Duration) {
	*f = forecast{disk: int64(limits.WALDiskSize), interval: limits.Interval}
	f.keep.begin(limits.Interval, patience)
	f.all.begin(limits.Interval, patience)
}

// foreseen is what a forecast says.
type foreseen struct {
	seconds float64 // until limit is used up
	limit   Limit   // the one that ends first
	left    int64
	rate    float64 // of WAL, bytes a second; -1 where it cannot be told yet
}

// look takes one look at the slot into account.
func (f *forecast) look(h *replication.Health) foreseen {
	oldest := h.Oldest
	if oldest == 0 {
		oldest = h.Server // nothing is held
	}
	f.all.look(h.At, h.Server, oldest)
	if h.Exists && h.Restart > 0 {
		f.keep.look(h.At, h.Server, h.Restart)
	} else {
		f.keep.forget() // it was lost or dropped; a slot of its name that is made anew begins anew
	}
	out := foreseen{seconds: math.Inf(1), rate: f.all.written()}
	switch {
	case h.Exists && (h.WALStatus == "lost" || h.Invalidation != ""):
		out.seconds, out.limit = 0, ByRemoval
		return out
	case h.Exists && h.SafeKnown:
		out.limit, out.left, out.seconds = ByKeep, h.SafeBytes, f.keep.exhaustion(h.SafeBytes)
	}
	if f.disk == 0 {
		return out
	}
	// pg_wal is larger than what slots hold (the server keeps files for reuse), and is what fills the disk where it can be seen.
	left := f.disk - max(h.WALDirBytes, int64(h.Server-oldest))
	if seconds := f.all.exhaustion(left); seconds < out.seconds || out.limit == NoLimit {
		out.limit, out.left, out.seconds = ByDisk, left, seconds
	}
	return out
}

// A sample is the server's position, and that of the oldest WAL it had to keep, at one time.
type sample struct {
	at              time.Time
	server, restart cdc.Position
	moved           bool // restart is another one than in the sample before
}

// A trend is how the WAL that is held grows. What grows it is a restart position that stands still while the server writes, or
// that moves slower than it writes. The two look alike for some seconds, because it moves in steps even where all is well.
type trend struct {
	interval time.Duration
	patience time.Duration
	samples  []sample // of the last forecastOver, oldest first
	moved    sample   // where restart was seen to move last; the first sample before that
}

func (t *trend) begin(interval, patience time.Duration) {
	*t = trend{interval: max(interval, time.Second), patience: patience}
}

func (t *trend) forget() { t.samples = nil }

// look adds a sample. A server that went back (another one, a restored one) begins anew.
func (t *trend) look(at time.Time, server, restart cdc.Position) {
	if n := len(t.samples); n > 0 {
		switch last := t.samples[n-1]; {
		case server < last.server || restart < last.restart:
			t.samples = nil
		case !at.After(last.at):
			return
		}
	}
	s := sample{at: at, server: server, restart: restart, moved: true}
	if n := len(t.samples); n > 0 {
		s.moved = restart != t.samples[n-1].restart
	}
	if s.moved {
		t.moved = s
	}
	t.samples = append(t.samples, s)
	drop := 0
	for drop < len(t.samples)-2 && at.Sub(t.samples[drop].at) > max(forecastOver, 8*t.interval) {
		drop++
	}
	t.samples = append(t.samples[:0], t.samples[drop:]...)
}

// exhaustion is in how many seconds left bytes are used up; +Inf where they are not.
func (t *trend) exhaustion(left int64) float64 {
	if left <= 0 {
		return 0
	}
	n := len(t.samples)
	if n < 2 {
		return math.Inf(1)
	}
	now := t.samples[n-1]
	standing := t.over(left, now, t.samples[:n-1], func(s sample) int64 { return int64(s.server) })
	// A position that has not moved for long, or for a good part of the time that would be left, is taken to stand for ever.
	if stood := now.at.Sub(t.moved.at); stood > 0 && (stood >= t.patience || stood.Seconds() >= standing/4) {
		return standing
	}
	// One that moves is judged just after its steps: what was held then, not what was held meanwhile.
	var steps []sample
	for _, s := range t.samples {
		if s.moved && s.at.Before(t.moved.at) {
			steps = append(steps, s)
		}
	}
	if len(steps) == 0 {
		return math.Inf(1)
	}
	return t.over(left, t.moved, steps, func(s sample) int64 { return int64(s.server) - int64(s.restart) })
}

// over is the time until left is used up, by how much grew from earlier samples to now. A rate that was measured over some
// time tells about a few times that time to come, and no more: so a burst does not foretell the night, and still a sudden load
// that uses up everything within a minute is seen after seconds, and not only when it fills the longest window.
func (t *trend) over(left int64, now sample, earlier []sample, of func(sample) int64) float64 {
	soonest := math.Inf(1)
	for span, longest := max(forecastOver, 8*t.interval), true; span >= 2*t.interval || longest; span, longest = span/2, false {
		from := earlier[0]
		for _, s := range earlier {
			if now.at.Sub(s.at) <= span {
				from = s
				break
			}
		}
		passed := now.at.Sub(from.at)
		if passed <= 0 || passed > span && !longest {
			continue
		}
		grown := of(now) - of(from)
		if grown <= 0 {
			continue
		}
		seconds := float64(left) / (float64(grown) / passed.Seconds())
		if longest || seconds <= 8*span.Seconds() {
			soonest = min(soonest, seconds)
		}
	}
	return soonest
}

// rateOver is the time over which the rate of WAL that is shown is measured.
const rateOver = time.Minute

// written is how many bytes of WAL the server wrote a second in the last minute, -1 where that cannot be told yet.
func (t *trend) written() float64 {
	n := len(t.samples)
	if n < 2 {
		return -1
	}
	now, from := t.samples[n-1], t.samples[n-2]
	for _, s := range t.samples[:n-1] {
		if now.at.Sub(s.at) <= rateOver {
			from = s
			break
		}
	}
	return float64(now.server-from.server) / now.at.Sub(from.at).Seconds()
}
