package slot

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/size"
)

const mib = 1 << 20

// A simulated server writes WAL and keeps it for a slot; the forecast looks at it at every interval.
type simulated struct {
	t        *testing.T
	f        forecaster
	at       time.Time
	interval time.Duration
	keep     int64
	server   int64
	restart  int64
	last     Forecast
}

func simulate(t *testing.T, keep int64, limits Config) *simulated {
	s := &simulated{t: t, at: time.Now(), interval: limits.Interval, keep: keep, server: 1 << 30, restart: 1 << 30}
	s.f = newForecaster(limits, stillPatience)
	return s
}

func (s *simulated) left() int64 { return s.keep - (s.server - s.restart) }

// look lets an interval pass in which written bytes of WAL are written, and looks.
func (s *simulated) look(written int64) Forecast {
	s.at, s.server = s.at.Add(s.interval), s.server+written
	s.last = s.f.add(&Health{
		Exists: true, At: s.at, SafeBytes: s.left(), SafeKnown: s.keep >= 0, KeepBytes: s.keep, WALStatus: "reserved",
		Server: cdc.LSN(s.server), Restart: cdc.LSN(s.restart), Oldest: cdc.LSN(s.restart), WALDirBytes: -1,
	})
	return s.last
}

func within(got, truth, factor float64) bool { return got <= truth*factor && got >= truth/factor }

// What the archiver keeps fills the disk as well, but no slot that is dropped frees it.
func TestADiskThatSlotsDoNotFillIsNotTheirs(t *testing.T) {
	for held, ours := range map[int64]bool{0: false, 80: false, 120: true} {
		f := newForecaster(Config{Interval: time.Second, WALDiskSize: 100 * mib}, stillPatience)
		got := f.add(&Health{
			Exists: true, At: time.Now(), WALDirBytes: 200 * mib, WALStatus: "reserved",
			Server: 1 << 30, Restart: cdc.LSN(1<<30 - held*mib), Oldest: cdc.LSN(1<<30 - held*mib),
		})
		if got.Exhaustion != 0 || got.Limit != ByDisk || (got.DiskFull == 0) != ours {
			t.Errorf("slots hold %d MB of 200: %+v", held, got)
		}
	}
}

// The promise: within a factor of two from half the budget on, whatever came before and however fast it goes.
func TestForecastOfASlotThatStandsStill(t *testing.T) {
	for _, interval := range []time.Duration{time.Second, 10 * time.Second} {
		for _, looks := range []int{8, 12, 40, 300, 1000} { // from the first byte to the last
			for _, idle := range []int{0, 3, 50, 400} { // looks before that in which little is written
				for _, jitter := range []float64{0, 0.5} {
					t.Run(fmt.Sprintf("%s/%d/%d/%v", interval, looks, idle, jitter), func(t *testing.T) {
						s := simulate(t, 1<<30, Config{Interval: interval})
						random := rand.New(rand.NewPCG(1, 2))
						for range idle {
							s.look(100)
							s.restart = s.server
						}
						s.look(0)
						for s.left() > 0 {
							got := s.look(int64(float64(s.keep/int64(looks)) * (1 + jitter*(2*random.Float64()-1))))
							truth := float64(s.left()) / float64(s.keep) * float64(looks) * interval.Seconds()
							if s.left() > s.keep/2 || s.left() < s.keep/int64(looks)*2 {
								continue // before the promise holds; and about less than two intervals nobody can tell much
							}
							if !within(got.Exhaustion, truth, 2) || got.Limit != ByKeep {
								t.Fatalf("%d%% left: forecast %v (%s), truth %v", s.left()*100/s.keep, got.Exhaustion, got.Limit, truth)
							}
						}
						if got := s.look(1); got.Exhaustion != 0 {
							t.Errorf("with nothing left: %v", got)
						}
					})
				}
			}
		}
	}
}

// A consumer that is too slow: restart_lsn moves all the time, by less than is written.
func TestForecastOfASlotThatFallsBehind(t *testing.T) {
	s := simulate(t, 1<<30, Config{Interval: 10 * time.Second})
	for n := 0; s.left() > 50*mib; n++ {
		if n%2 == 0 { // in steps of twenty seconds
			s.restart += 14 * mib
		}
		got := s.look(10 * mib)
		if s.left() > s.keep/2 {
			continue
		}
		if truth := float64(s.left()) / (3 * mib) * 10; !within(got.Exhaustion, truth, 2) {
			t.Fatalf("%d MiB left: forecast %v, truth %v", s.left()/mib, got.Exhaustion, truth)
		}
	}
}

// A healthy slot on a busy server: restart_lsn follows in steps of some intervals, and what is left goes up and down.
func TestNoForecastForASlotThatFollows(t *testing.T) {
	s := simulate(t, 10<<30, Config{Interval: 10 * time.Second})
	random := rand.New(rand.NewPCG(3, 4))
	for n := range 2000 {
		if n%3 == 0 {
			s.restart = s.server - int64(random.IntN(mib))
		}
		if got := s.look(100*mib + int64(random.IntN(20*mib))); n > 3 && got.Exhaustion < 4*3600 {
			t.Fatalf("look %d, %d MiB held: lost in %v", n, (s.server-s.restart)/mib, got.Exhaustion)
		}
	}
	if rate := s.last.WALRate; !within(rate, 110*mib/10, 1.1) {
		t.Errorf("rate of WAL: %v", rate)
	}
}

// A backlog that is worked off: there is less and less to lose.
func TestNoForecastWhileTheBacklogShrinks(t *testing.T) {
	s := simulate(t, 1<<30, Config{Interval: 10 * time.Second})
	s.server += 900 * mib
	for n := 0; s.restart < s.server-50*mib; n++ {
		s.restart += 20 * mib
		if got := s.look(10 * mib); n > 0 && !math.IsInf(got.Exhaustion, 1) {
			t.Fatalf("look %d, %d MiB left: lost in %v", n, s.left()/mib, got.Exhaustion)
		}
	}
}

func TestForecastNeedsTwoLooksAndALimit(t *testing.T) {
	s := simulate(t, 1<<30, Config{Interval: time.Second})
	if got := s.look(mib); !math.IsInf(got.Exhaustion, 1) || got.WALRate != -1 || got.Left != s.left() {
		t.Errorf("after one look: %+v", got)
	}
	s = simulate(t, -1, Config{Interval: time.Second})
	for range 200 {
		s.look(mib)
	}
	if !math.IsInf(s.last.Exhaustion, 1) || s.last.Limit != NoLimit {
		t.Errorf("without a limit: %+v", s.last)
	}
	lost := s.f.add(&Health{Exists: true, At: s.at.Add(time.Second), WALStatus: "lost", Server: cdc.LSN(s.server)})
	if lost.Exhaustion != 0 || lost.Limit != ByRemoval {
		t.Errorf("lost: %+v", lost)
	}
	gone := s.f.add(&Health{At: s.at.Add(2 * time.Second), Server: cdc.LSN(s.server)})
	if !math.IsInf(gone.Exhaustion, 1) {
		t.Errorf("dropped: %+v", gone)
	}
}

// A slot created anew, a restored server: what was seen before is about another one.
func TestForecastBeginsAnew(t *testing.T) {
	s := simulate(t, 1<<30, Config{Interval: time.Second})
	for range 120 {
		s.look(mib)
	}
	if math.IsInf(s.last.Exhaustion, 1) {
		t.Fatal("no forecast")
	}
	s.server, s.restart = 1<<20, 1<<20
	if got := s.look(0); !math.IsInf(got.Exhaustion, 1) || got.WALRate != -1 {
		t.Errorf("another server: %+v", got)
	}
	s.server -= 1 << 10 // restored to a little before, with the slot where it was
	if got := s.look(0); got.WALRate != -1 {
		t.Errorf("a restored server: %+v", got)
	}
}

// A short burst does not foretell the night: what was measured over seconds tells about minutes.
func TestForecastOfABurst(t *testing.T) {
	s := simulate(t, 100<<30, Config{Interval: 10 * time.Second})
	for range 120 {
		s.look(mib)
	}
	quiet := s.last.Exhaustion
	for range 3 {
		s.look(100 * mib)
	}
	if got := s.last.Exhaustion; got < quiet/10 || math.IsInf(quiet, 1) {
		t.Errorf("quiet %v, after a burst of 30 s %v", quiet, got)
	}
}

// Without max_slot_wal_keep_size it is the disk that ends, for the oldest slot of all and with what pg_wal holds beside.
func TestForecastOfTheDisk(t *testing.T) {
	s := simulate(t, -1, Config{Interval: 10 * time.Second, WALDiskSize: 1 << 30})
	var got Forecast
	look := func(oldest, dir int64) {
		s.at, s.server = s.at.Add(s.interval), s.server+mib
		s.restart = s.server
		got = s.f.add(&Health{
			Exists: true, At: s.at, KeepBytes: -1, Server: cdc.LSN(s.server), Restart: cdc.LSN(s.restart),
			Oldest: cdc.LSN(oldest), WALDirBytes: dir, RetainedBytes: 0, WALStatus: "reserved",
		})
	}
	abandoned := s.restart
	for range 20 {
		look(abandoned, 524*mib)
	}
	if got.Limit != ByDisk || got.Left != 500*mib || !within(got.Exhaustion, 5000, 1.01) {
		t.Errorf("beside an abandoned slot: %+v", got)
	}
	for range 20 {
		look(abandoned, -1)
	}
	if got.Left != 1<<30-40*mib {
		t.Errorf("without the right to list pg_wal: %+v", got)
	}
	for range 120 {
		look(s.server, 900*mib)
	}
	if !math.IsInf(got.Exhaustion, 1) {
		t.Errorf("while nothing is held, a large pg_wal is for reuse: %+v", got)
	}
	look(s.server-2*mib, 1025*mib)
	if got.Exhaustion != 0 {
		t.Errorf("full: %+v", got)
	}
}

// max_slot_wal_keep_size protects the disk by itself: the slot that reaches it is lost, and the breaker must not drop the slot before. Only the
// forecast of the disk trips the breaker.
func TestTheBreakerCountsOnlyTheDisk(t *testing.T) {
	for name, c := range map[string]struct {
		keep int64
		disk size.Bytes
		want bool
	}{
		"max_slot_wal_keep_size ends first":  {100 * mib, 1 << 40, false},
		"no disk size":                       {100 * mib, 0, false},
		"the disk ends first":                {200 * mib, 100 * mib, true},
		"the server gives up the slot first": {100 * mib, 200 * mib, false},
	} {
		t.Run(name, func(t *testing.T) {
			limits := Config{Interval: 10 * time.Second, WALDiskSize: c.disk, RetainedCritical: 1 << 40, BreakerForecast: time.Hour}
			s, breaker, tripped := simulate(t, c.keep, limits), &trip{}, false
			for range 60 {
				s.look(mib)
				h := Health{Slot: "s", Exists: true, WALStatus: "extended"}
				tripped = tripped || breaker.add(&Status{Known: true, Health: h, Forecast: s.last}, limits) != ""
			}
			if s.last.Exhaustion > 3600 || tripped != c.want {
				t.Errorf("tripped: %t, %+v", tripped, s.last)
			}
		})
	}
}
