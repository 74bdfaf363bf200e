//go:build linux || darwin

package deadletters_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/walpost/walpost"
	"github.com/walpost/walpost/inbox"
	"github.com/walpost/walpost/inbox/consumer"
	"github.com/walpost/walpost/internal/deadletter"
	"github.com/walpost/walpost/internal/librarytest/process"
	"github.com/walpost/walpost/internal/testenv"
)

// A ledger of the events that were written, their effects, and those that were given up. A tenth of the events fail: their handlers
// return an error, panic, hang, or refuse for good. Consumers are killed, stopped and started, the broker is killed and started, the
// dead letter topic refuses records, and retries and drops are killed. Then the handlers are repaired, and the rest is retried, with more kills. WALPOST_INBOX_DELIVERIES is how
// many events there are.
func TestNothingIsLostBetweenATopicAndItsDeadLetterTopic(t *testing.T) {
	const keys, partitions = 100, 4
	events, err := strconv.Atoi(cmp.Or(os.Getenv("WALPOST_INBOX_DELIVERIES"), "2000"))
	if err != nil {
		t.Fatal(err)
	}
	k := testenv.KafkaPrivate(t, 1, nil)
	w := newWorld(t, k, partitions)
	w.exec("CREATE INDEX ON effects (id)")
	written, poison := w.fill(events, keys)

	r := rand.New(rand.NewPCG(7, uint64(events)))
	f := &faults{world: w, r: r, did: map[string]int{}, cfg: roleConfig{Brokers: k.Brokers(), Group: w.topic + "-group", Topic: w.topic, Dead: w.dead, DSN: w.pool.Config().ConnString()}}
	defer f.end()
	f.join()
	f.join()
	for rounds, seen, next, last := len(plan), 0, 0, time.Now(); seen < events-poison; time.Sleep(10 * time.Millisecond) {
		if n := w.count("SELECT count(DISTINCT id) FROM effects"); n > seen {
			seen, last = n, time.Now()
		} else if time.Since(last) > patience {
			t.Fatalf("no progress for %s: %d of %d effects", patience, seen, events-poison)
		}
		if seen >= next {
			next += (events - poison) / rounds
			f.one()
		}
	}
	f.stop(f.command)
	w.exec("CREATE TABLE repaired ()")

	// Kills go on while the rest is retried, and in the end a retry runs to its end.
	for range 3 {
		f.one()
		f.begin("retry")
		time.Sleep(time.Duration(r.IntN(800)) * time.Millisecond)
	}
	f.stop(f.command)
	for len(f.members) < 2 {
		f.join()
	}
	dropped := map[string]bool{}
	w.eventually("every letter is retried or dropped, and its message handled", func() (string, bool) {
		lag, err := f.lag()
		if err != nil || lag > 0 {
			return fmt.Sprintf("lag %d, %v", lag, err), false
		}
		topics := w.open("")
		open := 0
		for _, e := range topics.All() {
			if e.State == deadletter.Open {
				open++
			}
			dropped[e.ID] = dropped[e.ID] || e.State == deadletter.Dropped
		}
		if f := topics.Dead.Fold; f.Foreign+f.Damaged > 0 {
			t.Fatalf("%d foreign and %d damaged records: %v", f.Foreign, f.Damaged, f.Problem)
		}
		if open > 0 {
			w.retry(walpost.BadEventFilter{}, walpost.RetryOptions{})
			return fmt.Sprintf("%d open letters", open), false
		}
		return "", true
	})

	rows, err := w.pool.Query(t.Context(), "SELECT id, value FROM effects ORDER BY place")
	if err != nil {
		t.Fatal(err)
	}
	effects, order := map[string]int{}, map[string]int{}
	var id, value string
	if _, err = pgx.ForEachRow(rows, []any{&id, &value}, func() error {
		effects[id]++
		key, n, _ := strings.Cut(id, "-")
		if at, _ := strconv.Atoi(n); value == "" && at < order[key] { // an event whose handler never failed by itself
			t.Errorf("key %s: event %d after event %d", key, at, order[key])
		} else if value == "" {
			order[key] = at
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	gaveUp := 0
	for _, id := range slices.Sorted(maps.Keys(written)) {
		switch n := effects[id]; {
		case n == 0 && dropped[id]:
			gaveUp++
		case n != 1:
			t.Errorf("event %s (%s) has %d effects, and was dropped: %v", id, written[id], n, dropped[id])
		}
	}
	if len(effects)+gaveUp != events {
		t.Errorf("%d effects and %d given up, of %d events", len(effects), gaveUp, events)
	}
	ends, err := kadm.NewClient(w.client).ListEndOffsets(t.Context(), w.dead)
	if err != nil {
		t.Fatal(err)
	}
	letters := int64(0)
	ends.Each(func(o kadm.ListedOffset) { letters += o.Offset })
	t.Logf("%d events, %d of them fail; %d given up; %d records in the dead letter topic; %v", events, poison, gaveUp, letters, f.did)
}

func (w *world) exec(sql string) {
	w.Helper()
	if _, err := w.pool.Exec(w.Context(), sql); err != nil {
		w.Fatal(err)
	}
}

func (w *world) count(sql string) (n int) {
	w.Helper()
	if err := w.pool.QueryRow(w.Context(), sql).Scan(&n); err != nil {
		w.Fatal(err)
	}
	return n
}

// What a poisonous message makes its handler do.
var poisons = []string{"error", "panic", "hang", "permanent"}

// fill writes the events. It returns their values by id, and how many fail.
func (w *world) fill(events, keys int) (written map[string]string, poison int) {
	w.Helper()
	cl := w.kafka.Client(w.T, kgo.DefaultProduceTopic(w.topic))
	written = map[string]string{}
	r := rand.New(rand.NewPCG(1, 1))
	for n := range events {
		key, value := strconv.Itoa(n%keys), ""
		if r.IntN(10) == 0 {
			value = poisons[r.IntN(len(poisons))]
			poison++
		}
		id := fmt.Sprintf("%s-%d", key, n)
		written[id] = value
		cl.Produce(w.Context(), &kgo.Record{Key: []byte(key), Value: []byte(value), Headers: []kgo.RecordHeader{{Key: "id", Value: []byte(id)}}}, func(_ *kgo.Record, err error) {
			if err != nil {
				w.Error(err)
			}
		})
	}
	if err := cl.Flush(w.Context()); err != nil {
		w.Fatal(err)
	}
	return written, poison
}

// faults are what happens to the processes.
type faults struct {
	*world
	r       *rand.Rand
	cfg     roleConfig
	members []*running
	command *running // a retry or a drop, or nil
	next    []string // the faults of the plan
	did     map[string]int
}

// plan has each fault as often as it happens, in the order of a shuffle. Then it begins again.
var plan = strings.Fields("term kill kill join join broker broker refuse refuse refuse drop drop drop retry retry retry retry retry retry retry retry")

// one has the next fault happen.
func (f *faults) one() {
	f.Helper()
	if f.did["faults"]%len(plan) == 0 {
		f.next = slices.Clone(plan)
		f.r.Shuffle(len(plan), func(i, j int) { f.next[i], f.next[j] = f.next[j], f.next[i] })
	}
	what := f.next[f.did["faults"]%len(plan)]
	f.note("faults")
	switch what {
	case "term":
		f.leave(syscall.SIGTERM, "member stopped")
	case "kill":
		f.leave(syscall.SIGKILL, "member killed")
	case "join":
		if len(f.members) < 4 {
			f.join()
		}
	case "broker":
		if err := f.kafka.Kill(); err != nil {
			f.Fatal(err)
		}
		f.kafka.Start(f.T)
		f.note("broker killed")
	case "refuse": // the dead letter topic refuses letters and marks
		f.kafka.Configure(f.T, "max.message.bytes", "1", f.cfg.Dead)
		time.Sleep(500 * time.Millisecond)
		f.leave(syscall.SIGKILL, "member killed")
		f.kafka.Configure(f.T, "max.message.bytes", "1048576", f.cfg.Dead)
		f.note("dead letters refused")
	default:
		f.begin(what)
	}
	for len(f.members) < 2 {
		f.join()
	}
}

func (f *faults) note(what string) { f.did[what]++ }

func (f *faults) join() {
	f.Helper()
	f.cfg.Role = "member"
	f.members = append(f.members, f.start(f.cfg))
}

func (f *faults) leave(sig syscall.Signal, what string) {
	f.Helper()
	i := f.r.IntN(len(f.members))
	f.members[i].end(f.T, sig)
	f.members = slices.Delete(f.members, i, i+1)
	f.note(what)
}

// begin starts a retry or a drop. The one before is killed, unless it has ended.
func (f *faults) begin(role string) {
	f.Helper()
	f.stop(f.command)
	f.cfg.Role, f.cfg.Seed = role, f.r.Uint64()
	f.command = f.start(f.cfg)
}

func (f *faults) stop(p *running) {
	f.Helper()
	if p == nil {
		return
	}
	f.command = nil
	if p.end(f.T, syscall.SIGKILL) {
		f.note(p.role + " killed")
	} else {
		f.note(p.role + " ended")
	}
}

func (f *faults) end() {
	f.stop(f.command)
	for len(f.members) > 0 {
		f.leave(syscall.SIGKILL, "member ended")
	}
}

func (f *faults) lag() (int64, error) {
	lags, err := kadm.NewClient(f.client).Lag(f.Context(), f.cfg.Group)
	l := lags[f.cfg.Group]
	return l.Lag.Total(), errors.Join(err, l.Error())
}

// A command or a member runs in a process of its own.
type running struct {
	*process.Process
	role string
}

func (w *world) start(cfg roleConfig) *running {
	w.Helper()
	return &running{process.Start(w.T, cfg, nil), cfg.Role}
}

// end ends the process. It reports whether the signal did. A command can fail because the broker is down: the ledger decides.
func (p *running) end(t *testing.T, sig syscall.Signal) bool {
	t.Helper()
	killed, err := p.End(sig)
	if err != nil && p.role == "member" {
		t.Errorf("a member: %v", err)
	}
	return killed
}

type roleConfig struct {
	Role                    string
	Brokers                 []string
	Group, Topic, Dead, DSN string
	Seed                    uint64
}

func (cfg roleConfig) run(ctx context.Context) error {
	if cfg.Role == "member" {
		return cfg.consume(ctx)
	}
	return cfg.change(ctx)
}

// consume is a member of the group.
func (cfg *roleConfig) consume(ctx context.Context) error {
	pool, err := pgxpool.New(ctx, cfg.DSN)
	if err != nil {
		return err
	}
	defer pool.Close()
	db := inbox.Pgx(pool)
	c, err := consumer.New(consumer.Config{
		Brokers: cfg.Brokers, Group: cfg.Group, Topics: []string{cfg.Topic}, DeadLetterTopic: cfg.Dead,
		ClientOptions:  []kgo.Opt{kgo.SessionTimeout(6 * time.Second), kgo.HeartbeatInterval(200 * time.Millisecond)},
		Attempts:       2,
		HandlerTimeout: 2 * time.Second, BackoffMin: time.Millisecond, BackoffMax: 20 * time.Millisecond, CommitInterval: 200 * time.Millisecond,
		Logger: slog.New(slog.DiscardHandler),
		Handler: func(ctx context.Context, m inbox.Message) error {
			_, err := db.Once(ctx, cfg.Group, m, func(ctx context.Context, tx pgx.Tx) error { return handle(ctx, tx, m) })
			return err
		},
	})
	if err != nil {
		return err
	}
	if err := c.Run(ctx); err != nil && !errors.As(err, new(*consumer.UncommittedError)) {
		return err
	}
	return nil
}

// handle writes the effect of a message. It fails for a poisonous one until the handlers are repaired, also after the effect.
func handle(ctx context.Context, tx pgx.Tx, m inbox.Message) error {
	if _, err := tx.Exec(ctx, "INSERT INTO effects (id, value) VALUES ($1, $2)", m.ID, string(m.Value)); err != nil {
		return err
	}
	if rand.IntN(50) == 0 {
		time.Sleep(time.Duration(rand.IntN(100)) * time.Millisecond)
	}
	if len(m.Value) == 0 {
		return nil
	}
	var repaired bool
	if err := tx.QueryRow(ctx, "SELECT to_regclass('repaired') IS NOT NULL").Scan(&repaired); err != nil || repaired {
		return err
	}
	switch string(m.Value) {
	case "panic":
		panic("poison")
	case "hang":
		if rand.IntN(10) == 0 {
			<-ctx.Done()
		}
	case "permanent":
		return inbox.Permanent(errBroken)
	}
	return errBroken
}

// change retries what is open, or gives some of it up.
func (cfg *roleConfig) change(ctx context.Context) error {
	c := walpost.DefaultConfig()
	c.Kafka.Brokers = cfg.Brokers
	topics, err := walpost.OpenConsumed(ctx, c, cfg.Dead, "", func(string) {}, func(string, int64, int64) {})
	if err != nil {
		return err
	}
	defer topics.Close()
	found, err := topics.Select(&walpost.BadEventFilter{State: deadletter.Open})
	if err != nil {
		return err
	}
	if cfg.Role == "drop" {
		r := rand.New(rand.NewPCG(cfg.Seed, 0))
		found = slices.DeleteFunc(found, func(*walpost.BadEvent) bool { return r.IntN(5) > 0 })
		_, err = topics.Drop(ctx, found, "a test")
		return err
	}
	_, err = topics.Retry(ctx, found, walpost.RetryOptions{})
	return err
}
