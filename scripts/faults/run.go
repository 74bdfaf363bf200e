package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/walpost/walpost/internal/shop"
	"github.com/walpost/walpost/internal/testenv"
	"github.com/walpost/walpost/internal/testenv/wire"
)

// patience is how long a run waits for what must happen. No run is about how fast the machine is.
const patience = 2 * time.Minute

// options are what a run is about beside its scenario and seed.
type options struct {
	relay       string // a command line; "" is walpost of this checkout
	template    string // of the relay's configuration
	exactlyOnce bool
	window      int
	older       string // a program, "" for none
	times       int    // how often a scenario repeats what it repeats; 1 in the table
}

// A run is one scenario with one seed: a database, topics, relays, writers, a consumer and a judge.
type run struct {
	testing.TB
	*servers
	options
	rnd    *rand.Rand
	began  time.Time
	pg     *testenv.PG
	dsn    string
	name   string // of the slot, the publication and the checkpoint
	prefix string // of the topics
	topics []string
	dir    string
	judge  *Judge
	toPG   *wire.Wire
	relays []*relay
	load   *shop.Shop

	consumers []func() // stop those of each topic
	quiet     func()   // stops the load
	silent    atomic.Bool
	gap       atomic.Bool // the slot is broken and not recovered

	leftOut string // why this machine cannot run the scenario

	// What a scenario adds to walpost.yaml before launch. Each key is behind a comma.
	stream, source, delivery, extra string
	login                           string // to Kafka, at a listener that wants one
	program                         string // in place of walpost, of instances that are launched from now on
	unverified                      bool   // walpost verify is not asked
	flood                           bool   // the writers wait for nobody
	// How many events more than arrived the writers commit before they wait: a fault on a slow machine is not about how long it takes
	// to catch up.
	backlog int64
	always  bool // an instance that halts is started again, too, as Kubernetes does

	mu       sync.Mutex
	slots    int // positions of different slots cannot be compared
	reached  map[string]bool
	epochs   map[string]bool
	recovery time.Duration
	markers  int
	verdict  Verdict
	earlier  Verdict // of what the judge has forgotten
}

// newRun makes the surroundings of one run. Nothing runs in them so far but the consumer.
func newRun(t testing.TB, s *servers, o options, seed uint64, version string) *run {
	t.Helper()
	s.number++
	r := &run{
		TB: t, servers: s, options: o, rnd: rand.New(rand.NewPCG(seed, 0)), began: time.Now(), pg: s.pg(version), dir: t.TempDir(),
		judge: NewJudge(o.window, o.exactlyOnce), toPG: wire.New(t), backlog: 5000, reached: map[string]bool{}, epochs: map[string]bool{},
	}
	r.dsn = r.pg.Database(t)
	r.name = fmt.Sprintf("faults_%d_%d", os.Getpid(), s.number)
	r.prefix = r.name + "."
	r.pg.Exec(t, r.dsn, shop.Schema, "ALTER TABLE outbox ADD COLUMN n bigint GENERATED ALWAYS AS IDENTITY", "CREATE INDEX ON outbox (created_at)", `
CREATE SCHEMA kept;
CREATE TABLE kept.outbox (id uuid, aggregate_id text, payload jsonb);
CREATE INDEX ON kept.outbox (aggregate_id, ((payload->>'n')::bigint));
CREATE FUNCTION kept.keep() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN INSERT INTO kept.outbox VALUES (NEW.id, NEW.aggregate_id, NEW.payload); RETURN NULL; END';
CREATE TRIGGER keep AFTER INSERT ON public.outbox FOR EACH ROW EXECUTE FUNCTION kept.keep();`)
	for i, typ := range shop.Types {
		// The judge needs the broker's time to tell when an event was in Kafka. The other topic has the relay's, which is
		// part of what a duplicate must repeat.
		r.topics = append(r.topics, r.prefix+typ)
		s.kafka.CreateTopic(t, r.prefix+typ, 3, map[string]string{"message.timestamp.type": []string{"CreateTime", "LogAppendTime"}[i]})
	}
	r.toPG.Serve(fmt.Sprintf("127.0.0.1:%d", r.pg.Port()))
	r.load = &shop.Shop{DSN: r.dsn, Writers: 3, MaxRows: 20, Pause: 150 * time.Millisecond, Seed: r.rnd.Uint64(), History: "kept.outbox", Wild: true, Wrote: r.wrote}
	for _, topic := range r.topics {
		r.consumers = append(r.consumers, r.follow([]string{topic}, r.observe))
	}
	return r
}

// observe is the consumer.
func (r *run) observe(rec *kgo.Record) {
	entry, appended := shop.Entry(rec), time.Time{}
	if rec.Topic == r.topics[1] {
		appended = rec.Timestamp
		at := strconv.AppendInt(nil, appended.UnixMilli(), 10)
		for i, b := range entry.Bytes { // the broker's time is another one each time
			if string(b) == string(at) {
				entry.Bytes[i] = nil
			}
		}
	}
	r.judge.Observe(entry, time.Now(), appended)
}

func (r *run) wrote(numbers map[string]int64, behind uint64) {
	r.judge.Wrote(numbers, behind)
	for !r.silent.Load() && !r.flood && r.load.Committed()-int64(r.earlier.Committed+r.judge.Arrived()) > r.backlog {
		time.Sleep(50 * time.Millisecond)
	}
}

// walpost reports whether the relay is walpost, of which the suite knows more.
func (r *run) walpost() bool { return r.options.relay == "" }

// replace fills a template.
func (r *run) replace(text string) string {
	delivery, brokers := r.delivery, r.relayBrokers()
	if r.login != "" {
		brokers = strings.Join(r.logins, ", ")
	}
	if r.exactlyOnce {
		delivery += ", guarantee: " + exactlyOnce
	}
	_, port, _ := strings.Cut(r.toPG.Address(), ":")
	return strings.NewReplacer(
		"{config}", filepath.Join(r.dir, "relay.conf"), "{dir}", r.dir, "{name}", r.name, "{slot}", r.name, "{prefix}", r.prefix,
		"{dsn}", strings.Replace(r.dsn, fmt.Sprintf(":%d/", r.pg.Port()), ":"+port+"/", 1), "{brokers}", brokers, "{login}", r.login,
		"{window}", strconv.Itoa(r.window), "{guarantee}", guarantee(r.exactlyOnce),
		"{stream}", cmp.Or(r.stream, "slot: "+r.name+", publication: "+r.name), "{source}", r.source, "{delivery}", delivery, "{extra}", r.extra,
	).Replace(text)
}

// command writes the configuration and returns the command line of an instance of a program.
func (r *run) command(program string) []string {
	text := r.replace(cmp.Or(r.template, walpostTemplate))
	if err := os.WriteFile(filepath.Join(r.dir, "relay.conf"), []byte(text), 0o600); err != nil {
		r.Error(err)
	}
	if !r.walpost() {
		return strings.Fields(r.replace(r.options.relay))
	}
	return []string{cmp.Or(program, r.build(false)), "run", "--config", filepath.Join(r.dir, "relay.conf")}
}

// runs runs a command of walpost to its end.
func (r *run) runs(args ...string) (code int, out string) {
	r.Helper()
	r.command("") // for the configuration
	cmd := exec.Command(r.build(false), append(args, "--config", filepath.Join(r.dir, "relay.conf"))...)
	text, err := cmd.CombinedOutput()
	if cmd.ProcessState == nil {
		r.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), string(text)
}

// follow calls observe with each record of topics until stop, or the end of the run. Of exactly_once it sees what is committed.
func (r *run) follow(topics []string, observe func(*kgo.Record)) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	opts := []kgo.Opt{kgo.MetadataMinAge(250 * time.Millisecond), kgo.MetadataMaxAge(2 * time.Second), kgo.FetchMaxPartitionBytes(1 << 20)}
	if r.exactlyOnce {
		opts = append(opts, kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	}
	go func() {
		defer close(done)
		if err := shop.Follow(ctx, r.kafka.Brokers(), topics, observe, opts...); err != nil {
			r.Errorf("consumer: %v", err)
		}
	}()
	stop = func() { cancel(); <-done }
	r.Cleanup(stop)
	return stop
}

// tell logs a step. The steps of a seed are always the same.
func (r *run) tell(format string, args ...any) {
	r.Logf("%8s %s", time.Since(r.began).Round(time.Millisecond), fmt.Sprintf(format, args...))
}

// begin starts a relay and the writers, and waits until events flow. Then the faults may come.
func (r *run) begin() {
	r.Helper()
	if len(r.relays) == 0 {
		r.launch()
	}
	if r.stream == "" { // rows from before the slot would be a question
		r.inUse()
	}
	r.recovers()
	r.write()
	r.sample()
	r.flow()
}

func (r *run) inUse() {
	r.Helper()
	r.waits("a slot in use", func() bool {
		return r.pg.Value(r, r.dsn, "SELECT count(*) FROM pg_replication_slots WHERE active AND slot_name = '"+r.name+"'") == "1"
	})
}

// still waits until the consumer has had nothing for a moment, and returns how many records it has.
func (r *run) still() int {
	for before := -1; ; time.Sleep(2 * time.Second) {
		now := r.judge.Arrived()
		if now == before {
			return now
		}
		before = now
	}
}

// write starts the writers.
func (r *run) write() {
	r.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := r.load.Run(ctx); err != nil {
			r.Errorf("writers: %v", err)
		}
	}()
	r.silent.Store(false)
	r.quiet = sync.OnceFunc(func() { r.silent.Store(true); cancel(); <-done })
	r.Cleanup(r.quiet)
}

// waits waits for an event.
func (r *run) waits(what string, ok func() bool) {
	r.Helper()
	before, end := r.judge.Arrived(), time.Now().Add(5*patience)
	for give := time.Now().Add(patience); !ok(); time.Sleep(20 * time.Millisecond) {
		if now := r.judge.Arrived(); now != before && time.Now().Before(end) { // there may be much before it
			before, give = now, time.Now().Add(patience)
		}
		for _, p := range r.relays {
			if p.isHalted() && what != "a halt" {
				r.Fatalf("relay %d asks for a person while the run waits for %s:\n%s", p.number, what, p.tail())
			}
		}
		if r.Context().Err() != nil {
			r.Fatal("interrupted")
		}
		if time.Now().After(give) {
			tail := ""
			for _, p := range r.relays {
				tail += "\n" + p.tail()
			}
			r.Fatalf("not in %s: %s%s", patience, what, tail)
		}
	}
}

// flow waits until further events arrive.
func (r *run) flow() {
	r.Helper()
	want := r.judge.Arrived() + 50
	r.waits("further events", func() bool { return r.judge.Arrived() >= want })
}

// pause waits for a random time up to most.
func (r *run) pause(most time.Duration) { time.Sleep(time.Duration(r.rnd.Int64N(int64(most)))) }

// recovers measures how long it takes until an event that is written now arrives.
func (r *run) recovers() {
	r.Helper()
	r.markers++
	from := time.Now()
	id := r.insert(fmt.Sprintf("marker-%d", r.markers), 1, `"marker"`)
	r.waits("a new event", func() bool { return r.judge.ledger.Seen(id) == 1 })
	if r.markers > 1 { // not the first start
		r.recovery = max(r.recovery, time.Since(from))
	}
}

// insert writes number n of a key, and returns the event's id. A server that is just back gets a moment.
func (r *run) insert(key string, n int, note string) (id string) {
	r.Helper()
	r.waits("an insert", func() bool {
		conn, err := pgx.Connect(r.Context(), r.dsn)
		if err != nil {
			return false
		}
		defer conn.Close(r.Context()) //nolint:errcheck // it was used
		err = conn.QueryRow(r.Context(), `INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload) VALUES ('order', $1, 'Changed', $2) RETURNING id::text`,
			key, fmt.Sprintf(`{"n": %d, "note": %s}`, n, note)).Scan(&id)
		return err == nil
	})
	return id
}

// instances are all relays so far.
func (r *run) instances() []*relay {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.relays)
}

// crashed notes that a process was killed or frozen, or lost its slot to another one.
func (r *run) crashed() { r.judge.Crash(time.Now()) }

func (r *run) reach(what string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.reached[what] = true
}

func (r *run) has(what string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.reached[what]
}

// newSlot notes that positions start anew.
func (r *run) newSlot() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.slots++
}

// sample watches the slot, the memory and what a run must have reached, until the end of the run.
func (r *run) sample() {
	ctx, cancel := context.WithCancel(context.Background())
	var both sync.WaitGroup
	both.Go(func() {
		for ; ctx.Err() == nil; time.Sleep(100 * time.Millisecond) {
			r.sampleSlot(ctx)
			r.newSlot()
		}
	})
	both.Go(func() {
		for i := 0; ctx.Err() == nil; i++ {
			for _, p := range r.instances() {
				p.measure()
				if i%10 == 0 && r.walpost() && p.metric("walpost_window_full_seconds_total") > 0 {
					r.reach(fullWindow)
				}
			}
			time.Sleep(100 * time.Millisecond)
		}
	})
	r.Cleanup(func() { cancel(); both.Wait() })
	if !r.walpost() {
		return
	}
	r.follow([]string{"walpost.checkpoints"}, func(rec *kgo.Record) {
		if epoch, ok := strings.CutPrefix(string(rec.Key), r.name+"/"); ok {
			r.judge.Saved(rec.Timestamp)
			r.mu.Lock()
			defer r.mu.Unlock()
			if r.epochs[epoch] = true; len(r.epochs) > 1 {
				r.reached[epochChange] = true
			}
		}
	})
}

// sampleSlot samples on one connection until it is lost.
func (r *run) sampleSlot(ctx context.Context) {
	conn, err := pgx.Connect(ctx, r.dsn)
	if err != nil {
		return
	}
	defer conn.Close(context.Background()) //nolint:errcheck // it was read
	for ; ctx.Err() == nil; time.Sleep(50 * time.Millisecond) {
		r.mu.Lock()
		slot := r.slots
		r.mu.Unlock()
		var at int64
		err := conn.QueryRow(ctx, "SELECT (confirmed_flush_lsn - '0/0')::bigint FROM pg_replication_slots WHERE slot_name = $1", r.name).Scan(&at)
		switch {
		case errors.Is(err, pgx.ErrNoRows):
			r.newSlot()
		case err != nil:
			return
		case r.gap.Load(): // the position of a new slot confirms nothing until recover is through
		default:
			r.judge.Confirmed(time.Now(), uint64(at), slot)
		}
	}
}

// heal ends all faults of the network.
func (r *run) heal() {
	r.wires((*wire.Wire).Heal)
	r.wires(func(w *wire.Wire) { w.Tap(nil) })
	r.toPG.Heal()
	r.toPG.Tap(nil)
}

// The situations that a run can be required to reach: one that did not proves nothing of its promise.
const (
	insideTransaction = "a crash inside a transaction"
	fullWindow        = "a full window"
	epochChange       = "a change of the epoch"
	parkedKey         = "a parked key"
)
