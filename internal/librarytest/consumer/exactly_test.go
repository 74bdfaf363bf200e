//go:build linux || darwin

package consumer_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/walpost/walpost/inbox"
	"github.com/walpost/walpost/internal/testenv"
)

// Each event is delivered about five times, with repeats of old events between new ones. The deliveries come in turns, and in each turn
// one fault of the plan happens: a member of the group is killed, stopped, started or frozen, brokers are killed, or connections to the
// database are cut. Handlers are slow, hang, fail and panic all the time, and Retain runs every second. Each event has one effect, the
// effects of a key are in the order of its events, and each other delivery is recognised. WALPOST_INBOX_DELIVERIES is how many deliveries
// there are. WALPOST_INBOX_SEED decides on the messages, the faults, and what the handlers do.
func TestEachEventHasOneEffectThroughCrashesAndRebalances(t *testing.T) {
	const perEvent, keys, partitions, members = 5, 200, 8, 4
	deliveries, seed := number(t, "WALPOST_INBOX_DELIVERIES", 20_000), uint64(number(t, "WALPOST_INBOX_SEED", 1))
	pg := testenv.Postgres(t, "17")
	dsn := pg.Database(t)
	pg.Exec(t, dsn, ddl, `CREATE TABLE effects
		(place bigint GENERATED ALWAYS AS IDENTITY, key text, n int, partition int, record bigint, process int)`)
	pool := newPool(t, dsn)
	role := newService(t, pool)
	w := newWorld(t, testenv.KafkaPrivate(t, 3, nil), partitions)

	faults := schedule(rand.New(rand.NewPCG(seed, 1)), max(len(plan), min(deliveries/2500, 100)))
	events := deliveries / perEvent
	t.Logf("%d deliveries of %d events, %d faults, WALPOST_INBOX_SEED=%d", deliveries, events, len(faults), seed)
	g := &group{world: w, pool: pool, did: map[string]int{}, known: map[record]int{}, cfg: memberConfig{
		Brokers: w.k.Brokers(), Group: w.name, Topic: w.topic, Dead: w.dead, DSN: dsn, User: role, Seed: seed,
	}}
	for range members {
		g.join()
	}
	begin := time.Now()
	retain := forget(t, pool, role)
	s := newSource(w, rand.New(rand.NewPCG(seed, 2)), deliveries, events, keys)
	seen, last := 0, time.Now() // of the last progress; only to give up
	reach := func(effects int) {
		t.Helper()
		for ; seen < effects; time.Sleep(20 * time.Millisecond) {
			var n int
			if err := pool.QueryRow(t.Context(), "SELECT count(*) FROM effects").Scan(&n); err != nil {
				t.Fatal(err)
			}
			if n > seen {
				last, seen = time.Now(), n
			}
			if time.Since(last) > 3*time.Minute {
				lag, err := w.lag(partitions)
				t.Fatalf("no progress for 3 minutes: %d of %d effects, and a lag of %d (%v)", seen, effects, lag, err)
			}
		}
	}
	for i, f := range faults {
		from, turn := s.total, deliveries*(i+1)/len(faults)-s.sent
		s.send(turn / 2)
		retain.allowed.Store(int64(1 + turns*i/len(faults)))
		reach(from + int(f.after*float64(s.total-from)))
		over, sent := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(sent)
			s.trickle(turn-turn/2, over)
		}()
		t.Logf("%s: %d effects, %d members: %s", time.Since(begin).Round(time.Millisecond), seen, len(g.members), f)
		g.fault(f)
		close(over)
		<-sent
	}
	s.flush()
	events = s.total
	reach(events)
	w.eventually("the group reaches the end", func() bool {
		lag, err := w.lag(partitions)
		return err == nil && lag == 0
	})
	took := time.Since(begin)
	for len(g.members) > 0 {
		g.stop(0)
	}
	retain.end()
	t.Logf("%s, %.0f deliveries each second; %d calls of Retain, of which %d found the table in use",
		took.Round(time.Millisecond), float64(deliveries)/took.Seconds(), retain.calls, retain.busy)
	g.note("generation began", retain.began)
	g.note("marks removed", retain.marks)
	g.check(deliveries, events)
	g.report()
	if ends, err := kadm.NewClient(w.cl).ListEndOffsets(t.Context(), w.dead); err != nil || ends[w.dead][0].Offset != 0 {
		t.Errorf("dead letters: %v %v", ends, err)
	}
}

// number returns a number of the environment.
func number(t *testing.T, name string, byDefault int) int {
	t.Helper()
	n, err := strconv.Atoi(cmp.Or(os.Getenv(name), strconv.Itoa(byDefault)))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// check compares the effects with the events, and the deliveries that were recognised with the rest.
func (g *group) check(deliveries, events int) {
	g.t.Helper()
	rows, err := g.pool.Query(g.t.Context(), "SELECT key, n, partition, record, process FROM effects ORDER BY place")
	if err != nil {
		g.t.Fatal(err)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	next, owner := map[string]int{}, map[int32]int{}
	var key string
	var n, count, wrong, process int
	var at record
	_, err = pgx.ForEachRow(rows, []any{&key, &n, &at.partition, &at.offset, &process}, func() error {
		if count++; n != next[key] && wrong < 10 {
			wrong++
			g.t.Errorf("key %s: effect %d follows effect %d", key, n, next[key]-1)
		}
		next[key] = n + 1
		if before, known := owner[at.partition]; known && before != process {
			g.did["partition moved"]++
		}
		owner[at.partition] = process
		g.did["redelivery recognised"] += g.known[at] // of the record that has the effect
		delete(g.known, at)
		return nil
	})
	if err != nil || count != events {
		g.t.Errorf("%d effects of %d events (%v)", count, events, err)
	}
	for _, times := range g.known {
		g.did["repeat recognised"] += times
	}
	if len(g.known) != deliveries-events {
		g.t.Errorf("%d deliveries of processed events were recognised, of %d", len(g.known), deliveries-events)
	}
}

// A source produces the deliveries. The first delivery of each event of a key is in the order of the key's events; repeats of earlier
// ones are between them.
type source struct {
	w                  *world
	cl                 *kgo.Client
	r                  *rand.Rand
	deliveries, events int   // in the end
	sent, total        int   // so far
	made               []int // events of each key so far
}

func newSource(w *world, r *rand.Rand, deliveries, events, keys int) *source {
	cl := w.k.Client(w.t, kgo.DefaultProduceTopic(w.topic), kgo.MaxBufferedRecords(deliveries))
	return &source{w: w, cl: cl, r: r, deliveries: deliveries, events: events, made: make([]int, keys)}
}

// trickle sends n deliveries slowly, and those that are left when quick is closed.
func (s *source) trickle(n int, quick <-chan struct{}) {
	for step := 1 + n/100; n > 0; n -= step {
		step = min(step, n)
		select {
		case <-quick:
			step = n
		case <-s.w.t.Context().Done():
			return
		case <-time.After(50 * time.Millisecond):
		}
		s.send(step)
	}
}

// send produces n deliveries. It waits for no broker.
func (s *source) send(n int) {
	for end := s.sent + n; s.sent < end; s.sent++ {
		key := s.r.IntN(len(s.made))
		n := s.made[key]
		if n > 0 && (s.total == s.events || s.r.IntN(s.deliveries-s.sent) >= s.events-s.total) {
			n = max(0, n-1-s.r.IntN(1+s.r.IntN(50))) // mostly a recent one
		} else {
			s.made[key]++
			s.total++
		}
		id := fmt.Sprintf("%d-%d", key, n)
		s.cl.Produce(s.w.t.Context(), &kgo.Record{
			Key: strconv.AppendInt(nil, int64(key), 10), Value: strconv.AppendInt(nil, int64(n), 10), Headers: []kgo.RecordHeader{{Key: "id", Value: []byte(id)}},
		}, func(_ *kgo.Record, err error) {
			if err != nil && s.w.t.Context().Err() == nil {
				s.w.t.Error(err)
			}
		})
	}
}

func (s *source) flush() {
	s.w.t.Helper()
	if err := s.cl.Flush(s.w.t.Context()); err != nil {
		s.w.t.Fatal(err)
	}
}

// lag is how many deliveries the group has not committed.
func (w *world) lag(partitions int) (int64, error) {
	lags, err := kadm.NewClient(w.cl).Lag(w.t.Context(), w.name)
	l := lags[w.name]
	if err = errors.Join(err, l.Error()); err == nil && len(l.Lag[w.topic]) < partitions {
		err = fmt.Errorf("%d of %d partitions are known", len(l.Lag[w.topic]), partitions)
	}
	return l.Lag.Total(), err
}

// The steps of docs/consume-events.md, "The database lost commits". The database is that of some time ago, but
// the offsets are not.
func TestLostCommitsComeBackWithTheOffsetsOfAnEarlierTime(t *testing.T) {
	const messages, kept = 20, 12
	pg := testenv.Postgres(t, "17")
	dsn := pg.Database(t)
	pg.Exec(t, dsn, ddl, "CREATE TABLE effects (n bigint GENERATED ALWAYS AS IDENTITY, id text)")
	db := inbox.Pgx(newPool(t, dsn))
	w := newWorld(t, testenv.Kafka(t), 1)
	begin := time.Now().Add(-time.Hour).Truncate(time.Second)
	for i := range messages {
		id := fmt.Appendf(nil, "%02d", i)
		w.produce(&kgo.Record{
			Key: []byte("k"), Value: id, Headers: []kgo.RecordHeader{{Key: "id", Value: id}}, Timestamp: begin.Add(time.Duration(i) * time.Minute),
		})
	}
	cfg := w.config(func(ctx context.Context, m inbox.Message) error {
		_, err := db.Once(ctx, w.name, m, func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, "INSERT INTO effects (id) VALUES ($1)", m.ID)
			return err
		})
		return err
	})
	run := func() {
		m := w.start(cfg)
		w.commits(0, messages)
		if err := m.end(); err != nil {
			t.Fatal(err)
		}
	}
	run()
	pg.Exec(t, dsn, fmt.Sprintf("DELETE FROM effects WHERE id >= '%d'; DELETE FROM inbox_processed WHERE event_id >= '%[1]d'", kept))

	adm := kadm.NewClient(w.cl)
	earlier, err := adm.ListOffsetsAfterMilli(t.Context(), begin.Add(5*time.Minute).UnixMilli(), w.topic)
	if err == nil {
		err = adm.CommitAllOffsets(t.Context(), w.name, earlier.Offsets())
	}
	if err != nil {
		t.Fatal(err)
	}
	if at := w.committed(0); at != 5 {
		t.Fatalf("the group is at %d", at)
	}
	run()
	var want []string
	for i := range messages {
		want = append(want, fmt.Sprintf("%02d", i))
	}
	if got := pg.Value(t, dsn, "SELECT string_agg(id, ' ' ORDER BY n) FROM effects"); got != strings.Join(want, " ") {
		t.Errorf("effects %s", got)
	}
}
