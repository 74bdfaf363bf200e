package e2e

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/walpost/walpost/internal/shop"
	"github.com/walpost/walpost/internal/testenv"
)

// A lot is a setting whose events are bad if they ask for a partition that their topic doesn't have. Its two topics have one partition at
// first. An event is known by its number.
type lot struct {
	*setting
	pg     *testenv.PG
	kafka  *testenv.KafkaCluster
	adm    *kadm.Client
	parked string // the topic of parked events
}

// newLot has walpost.yaml with more lines of delivery.
func newLot(t *testing.T, pg *testenv.PG, kafka *testenv.KafkaCluster, delivery string) *lot {
	l := &lot{setting: &setting{t: t, dsn: pg.Database(t), brokers: kafka.Brokers(), name: unique("lot")}, pg: pg, kafka: kafka, adm: kadm.NewClient(kafka.Client(t))}
	l.prefix = l.name + "."
	l.parked = l.prefix + "parked"
	pg.Exec(t, l.dsn, shop.Schema, "ALTER TABLE outbox ADD p int", "CREATE INDEX ON outbox (created_at)")
	for _, typ := range shop.Types {
		l.topics = append(l.topics, l.prefix+typ)
		kafka.CreateTopic(t, l.prefix+typ, 1, nil)
	}
	l.source, l.router = ", time_column: created_at, slot: "+l.slot(), `, table.fields.additional.placement: "p:partition"`
	l.extra = fmt.Sprintf("halt_linger: 0s\nmonitor: {interval: 1s}\ndelivery: {%s, dead_letter_topic: %sdead, parking_topic: %s}\n", delivery, l.prefix, l.parked)
	return l
}

func (l *lot) insertInto(table, typ string, n, p int, key string) {
	l.t.Helper()
	l.pg.Exec(l.t, l.dsn, fmt.Sprintf(`INSERT INTO %s (id, aggregate_type, aggregate_id, event_type, payload, p) VALUES ('00000000-0000-0000-0000-%012d', '%s', '%s', 'Changed', '%d', %d)`, table, n, typ, key, n, p))
}

func (l *lot) insert(n, p int, key string) { l.t.Helper(); l.insertInto("outbox", "order", n, p, key) }

// got are the numbers in a topic, one partition after the other.
func (l *lot) got(topic string) string {
	l.t.Helper()
	ctx, cancel := context.WithTimeout(l.t.Context(), patience)
	defer cancel()
	ends, err := l.adm.ListEndOffsets(ctx, topic)
	if err != nil {
		l.t.Fatal(err)
	}
	var numbers []string
	for partition := range int32(len(ends[topic])) {
		end := ends[topic][partition]
		if end.Err != nil || end.Offset == 0 {
			continue
		}
		cl := l.kafka.Client(l.t, kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: {end.Partition: kgo.NewOffset().AtStart()}}))
		for next := int64(0); next < end.Offset; {
			fetched := cl.PollFetches(ctx)
			if err := fetched.Err(); err != nil {
				l.t.Fatal(err)
			}
			fetched.EachRecord(func(rec *kgo.Record) {
				numbers, next = append(numbers, string(rec.Value)), rec.Offset+1
			})
		}
		cl.Close()
	}
	return strings.Join(numbers, " ")
}

func (l *lot) arrives(topic, want string) {
	l.t.Helper()
	eventually(l.t, time.Minute, want+" in "+topic, func() bool { return l.got(topic) == want || l.t.Failed() })
}

func (l *lot) holds(r *relay, events int) {
	l.t.Helper()
	eventually(l.t, time.Minute, fmt.Sprint(events, " parked events"), func() bool { return r.metric("walpost_parked_events") == float64(events) })
}

// does runs a command that must succeed, and returns what it printed.
func (l *lot) does(args ...string) string {
	l.t.Helper()
	code, out := l.command(args...)
	if code != 0 {
		l.t.Fatalf("%v: code %d\n%s", args, code, out)
	}
	return out
}

// An entry is an event in the output of "dead list".
type entry struct {
	Token, State string
	ID           string `json:"event_id"`
}

// list returns the dead and the parked events by their numbers, also those that are closed.
func (l *lot) list() map[int]entry {
	l.t.Helper()
	var found struct{ Events []entry }
	out := l.does("dead", "list", "--state", "all", "--json")
	if err := json.Unmarshal([]byte(out[strings.Index(out, "{"):]), &found); err != nil {
		l.t.Fatalf("%v\n%s", err, out)
	}
	all := map[int]entry{}
	for _, e := range found.Events {
		n, err := strconv.Atoi(e.ID[max(0, len(e.ID)-12):])
		if err != nil {
			l.t.Fatalf("%+v", e)
		}
		all[n] = e
	}
	return all
}

// What relays and operators do while events are parked: the order of a parked key holds, and no event comes twice. WALPOST_PARKED_STOPS sets another number than 20 stops.
func TestParkedEventsThroughFaults(t *testing.T) {
	t.Parallel()
	pg, kafka := testenv.Postgres(t, "16", testenv.Private(), testenv.Param("max_replication_slots", "20"), testenv.Param("max_wal_senders", "20")), testenv.Kafka(t)
	for _, c := range []struct {
		name string
		run  func(*testing.T, func(delivery string) *lot)
	}{
		{"stops", stopsDuringReleases},
		{"drops during releases", dropsDuringReleases},
		{"other policies", otherPolicies},
		{"closed dead letters after a kill", closedAfterAKill},
		{"another name of the table", renamedWhileParked},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			c.run(t, func(delivery string) *lot { return newLot(t, pg, kafka, delivery) })
		})
	}
}

// parkThree parks 2 and 3 of key a, and 5 of key c. The other events are delivered.
func (l *lot) parkThree() *relay {
	l.t.Helper()
	r := l.startReady()
	l.insert(1, 0, "a")
	l.insert(2, 1, "a")
	l.holds(r, 1) // its letter is the first one
	l.insert(3, 0, "a")
	l.insert(4, 0, "b")
	l.insert(5, 1, "c")
	l.holds(r, 3)
	l.arrives(l.topics[0], "1 4")
	return r
}

func stopsDuringReleases(t *testing.T, newLot func(string) *lot) {
	stops := 20
	numbers(t, map[string]*int{"WALPOST_PARKED_STOPS": &stops})
	l := newLot("on_poison: park_key")
	r := l.startReady()
	n := 0
	for key := range stops {
		n++
		l.insert(n, 1, fmt.Sprint("k", key))
	}
	l.holds(r, stops)
	var stop atomic.Bool
	var writing sync.WaitGroup
	writing.Go(func() {
		conn, err := pgx.Connect(t.Context(), l.dsn)
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close(context.Background()) //nolint:errcheck // it is over
		for !stop.Load() {
			var values []string
			for range 5 {
				n++
				values = append(values, fmt.Sprintf("('00000000-0000-0000-0000-%012d', 'order', 'k%d', 'Changed', '%d', 0)", n, rand.IntN(stops), n))
			}
			if _, err := conn.Exec(t.Context(), "INSERT INTO outbox (id, aggregate_type, aggregate_id, event_type, payload, p) VALUES "+strings.Join(values, ", ")); err != nil {
				t.Error(err)
			}
			time.Sleep(10 * time.Millisecond)
		}
	})
	defer func() { stop.Store(true); writing.Wait() }()
	l.kafka.Grow(t, 2, l.topics[0])
	for key := range stops {
		l.does("dead", "retry", "--key", fmt.Sprint("k", key))
		time.Sleep(time.Duration(rand.Int64N(int64(1200 * time.Millisecond)))) // the relay looks for requests each second
		r.stopsClean()
		r = l.startReady()
	}
	l.holds(r, 0)
	stop.Store(true)
	writing.Wait()
	eventually(t, time.Minute, "every event", func() bool { return len(strings.Fields(l.got(l.topics[0]))) >= n })
	r.stopsClean()
	times := map[string]int{}
	for _, number := range strings.Fields(l.got(l.topics[0])) {
		if times[number]++; times[number] == 2 {
			t.Errorf("event %s came twice", number)
		}
	}
	if len(times) != n {
		t.Errorf("%d events arrived of %d", len(times), n)
	}
	t.Logf("%d events, %d stops", n, stops)
}

// Whatever wins, each event is either delivered or dropped, and the relay, the commands and the topic agree.
func dropsDuringReleases(t *testing.T, newLot func(string) *lot) {
	const keys, each = 10, 30
	l := newLot("on_poison: park_key")
	r := l.startReady()
	of := func(key, i int) int { return 1 + i*keys + key }
	for i := range each {
		for key := range keys {
			l.insert(of(key, i), max(0, 1-i), fmt.Sprint("k", key))
		}
	}
	l.holds(r, keys*each)
	l.kafka.Grow(t, 2, l.topics[0])
	listed := l.list()
	said := map[int]bool{} // dropped, as the command says
	for key := range keys {
		retry := exec.Command(program, "dead", "retry", "--key", fmt.Sprint("k", key), "--config", l.config())
		if err := retry.Start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Duration(rand.Int64N(int64(1200 * time.Millisecond))))
		n := of(key, key%3)
		if listed[n].Token == "" {
			t.Fatalf("no token of %d in %+v", n, listed)
		}
		_, out := l.command("dead", "drop", "--reason", "a test", listed[n].Token)
		said[n] = strings.Contains(out, "dropped by the relay: 1\n")
		if err := retry.Wait(); err != nil {
			t.Errorf("retry: %v", err)
		}
	}
	l.holds(r, 0)
	for key := range keys {
		l.insert(of(key, each), 0, fmt.Sprint("k", key))
	}
	final, dropped := l.list(), 0
	for n, e := range final {
		if e.State == "dropped" {
			dropped++
		}
		if (e.State == "dropped") != said[n] || e.State != "dropped" && e.State != "released" {
			t.Errorf("event %d is %s, and the command said dropped: %t", n, e.State, said[n])
		}
	}
	eventually(t, time.Minute, "every other event", func() bool { return len(strings.Fields(l.got(l.topics[0]))) >= keys*(each+1)-dropped })
	got := strings.Fields(l.got(l.topics[0]))
	slices.SortFunc(got, func(a, b string) int { return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(a, b)) })
	var want []string
	for n := 1; n <= keys*(each+1); n++ {
		if !said[n] {
			want = append(want, strconv.Itoa(n))
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("arrived\n%v\nwant\n%v", got, want)
	}
	t.Logf("%d of %d drops came before the release", dropped, keys)
	r.stopsClean()
}

func otherPolicies(t *testing.T, newLot func(string) *lot) {
	l := newLot("on_poison: park_key")
	l.parkThree().stopsClean()
	for i, policy := range []string{"halt", "dead_letter", "halt"} {
		l.extra = regexp.MustCompile(`on_poison: \w+`).ReplaceAllString(l.extra, "on_poison: "+policy)
		l.insert(6+2*i, 0, "a")
		r := l.startReady()
		l.insert(7+2*i, 0, "b")
		l.arrives(l.topics[0], strings.Join([]string{"1 4", "7", "9", "11"}[:i+2], " "))
		l.holds(r, 4+i)
		if code, out := l.command("status", "--http", strings.TrimPrefix(r.page, "http://")); code != 0 || !strings.Contains(strings.SplitN(out, "\n", 2)[0], fmt.Sprint(4+i, " parked events of 2 keys are not delivered")) {
			t.Errorf("status: code %d\n%s", code, out)
		}
		if i == 2 {
			l.kafka.Grow(t, 2, l.topics[0])
			l.does("dead", "retry", "--all", "--wait")
			// The first partition has the events of one key. In the second one are two keys, which are released in any order.
			eventually(t, time.Minute, "every event", func() bool { return len(strings.Fields(l.got(l.topics[0]))) == 11 })
			of := map[bool]string{}
			for _, id := range strings.Fields(l.got(l.topics[0]))[5:] {
				of[id == "2" || id == "5"] += id + " "
			}
			if len(of[true]) != len("2 5 ") || of[false] != "3 6 8 10 " {
				t.Errorf("arrived %v", of)
			}
		}
		r.stopsClean()
	}
}

// An event that can't be delivered yet keeps the checkpoint before the dead letters, so that the crash repeats them.
func closedAfterAKill(t *testing.T, newLot func(string) *lot) {
	l := newLot("on_poison: dead_letter")
	r := l.startReady()
	if _, err := l.adm.DeleteTopic(t.Context(), l.topics[1]); err != nil {
		t.Fatal(err)
	}
	l.insertInto("outbox", "invoice", 1, 0, "z")
	l.insert(2, 1, "a")
	l.insert(3, 1, "b")
	l.insert(4, 1, "c")
	letters := func() int64 {
		ends, err := l.adm.ListEndOffsets(t.Context(), l.prefix+"dead")
		if err != nil {
			t.Fatal(err)
		}
		end, _ := ends.Lookup(l.prefix+"dead", 0)
		return end.Offset
	}
	eventually(t, time.Minute, "three letters", func() bool { return letters() == 3 })
	listed := l.list()
	l.does("dead", "drop", "--reason", "a test", listed[2].Token)
	l.kafka.CreateTopic(t, l.prefix+"mended", 1, nil)
	l.does("dead", "retry", "--to-topic", l.prefix+"mended", listed[3].Token)
	before := letters()
	r.kill()
	l.kafka.CreateTopic(t, l.topics[1], 1, nil)
	r = l.startReady()
	l.arrives(l.topics[1], "1")
	eventually(t, time.Minute, "the crash repeats three letters", func() bool { return letters() >= before+3 })
	for n, state := range map[int]string{2: "dropped", 3: "retried", 4: "open"} {
		if is := l.list()[n].State; is != state {
			t.Errorf("event %d is %s, not %s", n, is, state)
		}
	}
	r.stopsClean()
}

func renamedWhileParked(t *testing.T, newLot func(string) *lot) {
	l := newLot("on_poison: park_key")
	l.parkThree().stopsClean()
	l.insert(6, 0, "a") // under the old name
	l.pg.Exec(t, l.dsn, "ALTER TABLE outbox RENAME TO events")
	l.insertInto("events", "order", 7, 0, "a")
	r := l.startReady("--table=public.events")
	l.insertInto("events", "order", 8, 0, "b")
	l.arrives(l.topics[0], "1 4 8")
	l.holds(r, 5)
	l.kafka.Grow(t, 2, l.topics[0])
	l.does("dead", "retry", "--all", "--wait")
	l.arrives(l.topics[0], "1 4 8 3 6 7 2 5")
	r.stopsClean()
}
