package main

import (
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/walpost/walpost/internal/testenv/wire"
)

// A scenario is one kind of trouble and what is promised in it.
type scenario struct {
	name    string
	promise string   // for the table; what every run must keep is not repeated
	short   bool     // a part of the short mix
	walpost bool     // it is about what only walpost has
	needs   []string // what a run must have reached to count
	do      func(*run)
}

// The promises of the table. Everywhere nothing is lost, invented or out of order, and a duplicate is the same record again.
const (
	afterCrash = "repeats a window, and events not yet checkpointed"
	noRepeat   = "no duplicates"
	halts      = "halts; recover closes the gap"
	refuses    = "refuses to start"
)

var scenarios = slices.Concat(common, only)

// common are those of any relay.
var common = []scenario{
	{"kill", afterCrash, true, false, []string{insideTransaction}, kills},
	{"kill_at_each_moment", afterCrash, true, false, nil, killsAtMoments},
	{"stop", noRepeat, true, false, nil, stops},
	{"two_instances", afterCrash, true, false, []string{epochChange}, twoInstances},
	{"mixed", afterCrash, false, false, []string{epochChange}, mixed},
	{"zombie", afterCrash, false, false, []string{epochChange}, zombie},
	{"postgres_crash", noRepeat, true, false, nil, postgresCrash},
	{"postgres_stop_kafka_down", noRepeat, false, false, nil, postgresStopKafkaDown},
	{"walsender_killed", noRepeat, false, false, nil, walsenderKilled},
	{"postgres_link", noRepeat, true, false, nil, func(r *run) { r.links(false) }},
	{"kafka_link", noRepeat, true, false, []string{fullWindow}, func(r *run) { r.links(true) }},
	{"broker_killed", noRepeat, false, false, nil, brokerKilled},
	{"brokers_killed", noRepeat, false, false, []string{fullWindow}, brokersKilled},
	{"broker_frozen", noRepeat, false, false, nil, brokerFrozen},
	{"min_insync", noRepeat, false, false, []string{fullWindow}, minInSync},
	{"answers_lost", noRepeat, true, false, nil, answersLost},
	{"answers_late", noRepeat, false, false, nil, answersLate},
	{"soak", noRepeat, false, true, nil, soak},
}

// kills kills the relay at random moments and starts it again at once.
func kills(r *run) {
	r.begin()
	for n := range 30 * r.times { // on a fast machine, none of the first ones need be inside a transaction
		if n >= 6*r.times && r.judge.Torn() > 0 {
			break
		}
		r.pause(1500 * time.Millisecond)
		r.tell("kill")
		r.relays[0].kill()
		if r.rnd.IntN(2) == 0 { // else perhaps in the middle of a start
			r.flow()
		}
	}
}

// killsAtMoments kills the relay when a message is about to pass, which then passes or is lost with it.
func killsAtMoments(r *run) {
	r.begin()
	moments := []wire.Moment{wire.Produce, wire.Produced, wire.Status}
	if r.exactlyOnce {
		moments = append(moments, wire.EndTxn, wire.EndedTxn)
	}
	for _, i := range r.rnd.Perm(2 * len(moments)) {
		m, passes := moments[i/2], i%2 == 0
		r.killAt(m, 1+r.rnd.IntN(5), passes)
		r.flow()
	}
}

// killAt kills the first relay at the nth moment from now on.
func (r *run) killAt(m wire.Moment, nth int, passes bool) {
	r.Helper()
	r.tell("kill at %s %d, which passes: %t", m, nth, passes)
	done := make(chan struct{})
	seen := make(chan int, 1)
	seen <- 0
	tap := func(at wire.Moment) bool {
		if at != m {
			return true
		}
		n := <-seen + 1
		defer func() { seen <- n }()
		if n != nth {
			return true
		}
		r.relays[0].kill()
		close(done)
		return passes
	}
	r.wires(func(w *wire.Wire) { w.Tap(tap) })
	r.toPG.Tap(tap)
	r.waits("a "+string(m), func() bool {
		select {
		case <-done:
			return true
		default:
			return false
		}
	})
	r.wires(func(w *wire.Wire) { w.Tap(nil) })
	r.toPG.Tap(nil)
}

// stops stops the relay in good order, under load and idle.
func stops(r *run) {
	r.begin()
	for i := range 5 * r.times {
		r.pause(time.Second)
		if i == 5*r.times-1 {
			r.quiet()
		}
		r.tell("stop")
		r.relays[0].stop()
		r.pause(500 * time.Millisecond)
		r.relays[0].start()
		r.recovers()
	}
}

// twoInstances kills and stops two instances at random, one of which has the slot.
func twoInstances(r *run) {
	r.begin()
	r.launch()
	for range 6 * r.times {
		r.pause(1500 * time.Millisecond)
		p := r.relays[r.rnd.IntN(2)]
		if r.rnd.IntN(2) == 0 {
			r.tell("kill %d", p.number)
			p.kill()
		} else {
			r.tell("stop %d", p.number)
			p.stop()
			p.start()
		}
		r.flow()
	}
	r.tell("kill both")
	r.relays[0].kill()
	r.relays[1].kill()
}

// An outage is what a relay outlives.
type outage struct {
	name string
	do   func()
}

func (r *run) outages() []outage {
	return []outage{
		{"terminate the walsender", r.terminate},
		{"crash Postgres", func() { r.stopPostgres("immediate"); r.startPostgres() }},
		{"cut Postgres' links", r.toPG.Cut},
		{"Postgres silent", func() { r.toPG.Stand(); r.pause(4 * time.Second); r.heal() }},
		{"cut Kafka's links", func() { r.wires((*wire.Wire).Cut) }},
		{"lose answers", func() { r.wires(func(w *wire.Wire) { w.LoseAnswers(2) }) }},
		{"kill a broker", func() {
			i := 1 + r.rnd.IntN(len(r.brokers))
			r.must(r.kafka.Kill(i))
			r.pause(2 * time.Second)
			r.kafka.Start(r, i)
		}},
	}
}

// soak has one process outlive everything that it can, -times times, and wants as much memory and as many goroutines in
// the second half as in the first. More than once is under a heavy load, whose events are judged after each time.
func soak(r *run) {
	heavy := r.times > 1
	if heavy {
		r.load.Writers, r.load.MaxRows, r.load.Pause, r.backlog = 8, 100, time.Millisecond, 50_000
		r.pg.Exec(r, r.dsn, "ALTER SYSTEM SET max_wal_size = '1GB'", "SELECT pg_reload_conf()")
		defer r.pg.Exec(r, r.dsn, "ALTER SYSTEM RESET max_wal_size", "SELECT pg_reload_conf()")
	}
	r.begin()
	p := r.relays[0]
	var memory int64
	var goroutines float64
	measure := func() { // the most so far
		r.heal()
		r.recovers()
		time.Sleep(2 * time.Second) // connections that were lost are back, or gone
		memory, goroutines = max(memory, p.memory("VmRSS")), max(goroutines, p.metric("go_goroutines"))
		r.tell("%d events, at most %d MB and %.0f goroutines", r.earlier.Committed+r.judge.Arrived(), memory>>20, goroutines)
	}
	half := func() {
		for range (r.times + 1) / 2 {
			for _, i := range r.rnd.Perm(len(r.outages())) {
				o := r.outages()[i]
				r.tell("%s", o.name)
				o.do()
				r.pause(2 * time.Second)
			}
			measure()
			if heavy {
				r.forget()
			}
		}
	}
	measure()
	half()
	m, g := memory, goroutines
	if half(); p.started() != 1 || memory > m+20<<20 || goroutines > g+20 {
		r.Errorf("after %d starts, memory went from %d to %d MB, and goroutines from %.0f to %.0f", p.started(), m>>20, memory>>20, g, goroutines)
	}
}

// mixed is everything that can happen to two instances without a person.
func mixed(r *run) {
	r.always, r.unverified, r.judge.Late = r.exactlyOnce, !r.exactlyOnce, !r.exactlyOnce // as in zombie
	r.begin()
	r.launch()
	one := func() *relay { return r.relays[r.rnd.IntN(2)] }
	faults := slices.Concat([]outage{
		{"kill", func() { one().kill() }},
		{"kill both", func() { r.relays[0].kill(); r.relays[1].kill() }},
		{"stop", func() { p := one(); p.stop(); p.start() }},
		{"freeze", func() {
			p := one()
			p.signal(syscall.SIGSTOP)
			r.pause(6 * time.Second)
			p.signal(syscall.SIGCONT)
		}},
	}, r.outages())
	for range r.times {
		for _, i := range r.rnd.Perm(len(faults)) {
			r.pause(time.Second)
			r.tell("%s", faults[i].name)
			r.crashed() // the other one may take over
			faults[i].do()
			if r.rnd.IntN(2) == 0 { // else in the middle of what follows
				r.recovers()
			}
		}
	}
	r.recovers()
}

// zombie freezes the instance with the slot for longer than the server waits for it, and lets it go on when another instance has
// taken over.
func zombie(r *run) {
	if !r.exactlyOnce { // nothing fences what a frozen process has in its buffers
		r.judge.Late, r.unverified = true, true
	}
	r.always = r.exactlyOnce // a fenced instance ends
	r.begin()
	r.launch()
	for i := range 2 {
		p := r.relays[i]
		r.tell("freeze %d", p.number)
		r.crashed()
		p.signal(syscall.SIGSTOP)
		time.Sleep(time.Second)
		r.flow()     // what it had sent
		r.recovers() // from the other instance
		p.signal(syscall.SIGCONT)
		r.tell("continue %d", p.number)
		r.flow()
	}
}

func postgresCrash(r *run) {
	r.begin()
	for range 3 {
		r.pause(1500 * time.Millisecond)
		r.stopPostgres("immediate")
		r.pause(time.Second)
		r.startPostgres()
	}
}

func (r *run) stopPostgres(mode string) {
	r.Helper()
	r.tell("stop Postgres: %s", mode)
	if err := r.pg.Stop(mode, patience); err != nil {
		r.Fatal(err)
	}
}

func (r *run) startPostgres() {
	r.Helper()
	r.newSlot()
	r.pg.Start(r)
	r.recovers()
}

// postgresStopKafkaDown stops the server while the relay holds transactions that Kafka has not taken: the server waits for its
// walsender, and must not wait for ever.
func postgresStopKafkaDown(r *run) {
	r.begin()
	r.tell("Kafka out of reach")
	r.wires((*wire.Wire).Off)
	r.pause(2 * time.Second)
	from := time.Now()
	r.stopPostgres("fast")
	r.tell("Postgres stopped in %s", time.Since(from).Round(time.Millisecond))
	r.newSlot()
	r.pg.Start(r)
	r.pause(time.Second)
	r.wires((*wire.Wire).On)
	r.recovers()
}

func walsenderKilled(r *run) {
	r.begin()
	for range 6 {
		r.pause(time.Second)
		r.tell("terminate the walsender")
		r.terminate()
		r.recovers()
	}
}

func (r *run) terminate() {
	r.pg.Exec(r, r.dsn, "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE active AND slot_name = '"+r.name+"'")
}

// links breaks the network between the relay and Postgres or Kafka in each way.
func (r *run) links(kafka bool) {
	r.Helper()
	r.begin()
	all := func(do func(*wire.Wire)) {
		if kafka {
			r.wires(do)
		} else {
			do(r.toPG)
		}
	}
	faults := []struct {
		name string
		do   func()
	}{
		{"cut", func() { all((*wire.Wire).Cut) }},
		{"refused", func() { all((*wire.Wire).Off); r.pause(4 * time.Second) }},
		{"silent", func() { all((*wire.Wire).Stand); r.pause(4 * time.Second) }},
		{"silent, then cut", func() { all((*wire.Wire).Stand); r.pause(2 * time.Second); all((*wire.Wire).Cut) }},
		{"silent for longer than the server waits", func() { all((*wire.Wire).Stand); time.Sleep(8 * time.Second); all((*wire.Wire).Cut) }},
		{"slow", func() { all(func(w *wire.Wire) { w.Slow(20_000) }); r.pause(4 * time.Second) }},
	}
	for _, i := range r.rnd.Perm(len(faults)) {
		r.pause(500 * time.Millisecond)
		r.tell("%s", faults[i].name)
		faults[i].do()
		r.heal()
		r.recovers()
	}
}

func (r *run) must(err error) {
	r.Helper()
	if err != nil {
		r.Fatal(err)
	}
}

func brokerKilled(r *run) {
	r.begin()
	for _, i := range r.rnd.Perm(len(r.brokers)) {
		r.tell("kill broker %d", i+1)
		r.must(r.kafka.Kill(i + 1))
		r.flow()
		r.kafka.Start(r, i+1)
		r.recovers()
	}
}

// brokersKilled kills all brokers at once. The relay keeps its session, and its memory ends at the window.
func brokersKilled(r *run) {
	if r.flood = r.times > 1; r.flood {
		r.load.Writers, r.load.Pause = 8, 30*time.Millisecond
	}
	r.begin()
	time.Sleep(2 * time.Second)
	p := r.relays[0]
	walsender := func() string {
		return r.pg.Value(r, r.dsn, "SELECT active_pid FROM pg_replication_slots WHERE slot_name = '"+r.name+"'")
	}
	before, pid := p.memory("VmRSS"), walsender()
	r.tell("kill all brokers; memory %d MB", before>>20)
	r.must(r.kafka.Kill())
	time.Sleep(time.Duration(r.times) * 4 * time.Second)
	grown, now := p.memory("VmRSS")-before, walsender()
	r.tell("memory grew by %d MB, %d committed", grown>>20, r.load.Committed())
	if grown > 20<<20 || now != pid {
		r.Errorf("without brokers the memory grew by %d MB, and the walsender %s became %q", grown>>20, pid, now)
	}
	r.kafka.Start(r)
	r.recovers()
}

func brokerFrozen(r *run) {
	r.begin()
	for _, i := range r.rnd.Perm(len(r.brokers))[:2] {
		r.tell("freeze broker %d", i+1)
		r.must(r.kafka.Pause(i + 1))
		time.Sleep(5 * time.Second) // the others take its partitions over
		r.flow()
		r.must(r.kafka.Resume(i + 1))
		r.recovers()
	}
}

// minInSync leaves one broker of three, which must not acknowledge anything.
func minInSync(r *run) {
	r.begin()
	i := r.rnd.Perm(len(r.brokers))
	r.tell("freeze brokers %d and %d", i[0]+1, i[1]+1)
	r.must(r.kafka.Pause(i[0]+1, i[1]+1))
	time.Sleep(6 * time.Second)
	r.must(r.kafka.Resume(i[0]+1, i[1]+1))
	r.recovers()
}

// answersLost loses the answer to what a broker has written: what is sent again must be known to it.
func answersLost(r *run) {
	r.begin()
	for range 6 {
		n := 1 + r.rnd.IntN(3)
		r.tell("lose %d answers of each broker", n)
		r.wires(func(w *wire.Wire) { w.LoseAnswers(n) })
		r.recovers()
	}
	r.wires(func(w *wire.Wire) { w.LoseAnswers(0) })
}

// answersLate holds answers back for longer than a client may wait for them.
func answersLate(r *run) {
	r.begin()
	for _, api := range []int16{wire.APIProduce, wire.APIEndTxn} {
		if api == wire.APIEndTxn && !r.exactlyOnce {
			continue
		}
		for _, d := range []time.Duration{500 * time.Millisecond, 25 * time.Second} {
			r.tell("answers of API %d come after %s", api, d)
			r.wires(func(w *wire.Wire) { w.Delay(d, api) })
			time.Sleep(min(d+time.Second, 4*time.Second))
			r.heal()
			r.recovers()
		}
	}
}

// find returns the scenarios of a mix, or the named ones.
func find(names string, short, walpost bool) (all []scenario, unknown string) {
	byName := map[string]scenario{}
	for _, s := range scenarios {
		byName[s.name] = s
		if names == "" && (s.short || !short) && (walpost || !s.walpost) {
			all = append(all, s)
		}
	}
	if names == "" {
		return all, ""
	}
	for name := range strings.SplitSeq(names, ",") {
		s, ok := byName[name]
		if !ok {
			return nil, name
		}
		all = append(all, s)
	}
	return all, ""
}
