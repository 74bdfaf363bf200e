package relay

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/checkpoint"
	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/internal/size"
	"github.com/walpost/walpost/internal/testenv/short"
)

var (
	seeds = flag.Int("seeds", short.Raced(150, 6), "seeds of each kind of simulation")
	seed0 = flag.Uint64("seed", 0, "run this one seed only, and tell its tale")
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A run is one process from its start to its end.
type run struct {
	*proc
	relay  *Relay
	cancel context.CancelFunc
	done   chan struct{}
	err    error
	logs   journal
}

// A plainHandler insists on attributes with names: not every handler resolves a value before it looks
// at the name, or leaves out an attribute without one.
type plainHandler struct{ slog.Handler }

func (h plainHandler) Handle(ctx context.Context, rec slog.Record) error {
	rec.Attrs(func(a slog.Attr) bool {
		if a.Key == "" {
			panic("an attribute without a name in " + rec.Message)
		}
		return true
	})
	return h.Handler.Handle(ctx, rec)
}

func (h plainHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return plainHandler{h.Handler.WithAttrs(attrs)}
}

func (w *world) start(cfg Config) *run {
	p := &proc{w: w}
	w.mu.Lock()
	p.sink = newFakeSink(p, w.rng.Uint64())
	w.mu.Unlock()
	r := &run{proc: p, done: make(chan struct{})}
	cfg.Name = "shop"
	if cfg.Copying != nil {
		copying := *cfg.Copying
		cfg.Copying, copying.Tables = &copying, copying.Tables.(ownTables).of(p)
	}
	usual := DefaultConfig()
	cfg.Window.Events, cfg.Window.Bytes = cmp.Or(cfg.Window.Events, 20), cmp.Or(cfg.Window.Bytes, usual.Window.Bytes)
	cfg.ShutdownGrace, cfg.MonitorInterval = cmp.Or(cfg.ShutdownGrace, usual.ShutdownGrace), usual.MonitorInterval
	cfg.Logger = slog.New(plainHandler{slog.NewJSONHandler(&r.logs, nil)})
	if w.parks {
		w.do(func() { p.log = newFakeLog(p, w.rng.Uint64()) })
		cfg.Parking = p.log
	}
	var sink Sink = p.sink
	if w.tx != nil {
		tx := &fakeTx{fakeSink: p.sink}
		p.sink.tx, sink, cfg.Committer, cfg.Peek = tx, tx, tx, tx.peek
	}
	relay := New(cfg, fakeSource{p}, &fakeRouter{w: p.w}, sink, &fakeStore{p: p})
	r.relay = relay
	ctx, cancel := context.WithCancel(context.Background())
	r.cancel = cancel
	w.do(func() { w.runs = append(w.runs, r) })
	go func() {
		defer close(r.done)
		r.err = relay.Run(ctx)
		if p.log != nil {
			p.log.close()
		}
	}()
	return r
}

// ownTables are tables that a process reads for itself.
type ownTables interface{ of(p *proc) Tables }

// A journal keeps log lines.
type journal struct {
	mu sync.Mutex
	b  strings.Builder
}

func (j *journal) Write(p []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.b.Write(p)
}

func (j *journal) String() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.b.String()
}

// stop asks for a clean end and waits for it.
func (r *run) stop() time.Duration {
	from := time.Now()
	r.cancel()
	<-r.done
	return time.Since(from)
}

// kill ends the process as kill -9 does. The server keeps its session for a while.
func (r *run) kill() {
	w := r.w
	w.mu.Lock()
	r.dead = true
	held := w.session != nil && w.session.p == r.proc
	w.mu.Unlock()
	r.cancel()
	if held {
		go func() {
			time.Sleep(time.Second)
			w.mu.Lock()
			if w.session != nil && w.session.p == r.proc {
				w.session = nil
				w.wake()
			}
			w.mu.Unlock()
		}()
	}
}

func (r *run) ended() bool {
	select {
	case <-r.done:
		return true
	default:
		return false
	}
}

// eventually waits until ok, and says whether it came true in time.
func (w *world) eventually(limit time.Duration, ok func() bool) bool {
	for until := time.Now().Add(limit); ; time.Sleep(10 * time.Millisecond) {
		w.mu.Lock()
		is := ok()
		w.mu.Unlock()
		if is {
			return true
		}
		if time.Now().After(until) {
			return false
		}
	}
}

func (w *world) allDelivered() bool {
	pos, _, _ := w.delivered()
	return pos == w.pos
}

type sim struct {
	*world
	t   *testing.T
	rng *rand.Rand
	cur *run
	cfg Config
}

func (s *sim) begin() { s.cur = s.start(s.cfg) }

func (s *sim) upTo(d time.Duration) time.Duration { return time.Duration(s.rng.Int64N(int64(d))) }

func (s *sim) set(f func()) {
	s.mu.Lock()
	f()
	s.mu.Unlock()
}

func (s *sim) write(seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 4))
	for range 40 + rng.IntN(100) {
		n := 1 + rng.IntN(4)
		switch rng.IntN(12) {
		case 0:
			n = 20 + rng.IntN(80)
		case 1:
			n = 0
		}
		keys := make([]string, n)
		for i := range keys {
			keys[i] = s.spoil(rng, string("abcdef-"[rng.IntN(7)]))
		}
		s.commit(keys...)
		if rng.IntN(3) > 0 {
			time.Sleep(time.Duration(rng.Int64N(int64(600 * time.Millisecond))))
		}
		if rng.IntN(5) == 0 {
			s.other()
		}
	}
}

// spoil makes some keys those of rows that cannot be routed, where such rows halt nobody.
func (w *world) spoil(rng *rand.Rand, key string) string {
	if w.bury && rng.IntN(25) == 0 {
		return "!" + key
	}
	return key
}

// poisoned sets what becomes of bad events: each goes to the dead letter topic, or those do that a person passes over, or none.
func (w *world) poisoned(seed uint64, cfg *Config) {
	switch seed % 4 {
	case 0, 2:
		w.bury, cfg.Poison = true, burying
	case 1:
		cfg.Poison = Poison{Topic: deadTopic, Version: "test"}
	}
}

// trouble is one thing that happens.
func (s *sim) trouble() {
	kinds := 8
	if !s.clean {
		kinds = 18
	}
	k := s.rng.IntN(kinds)
	if s.tx != nil && (k == 14 || s.rng.IntN(4) == 0) { // a source that lies is not promised to give events once
		k = 19 + s.rng.IntN(3)
	}
	if s.bury && k < 19 && s.rng.IntN(3) == 0 { // also where nothing may be delivered twice
		k = 15 + s.rng.IntN(4)
	}
	switch k {
	case 0, 1:
		s.tell("session lost")
		s.cut(errNet)
	case 2:
		d, back := s.upTo(4*time.Second), s.rng.IntN(300)
		s.tell("server down for %s, the slot steps back", d)
		back = min(back, int(look(s.world, &s.id.SlotFound.Confirmed)))
		s.set(func() {
			s.down = true
			s.id.SlotFound.Confirmed = max(100, s.id.SlotFound.Confirmed-cdc.Position(back))
		})
		s.cut(errNet)
		time.Sleep(d)
		s.set(func() { s.down = false })
	case 3, 4:
		s.tell("stop")
		took := s.cur.stop()
		s.set(func() {
			if s.cur.err != nil && !fault.NeedsPerson(s.cur.err) {
				s.fail("stopped: %v", s.cur.err)
			}
			if took > 30*time.Second {
				s.fail("a stop took %s", took)
			}
		})
		s.begin()
	case 5:
		d := s.upTo(5 * time.Second)
		of, what := &s.stalled, "sink stalled"
		if s.rng.IntN(2) == 0 {
			of, what = &s.unanswered, "schema registry down"
		}
		s.tell("%s for %s", what, d)
		s.set(func() { *of = true })
		time.Sleep(d)
		s.set(func() { *of = false })
	case 6:
		s.tell("store slow, and lies")
		s.set(func() { s.storeMax, s.storeLie = 400*time.Millisecond, true })
		time.Sleep(s.upTo(5 * time.Second))
		s.set(func() { s.storeMax, s.storeLie = 5*time.Millisecond, false })
	case 7:
		d := s.upTo(2 * time.Second)
		s.tell("store down for %s", d)
		s.set(func() { s.storeDown = true })
		time.Sleep(d)
		s.set(func() { s.storeDown = false })
	case 8, 9:
		s.tell("kill")
		s.cur.kill()
		s.begin()
	case 10:
		s.tell("promotion")
		s.set(func() {
			s.id.History = append(s.id.History, cdc.Fork{Timeline: s.id.Timeline, End: s.pos.LSN()})
			s.id.Timeline++
		})
		s.cut(errNet)
	case 11:
		s.tell("store hangs while stopping")
		s.set(func() { s.storeHang = true })
		if took := s.cur.stop(); took > 30*time.Second {
			s.set(func() { s.fail("a stop took %s", took) })
		}
		s.set(func() { s.storeHang = false })
		s.begin()
	case 12:
		s.tell("sink stalled, and schema registry down, while stopping")
		s.set(func() { s.stalled, s.unanswered = true, true })
		if took := s.cur.stop(); took > 30*time.Second {
			s.set(func() { s.fail("a stop took %s", took) })
		}
		s.set(func() { s.stalled, s.unanswered = false, false })
		s.begin()
	case 13:
		s.tell("poison")
		s.set(func() {
			for i := len(s.log) - 1; i >= 0; i-- {
				for _, r := range s.log[i].rows {
					if r.routed && s.count[r.id] == 0 {
						s.poison[r.id] = true
						return
					}
				}
			}
		})
		time.Sleep(s.upTo(5 * time.Second))
		s.set(func() { clear(s.poison) })
	case 14:
		s.tell("the source leaves out a row when it sends again")
		s.set(func() {
			if s.session != nil && s.session.ev > 1 {
				s.strays[s.session.tx] = true
			}
		})
		s.cut(errNet)
		time.Sleep(time.Millisecond)
		s.set(func() { clear(s.strays) })
	case 18:
		s.tell("no dead letter is taken for a while")
		s.set(func() { s.noLetters = true })
		s.set(func() { s.curse() })
		time.Sleep(s.upTo(8 * time.Second))
		s.set(func() { s.noLetters = false })
	case 19, 20, 21:
		s.txTrouble(s.rng, s.cur)
	case 15, 16:
		s.tell("poison, and a person passes over it")
		s.set(func() { s.curse() })
		s.passOver(s.upTo(3 * time.Second))
	case 17:
		s.tell("a row that cannot be routed, and a person passes over it")
		key := string("abcdef"[s.rng.IntN(6)])
		s.commit(key, key, "!"+key, key)
		s.passOver(s.upTo(3 * time.Second))
	}
	s.revive()
}

// curse makes an event that has not arrived one that never will.
func (s *sim) curse() {
	for i := len(s.log) - 1; i >= 0; i-- {
		for _, r := range s.log[i].rows {
			if r.routed && s.count[r.id] == 0 && r.key[0] != '!' {
				s.cursed[r.id] = true
				return
			}
		}
	}
}

// passOver asks for what only a person can help against, again and again: the relay may not have come to it yet, and a kill may have
// kept the halt from being written.
func (s *sim) passOver(wait time.Duration) {
	time.Sleep(wait)
	s.skip(func(h *checkpoint.Halt) bool { return s.cursed[h.EventID] || !s.poison[h.EventID] && h.Topic == "" })
	if bad := s.cur.relay.Status().Bad; bad != nil && bad.Commit == 0 {
		s.set(func() { s.repair(bad.EventID) })
	}
}

// repair changes a row of the table, and what keeps its event from being delivered. The stream does not have the row, or gives it as it was.
func (s *sim) repair(id string) {
	delete(s.cursed, id)
	for _, t := range s.log {
		for i := range t.rows {
			if r := t.rows[i]; r.id == id && r.key[0] == '!' {
				r.key, r.routed = "-", false
			}
		}
	}
}

// revive starts a process again that a person was needed for.
func (s *sim) revive() {
	select {
	case <-s.cur.done:
		if s.cur.err != nil && !fault.NeedsPerson(s.cur.err) {
			s.set(func() { s.fail("ended: %v", s.cur.err) })
		}
		s.begin()
	default:
	}
}

func simulate(t *testing.T, seed uint64, clean bool, tx *txBroker) {
	var s *sim
	synctest.Test(t, func(t *testing.T) {
		s = &sim{world: newWorld(seed), t: t, rng: rand.New(rand.NewPCG(seed, 3))}
		s.world.clean, s.tx = clean, tx
		s.status = []time.Duration{10 * time.Second, 2 * time.Second, time.Second}[s.rng.IntN(3)]
		s.maxDelay = []time.Duration{2 * time.Millisecond, 50 * time.Millisecond, 700 * time.Millisecond}[s.rng.IntN(3)]
		s.cfg.Window = Window{Events: 1 + s.rng.IntN(60), Bytes: size.Bytes(100 + s.rng.IntN(5000))}
		s.poisoned(seed, &s.cfg)
		s.begin()
		written := make(chan struct{})
		go func() { s.write(seed); close(written) }()
		for range 4 + s.rng.IntN(10) {
			time.Sleep(s.upTo(4 * time.Second))
			s.trouble()
		}
		<-written
		for n := 0; n < 200 && (n == 0 || s.cur.ended() || s.cur.relay.Status().Bad != nil || !s.eventually(0, s.allDelivered)); n++ { // who is poisoned halts
			time.Sleep(10 * time.Second)
			s.passOver(0)
			s.revive()
		}
		s.tell("quiet")
		s.set(func() { s.maxDelay = 5 * time.Millisecond })
		if !s.eventually(2*time.Minute, s.allDelivered) {
			s.set(func() {
				pos, next, n := s.delivered()
				s.fail("not everything arrived: up to %s of %s, next %+v, %d rows of it; %+v", pos, s.pos, next, n, s.cur.relay.Status())
			})
		}
		s.other()
		if !s.eventually(30*time.Second, func() bool { return s.id.SlotFound.Confirmed == s.pos }) {
			s.set(func() {
				s.fail("the slot stays at %s, the server is at %s; %+v", s.id.SlotFound.Confirmed, s.pos, s.cur.relay.Status())
			})
		}
		if !s.eventually(30*time.Second, func() bool { return s.halts() == 0 }) {
			s.set(func() { s.fail("%d halts and requests are left", s.halts()) })
		}
		took := s.cur.stop()
		s.set(func() {
			if s.cur.err != nil || took > time.Second {
				s.fail("the last stop took %s: %v", took, s.cur.err)
			}
			if n := len(s.records); n > 3 {
				s.fail("%d records are left", n)
			}
		})
		for _, r := range s.runs {
			r.cancel()
			<-r.done
			var bad *BadEvent
			if s.bury && errors.As(r.err, &bad) {
				s.set(func() { s.fail("halted although the policy is dead_letter: %v", r.err) })
			}
		}
		for _, r := range s.byID {
			written := s.tx != nil && s.cursed[r.id] && s.count[r.id] == 1 && s.dead[r.id] == 0 // in a transaction, before it was cursed
			if forever := s.cursed[r.id] && !written || r.key[0] == '!'; s.bury && forever && (s.dead[r.id] == 0 || s.count[r.id] > 0) {
				s.fail("the bad event %s is %d times in the dead letter topic, and %d times in its own", r.id, s.dead[r.id], s.count[r.id])
			}
		}
		time.Sleep(2 * time.Second) // kills end
	})
	if len(s.wrong) > 0 || *seed0 != 0 {
		if *seed0 != 0 || testing.Verbose() {
			for _, r := range s.runs {
				t.Log(r.logs.String())
			}
		}
		t.Logf("seed %d, window %+v, confirms %d, saves %d, opens %d\n%s", seed, s.cfg.Window, s.confirms, s.saves, s.opens, strings.Join(s.tale, "\n"))
		if len(s.wrong) > 0 {
			t.Errorf("seed %d:\n%s", seed, strings.Join(s.wrong[:min(10, len(s.wrong))], "\n"))
		}
	}
}

func seedsOf(t *testing.T, f func(t *testing.T, seed uint64)) {
	if *seed0 != 0 {
		f(t, *seed0)
		return
	}
	for seed := range uint64(short.Pick(*seeds, 4)) {
		t.Run(fmt.Sprint(seed+1), func(t *testing.T) { f(t, seed+1) })
	}
}

// TestSimulationOfLostSessionsAndCleanStops checks that nothing is delivered twice where nothing crashes.
func TestSimulationOfLostSessionsAndCleanStops(t *testing.T) {
	seedsOf(t, func(t *testing.T, seed uint64) { simulate(t, seed, true, nil) })
}

// TestSimulationOfEverything checks that nothing is lost or out of order whatever happens.
func TestSimulationOfEverything(t *testing.T) {
	seedsOf(t, func(t *testing.T, seed uint64) { simulate(t, seed, false, nil) })
}
