//go:build linux || darwin

package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/walpost/walpost/inbox"
	"github.com/walpost/walpost/internal/testenv"
)

// Each event is delivered about five times, with repeats of old events between new ones. Members of
// the group are killed, stopped and started meanwhile, and Retain runs every second. Each event has one
// effect, and the effects of a key are in the order of its events. WALPOST_INBOX_DELIVERIES is how many
// messages there are.
func TestEachEventHasOneEffectThroughCrashesAndRebalances(t *testing.T) {
	const perEvent, keys, partitions = 5, 200, 6
	deliveries := 20_000
	if text := os.Getenv("WALPOST_INBOX_DELIVERIES"); text != "" {
		var err error
		if deliveries, err = strconv.Atoi(text); err != nil {
			t.Fatal(err)
		}
	}
	pg := testenv.Postgres(t, "17")
	dsn := pg.Database(t)
	pg.Exec(t, dsn, ddl, "CREATE TABLE effects (place bigint GENERATED ALWAYS AS IDENTITY, key text, n int)")
	k := testenv.Kafka(t)
	w := newWorld(t, k, partitions)
	r := rand.New(rand.NewPCG(1, uint64(deliveries)))
	events := fill(t, w, r, deliveries, deliveries/perEvent, keys)
	t.Logf("%d deliveries of %d events", deliveries, events)

	begin := time.Now()
	cfg := memberConfig{Brokers: k.Brokers(), Group: w.name, Topic: w.topic, Dead: w.dead, DSN: dsn}
	var members []*process
	kills, stops := 0, 0
	join := func() {
		cfg.Batch = r.IntN(2) == 0
		members = append(members, startProcess(t, cfg))
	}
	leave := func(sig syscall.Signal) {
		i := r.IntN(len(members))
		members[i].end(t, sig)
		members = append(members[:i], members[i+1:]...)
	}
	defer func() {
		for len(members) > 0 {
			leave(syscall.SIGKILL)
		}
	}()
	pool := newPool(t, dsn)
	effects := func() (n int) {
		if err := pool.QueryRow(t.Context(), "SELECT count(*) FROM effects").Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	retained := retainEverySecond(t, pool)
	join()
	join()
	join()
	last := time.Now() // the last progress; only to give up
	for rounds, seen, next := 20, 0, 0; seen < events; time.Sleep(20 * time.Millisecond) {
		n := effects()
		if n > seen {
			last, seen = time.Now(), n
		}
		if time.Since(last) > 3*time.Minute {
			t.Fatalf("no progress for 3 minutes: %d of %d effects", seen, events)
		}
		if seen < next {
			continue
		}
		next += events / rounds
		switch r.IntN(4) {
		case 0:
			leave(syscall.SIGTERM)
			stops++
		case 1:
			if len(members) < 5 {
				join()
			}
		default:
			leave(syscall.SIGKILL)
			kills++
		}
		for len(members) < 2 {
			join()
		}
	}
	adm := kadm.NewClient(w.cl)
	for limit := time.Now().Add(3 * time.Minute); ; time.Sleep(20 * time.Millisecond) {
		lags, err := adm.Lag(t.Context(), w.name)
		if l := lags[w.name]; err == nil && l.Error() == nil && l.Lag.Total() == 0 && len(l.Lag[w.topic]) == partitions {
			break
		}
		if time.Now().After(limit) {
			t.Fatalf("the group does not reach the end: %v %v", lags[w.name].Lag.Total(), err)
		}
	}
	took := time.Since(begin)
	for len(members) > 0 {
		leave(syscall.SIGTERM)
	}
	began, emptied := retained()
	t.Logf("%d kills, %d stops, %d generations began and %d expired; %s, %.0f deliveries each second", kills, stops, began, emptied, took.Round(time.Millisecond), float64(deliveries)/took.Seconds())

	rows, err := pool.Query(t.Context(), "SELECT key, n FROM effects ORDER BY place")
	if err != nil {
		t.Fatal(err)
	}
	next := map[string]int{}
	var key string
	var n, count, wrong int
	_, err = pgx.ForEachRow(rows, []any{&key, &n}, func() error {
		if count++; n != next[key] && wrong < 10 {
			wrong++
			t.Errorf("key %s: effect %d follows effect %d", key, n, next[key]-1)
		}
		next[key] = n + 1
		return nil
	})
	if err != nil || count != events {
		t.Errorf("%d effects of %d events (%v)", count, events, err)
	}
	if ends, err := adm.ListEndOffsets(t.Context(), w.dead); err != nil || ends[w.dead][0].Offset != 0 {
		t.Errorf("dead letters: %v %v", ends, err)
	}
}

// retainEverySecond runs Retain every second, as a role that may only insert and delete. Each time, the
// current generation is old enough to end. No event of the test expires, because that would repeat its
// effect: there are generations enough for that, and another consumer's marks are in those that expire.
// The function that it returns ends it, and says how many generations began and expired.
func retainEverySecond(t *testing.T, pool *pgxpool.Pool) (end func() (began, expired int)) {
	t.Helper()
	const more, old = 24, 8
	exec := func(sql string) {
		t.Helper()
		if _, err := pool.Exec(t.Context(), sql); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
	exec(fmt.Sprintf(`DO $$ BEGIN FOR n IN 7 .. %d LOOP
		EXECUTE format('CREATE TABLE inbox_processed_%%s PARTITION OF inbox_processed FOR VALUES IN (%%1$s)', n);
		INSERT INTO inbox_generations VALUES (n, '-infinity', '-infinity');
	END LOOP; END $$;
	INSERT INTO inbox_processed (generation, consumer, scope, event_id) SELECT n %% %d + 2, 'other', 't', 'event ' || n FROM generate_series(1, 20000) n;
	UPDATE inbox_generations SET started_at = now() - interval '1 year', ended_at = now() - interval '1 day' + generation * interval '300 milliseconds'
		WHERE generation BETWEEN 2 AND %[2]d + 1`, 6+more, old))
	var name string
	if err := pool.QueryRow(t.Context(), "SELECT 'retain_' || current_database()").Scan(&name); err != nil {
		t.Fatal(err)
	}
	exec("CREATE ROLE " + name + " LOGIN; GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO " + name)
	config := pool.Config()
	config.ConnConfig.User = name
	service, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	var began, expired int
	all, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		db := inbox.Pgx(service)
		for ticks := time.Tick(time.Second); ; {
			_, err := pool.Exec(ctx, "UPDATE inbox_generations SET started_at = now() - interval '1 year' WHERE ended_at IS NULL; UPDATE inbox_retention SET pause_until = now()")
			var r inbox.Retained
			if err == nil {
				r, err = db.Retain(ctx, inbox.Retention{Keep: 24 * time.Hour})
			}
			if ctx.Err() != nil {
				return
			}
			if busy := (*inbox.BusyError)(nil); err != nil && !errors.As(err, &busy) {
				t.Errorf("Retain: %v", err)
			}
			if r.Began != 0 {
				began++
			}
			if expired += len(r.Dropped); expired >= old && began >= 2 && len(r.Dropped) > 0 {
				close(all)
			}
			select {
			case <-ticks:
			case <-ctx.Done():
				return
			}
		}
	}()
	end = sync.OnceValues(func() (int, int) {
		select { // a quick machine is done before
		case <-all:
		case <-time.After(time.Minute):
		}
		stop()
		<-done
		service.Close()
		exec := context.WithoutCancel(t.Context())
		if _, err := pool.Exec(exec, "DROP OWNED BY "+name+"; DROP ROLE "+name); err != nil {
			t.Error(err)
		}
		if began < 2 || expired != old {
			t.Errorf("%d generations began, and %d of %d expired", began, expired, old)
		}
		return began, expired
	})
	t.Cleanup(func() { end() })
	return end
}

// fill produces the deliveries. The first delivery of each event of a key is in the order of the
// key's events; repeats of earlier ones are between them. It returns the number of events.
func fill(t *testing.T, w *world, r *rand.Rand, deliveries, events, keys int) int {
	t.Helper()
	cl := w.k.Client(t, kgo.DefaultProduceTopic(w.topic))
	made := make([]int, keys) // events of each key so far
	total := 0
	for i := range deliveries {
		key := r.IntN(keys)
		n := made[key]
		if n > 0 && (total == events || r.IntN(deliveries-i) >= events-total) {
			n = max(0, n-1-r.IntN(1+r.IntN(50))) // mostly a recent one
		} else {
			made[key]++
			total++
		}
		id := fmt.Sprintf("%d-%d", key, n)
		cl.Produce(t.Context(), &kgo.Record{
			Key: strconv.AppendInt(nil, int64(key), 10), Value: strconv.AppendInt(nil, int64(n), 10), Headers: []kgo.RecordHeader{{Key: "id", Value: []byte(id)}},
		}, func(_ *kgo.Record, err error) {
			if err != nil {
				t.Error(err)
			}
		})
	}
	if err := cl.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	return total
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
