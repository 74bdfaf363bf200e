package e2e

import (
	"cmp"
	"context"
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

	"github.com/walpost/walpost/internal/testenv"
)

// What the topic of parked events can meet, and what people do with its events: nothing newer of a parked key is delivered, no row that
// is needed is removed, and no event comes twice. WALPOST_PARKED_STOPS sets another number than 20 stops.
func TestParkedEventsThroughFaults(t *testing.T) {
	t.Parallel()
	pg, kafka := testenv.Postgres(t, "16", testenv.Private(), testenv.Param("max_replication_slots", "20"), testenv.Param("max_wal_senders", "20")), testenv.Kafka(t)
	for _, c := range []struct {
		name, policy string
		run          func(*testing.T, *parkedSetting)
	}{
		{"records are deleted while the relay is stopped", "park_key", func(t *testing.T, s *parkedSetting) { recordsAreDeleted(t, s, false) }},
		{"records are deleted while the relay runs", "park_key", func(t *testing.T, s *parkedSetting) { recordsAreDeleted(t, s, true) }},
		{"the topic is deleted and created again", "park_key", topicIsDeleted},
		{"the configuration names another topic", "park_key", topicIsRenamed},
		{"stops", "park_key", stopsDuringReleases},
		{"drops during releases", "park_key", dropsDuringReleases},
		{"the limit is reached within a transaction", "park_key, park_limit: {events: 2}", limitIsReached},
		{"a missing destination", "park_key", missingDestination},
		{"other policies", "park_key", otherPolicies},
		{"closed dead letters after a kill", "dead_letter", closedAfterAKill},
		{"another name of the table", "park_key", renamedWhileParked},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			cluster := kafka
			if c.name == "other policies" {
				cluster = testenv.KafkaPrivate(t, 1, map[string]string{
					"authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer", "allow.everyone.if.no.acl.found": "true", "super.users": "User:nobody",
				})
			}
			c.run(t, newParkedSetting(t, pg, cluster, "on_poison: "+c.policy))
		})
	}
}

const cleansUp = "cleanup: {mode: delete, keep: 0s}\n"

func recordsAreDeleted(t *testing.T, s *parkedSetting, runs bool) {
	s.extra += cleansUp
	r := s.parkThree()
	eventually(t, time.Minute, "the cleanup removes what is delivered", func() bool { return s.rows() == "2 3 5" })
	remove := func() {
		offsets := kadm.Offsets{}
		offsets.AddOffset(s.parked, 0, 1, -1)
		if removed, err := s.adm.DeleteRecords(t.Context(), offsets); err != nil || removed.Error() != nil {
			t.Fatal(err, removed.Error())
		}
	}
	if !runs {
		r.stopsClean()
	}
	remove()
	s.insert(6, 0, "a")
	if !runs {
		r = s.start()
	}
	s.refused(r)
	token := s.refused(s.start())
	if again := s.refused(s.start()); again != token {
		t.Errorf("tokens %s and %s", token, again)
	}
	if got, rows := s.got(s.topics[0]), s.rows(); got != "1 4" || rows != "2 3 5 6" {
		t.Fatalf("before anybody accepts the loss: events %s, rows %s", got, rows)
	}
	r = s.startReady("--accept-gap=" + token)
	s.arrives(s.topics[0], "1 4 3 6")
	s.holds(r, 1)
	s.insert(7, 0, "c")
	s.holds(r, 2)
	eventually(t, time.Minute, "the cleanup names the gap", func() bool {
		_, status := r.get("/api/status")
		return strings.Contains(status, "gap "+token+" was accepted")
	})
	if rows := s.rows(); rows != "2 3 5 6 7" {
		t.Errorf("rows %s while the gap is open", rows)
	}
	if _, out := s.verify(); !strings.Contains(out, "walpost replay --id 00000000-0000-0000-0000-000000000002") {
		t.Errorf("verify doesn't print what publishes event 2:\n%s", out)
	}
	s.does("recover", "--close-gap="+token)
	eventually(t, time.Minute, "the rows of parked events only", func() bool { return s.rows() == "5 7" })
	r.stopsClean()
}

func topicIsDeleted(t *testing.T, s *parkedSetting) {
	s.extra += cleansUp
	s.parkThree().stopsClean()
	deleteTopic(t, s.kafka, s.parked)
	s.insert(6, 0, "a")
	r := s.start()
	eventually(t, time.Minute, "the relay waits for the topic", func() bool {
		code, why := r.get("/readyz")
		return code == 503 && strings.Contains(why, s.parked+", which does not exist")
	})
	untouched := func() {
		t.Helper()
		if got, rows := s.got(s.topics[0]), s.rows(); got != "1 4" || strings.NewReplacer("1 ", "", "4 ", "").Replace(rows) != "2 3 5 6" {
			t.Fatalf("events %s, rows %s", got, rows)
		}
	}
	untouched()
	s.kafka.CreateTopic(t, s.parked, 1, nil)
	token := s.refused(r)
	untouched()
	r = s.startReady("--accept-gap=" + token)
	s.arrives(s.topics[0], "1 4 6")
	r.stopsClean()
}

func topicIsRenamed(t *testing.T, s *parkedSetting) {
	s.parkThree().stopsClean()
	former := s.extra
	s.extra = strings.Replace(s.extra, s.parked, s.prefix+"other", 1) + cleansUp
	s.insert(6, 0, "a")
	s.refused(s.start())
	if got, rows := s.got(s.topics[0]), s.rows(); got != "1 4" || rows != "1 2 3 4 5 6" {
		t.Fatalf("events %s, rows %s", got, rows)
	}
	s.extra = former
	r := s.startReady()
	s.holds(r, 4)
	s.release()
	s.arrives(s.topics[0], "1 4 3 6 2 5")
	r.stopsClean()
}

func stopsDuringReleases(t *testing.T, s *parkedSetting) {
	stops := 20
	numbers(t, map[string]*int{"WALPOST_PARKED_STOPS": &stops})
	r := s.startReady()
	n := 0
	for key := range stops {
		n++
		s.insert(n, 1, fmt.Sprint("k", key))
	}
	s.holds(r, stops)
	var stop atomic.Bool
	var writing sync.WaitGroup
	writing.Go(func() {
		conn, err := pgx.Connect(t.Context(), s.dsn)
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
	s.kafka.Grow(t, 2, s.topics[0])
	for key := range stops {
		s.does("dead", "retry", "--key", fmt.Sprint("k", key))
		time.Sleep(time.Duration(rand.Int64N(int64(1200 * time.Millisecond)))) // the relay looks for requests each second
		r.stopsClean()
		r = s.startReady()
	}
	s.holds(r, 0)
	stop.Store(true)
	writing.Wait()
	eventually(t, time.Minute, "every event", func() bool { return len(strings.Fields(s.got(s.topics[0]))) >= n })
	r.stopsClean()
	times := map[string]int{}
	for _, number := range strings.Fields(s.got(s.topics[0])) {
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
func dropsDuringReleases(t *testing.T, s *parkedSetting) {
	const keys, each = 10, 30
	r := s.startReady()
	of := func(key, i int) int { return 1 + i*keys + key }
	for i := range each {
		for key := range keys {
			s.insert(of(key, i), max(0, 1-i), fmt.Sprint("k", key))
		}
		if i == 0 { // what asks for another partition doesn't wait for the first event of its key, until that is parked
			s.holds(r, keys)
		}
	}
	s.holds(r, keys*each)
	s.kafka.Grow(t, 2, s.topics[0])
	listed := s.list()
	said := map[int]bool{} // dropped, as the command says
	for key := range keys {
		retry := exec.Command(program, "dead", "retry", "--key", fmt.Sprint("k", key), "--config", s.config())
		if err := retry.Start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Duration(rand.Int64N(int64(1200 * time.Millisecond))))
		n := of(key, key%3)
		if listed[n].Token == "" {
			t.Fatalf("no token of %d in %+v", n, listed)
		}
		_, out := s.command("dead", "drop", "--reason", "a test", "--timeout", "3m", listed[n].Token)
		said[n] = strings.Contains(out, "dropped by the relay: 1\n")
		if err := retry.Wait(); err != nil {
			t.Errorf("retry: %v", err)
		}
	}
	s.holds(r, 0)
	for key := range keys {
		s.insert(of(key, each), 0, fmt.Sprint("k", key))
	}
	final, dropped := s.list(), 0
	for n, e := range final {
		if e.State == "dropped" {
			dropped++
		}
		if (e.State == "dropped") != said[n] || e.State != "dropped" && e.State != "released" {
			t.Errorf("event %d is %s, and the command said dropped: %t", n, e.State, said[n])
		}
	}
	eventually(t, time.Minute, "every other event", func() bool { return len(strings.Fields(s.got(s.topics[0]))) >= keys*(each+1)-dropped })
	got := strings.Fields(s.got(s.topics[0]))
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

func limitIsReached(t *testing.T, s *parkedSetting) {
	r := s.startReady()
	s.pg.Exec(t, s.dsn, `INSERT INTO outbox (id, aggregate_type, aggregate_id, event_type, payload, p)
 SELECT ('00000000-0000-0000-0000-' || lpad(n::text, 12, '0'))::uuid, 'order', CASE n WHEN 6 THEN 'b' ELSE 'a' END, 'Changed', n::text::jsonb, CASE n WHEN 6 THEN 0 ELSE 1 END
 FROM generate_series(1, 6) n`)
	eventually(t, time.Minute, "the relay waits for room", func() bool {
		code, why := r.get("/readyz")
		return code == 503 && strings.Contains(why, "delivery.park_limit is 2 events")
	})
	s.release()
	s.arrives(s.topics[0], "6 1 2 3 4 5")
	s.holds(r, 0)
	eventually(t, time.Minute, "ready", r.ready)
	r.stopsClean()
}

func missingDestination(t *testing.T, s *parkedSetting) {
	r := s.startReady()
	for key, typ := range []string{"order", "invoice"} {
		for i := range 2 {
			s.insertInto("outbox", typ, 1+2*key+i, 1, typ)
		}
	}
	s.holds(r, 4)
	s.insert(5, 0, "invoice") // the key whose other topic will be missing
	s.holds(r, 5)
	deleteTopic(t, s.kafka, s.topics[1])
	s.kafka.Grow(t, 2, s.topics[0])
	s.does("dead", "retry", "--all")
	s.arrives(s.topics[0], "5 1 2")
	s.holds(r, 2)
	if out := s.does("dead", "drop", "--reason", "a test", "--timeout", "3m", s.list()[3].Token); !strings.Contains(out, "dropped by the relay: 1\n") {
		t.Errorf("drop:\n%s", out)
	}
	s.insertInto("outbox", "invoice", 6, 0, "invoice")
	s.kafka.CreateTopic(t, s.topics[1], 2, nil)
	s.arrives(s.topics[1], "6 4")
	s.holds(r, 0)
	if got := s.got(s.topics[0]); len(got) != len("5 1 2") {
		t.Errorf("something came twice: %s", got)
	}
	r.stopsClean()
}

// The first of the other policies comes with a user who may not see the topic any more.
func otherPolicies(t *testing.T, s *parkedSetting) {
	s.parkThree().stopsClean()
	denied := kadm.NewACLs().Topics(s.parked).Deny("User:ANONYMOUS").DenyHosts("*").ResourcePatternType(kadm.ACLPatternLiteral).Operations(kadm.OpDescribe)
	if made, err := s.adm.CreateACLs(t.Context(), denied); err != nil || made[0].Err != nil {
		t.Fatal(err, made)
	}
	s.extra += cleansUp
	for i, policy := range []string{"halt", "dead_letter", "halt"} {
		s.extra = regexp.MustCompile(`on_poison: \w+`).ReplaceAllString(s.extra, "on_poison: "+policy)
		s.insert(6+2*i, 0, "a")
		r := s.start()
		if i == 0 {
			eventually(t, time.Minute, "the relay waits for the right", func() bool {
				code, why := r.get("/readyz")
				return code == 503 && strings.Contains(why, s.parked+": not authorized")
			})
			if got, rows := s.got(s.topics[0]), s.rows(); got != "1 4" || rows != "1 2 3 4 5 6" {
				t.Fatalf("events %s, rows %s", got, rows)
			}
			if removed, err := s.adm.DeleteACLs(t.Context(), denied); err != nil || removed[0].Err != nil {
				t.Fatal(err, removed)
			}
		}
		s.insert(7+2*i, 0, "b")
		s.arrives(s.topics[0], strings.Join([]string{"1 4", "7", "9", "11"}[:i+2], " "))
		s.holds(r, 4+i)
		if code, out := s.command("status", "--http", strings.TrimPrefix(r.page, "http://")); code != 0 || !strings.Contains(strings.SplitN(out, "\n", 2)[0], fmt.Sprint(4+i, " parked events of 2 keys are not delivered")) {
			t.Errorf("status: code %d\n%s", code, out)
		}
		if i == 2 {
			s.release()
			s.arrives(s.topics[0], "1 4 7 9 11 3 6 8 10 2 5")
		}
		r.stopsClean()
	}
}

// An event that can't be delivered yet keeps the checkpoint before the dead letters, so that the crash repeats them.
func closedAfterAKill(t *testing.T, s *parkedSetting) {
	r := s.startReady()
	deleteTopic(t, s.kafka, s.topics[1])
	s.insertInto("outbox", "invoice", 1, 0, "z")
	s.insert(2, 1, "a")
	s.insert(3, 1, "b")
	s.insert(4, 1, "c")
	letters := func() int64 {
		ends, err := s.adm.ListEndOffsets(t.Context(), s.prefix+"dead")
		if err != nil {
			t.Fatal(err)
		}
		end, _ := ends.Lookup(s.prefix+"dead", 0)
		return end.Offset
	}
	eventually(t, time.Minute, "three letters", func() bool { return letters() == 3 })
	listed := s.list()
	s.does("dead", "drop", "--reason", "a test", listed[2].Token)
	s.kafka.CreateTopic(t, s.prefix+"mended", 1, nil)
	s.does("dead", "retry", "--to-topic", s.prefix+"mended", listed[3].Token)
	before := letters()
	r.kill()
	s.kafka.CreateTopic(t, s.topics[1], 1, nil)
	r = s.startReady()
	s.arrives(s.topics[1], "1")
	eventually(t, time.Minute, "the crash repeats three letters", func() bool { return letters() >= before+3 })
	for n, state := range map[int]string{2: "dropped", 3: "retried", 4: "open"} {
		if is := s.list()[n].State; is != state {
			t.Errorf("event %d is %s, not %s", n, is, state)
		}
	}
	r.stopsClean()
}

func renamedWhileParked(t *testing.T, s *parkedSetting) {
	s.parkThree().stopsClean()
	s.insert(6, 0, "a") // under the old name
	s.pg.Exec(t, s.dsn, "ALTER TABLE outbox RENAME TO events")
	s.insertInto("events", "order", 7, 0, "a")
	r := s.startReady("--table=public.events")
	s.insertInto("events", "order", 8, 0, "b")
	s.arrives(s.topics[0], "1 4 8")
	s.holds(r, 5)
	s.release()
	s.arrives(s.topics[0], "1 4 8 3 6 7 2 5")
	r.stopsClean()
}
