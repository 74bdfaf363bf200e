package slot

import (
	"cmp"
	"math"
	"time"

	"github.com/walpost/walpost/cdc"
)

// A Limit is what bounds the WAL that the server keeps for the slot.
type Limit string

// The limits of a slot.
const (
	NoLimit   Limit = ""
	ByKeep    Limit = "max_slot_wal_keep_size"
	ByDisk    Limit = "monitor.wal_disk_size"
	ByRemoval Limit = "lost" // the slot has already lost its WAL
)

// A Forecast says when the limits of a slot are used up.
type Forecast struct {
	// Exhaustion is the number of seconds until Limit is used up at the present rate. It is +Inf if
	// no limit is known or Left does not shrink. At 0, the next checkpoint of the server may remove
	// WAL of the slot.
	Exhaustion float64 `json:"-"`
	// Limit is the limit that ends first, and Left how much of it is left.
	Limit Limit `json:"limit"`
	Left  int64 `json:"-"`
	// DiskFull is the number of seconds until the WAL that slots hold has used up monitor.wal_disk_size. It
	// is +Inf if the size is not known, or if max_slot_wal_keep_size ends first: then the server gives up
	// the slot before the disk is full.
	DiskFull float64 `json:"-"`
	// WALRate is how many bytes of WAL the server writes a second, over the last minute; -1 before it is known.
	WALRate float64 `json:"-"`
}

func rounded(seconds float64) time.Duration {
	return time.Duration(seconds * float64(time.Second)).Round(time.Second)
}

const (
	// stillPatience is how long restart_lsn may stand still before that counts. A server moves the restart_lsn of a
	// healthy slot every 15 seconds or so, when it logs its running transactions. Between two moves every slot would
	// look doomed.
	stillPatience = time.Minute
	// longestSpan is the longest time that a rate is measured over.
	longestSpan = 10 * time.Minute
	// rateSpan is the time over which WALRate is measured.
	rateSpan = time.Minute
)

// A forecaster makes a Forecast of the Health of the last minutes.
type forecaster struct {
	disk int64 // 0 is unknown
	keep trend // of the slot
	all  trend // of the slot that holds the oldest WAL, which is what fills the disk
}

func newForecaster(cfg Config, patience time.Duration) forecaster {
	t := trend{interval: max(cfg.Interval, time.Second), patience: patience}
	return forecaster{disk: int64(cfg.WALDiskSize), keep: t, all: t}
}

// add takes one Health into account.
func (f *forecaster) add(h *Health) Forecast {
	oldest := cmp.Or(h.Oldest, h.Server) // 0: nothing is held
	f.all.add(h.At, h.Server, oldest)
	if h.Exists && h.Restart > 0 {
		f.keep.add(h.At, h.Server, h.Restart)
	} else {
		f.keep.samples = nil // the slot was lost or dropped; one of its name that is made later begins from nothing
	}
	out := Forecast{Exhaustion: math.Inf(1), DiskFull: math.Inf(1), WALRate: f.all.rate()}
	switch {
	case h.Exists && h.lost():
		out.Exhaustion, out.Limit = 0, ByRemoval
		return out
	case h.Exists && h.SafeKnown:
		out.Limit, out.Left, out.Exhaustion = ByKeep, h.SafeBytes, f.keep.exhaustion(h.SafeBytes)
	}
	if f.disk == 0 {
		return out
	}
	// pg_wal is larger than what slots hold, because the server keeps files for reuse. It is pg_wal that fills the disk.
	left := f.disk - max(h.WALDirBytes, int64(h.Server-oldest))
	seconds := f.all.exhaustion(left)
	if seconds < out.Exhaustion || out.Limit == NoLimit {
		out.Limit, out.Left, out.Exhaustion = ByDisk, left, seconds
	}
	// To drop a slot helps only where slots hold most of pg_wal, and not a failing archive_command, for example.
	if held := int64(h.Server - oldest); 2*held >= h.WALDirBytes && (!h.SafeKnown || h.SafeBytes >= left) {
		out.DiskFull = seconds
	}
	return out
}

// A sample is the server's position, and that of the oldest WAL it had to keep, at one time.
type sample struct {
	at              time.Time
	server, restart cdc.LSN
	moved           bool // restart differs from the sample before
}

// A trend is how the WAL that is held grows. It grows when the restart position stands still while the server writes, or
// moves more slowly than the server writes. The two look alike for some seconds, because a restart position always moves in
// steps.
type trend struct {
	interval time.Duration
	patience time.Duration
	samples  []sample // of the last longestSpan, oldest first
	moved    sample   // the last in which restart had moved; the first one if it never moved
}

// add adds a sample. A position that goes back is another or a restored server, so all older samples go.
func (t *trend) add(at time.Time, server, restart cdc.LSN) {
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
	for drop < len(t.samples)-2 && at.Sub(t.samples[drop].at) > max(longestSpan, 8*t.interval) {
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
	// A position that has not moved for long, or for a good part of the time that would be left, is taken to stand still.
	if stood := now.at.Sub(t.moved.at); stood > 0 && (stood >= t.patience || stood.Seconds() >= standing/4) {
		return standing
	}
	// A position that moves is judged just after its steps: by what was held then, not in between.
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

// over is the number of seconds until left is used up, by how much grew from earlier samples to now. A rate that was measured
// over some time tells about eight times that time to come. So a short burst does not foretell the night, but a sudden load
// that uses up everything within a minute is seen after seconds.
func (t *trend) over(left int64, now sample, earlier []sample, size func(sample) int64) float64 {
	soonest := math.Inf(1)
	for span, longest := max(longestSpan, 8*t.interval), true; span >= 2*t.interval || longest; span, longest = span/2, false {
		from := firstWithin(earlier, now.at, span, earlier[0])
		passed := now.at.Sub(from.at)
		if passed <= 0 || passed > span && !longest {
			continue
		}
		grown := size(now) - size(from)
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

// firstWithin returns the first sample that is not older than span at now, or otherwise.
func firstWithin(samples []sample, now time.Time, span time.Duration, otherwise sample) sample {
	for _, s := range samples {
		if now.Sub(s.at) <= span {
			return s
		}
	}
	return otherwise
}

// rate is how many bytes of WAL the server wrote a second in the last minute, -1 before two samples.
func (t *trend) rate() float64 {
	n := len(t.samples)
	if n < 2 {
		return -1
	}
	now := t.samples[n-1]
	from := firstWithin(t.samples[:n-1], now.at, rateSpan, t.samples[n-2])
	return float64(now.server-from.server) / now.at.Sub(from.at).Seconds()
}
