package e2e

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/walpost/walpost/internal/ledger"
	"github.com/walpost/walpost/internal/shop"
	"github.com/walpost/walpost/internal/testenv"
)

// faultSeeds returns the first and the last seed of TestRandomFaults: those of WALPOST_FAULT_SEEDS, which is one seed or a range such as 1-50,
// or the usual one.
func faultSeeds(t *testing.T, usual string) (from, to uint64) {
	text := cmp.Or(os.Getenv("WALPOST_FAULT_SEEDS"), usual)
	first, last, many := strings.Cut(text, "-")
	from, err := strconv.ParseUint(first, 10, 64)
	if to = from; err == nil && many {
		to, err = strconv.ParseUint(last, 10, 64)
	}
	if err != nil {
		t.Fatalf("WALPOST_FAULT_SEEDS is %q, and must be a number, or two with a hyphen between them", text)
	}
	return from, to
}

// Two tables that share their topics, a snapshot or none, rows that are removed as soon as they may be, one process or two, and whatever can
// happen to the processes, the server, the broker and the slot, in an order that the seed decides. Every committed row arrives, the events of
// each key come first in their order, nothing comes twice without a crash, and no row is removed before it is in Kafka.
func TestRandomFaults(t *testing.T) { storms(t, "at_least_once", "2") } // without a snapshot

// The same with Kafka transactions: a consumer that reads committed records gets nothing twice, also through crashes and with a process that was
// frozen while another one took over. Only a recover repeats events.
func TestRandomFaultsExactlyOnce(t *testing.T) { storms(t, "exactly_once", "1") } // with one

func storms(t *testing.T, guarantee, usual string) {
	t.Helper()
	t.Parallel()
	from, to := faultSeeds(t, usual)
	for seed := from; seed <= to; seed++ {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			if from == to || to-from == 1 { // more would be too much for one machine
				t.Parallel()
			}
			s := newStorm(t, seed, guarantee)
			s.begin()
			s.withoutACrash()
			s.withCrashes()
			s.end()
		})
	}
}

// A storm is a setting in which anything may happen, with an operator who does what a halt asks for.
type storm struct {
	*setting
	pg       *testenv.PG
	kafka    *testenv.KafkaCluster
	rnd      *rand.Rand
	schemas  []string // of the outbox tables
	snapshot string
	window   int
	launched int // processes
	hosts    []*relay
	arrivals *watch
	loads    []*load
	poisons  int
	exactly  bool   // once
	fenced   int    // processes that ended because of their successor
	mend     func() // what commands need; nil if nothing is broken
	began    time.Time
}

const truthSchema = `
ALTER TABLE outbox ADD COLUMN n bigint GENERATED ALWAYS AS IDENTITY;
CREATE INDEX ON outbox (created_at);
CREATE TABLE truth (LIKE outbox);
CREATE TABLE removed (id uuid, removed_at timestamptz);
CREATE FUNCTION inserted() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO truth SELECT NEW.*; RETURN NULL; END $$;
CREATE FUNCTION removed() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO removed VALUES (OLD.id, clock_timestamp()); RETURN NULL; END $$;
CREATE TRIGGER inserted AFTER INSERT ON outbox FOR EACH ROW WHEN (NEW.aggregate_type <> 'two words') EXECUTE FUNCTION inserted();
CREATE TRIGGER removed AFTER DELETE ON outbox FOR EACH ROW WHEN (OLD.aggregate_type <> 'two words') EXECUTE FUNCTION removed();`

func newStorm(t *testing.T, seed uint64, guarantee string) *storm {
	t.Helper()
	rnd := rand.New(rand.NewPCG(seed, 0))
	commitTimes := []string{"on", "off"}[rnd.IntN(2)]
	pg := testenv.Postgres(t, "17", testenv.Private(), testenv.Param("track_commit_timestamp", commitTimes), testenv.Param("wal_sender_timeout", "10s"),
		testenv.Param("max_slot_wal_keep_size", "16MB"), testenv.Param("wal_keep_size", "0"), testenv.Param("max_wal_size", "32MB"))
	kafka := testenv.KafkaPrivate(t, 1, nil)
	s := &storm{
		setting: &setting{t: t, dsn: pg.Database(t), brokers: kafka.Brokers(), name: unique("relay")},
		pg:      pg, kafka: kafka, rnd: rnd, exactly: guarantee == "exactly_once", schemas: []string{"public", "second"}, began: time.Now(),
		snapshot: []string{"initial", "never"}[(seed+1)%2], window: []int{100, 1000, 50_000}[rnd.IntN(3)],
	}
	s.prefix = s.name + "."
	pg.Exec(t, s.dsn, "CREATE SCHEMA second")
	for _, schema := range s.schemas {
		pg.Exec(t, s.in(schema), shop.Schema, truthSchema)
	}
	for _, typ := range shop.Types {
		s.topics = append(s.topics, s.prefix+typ)
		kafka.CreateTopic(t, s.prefix+typ, 3, map[string]string{"message.timestamp.type": "LogAppendTime"})
	}
	s.tell("snapshot %s, window %d, track_commit_timestamp %s", s.snapshot, s.window, commitTimes)
	return s
}

// in is the database with schema as the one in which names are looked up.
func (s *storm) in(schema string) string {
	if strings.Contains(s.dsn, "?") {
		return s.dsn + "&search_path=" + schema
	}
	return s.dsn + "?search_path=" + schema
}

func (s *storm) tell(format string, args ...any) {
	s.t.Logf("%7s %s", time.Since(s.began).Round(time.Millisecond), fmt.Sprintf(format, args...))
}

func (s *storm) wait(most time.Duration) { time.Sleep(time.Duration(s.rnd.Int64N(int64(most)))) }

// reorder writes the configuration anew: the tables may come in another order each time.
func (s *storm) reorder() {
	tables := []string{"public.outbox", "second.outbox"}
	s.rnd.Shuffle(2, func(i, j int) { tables[i], tables[j] = tables[j], tables[i] })
	s.yaml = fmt.Sprintf(`name: %s
source: {dsn: %q, tables: [%s], snapshot: %s, order_column: n, time_column: created_at}
router: {route.topic.replacement: "%s${routedByValue}"%s}
kafka: {brokers: [%s]}
delivery: {guarantee: %s, window: {events: %d}}
cleanup: {mode: delete, keep: 0s}
halt_linger: 0s
`, s.name, s.dsn, strings.Join(tables, ", "), s.snapshot, s.prefix, s.router, strings.Join(s.brokers, ", "), map[bool]string{true: "exactly_once", false: "at_least_once"}[s.exactly], s.window)
}

func (s *storm) launch() *relay {
	s.reorder()
	s.launched++
	return s.start()
}

// write lets two shops write on each table.
func (s *storm) write(tag string, rows int64, pause time.Duration) {
	for _, schema := range s.schemas {
		work := &shop.Shop{Writers: 2, Rows: rows, Seed: s.rnd.Uint64(), Tag: tag + schema[:1], MaxRows: 20, Pause: pause, History: "truth"}
		here := *s.setting
		here.dsn = s.in(schema)
		s.loads = append(s.loads, here.load(work))
	}
}

func (s *storm) stopWriting() {
	for _, l := range s.loads {
		if l.Rows == 0 {
			l.stop()
		}
		<-l.done
	}
	s.loads = nil
}

// tend starts the processes that have ended, and does what they asked for.
func (s *storm) tend() {
	s.t.Helper()
	for i, h := range s.hosts {
		if !h.ended() {
			continue
		}
		switch code := h.cmd.ProcessState.ExitCode(); code {
		case -1: // killed
		case 3:
			s.operate(h)
		default:
			s.t.Fatalf("host %d ended with code %d:\n%s", i, code, h.log)
		}
		s.hosts[i] = s.launch()
	}
}

var skipToken = regexp.MustCompile(`walpost skip ([0-9A-F]+-[0-9A-F]+-[0-9]+-[0-9a-f]+)`)

// operate does what a halt asks for. A row that cannot be delivered is taken out of the table too: a reading of the table would come to it.
func (s *storm) operate(h *relay) {
	s.t.Helper()
	if s.exactly && strings.Contains(h.log.String(), "another process has taken over") {
		s.fenced++
		return
	}
	if token := skipToken.FindStringSubmatch(hintOf(h.log.String())); token != nil {
		s.heal()
		s.reorder()
		code, out := s.command("skip", token[1])
		s.tell("walpost skip %s: code %d", token[1], code)
		if code != 0 && code != 2 { // 2: the halt could not be written
			s.t.Fatalf("skip: code %d\n%s", code, out)
		}
		return
	}
	s.recover()
}

func (s *storm) heal() {
	if s.mend != nil {
		s.mend()
	}
	for _, schema := range s.schemas {
		s.pg.Exec(s.t, s.in(schema), "DELETE FROM outbox WHERE aggregate_type = 'two words'")
	}
}

// recover runs walpost recover until it is finished. Some of its runs are killed.
func (s *storm) recover() {
	s.t.Helper()
	s.heal()
	for try := range 8 {
		s.reorder()
		if try < 3 && s.rnd.IntN(2) == 0 {
			cmd := exec.Command(program, "recover", "--yes", "--config", s.config())
			if err := cmd.Start(); err != nil {
				s.t.Fatal(err)
			}
			s.wait(800 * time.Millisecond)
			_ = cmd.Process.Kill() // it may have ended
			_ = cmd.Wait()         // it was killed
			s.tell("recover, killed")
			continue
		}
		code, out := s.command("recover", "--yes")
		s.tell("recover: code %d", code)
		if code == 0 {
			return
		}
		if try == 7 {
			s.t.Fatalf("recover: code %d\n%s", code, out)
		}
	}
}

// settled waits until every committed row has arrived, and returns what the ledger says.
func (s *storm) settled() ledger.Report {
	s.t.Helper()
	w := s.arrivals
	for _, schema := range s.schemas {
		conn, err := pgx.Connect(s.t.Context(), s.in(schema))
		if err != nil {
			s.t.Fatal(err)
		}
		rows, err := conn.Query(s.t.Context(), "SELECT id::text, aggregate_id, (payload->>'n')::bigint FROM truth")
		var id, key string
		var n int64
		if err == nil {
			_, err = pgx.ForEachRow(rows, []any{&id, &key, &n}, func() error { w.ledger.Commit(id, key, n); return nil })
		}
		if err != nil {
			s.t.Fatal(err)
		}
		_ = conn.Close(context.Background()) // it was read
	}
	for give, before := time.Now().Add(patience), -1; time.Now().Before(give); time.Sleep(100 * time.Millisecond) {
		s.tend()
		missing := w.ledger.Missing()
		if missing == 0 {
			break
		}
		if missing != before {
			give, before = time.Now().Add(patience), missing
		}
	}
	time.Sleep(time.Second) // for what comes too much: longer than a fetch waits
	rep := w.ledger.Check()
	s.tell("ledger: %s", &rep)
	if rep.Lost+rep.Invented+rep.Disordered+rep.Moved > 0 {
		s.t.Fatalf("broken promises: %s", &rep)
	}
	return rep
}

// begin is the first start. With a snapshot there are rows to publish, and processes are killed in the middle of that.
func (s *storm) begin() {
	s.arrivals = s.follow()
	if s.snapshot == "initial" {
		s.write("before", 1500, 0)
		s.stopWriting()
	}
	s.hosts = []*relay{s.launch()}
	if s.snapshot == "initial" {
		s.write("at", 500, 20*time.Millisecond)
		for range 1 + s.rnd.IntN(3) {
			if was := s.arrivals.count(); s.rnd.IntN(2) == 0 {
				s.comes(func() bool { return s.arrivals.count() > was }, "rows of the snapshot arrive")
			} else {
				s.wait(time.Second)
			}
			s.tell("kill in the snapshot, %d records have arrived", s.arrivals.count())
			s.hosts[0].kill()
			s.tend()
		}
		s.stopWriting()
	}
	s.comes(s.hosts[0].ready, "ready")
	s.settled()
}

// comes waits for something, and starts meanwhile what has ended.
func (s *storm) comes(ok func() bool, what string) {
	s.t.Helper()
	eventually(s.t, 2*time.Minute, what, func() bool { s.tend(); return ok() })
}

// withoutACrash is what may happen every day: nothing is delivered twice.
func (s *storm) withoutACrash() {
	_, before := s.arrivals.ledger.Arrived()
	s.write("calm", 0, 50*time.Millisecond)
	s.shuffled([]fault{
		{"stop", s.restart},
		{"stop", s.restart},
		{"walsender terminated", s.terminate},
		{"server restarted fast", func() { s.restartServer("fast") }},
		{"broker paused", s.pauseBroker},
	})
	s.stopWriting()
	if rep := s.settled(); rep.Duplicates != before {
		s.t.Errorf("%d duplicates without a crash", rep.Duplicates-before)
	}
}

// withCrashes is everything else, with two processes.
func (s *storm) withCrashes() {
	s.write("wild", 0, 50*time.Millisecond)
	s.hosts = append(s.hosts, s.launch())
	crashes := []fault{
		{"kill", s.kill},
		{"kill", s.kill},
		{"stop", s.restart},
		{"walsender terminated", s.terminate},
		{"server restarted at once", func() { s.restartServer("immediate") }},
		{"broker restarted", s.restartBroker},
		{"poison", s.poison},
	}
	losses := []fault{{"slot dropped", s.dropSlot}, {"slot invalidated", s.invalidateSlot}}
	if s.exactly {
		s.shuffled(append(crashes, fault{"frozen", s.freeze}, fault{"kill", s.kill}))
		s.stopWriting()
		if rep := s.settled(); rep.Duplicates > 0 {
			s.t.Errorf("%d duplicates", rep.Duplicates)
		}
		s.tell("%d processes were fenced", s.fenced)
		s.write("lost", 0, 50*time.Millisecond)
		crashes = nil
	}
	s.shuffled(append(crashes, losses...))
	s.stopWriting()
}

type fault struct {
	name string
	do   func()
}

func (s *storm) shuffled(faults []fault) {
	s.rnd.Shuffle(len(faults), func(i, j int) { faults[i], faults[j] = faults[j], faults[i] })
	for _, f := range faults {
		s.wait(time.Second)
		s.tend()
		if s.rnd.IntN(2) == 0 { // else it may be in the middle of a start
			was := s.arrivals.count()
			s.comes(func() bool { return s.arrivals.count() > was }, "events arrive")
		}
		s.tell("%s", f.name)
		f.do()
	}
}

func (s *storm) any() int { return s.rnd.IntN(len(s.hosts)) }

func (s *storm) kill() { s.hosts[s.any()].kill() }

// freeze stops a process for longer than the server waits for it, so that another one takes over before it wakes up.
func (s *storm) freeze() {
	h := s.hosts[s.any()]
	if h.ended() {
		return
	}
	h.signal(syscall.SIGSTOP)
	time.Sleep(15 * time.Second) // wal_sender_timeout is 10 s
	h.signal(syscall.SIGCONT)
}

func (s *storm) restart() {
	i := s.any()
	if h := s.hosts[i]; !h.ended() {
		if code := h.stop(); code != 0 && code != 3 {
			s.t.Fatalf("host %d: code %d after SIGTERM\n%s", i, code, h.log)
		} else if code == 3 {
			s.operate(h)
		}
	}
	s.wait(time.Second)
	s.hosts[i] = s.launch()
}

func (s *storm) terminate() {
	s.pg.Exec(s.t, s.dsn, "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE active")
}

func (s *storm) restartServer(mode string) {
	if err := s.pg.Stop(mode, time.Minute); err != nil {
		s.t.Fatal(err)
	}
	s.wait(time.Second)
	s.pg.Start(s.t)
}

func (s *storm) pauseBroker() {
	if err := s.kafka.Pause(); err != nil {
		s.t.Fatal(err)
	}
	s.wait(4 * time.Second)
	if err := s.kafka.Resume(); err != nil {
		s.t.Fatal(err)
	}
}

func (s *storm) restartBroker() {
	if err := s.kafka.Stop(); err != nil {
		s.t.Fatal(err)
	}
	s.kafka.Start(s.t)
}

// dropSlot takes the slot away from whoever holds it.
func (s *storm) dropSlot() {
	s.pg.Exec(s.t, s.dsn, `DO $$ BEGIN
	FOR i IN 1..10000 LOOP
		PERFORM pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE active;
		BEGIN
			PERFORM pg_drop_replication_slot(slot_name) FROM pg_replication_slots;
			RETURN;
		EXCEPTION WHEN object_in_use THEN
		END;
	END LOOP;
	RAISE 'the slot is always in use';
END $$`)
}

// invalidateSlot makes the server give up the slot while nobody reads it.
func (s *storm) invalidateSlot() {
	s.comes(func() bool { return s.pg.Value(s.t, s.dsn, "SELECT count(*)::text FROM pg_replication_slots") == "1" }, "a slot")
	for _, h := range s.hosts {
		h.kill()
	}
	(&lossy{s.setting, s.pg}).lose()
}

func (s *storm) poison() {
	s.poisons++
	s.pg.Exec(s.t, s.in(s.schemas[s.rnd.IntN(2)]), fmt.Sprintf(`INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload)
		VALUES ('two words', 'poison-%d', 'Changed', '{"n": 1}')`, s.poisons))
}

// end wants everything to have arrived, and every row that was removed to have been in Kafka before.
func (s *storm) end() {
	rep := s.settled()
	s.comes(func() bool { return s.hosts[0].ready() || s.hosts[1].ready() }, "ready")
	s.comes(func() bool {
		return s.pg.Value(s.t, s.dsn, "SELECT (SELECT count(*) FROM public.outbox) + (SELECT count(*) FROM second.outbox) = 0") == "true"
	}, "every row is removed")
	for _, h := range s.hosts {
		if code := h.stop(); code != 0 && (code != 3 || !s.exactly || !strings.Contains(h.log.String(), "another process has taken over")) {
			s.t.Errorf("exit code %d after SIGTERM", code)
		}
	}
	first := appended(s.t, s.kafka, s.setting)
	removed := 0
	for _, schema := range s.schemas {
		conn, err := pgx.Connect(s.t.Context(), s.in(schema))
		if err != nil {
			s.t.Fatal(err)
		}
		rows, err := conn.Query(s.t.Context(), "SELECT id::text, removed_at FROM removed")
		var id string
		var at time.Time
		if err == nil {
			_, err = pgx.ForEachRow(rows, []any{&id, &at}, func() error {
				removed++
				if was, ok := first[id]; !ok {
					s.t.Errorf("row %s was removed and never came", id)
				} else if was.After(at) {
					s.t.Errorf("row %s was removed %s before it came", id, was.Sub(at))
				}
				return nil
			})
		}
		if err != nil {
			s.t.Fatal(err)
		}
		_ = conn.Close(context.Background()) // it was read
	}
	if removed != rep.Committed {
		s.t.Errorf("%d rows were removed, and %d committed", removed, rep.Committed)
	}
}

// appended reads the topics from their start to their end: when the brokers took each event first.
func appended(t *testing.T, kafka *testenv.KafkaCluster, s *setting) map[string]time.Time {
	t.Helper()
	first := map[string]time.Time{}
	c := kafka.Client(t, kgo.ConsumeTopics(s.topics...), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.KeepControlRecords()) // a partition may end with the marker of a transaction
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	ends, err := kadm.NewClient(c).ListEndOffsets(ctx, s.topics...)
	if err = cmp.Or(err, ends.Error()); err != nil {
		t.Fatal(err)
	}
	type place struct {
		topic     string
		partition int32
	}
	left := map[place]int64{} // the last offset
	ends.Each(func(o kadm.ListedOffset) {
		if o.Offset > 0 {
			left[place{o.Topic, o.Partition}] = o.Offset - 1
		}
	})
	for len(left) > 0 {
		fs := c.PollFetches(ctx)
		if ctx.Err() != nil {
			t.Fatalf("%d partitions are not read to their ends: %v", len(left), fs.Err())
		}
		fs.EachRecord(func(r *kgo.Record) {
			if at := (place{r.Topic, r.Partition}); r.Offset >= left[at] {
				delete(left, at)
			}
			for _, h := range r.Headers {
				if was, ok := first[string(h.Value)]; h.Key == "id" && (!ok || r.Timestamp.Before(was)) {
					first[string(h.Value)] = r.Timestamp
				}
			}
		})
	}
	return first
}
