package e2e

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/deadletter"
	"github.com/walpost/walpost/internal/testenv"
	"github.com/walpost/walpost/router"
)

// deadLetterWork is how many events TestBadEventsUnderKills writes, and how often it kills the relay. One event in a hundred is bad.
// WALPOST_BAD_EVENTS and WALPOST_BAD_EVENTS_KILLS set other numbers.
func deadLetterWork(t *testing.T) (events, kills int) {
	t.Helper()
	events, kills = 20_000, 6
	numbers(t, map[string]*int{"WALPOST_BAD_EVENTS": &events, "WALPOST_BAD_EVENTS_KILLS": &kills})
	return events, kills
}

// badWays are the ways in which an event can be bad: what differs from a good one, and what its letter says.
var badWays = []struct {
	column, value string
	reason        cdc.Reason
	keyKnown      bool
}{
	{"aggregate_type", "NULL", cdc.Unroutable, true},
	{"aggregate_id", "'NaN'", cdc.Unroutable, false},
	{"aggregate_type", "'two words'", cdc.InvalidTopic, true},
	{"payload", "large", cdc.TooLarge, true},
	{"p", "9", cdc.InvalidRecord, true},
}

// mixed writes events of which some are bad, and remembers them by their id. Each key belongs to one writer.
type mixed struct {
	mu   sync.Mutex
	good map[string]int // number among the events of the key
	bad  map[string]int // index in badWays
	done atomic.Int64
}

func (m *mixed) write(ctx context.Context, dsn string, writer int, rows int) error {
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return err
	}
	defer conn.Close(ctx) //nolint:errcheck // it is over
	rng := rand.New(rand.NewPCG(uint64(writer), 11))
	next := map[int]int{}
	for n := 0; n < rows; {
		values := []string{}
		for range min(1+rng.IntN(40), rows-n) {
			key := writer*100 + rng.IntN(10)
			number := next[key]
			next[key]++
			n++
			id := fmt.Sprintf("%d/%d", key, number)
			row := map[string]string{
				"aggregate_type": fmt.Sprintf("'%s'", "ab"[key%2:][:1]), "aggregate_id": fmt.Sprint(key), "payload": fmt.Sprintf("'%d'", number), "p": "NULL",
			}
			m.mu.Lock()
			if rng.IntN(100) == 0 {
				way := len(m.bad) % len(badWays)
				w := badWays[way]
				if m.bad[id] = way; w.value == "large" {
					b := make([]byte, 60_000)
					for i := range b {
						b[i] = byte(rng.Uint32())
					}
					w.value = "'" + base64.StdEncoding.EncodeToString(b) + "'"
				}
				row[w.column] = w.value
			} else {
				m.good[id] = number
			}
			m.mu.Unlock()
			values = append(values, fmt.Sprintf("('%s', %s, %s, %s, %s)", id, row["aggregate_type"], row["aggregate_id"], row["payload"], row["p"]))
		}
		if _, err := conn.Exec(ctx, "INSERT INTO mixed (id, aggregate_type, aggregate_id, payload, p) VALUES "+strings.Join(values, ", ")); err != nil {
			return err
		}
		m.done.Add(int64(len(values)))
		time.Sleep(time.Duration(rng.IntN(int(20 * time.Millisecond))))
	}
	return nil
}

// Of many events one in a hundred is bad, in five ways, and walpost is killed again and again. Every good event arrives, in order per
// key. Every bad one is in the dead letter topic with its reason. None is in both.
func TestBadEventsUnderKills(t *testing.T) {
	t.Parallel()
	const writers = 4
	deadLetterEvents, kills := deadLetterWork(t)
	pg, kafka := testenv.Postgres(t, "16", testenv.Private()), testenv.Kafka(t)
	s := newSetting(t, pg, pg.Database(t), kafka)
	dead := s.prefix + "dead"
	for _, name := range []string{"a", "b"} {
		kafka.CreateTopic(t, s.prefix+name, 3, map[string]string{"max.message.bytes": "30000"})
	}
	pg.Exec(t, s.dsn, "CREATE TABLE mixed (id text PRIMARY KEY, aggregate_type text, aggregate_id numeric(10,0) NOT NULL, payload text, p int)")
	s.yaml = fmt.Sprintf(`name: %s
source: {dsn: %q, table: public.mixed}
router: {route.topic.replacement: "%s${routedByValue}", table.fields.additional.placement: "p:partition"}
kafka: {brokers: [%s]}
delivery: {on_poison: dead_letter, dead_letter_topic: %s}
`, s.name, s.dsn, s.prefix, strings.Join(s.brokers, ", "), dead)
	r := s.startReady()
	m := &mixed{good: map[string]int{}, bad: map[string]int{}}
	var writing sync.WaitGroup
	for writer := range writers {
		writing.Go(func() {
			if err := m.write(t.Context(), s.dsn, writer, deadLetterEvents/writers); err != nil {
				t.Errorf("writer: %v", err)
			}
		})
	}
	seed := uint64(time.Now().UnixNano())
	t.Logf("moments of the kills from seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	for i := range kills {
		eventually(t, 2*time.Minute, "further rows", func() bool { return m.done.Load() >= int64((i+1)*deadLetterEvents/(kills+2)) || t.Failed() })
		time.Sleep(time.Duration(rng.Int64N(int64(700 * time.Millisecond))))
		r.kill()
		r = s.start()
	}
	writing.Wait()
	var mu sync.Mutex
	arrived, order, letters := map[string]bool{}, map[string][]int{}, map[string]*deadletter.Letter{}
	var fold deadletter.Fold
	routes := router.DefaultConfig()
	routes.RouteBy, routes.TopicReplacement = "id", "mended"
	mended, err := router.New(routes)
	if err != nil {
		t.Fatal(err)
	}
	repeated := 0
	again := map[string]int{} // deliveries of a retry
	follow := func(topics []string, observe func(*kgo.Record)) {
		s.consume(topics, func(rec *kgo.Record) { mu.Lock(); defer mu.Unlock(); observe(rec) })
	}
	identify := func(rec *kgo.Record) (id, origin string) {
		for _, h := range rec.Headers {
			switch h.Key {
			case "id":
				id = string(h.Value)
			case "walpost.origin":
				origin = string(h.Value)
			}
		}
		return id, origin
	}
	follow([]string{s.prefix + "a", s.prefix + "b"}, func(rec *kgo.Record) {
		id, origin := identify(rec)
		number, good := m.good[id]
		switch {
		case origin != "": // of a retry, see below
		case !good:
			t.Errorf("the bad event %s arrived in topic %s", id, rec.Topic)
		case arrived[id]:
			repeated++
		default:
			arrived[id] = true
			if before := order[string(rec.Key)]; len(before) > 0 && before[len(before)-1] > number {
				t.Errorf("key %s: event %d arrived behind %d", rec.Key, number, before[len(before)-1])
			}
			order[string(rec.Key)] = append(order[string(rec.Key)], number)
		}
	})
	follow([]string{dead}, func(rec *kgo.Record) {
		fold.Add(rec)
		l, mark, err := deadletter.Decode(rec)
		if mark != nil {
			return
		}
		if err != nil || l == nil {
			t.Errorf("a dead letter: %v", err)
			return
		}
		way, bad := m.bad[l.ID]
		if !bad || l.Reason != badWays[way].reason || l.KeyKnown != badWays[way].keyKnown || l.KeyKnown && string(l.Key) != strings.Split(l.ID, "/")[0] || l.Commit == 0 || l.Error == "" {
			t.Errorf("the letter of %s, which is bad in way %d: %+v", l.ID, way, l)
		}
		if bad && badWays[way].column == "aggregate_type" { // another configuration can route the row, without the database
			var again cdc.Record
			if ok, err := mended.Route(l.Event, &again); !ok || err != nil || again.Topic != "mended" || string(again.Key) != string(l.Key) || again.EventID != l.ID || string(again.Value) != strings.Split(l.ID, "/")[1] {
				t.Errorf("the row of %s, routed again: %+v, %v", l.ID, again, err)
			}
		}
		if was := letters[l.ID]; was != nil && was.Token != l.Token {
			t.Errorf("event %s has the tokens %s and %s", l.ID, was.Token, l.Token)
		}
		letters[l.ID] = l
	})
	eventually(t, 2*time.Minute, "every event", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(arrived) == len(m.good) && len(letters) == len(m.bad) || t.Failed()
	})
	mu.Lock()
	if n := len(fold.Entries()); n != len(m.bad) || fold.Foreign+fold.Damaged > 0 {
		t.Errorf("the dead letter topic has %d events, not %d; %d foreign, %d damaged records", n, len(m.bad), fold.Foreign, fold.Damaged)
	}
	t.Logf("%d good events (%d repeated), %d bad ones", len(arrived), repeated, len(letters))
	if len(m.bad) < deadLetterEvents/200 {
		t.Error("too few bad events: this says nothing")
	}
	token := ""
	for _, l := range letters {
		token = l.Token
	}
	mu.Unlock()

	eventually(t, time.Minute, "ready", r.ready)
	// What each command says now.
	mu.Lock()
	m.bad["7/last"] = 0
	mu.Unlock()
	pg.Exec(t, s.dsn, "INSERT INTO mixed (id, aggregate_type, aggregate_id, payload) VALUES ('7/last', NULL, 7, 'last')")
	var view struct {
		Dead   int `json:"dead_letters"`
		Newest []struct {
			EventID string `json:"event_id"`
		} `json:"newest_dead_letters"`
	}
	eventually(t, time.Minute, "the status of one more dead letter", func() bool {
		_, body := r.get("/api/status")
		return json.Unmarshal([]byte(body), &view) == nil && len(view.Newest) > 0 && view.Newest[0].EventID == "7/last"
	})
	if n := r.metric(`walpost_dead_letters_total{reason="unroutable"}`); view.Dead < 1 || n < 1 {
		t.Errorf("%+v, metric %v", view, n)
	}
	eventually(t, time.Minute, "it streams", func() bool { return r.view().State == "streaming" })
	if !strings.Contains(r.log.String(), "goes to the dead letter topic "+dead) {
		t.Error("the log does not speak of dead letters")
	}
	if code, out := s.command("skip", token); code != 2 || !strings.Contains(out, "no halt of") {
		t.Errorf("skip: code %d\n%s", code, out)
	}
	if code, out := s.command("check"); code != 0 {
		t.Errorf("check: code %d\n%s", code, out)
	}
	if code, out := s.verify(); code != 0 || !strings.Contains(out, fmt.Sprintf("rows whose event is not in its topic, but is a dead letter: %d\n", len(m.bad))) {
		t.Errorf("verify: code %d\n%s", code, out)
	}
	r.stopsClean()

	// The causes are mended: larger records, more partitions, and a route and a key for every row.
	kafka.Configure(t, "max.message.bytes", "2000000", s.prefix+"a", s.prefix+"b")
	kafka.Grow(t, 10, s.prefix+"a", s.prefix+"b")
	kafka.CreateTopic(t, s.prefix+"mended", 3, nil)
	s.yaml = strings.Replace(s.yaml, fmt.Sprintf(`route.topic.replacement: "%s${routedByValue}"`, s.prefix),
		fmt.Sprintf(`route.by.field: id, route.topic.replacement: "%smended", table.field.event.key: id`, s.prefix), 1)
	adm := kadm.NewClient(kafka.Client(t))
	places := []string{s.prefix + "a", s.prefix + "b", s.prefix + "mended"}
	ends := map[string]int64{}             // what was seen of each partition
	follow(places, func(rec *kgo.Record) { // with the new partitions
		ends[fmt.Sprint(rec.Topic, rec.Partition)] = rec.Offset + 1
		id, origin := identify(rec)
		if _, good := m.good[id]; origin == "dead_letter" {
			if again[id]++; good {
				t.Errorf("a retry delivered the good event %s", id)
			}
		}
	})
	list := func() (open int) {
		code, out := s.command("dead", "list", "--json")
		var found struct{ Count int }
		if err := json.Unmarshal([]byte(out), &found); code != 0 || err != nil {
			t.Fatalf("dead list: code %d, %v\n%s", code, err, out)
		}
		return found.Count
	}
	if n := list(); n != len(m.bad) {
		t.Errorf("dead list counts %d events, not %d", n, len(m.bad))
	}
	// marked has the events that a killed retry had marked, with how often they were delivered. None of them is delivered again.
	marked := map[string]int{}
	look := func() {
		settled := -1 // what the killed retry had sent may still arrive
		eventually(t, time.Minute, "nothing more is delivered", func() bool {
			have, err := adm.ListEndOffsets(t.Context(), places...)
			if err != nil {
				t.Fatal(err)
			}
			all := true
			mu.Lock()
			n := 0
			for _, times := range again {
				n += times
			}
			have.Each(func(o kadm.ListedOffset) { all = all && ends[fmt.Sprint(o.Topic, o.Partition)] >= o.Offset })
			mu.Unlock()
			was := settled
			settled = n
			time.Sleep(300 * time.Millisecond)
			return all && was == n
		})
		mu.Lock()
		defer mu.Unlock()
		for _, e := range fold.Entries() {
			if before, is := marked[e.ID]; is && again[e.ID] != before {
				t.Errorf("event %s was marked after %d deliveries, and has %d now", e.ID, before, again[e.ID])
			}
			if e.State == deadletter.Retried {
				marked[e.ID] = again[e.ID]
			}
		}
	}
	for i := 0; i < 6 && list() > 0; i++ {
		cmd := exec.Command(program, "dead", "retry", "--all", "--config", s.config())
		out := new(testenv.Output)
		cmd.Stdout, cmd.Stderr = out, out
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		mu.Lock()
		before := len(again)
		mu.Unlock()
		ended := make(chan error, 1)
		go func() { ended <- cmd.Wait() }()
		eventually(t, time.Minute, "the retry delivers", func() bool { mu.Lock(); defer mu.Unlock(); return len(again) > before || len(ended) > 0 })
		time.Sleep(time.Duration(rng.Int64N(int64(20 * time.Millisecond))))
		_ = cmd.Process.Kill() // it may have ended
		<-ended
		look()
		t.Logf("retry %d was killed: %d events marked, %d delivered", i+1, len(marked), len(again))
	}
	code, out := s.command("dead", "retry", "--all")
	if left := list(); left > 0 { // the brokers alone refuse some names of topics
		code, out = s.command("dead", "retry", "--reason", "invalid_topic", "--to-topic", s.prefix+"mended")
	}
	if code != 0 || list() != 0 {
		t.Errorf("retry: code %d, %d left\n%s", code, list(), out)
	}
	look()
	if code, out := s.command("dead", "retry", "--all"); code != 0 || out != "dead events: 0\n" {
		t.Errorf("second retry: code %d\n%s", code, out)
	}
	look()
	mu.Lock()
	defer mu.Unlock()
	twice := 0
	for id := range m.bad {
		if again[id] == 0 {
			t.Errorf("the bad event %s was never delivered", id)
		}
		twice += again[id] - 1
	}
	t.Logf("%d events retried, %d deliveries repeated", len(again), twice)
}
