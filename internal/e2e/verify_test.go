package e2e

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/deadletter"
	"github.com/walpost/walpost/internal/testenv"
)

// verified is what "walpost verify --json" prints.
type verified struct {
	Clean        bool
	Rows         int64
	Records      int64
	Matched      int64            `json:"rows_with_record"`
	Repeated     int64            `json:"duplicates_contiguous"`
	WithoutRow   int64            `json:"records_without_row"`
	NotConfirmed string           `json:"not_confirmed"`
	Differences  map[string]int64 `json:"differences"`
	CannotTell   map[string]int64 `json:"cannot_tell"`
	Findings     []map[string]any
}

func sum(counts map[string]int64) (n int64) {
	for _, c := range counts {
		n += c
	}
	return n
}

// A relay that is killed again and again delivers every row, and verify finds nothing but what the kills explain, in little memory.
// WALPOST_VERIFY_ROWS sets another number of rows.
func TestVerifyFindsNothingButReRunsAfterKills(t *testing.T) {
	t.Parallel()
	const kills, most = 10, 200 * mib
	rows := 60_000
	numbers(t, map[string]*int{"WALPOST_VERIFY_ROWS": &rows})
	pg, kafka := testenv.Postgres(t, "16", testenv.Private(), testenv.Param("track_commit_timestamp", "on")), testenv.Kafka(t)
	s := newSetting(t, pg, pg.Database(t), kafka)
	s.startReady().stopsClean() // makes the slot
	seed := uint64(time.Now().UnixNano())
	t.Logf("moments of the kills from seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	written := 0
	killed := func(n int, pause time.Duration) {
		pg.Exec(t, s.dsn, fmt.Sprintf(`INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload)
			SELECT (ARRAY['order', 'invoice'])[1 + g %% 2], 'key-' || g %% 10007, 'Changed', jsonb_build_object('n', g, 'filler', repeat('x', 100))
			FROM generate_series(%d, %d) g`, written, written+n-1))
		written += n
		r := s.start()
		eventually(t, time.Minute, "events flow", func() bool { return r.metric("walpost_events_total") > 0 })
		time.Sleep(pause)
		r.kill()
	}
	for range kills {
		killed(rows/kills, time.Duration(rnd.Int64N(int64(200*time.Millisecond))))
	}
	adm := kadm.NewClient(kafka.Client(t))
	records := func() (n int) {
		ends, err := adm.ListEndOffsets(t.Context(), s.topics...)
		if err = cmp.Or(err, ends.Error()); err != nil {
			t.Fatal(err)
		}
		ends.Each(func(o kadm.ListedOffset) { n += int(o.Offset) })
		return n
	}
	r := s.startReady()
	eventually(t, time.Minute, "all is delivered", func() bool { return records() >= written })
	for range 20 { // each of those kills may have come after everything was confirmed: a large transaction is killed in the middle
		if records() > written {
			break
		}
		r.stopsClean()
		killed(50_000, 0)
		r = s.startReady()
		eventually(t, time.Minute, "all is delivered", func() bool { return records() >= written })
	}
	rows = written
	temp := t.TempDir()
	start := func(more ...string) (*exec.Cmd, *testenv.Output, *bytes.Buffer) {
		cmd := exec.Command(program, append([]string{"verify", "--config", s.config(), "--temp-dir", temp, "--json", "--wait", "2m"}, more...)...)
		log, out := new(testenv.Output), new(bytes.Buffer)
		cmd.Stdout, cmd.Stderr = out, log
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		return cmd, log, out
	}
	began := time.Now()
	cmd, log, out := start()
	ended := make(chan error)
	go func() { ended <- cmd.Wait() }()
	var err error
	peak := int64(0)
	for over := false; !over; {
		_, now := memory(cmd.Process.Pid)
		peak = max(peak, now)
		select {
		case err = <-ended:
			over = true
		case <-time.After(20 * time.Millisecond):
		}
	}
	took := time.Since(began)
	var got verified
	if err := json.Unmarshal(out.Bytes(), &got); err != nil {
		t.Fatalf("%v: %s\n%s", err, out, log)
	}
	if err != nil || !got.Clean || got.Rows != int64(rows) || got.Matched != got.Rows || got.Records != got.Rows+got.Repeated || got.Records != int64(records()) || sum(got.Differences)+sum(got.CannotTell) > 0 {
		t.Errorf("%v: %s\n%s", err, out, log)
	}
	if got.Repeated == 0 {
		t.Errorf("%d kills gave no duplicate: this says nothing of them", kills)
	}
	t.Logf("%d rows and %d records (%d duplicates of %d kills) in %s, %d MiB at most\n%s", got.Rows, got.Records, got.Repeated, kills, took, peak/mib, log)
	if peak == 0 || peak > most {
		t.Errorf("verify took %d MiB", peak/mib)
	}
	cmd, _, _ = start("--strict")
	if _ = cmd.Wait(); cmd.ProcessState.ExitCode() != 1 {
		t.Errorf("exit code %d with --strict and duplicates", cmd.ProcessState.ExitCode())
	}
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGKILL} {
		cmd, log, _ := start("--wait", "1h")
		eventually(t, 10*time.Minute, "the table is read", func() bool { return strings.Contains(log.String(), "records; temporary files: about") })
		if err := cmd.Process.Signal(sig); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait() // the code follows
		if code := cmd.ProcessState.ExitCode(); sig == syscall.SIGINT && code != 1 {
			t.Errorf("exit code %d after SIGINT: %s", code, log)
		}
		if left, err := os.ReadDir(temp); err != nil || len(left) > 0 {
			t.Errorf("after signal %s the folder has %v, %v", sig, left, err)
		}
	}
	r.stopsClean()
}

// moving advances the slot until the test ends, as a relay on an idle server would.
func (s *setting) moving(pg *testenv.PG) {
	eventually(s.t, time.Minute, "the slot is free", func() bool {
		return pg.Value(s.t, s.dsn, "SELECT active::text FROM pg_replication_slots WHERE slot_name = 'walpost'") == "false"
	})
	stop := make(chan struct{})
	var done sync.WaitGroup
	done.Go(func() {
		for {
			pg.Exec(s.t, s.dsn, "SELECT pg_replication_slot_advance('walpost', pg_current_wal_insert_lsn())")
			select {
			case <-stop:
				return
			case <-time.After(100 * time.Millisecond):
			}
		}
	})
	s.t.Cleanup(func() { close(stop); done.Wait() })
}

// verify runs the command and returns what it prints, but for the waiting.
func (s *setting) verify(args ...string) (code int, out string) {
	code, text := s.command(append([]string{"verify"}, args...)...)
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, "waiting until slot ") {
			out += line
		}
	}
	return code, out
}

// The example of docs/verify.md is what verify prints. Then the dead letter topic has the missing event.
func TestVerifyPrintsWhatItsPageShows(t *testing.T) {
	t.Parallel()
	pg, kafka := testenv.Postgres(t, "16", testenv.Private()), testenv.Kafka(t)
	s := newSetting(t, pg, pg.Database(t), kafka)
	dead, orders := s.prefix+"dead", s.prefix+"orders"
	s.extra = "delivery: {dead_letter_topic: " + dead + "}"
	kafka.CreateTopic(t, orders, 3, nil)
	kafka.CreateTopic(t, dead, 1, nil)
	insert := func(id int, key string) {
		pg.Exec(t, s.dsn, fmt.Sprintf("INSERT INTO outbox (id, aggregate_type, aggregate_id, event_type, payload) VALUES ('00000000-0000-0000-0000-00000000000%d', 'orders', '%s', 'OrderPlaced', '{}')", id, key))
	}
	r := s.startReady()
	insert(1, "4711")
	insert(2, "4711")
	insert(3, "4711")
	eventually(t, time.Minute, "three events", func() bool { return r.metric("walpost_events_total") == 3 })
	r.stopsClean()
	insert(4, "4712")
	eventually(t, time.Minute, "the statistics have the rows", func() bool { // a late report would count a row twice behind the ANALYZE
		return pg.Value(t, s.dsn, "SELECT n_tup_ins::text FROM pg_stat_all_tables WHERE relname = 'outbox'") == "4"
	})
	pg.Exec(t, s.dsn, "ANALYZE outbox")
	s.moving(pg)
	client := kafka.Client(t, kgo.ConsumeTopics(orders), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	var last *kgo.Record
	for n := 0; n < 3; {
		fetches := client.PollFetches(t.Context())
		if err := fetches.Err(); err != nil {
			t.Fatal(err)
		}
		fetches.EachRecord(func(rec *kgo.Record) { last = rec; n++ })
	}
	send := func(rec *kgo.Record) {
		t.Helper()
		if err := client.ProduceSync(t.Context(), rec).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	send(&kgo.Record{Topic: orders, Key: last.Key, Value: last.Value, Headers: last.Headers, Timestamp: last.Timestamp})

	page, err := os.ReadFile("../../docs/verify.md")
	if err != nil {
		t.Fatal(err)
	}
	_, example, _ := strings.Cut(string(page), "$ walpost verify --config walpost.yaml\n")
	example, _, _ = strings.Cut(example, "```")
	code, out := s.verify()
	if got := strings.NewReplacer(s.prefix, "", os.TempDir(), "/tmp").Replace(regexp.MustCompile(`--config /\S+walpost.yaml`).ReplaceAllString(out, "--config walpost.yaml")); code != 1 || got != example {
		t.Errorf("exit code %d, verify prints\n%s\nand the page has\n%s", code, got, example)
	}

	letter := deadletter.Letter{
		Token: "a token", Reason: cdc.TooLarge, Table: "public.outbox", ID: "00000000-0000-0000-0000-000000000004", CommitTime: time.Now(), Topic: orders,
		Name: s.name, Database: pg.Value(t, s.dsn, "SELECT current_database()"), Partition: -1, Attempts: 1, Key: []byte("4712"), KeyKnown: true, Record: &cdc.Record{Topic: orders, Partition: -1, Key: []byte("4712"), Time: time.Now()},
	}
	rec, err := letter.Encode(dead)
	if err != nil {
		t.Fatal(err)
	}
	bad := &kgo.Record{Topic: dead, Key: rec.Key, Value: rec.Value}
	for _, h := range rec.Headers {
		bad.Headers = append(bad.Headers, kgo.RecordHeader{Key: h.Key, Value: h.Value})
	}
	send(bad)
	if code, out := s.verify(); code != 0 || !strings.Contains(out, "\nrows whose event is not in its topic, but is a dead letter: 1\n") {
		t.Errorf("exit code %d with a dead letter:\n%s", code, out)
	}
}

// A slot says nothing of rows that a snapshot has still to publish.
func TestVerifySaysThatASnapshotIsNotFinished(t *testing.T) {
	t.Parallel()
	pg, kafka := testenv.Postgres(t, "16", testenv.Private()), testenv.Kafka(t)
	s := newSetting(t, pg, pg.Database(t), kafka)
	s.source, s.extra = ", order_column: created_at", "delivery: {window: {events: 50}}"
	bigTransaction(t, pg, s, "k", 20_000)
	r := s.start("--snapshot=initial")
	eventually(t, time.Minute, "events flow", func() bool { return r.metric("walpost_events_total") > 0 })
	r.kill()
	s.moving(pg)
	if code, out := s.verify("--limit", "0"); code != 1 || !strings.Contains(out, "note: the snapshot is not finished: ") || !strings.Contains(out, "NOT JUDGED not_confirmed") {
		t.Errorf("exit code %d:\n%s", code, out)
	}
}
