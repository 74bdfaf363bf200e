package relay

import (
	"errors"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/deadletter"
	"github.com/walpost/walpost/internal/parking"
	"github.com/walpost/walpost/internal/size"
)

// keyedError is the router's error of a row whose key it found.
type keyedError struct{ error }

func (keyedError) KeyFound() bool { return true }

// parking makes a world whose policy is park_key, with a configuration for it.
func (w *world) parking() Config {
	w.parks, w.park = true, newParkWorld()
	return Config{Poison: Poison{
		Policies: Policies{DefaultPolicy: PolicyParkKey}, Topic: deadTopic, Version: "test",
		ParkingTopic: parkTopic, ParkLimit: parking.Limit{Keys: 1000, Events: 100_000},
	}}
}

// isParked reports whether the topic of parked events has an event, or had it when a person dropped it.
func (w *world) isParked(r *row) bool {
	if w.park == nil {
		return false
	}
	e := w.park.entry(w.park.tokens[r.id])
	return e != nil && e.State != deadletter.Released
}

// judgeContiguous sees to it that what a process sends of one key goes on where it was, or goes back: a repeated event must be
// followed by all that came after it. Only a former holder may leave out what the present one has released.
func (w *world) judgeContiguous(p *proc, rec *cdc.Record) {
	r := w.byID[rec.EventID]
	if !w.parks || r == nil || p.dead || rec.Topic == parkTopic || rec.Topic == deadTopic {
		return
	}
	if p.sentLast == nil {
		p.sentLast = map[string]int{}
	}
	if *seed0 != 0 {
		w.tell("process %d sends %s, %d of %s", w.number(p), r.id, r.index, r.key)
	}
	if last, ok := p.sentLast[r.key]; ok {
		for i := last + 1; i < r.index; i++ {
			if between := w.byKey[r.key][i]; !w.mayMiss(between) && !w.given(between) && !w.releasedByNext(p, between) {
				w.fail("process %d sent event %d (%s) of key %s behind event %d, and not %s between them", w.number(p), r.index, r.id, r.key, last, between.id)
				break
			}
		}
	}
	p.sentLast[r.key] = r.index
}

// releasedByNext reports whether another process has taken the slot since p did, and has released a parked event. p may not know the
// first yet, and read the second in the topic.
func (w *world) releasedByNext(p *proc, r *row) bool {
	rec := w.newest()
	if rec == nil || w.park == nil {
		return false
	}
	next, by := w.writers[rec.HolderKey()], w.park.by[w.park.tokens[r.id]]
	return next != nil && next != p && by != nil && by != p && w.closedAs(r, deadletter.Released)
}

// given reports whether a person gave an event up.
func (w *world) given(r *row) bool { return w.park != nil && w.closedAs(r, deadletter.Dropped) }

func (w *world) closedAs(r *row, state deadletter.State) bool {
	e := w.park.entry(w.park.tokens[r.id])
	return e != nil && e.State == state
}

// retry is walpost dead retry for the keys that ok names. It returns how many those are.
func (w *world) retry(ok func(parking.Key) bool) (n int) {
	w.do(func() {
		for _, key := range w.park.backlog.Keys() {
			if ok(key) {
				n++
				es := w.park.backlog.Entries(key)
				w.landParked(parking.ReleaseRequest(parkTopic, "shop", es[len(es)-1], time.Now()))
			}
		}
	})
	return n
}

func anyKey(parking.Key) bool { return true }

// drop is walpost dead drop for one event.
func (w *world) drop(rng *rand.Rand) {
	w.do(func() {
		keys := w.park.backlog.Keys()
		if len(keys) == 0 {
			return
		}
		es := w.park.backlog.Entries(keys[rng.IntN(len(keys))])
		e := es[rng.IntN(len(es))]
		w.tell("drop of %s", e.Letter.ID)
		w.landParked(parking.DropRequest(parkTopic, "shop", e, "a test", time.Now()))
	})
}

// mend repairs whatever keeps an event from being delivered.
func (w *world) mend() {
	w.do(func() {
		clear(w.unrouted)
		clear(w.poison)
	})
}

// failOver promotes a standby. If lossy is set, the standby has not all of the log.
func (w *world) failOver(rng *rand.Rand, lossy bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	rec := w.newest()
	at, first := w.pos, cdc.Position(0) // of the present timeline
	if n := len(w.id.History); n > 0 {
		first = w.id.History[n-1].End.Position() + 1
	}
	partly := cdc.Position(0) // what a stop has written down of a transaction: without it, a start halts because of the gap
	if rec != nil && rec.Next != nil {
		partly = rec.Next.Commit
	}
	for i, t := range w.log {
		if lossy && rec != nil && t.begin-cdc.Position(8*len(t.rows))-8 >= max(rec.Position, partly, first) && rng.IntN(5) == 0 {
			at = t.begin - cdc.Position(8*len(t.rows)) - 8
			for _, lost := range w.log[i:] {
				for _, r := range lost.rows {
					r.excused = true
				}
			}
			w.tell("%d transactions are lost", len(w.log)-i)
			w.log = w.log[:i]
			break
		}
	}
	w.arrived = min(w.arrived, len(w.log))
	w.id.History = append(w.id.History, cdc.Fork{Timeline: w.id.Timeline, End: at.LSN()})
	w.id.Timeline++
	w.pos = at + 1 // so that no event has the id of a lost one
	w.cutLocked(errNet)
}

// A parkSim has one or two processes, bad events, and a person who repairs and releases.
type parkSim struct {
	*world
	rng  *rand.Rand
	cfg  Config
	live []*run
}

func (s *parkSim) upTo(d time.Duration) time.Duration { return time.Duration(s.rng.Int64N(int64(d))) }

func (s *parkSim) note(format string, a ...any) { s.do(func() { s.tell(format, a...) }) }

// revive starts what has ended, and makes room where more is parked than the limit allows.
func (s *parkSim) revive() {
	for i, r := range s.live {
		if errors.As(r.relay.Status().Stall, new(*limitReached)) {
			s.note("limit reached")
			s.mend()
			s.retry(anyKey)
		}
		if !r.ended() {
			continue
		}
		if r.err != nil && !errors.As(r.err, new(*superseded)) {
			s.do(func() { s.fail("ended: %v", r.err) })
		}
		s.live[i] = s.start(s.cfg)
	}
}

var parkTroubles = []struct {
	name string
	do   func(s *parkSim, r *run)
}{
	{"session lost", func(s *parkSim, _ *run) { s.cut(errNet) }},
	{"failover", func(s *parkSim, _ *run) { s.failOver(s.rng, false) }},
	{"lossy failover", func(s *parkSim, _ *run) { // a process that goes on would write down what is gone
		for _, r := range s.live {
			r.kill()
		}
		s.failOver(s.rng, s.tx == nil) // exactly_once promises nothing if commits are lost
		for _, r := range s.live {
			<-r.done
		}
	}},
	{"stop", func(s *parkSim, r *run) {
		if took := r.stop(); took > 30*time.Second {
			s.do(func() { s.fail("a stop took %s", took) })
		}
	}},
	{"kill", func(s *parkSim, r *run) { r.kill(); <-r.done }},
	{"kill", func(s *parkSim, r *run) { r.kill(); <-r.done }},
	{"cut off", func(s *parkSim, r *run) {
		s.do(func() {
			if r.away = true; s.session != nil && s.session.p == r.proc {
				s.cutLocked(errNet)
			}
		})
		time.Sleep(s.upTo(5 * time.Second))
		s.do(func() { r.away = false })
	}},
	{"letters that come late, when the cause is repaired", func(s *parkSim, r *run) {
		s.do(func() { r.lateLetters = true })
		s.spoilSome()
		time.Sleep(s.upTo(time.Second))
		s.do(func() {
			if r.away = true; s.session != nil && s.session.p == r.proc {
				s.cutLocked(errNet)
			}
		})
		s.mend()
		time.Sleep(s.upTo(5 * time.Second))
		s.do(func() { r.lateLetters = false })
		time.Sleep(s.upTo(2 * time.Second))
		s.do(func() { r.away = false })
	}},
	{"a slow Fence, without the source", func(s *parkSim, r *run) {
		late := s.upTo(5 * time.Second)
		if s.rng.IntN(2) == 0 {
			r.breakLog(errFenced)
		}
		r.slowFence(late)
		time.Sleep(s.upTo(3 * time.Second))
		s.do(func() {
			if r.away = true; s.session != nil && s.session.p == r.proc {
				s.cutLocked(errNet)
			}
		})
		time.Sleep(s.upTo(5 * time.Second))
		s.do(func() { r.away = false })
		r.slowFence(0)
	}},
	{"sink stalled", func(s *parkSim, _ *run) {
		s.do(func() { s.stalled = true })
		time.Sleep(s.upTo(4 * time.Second))
		s.do(func() { s.stalled = false })
	}},
	{"schema registry down", func(s *parkSim, _ *run) {
		s.do(func() { s.unanswered = true })
		time.Sleep(s.upTo(4 * time.Second))
		s.do(func() { s.unanswered = false })
	}},
	{"parking topic stalled", func(s *parkSim, _ *run) {
		s.do(func() { s.park.slow = true })
		time.Sleep(s.upTo(4 * time.Second))
		s.do(func() { s.park.slow = false })
	}},
	{"parking topic cannot be read", func(s *parkSim, _ *run) {
		s.do(func() { s.park.unread = true })
		time.Sleep(s.upTo(4 * time.Second))
		s.do(func() { s.park.unread = false })
	}},
	{"transactions without an answer", func(s *parkSim, _ *run) {
		s.do(func() { s.park.lies = true })
		time.Sleep(s.upTo(4 * time.Second))
		s.do(func() { s.park.lies = false })
	}},
	{"store slow, and lies", func(s *parkSim, _ *run) {
		s.do(func() { s.storeMax, s.storeLie = 400*time.Millisecond, true })
		time.Sleep(s.upTo(4 * time.Second))
		s.do(func() { s.storeMax, s.storeLie = 5*time.Millisecond, false })
	}},
	{"store down", func(s *parkSim, _ *run) {
		s.do(func() { s.storeDown = true })
		time.Sleep(s.upTo(3 * time.Second))
		s.do(func() { s.storeDown = false })
	}},
	{"poison", func(s *parkSim, _ *run) { s.spoilSome() }},
	{"poison", func(s *parkSim, _ *run) { s.spoilSome() }},
	{"release of what is still bad", func(s *parkSim, _ *run) { s.retry(func(parking.Key) bool { return s.rng.IntN(2) == 0 }) }},
	{"repair and release", func(s *parkSim, _ *run) { s.mend(); s.retry(anyKey) }},
	{"repair and release some", func(s *parkSim, _ *run) { s.mend(); s.retry(func(parking.Key) bool { return s.rng.IntN(2) == 0 }) }},
	{"repair and release", func(s *parkSim, _ *run) { s.mend(); s.retry(anyKey) }},
	{"drop", func(s *parkSim, _ *run) { s.drop(s.rng) }},
	{"transaction", func(s *parkSim, r *run) { s.txTrouble(s.rng, r) }},
}

// spoilSome makes some events bad that have not arrived.
func (s *parkSim) spoilSome() {
	s.do(func() {
		for _, t := range s.log[max(0, len(s.log)-10):] {
			for _, r := range t.rows {
				if r.routed && s.count[r.id] == 0 && s.rng.IntN(4) == 0 {
					if s.rng.IntN(2) == 0 {
						s.poison[r.id] = true
					} else {
						s.unrouted[r.id] = true
					}
				}
			}
		}
	})
}

func (s *parkSim) write(rng *rand.Rand) {
	for range 60 + rng.IntN(100) {
		n := 1 + rng.IntN(4)
		if rng.IntN(10) == 0 {
			n = 20 + rng.IntN(60)
		}
		keys := make([]string, n)
		for i := range keys {
			keys[i] = string("aaabcde-"[rng.IntN(8)])
		}
		s.do(func() {
			for _, r := range s.commitLocked(keys).rows {
				if rng.IntN(40) == 0 {
					s.unrouted[r.id] = true
				} else if rng.IntN(40) == 0 {
					s.poison[r.id] = true
				}
			}
		})
		if rng.IntN(3) > 0 {
			time.Sleep(time.Duration(rng.Int64N(int64(500 * time.Millisecond))))
		}
		if rng.IntN(5) == 0 {
			s.other()
		}
	}
}

// story lets things happen, and then wants everything to come to rest.
func (s *parkSim) story(seed uint64) {
	for range 1 + s.rng.IntN(2) {
		s.live = append(s.live, s.start(s.cfg))
	}
	written := make(chan struct{})
	go func() { s.write(rand.New(rand.NewPCG(seed, 7))); close(written) }()
	for range 8 + s.rng.IntN(14) {
		time.Sleep(s.upTo(3 * time.Second))
		t := parkTroubles[s.rng.IntN(len(parkTroubles))]
		s.note("%s", t.name)
		t.do(s, s.live[s.rng.IntN(len(s.live))])
		s.revive()
	}
	<-written
	s.note("quiet")
	s.do(func() { s.maxDelay = 5 * time.Millisecond })
	quiet := func() bool {
		_, next, _ := s.delivered()
		return next == nil && s.park.events() == 0
	}
	for n := 0; n < 600 && !s.eventually(0, quiet); n++ { // a window of one event needs a round for each
		s.mend()
		s.retry(func(k parking.Key) bool { return !s.park.backlog.Releases(k) })
		time.Sleep(5 * time.Second)
		s.revive()
	}
	s.do(func() {
		if !quiet() {
			pos, next, n := s.delivered()
			s.fail("not everything arrived: up to %s of %s, next %+v, %d rows of it; %+v parked; %+v", pos, s.pos, next, n, s.park.backlog.Counts(), s.live[0].relay.Status())
		}
	})
	s.other()
	if !s.eventually(time.Minute, func() bool { return s.id.SlotFound.Confirmed == s.pos }) {
		s.do(func() { s.fail("the slot stays at %s of %s", s.id.SlotFound.Confirmed, s.pos) })
	}
	for _, r := range s.live {
		if st := r.relay.Status(); !s.eventually(5*time.Second, func() bool { st = r.relay.Status(); return st.Parked.Events == 0 || st.State != Streaming }) {
			s.do(func() { s.fail("the status says %+v", st.Parked) })
		}
	}
	s.do(func() {
		for _, r := range s.byID {
			if r.routed && s.count[r.id] == 0 && !r.excused && !s.given(r) {
				s.fail("event %s of key %s never arrived", r.id, r.key)
			}
		}
	})
	for _, r := range s.live {
		if took := r.stop(); took > 5*time.Second || r.err != nil && !errors.As(r.err, new(*superseded)) {
			s.do(func() { s.fail("the last stop took %s: %v", took, r.err) })
		}
	}
	for _, r := range s.runs {
		r.cancel()
		<-r.done
	}
	time.Sleep(2 * time.Second) // kills end
}

func simulateParking(t *testing.T, seed uint64, tx *txBroker) {
	var s *parkSim
	synctest.Test(t, func(t *testing.T) {
		s = &parkSim{world: newWorld(seed), rng: rand.New(rand.NewPCG(seed, 8))}
		s.cfg, s.tx = s.parking(), tx
		s.status = []time.Duration{10 * time.Second, 2 * time.Second}[s.rng.IntN(2)]
		s.maxDelay = []time.Duration{2 * time.Millisecond, 50 * time.Millisecond, 400 * time.Millisecond}[s.rng.IntN(3)]
		if s.rng.IntN(2) == 0 {
			s.shared = map[byte]string{'a': "x", 'b': "x", 'c': "x", 'd': "y", 'e': "y"}
		}
		s.cfg.Window = Window{Events: 1 + s.rng.IntN(60), Bytes: size.Bytes(100 + s.rng.IntN(5000))}
		if s.rng.IntN(4) == 0 {
			s.cfg.Poison.ParkLimit = parking.Limit{Keys: 2 + s.rng.IntN(3), Events: 20 + s.rng.IntN(100)}
		}
		s.story(seed)
	})
	if len(s.wrong) > 0 || *seed0 != 0 {
		if *seed0 != 0 || testing.Verbose() {
			for _, r := range s.runs {
				t.Log(r.logs.String())
			}
		}
		t.Logf("seed %d, window %+v\n%s", seed, s.cfg.Window, strings.Join(s.tale, "\n"))
		if len(s.wrong) > 0 {
			t.Errorf("seed %d:\n%s", seed, strings.Join(s.wrong[:min(10, len(s.wrong))], "\n"))
		}
	}
}

// TestSimulationOfParkedKeys: of each key the first occurrences of all events arrive in order, repeated events are followed by all that
// came after them, and in the end nothing is parked and nothing is missing. Whatever happens meanwhile: bad events, releases, crashes, a
// second process, failovers that lose transactions, topics that stall.
func TestSimulationOfParkedKeys(t *testing.T) {
	seedsOf(t, func(t *testing.T, seed uint64) { simulateParking(t, seed, nil) })
}
