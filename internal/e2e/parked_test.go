package e2e

import (
	"context"
	"encoding/base64"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/walpost/walpost/internal/deadletter"
	"github.com/walpost/walpost/internal/testenv"
)

// A line is the events that consumers got of one key in one partition, in order.
type line struct {
	topic, key string
	partition  int32
}

// inOrder says what is wrong with the order of the numbers of a line: it may go back, and then it must go on from there, one by one.
func inOrder(numbers []int) string {
	all := slices.Compact(slices.Sorted(slices.Values(numbers)))
	next := 0 // index in all
	for i, n := range numbers {
		at, _ := slices.BinarySearch(all, n)
		if at > next {
			return fmt.Sprintf("event %d arrived at place %d, and event %d was next (around: %v)", n, i, all[next], numbers[max(0, i-8):min(len(numbers), i+8)])
		}
		next = at + 1
	}
	if next != len(all) {
		return fmt.Sprintf("the last event is %d, and not %d", numbers[len(numbers)-1], all[len(all)-1])
	}
	return ""
}

// Many keys go bad, in four ways, and the relay is killed again and again, while all keys get further events. The good keys flow. When the
// causes are mended, the keys are released in random order, and the relay is killed meanwhile. Every event arrives, and over all records
// the events of each key are in order. WALPOST_PARKED_KEYS and WALPOST_PARKED_KILLS set other numbers than 200 keys and 8 kills.
func TestParkedKeysUnderKills(t *testing.T) {
	t.Parallel()
	bad, kills := 200, 8
	numbers(t, map[string]*int{"WALPOST_PARKED_KEYS": &bad, "WALPOST_PARKED_KILLS": &kills})
	keys := bad + bad/2 // the first ones go bad
	pg, kafka := testenv.Postgres(t, "16", testenv.Private()), testenv.Kafka(t)
	s := newSetting(t, pg, pg.Database(t), kafka)
	parked, mended := s.prefix+"parked", s.prefix+"mended"
	const partitions = 3
	for _, name := range []string{"a", "b"} {
		kafka.CreateTopic(t, s.prefix+name, partitions, map[string]string{"max.message.bytes": "30000"})
	}
	kafka.CreateTopic(t, mended, 10, nil)
	pg.Exec(t, s.dsn, "CREATE TABLE mixed (id text PRIMARY KEY, aggregate_type text, aggregate_id int NOT NULL, payload text, p int)")
	s.yaml = fmt.Sprintf(`name: %s
source: {dsn: %q, table: public.mixed}
router: {route.topic.replacement: "%s${routedByValue}", table.fields.additional.placement: "p:partition"}
kafka: {brokers: [%s]}
delivery: {on_poison: park_key, parking_topic: %s}
`, s.name, s.dsn, s.prefix, strings.Join(s.brokers, ", "), parked)
	r := s.startReady()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))

	// Each writer writes events of its own keys, until it is told to stop.
	const writers = 4
	var mu sync.Mutex
	sent := make([]int, keys) // events by key, committed
	var stop atomic.Bool
	var writing sync.WaitGroup
	write := func(writer int) error {
		conn, err := pgx.Connect(t.Context(), s.dsn)
		if err != nil {
			return err
		}
		defer conn.Close(context.Background()) //nolint:errcheck // it is over
		rng := rand.New(rand.NewPCG(seed, uint64(writer)+1))
		for !stop.Load() {
			values, new := []string{}, map[int]int{}
			for range 1 + rng.IntN(20) {
				key := rng.IntN((keys-writer+writers-1)/writers)*writers + writer
				mu.Lock()
				number := sent[key] + new[key]
				mu.Unlock()
				new[key]++
				typ, payload, p := fmt.Sprintf("'%s'", "ab"[key%2:][:1]), strconv.Itoa(number), key%3
				if key < bad && number == 1+key%3 {
					switch key % 4 {
					case 0:
						typ = "NULL"
					case 1:
						typ = "'two words'"
					case 2:
						b := make([]byte, 60_000)
						for i := range b {
							b[i] = byte(rng.Uint32())
						}
						payload = base64.StdEncoding.EncodeToString(b)
					case 3:
						p = 9
					}
				}
				values = append(values, fmt.Sprintf("('%d/%d', %s, %d, '%s', %d)", key, number, typ, key, payload, p))
			}
			if _, err := conn.Exec(t.Context(), "INSERT INTO mixed VALUES "+strings.Join(values, ", ")); err != nil {
				return err
			}
			mu.Lock()
			for key, n := range new {
				sent[key] += n
			}
			mu.Unlock()
			time.Sleep(time.Duration(rng.IntN(int(200 * time.Millisecond))))
		}
		return nil
	}
	for writer := range writers {
		writing.Go(func() {
			if err := write(writer); err != nil {
				t.Errorf("writer: %v", err)
			}
		})
	}
	defer func() { stop.Store(true); writing.Wait() }()

	lines, arrived, repeated := map[line][]int{}, map[string]bool{}, 0
	tokens, again := map[int]string{}, 0 // of the bad events, by key; letters of failed releases
	follow := func(topics []string, observe func(*kgo.Record)) {
		s.consume(topics, func(rec *kgo.Record) { mu.Lock(); defer mu.Unlock(); observe(rec) })
	}
	delivered := func(rec *kgo.Record) {
		id := ""
		for _, h := range rec.Headers {
			if h.Key == "id" {
				id = string(h.Value)
			}
		}
		key, text, _ := strings.Cut(id, "/")
		number, err := strconv.Atoi(text)
		if err != nil || key != string(rec.Key) {
			t.Errorf("topic %s has the event %q under key %q", rec.Topic, id, rec.Key)
		}
		if arrived[id] {
			repeated++
		}
		arrived[id] = true
		l := line{rec.Topic, key, rec.Partition}
		lines[l] = append(lines[l], number)
	}
	follow([]string{s.prefix + "a", s.prefix + "b", mended}, func(rec *kgo.Record) {
		if rec.Partition < partitions || rec.Topic == mended {
			delivered(rec)
		}
	})
	follow([]string{parked}, func(rec *kgo.Record) {
		l, mark, err := deadletter.Decode(rec)
		if mark != nil {
			return
		}
		if err != nil {
			t.Errorf("a letter: %v", err)
			return
		}
		if key, _ := strconv.Atoi(string(l.Key)); l.Reason != deadletter.Behind && tokens[key] == "" {
			tokens[key] = l.Token
		}
		if l.Attempts > 1 {
			again++
		}
	})
	killed := 0
	kill := func() {
		killed++
		time.Sleep(time.Duration(rng.Int64N(int64(700 * time.Millisecond))))
		r.kill()
		r = s.start()
	}
	for range kills / 4 {
		eventually(t, time.Minute, "ready", r.ready)
		kill()
	}
	eventually(t, 2*time.Minute, "all bad keys are parked", func() bool { mu.Lock(); defer mu.Unlock(); return len(tokens) == bad })
	have := func(from int) func() bool { // every event that the keys from there on have now has arrived
		mu.Lock()
		sent := slices.Clone(sent)
		mu.Unlock()
		return func() bool {
			mu.Lock()
			defer mu.Unlock()
			for key := from; key < keys; key++ {
				for n := range sent[key] {
					if !arrived[fmt.Sprintf("%d/%d", key, n)] {
						return false
					}
				}
			}
			return true
		}
	}
	eventually(t, time.Minute, "the events of all other keys", have(bad))
	eventually(t, time.Minute, "the status of the parked keys", func() bool { return r.metric("walpost_parked_keys") == float64(bad) })
	mu.Lock()
	for key := range bad {
		if arrived[fmt.Sprintf("%d/%d", key, 1+key%3)] {
			t.Errorf("the bad event of key %d has arrived", key)
		}
	}
	mu.Unlock()
	order := rng.Perm(bad)
	release := func(keys []int) {
		args := []string{"dead", "retry"}
		mu.Lock()
		for _, key := range keys {
			args = append(args, tokens[key])
		}
		mu.Unlock()
		if code, out := s.command(args...); code != 0 {
			t.Errorf("dead retry: code %d\n%s", code, out)
		}
	}
	release(order[:bad/20]) // nothing is mended
	eventually(t, time.Minute, "the releases are refused", func() bool { mu.Lock(); defer mu.Unlock(); return again >= bad/20 })

	kafka.Configure(t, "max.message.bytes", "2000000", s.prefix+"a", s.prefix+"b")
	kafka.Grow(t, 10, s.prefix+"a", s.prefix+"b")
	follow([]string{s.prefix + "a", s.prefix + "b"}, func(rec *kgo.Record) { // the new partitions
		if rec.Partition >= partitions {
			delivered(rec)
		}
	})
	s.yaml = strings.Replace(s.yaml, fmt.Sprintf(`route.topic.replacement: "%s${routedByValue}"`, s.prefix),
		fmt.Sprintf(`route.by.field: id, route.topic.replacement: "%s", table.field.event.key: aggregate_id`, mended), 1)
	r.kill()
	r = s.start()
	const batches = 16
	for i := range batches {
		release(order[i*bad/batches : (i+1)*bad/batches])
		for killed < kills && killed-kills/4 < (i+1)*(kills-kills/4)/batches {
			kill()
		}
	}
	eventually(t, 3*time.Minute, "nothing is parked", func() bool { return r.metric("walpost_parked_keys") == 0 && r.ready() || t.Failed() })
	stop.Store(true)
	writing.Wait()
	eventually(t, time.Minute, "every event", have(0))
	r.stopsClean()
	mu.Lock()
	defer mu.Unlock()
	events := 0
	for _, n := range sent {
		events += n
	}
	for l, numbers := range lines {
		if wrong := inOrder(numbers); wrong != "" {
			t.Errorf("key %s in topic %s, partition %d: %s", l.key, l.topic, l.partition, wrong)
		}
	}
	t.Logf("%d events of %d keys, %d of them parked; %d kills, %d events repeated, %d releases refused", events, keys, bad, killed+1, repeated, again)
	if len(arrived) != events || again < bad/20 {
		t.Errorf("%d events arrived of %d, %d releases were refused", len(arrived), events, again)
	}
}
