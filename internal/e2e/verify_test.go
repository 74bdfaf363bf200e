package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/deadletter"
	"github.com/walpost/walpost/internal/testenv"
)

// verified is what "walpost verify --json" prints.
type verified struct {
	Clean       bool
	Rows        int64
	Records     int64
	Matched     int64            `json:"rows_with_record"`
	Repeated    int64            `json:"duplicates_contiguous"`
	Differences map[string]int64 `json:"differences"`
	CannotTell  map[string]int64 `json:"cannot_tell"`
	Findings    []map[string]any
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
	if text := os.Getenv("WALPOST_VERIFY_ROWS"); text != "" {
		var err error
		if rows, err = strconv.Atoi(text); err != nil {
			t.Fatal(err)
		}
	}
	pg, kafka := testenv.Postgres(t, "16", testenv.Private()), testenv.Kafka(t)
	s := newSetting(t, pg, pg.Database(t), kafka)
	s.startReady().stopsClean() // makes the slot
	seed := uint64(time.Now().UnixNano())
	t.Logf("moments of the kills from seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	for i := range kills {
		pg.Exec(t, s.dsn, fmt.Sprintf(`INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload)
			SELECT (ARRAY['order', 'invoice'])[1 + g %% 2], 'key-' || g %% 10007, 'Changed', jsonb_build_object('n', g, 'filler', repeat('x', 100))
			FROM generate_series(%d, %d) g`, i*rows/kills, (i+1)*rows/kills-1))
		r := s.start()
		eventually(t, time.Minute, "events flow", func() bool { return r.metric("walpost_events_total") > 0 })
		time.Sleep(time.Duration(rnd.Int64N(int64(200 * time.Millisecond))))
		r.kill()
	}
	r := s.startReady()
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
	err := cmd.Wait()
	took := time.Since(began)
	var got verified
	if err := json.Unmarshal(out.Bytes(), &got); err != nil {
		t.Fatalf("%v: %s\n%s", err, out, log)
	}
	if err != nil || !got.Clean || got.Rows != int64(rows) || got.Matched != got.Rows || got.Records != got.Rows+got.Repeated || sum(got.Differences)+sum(got.CannotTell) > 0 {
		t.Errorf("%v: %s\n%s", err, out, log)
	}
	if got.Repeated == 0 {
		t.Errorf("%d kills gave no duplicate: this says nothing of them", kills)
	}
	peak := cmd.ProcessState.SysUsage().(*syscall.Rusage).Maxrss << 10
	t.Logf("%d rows and %d records (%d duplicates of %d kills) in %s, %d MiB at most\n%s", got.Rows, got.Records, got.Repeated, kills, took, peak/mib, log)
	if peak > most {
		t.Errorf("verify took %d MiB", peak/mib)
	}
	cmd, _, _ = start("--strict")
	if _ = cmd.Wait(); cmd.ProcessState.ExitCode() != 1 {
		t.Errorf("exit code %d with --strict and duplicates", cmd.ProcessState.ExitCode())
	}
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGKILL} {
		cmd, log, _ := start("--wait", "1h")
		eventually(t, time.Minute, "the table is read", func() bool { return strings.Contains(log.String(), "records; temporary files: about") })
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

// A row whose event was not delivered is missing, until the topic of dead letters has it.
func TestVerifyLooksForDeadLetters(t *testing.T) {
	t.Parallel()
	pg, kafka := testenv.Postgres(t, "16", testenv.Private()), testenv.Kafka(t)
	s := newSetting(t, pg, pg.Database(t), kafka)
	r := s.startReady()
	w := s.follow()
	const insert = "INSERT INTO outbox (id, aggregate_type, aggregate_id, event_type, payload) VALUES ('00000000-0000-0000-0000-00000000000%d', 'order', '4711', 'OrderPlaced', '{}')"
	pg.Exec(t, s.dsn, fmt.Sprintf(insert, 1))
	eventually(t, time.Minute, "the event is delivered", func() bool { return w.count() > 0 })
	r.stopsClean()
	pg.Exec(t, s.dsn, fmt.Sprintf(insert, 2), "SELECT pg_replication_slot_advance('walpost', pg_current_wal_insert_lsn())")
	verify := func(more ...string) (int, string) {
		return s.command(append([]string{"verify", "--wait", "30s"}, more...)...)
	}
	code, out := verify()
	for _, want := range []string{
		"rows: 2, records: 1\nrows with their record: 1\n", "DIFFERENCE missing: 1 ", "\n  event 00000000-0000-0000-0000-000000000002, key 4711, of public.outbox, topic " + s.topics[0] + ", partition ",
		"\n  what to do: ", "\ndifferences: 1, cannot tell: 0\n",
	} {
		if code != 1 || !strings.Contains(out, want) {
			t.Errorf("exit code %d, and it does not say %q:\n%s", code, want, out)
		}
	}
	letter := deadletter.Letter{
		Token: unique("token"), Reason: cdc.TooLarge, Table: "public.outbox", ID: "00000000-0000-0000-0000-000000000002", CommitTime: time.Now(), Topic: s.topics[0],
		Partition: -1, Attempts: 1, Key: []byte("4711"), KeyKnown: true,
		Record: &cdc.Record{Topic: s.topics[0], Partition: -1, Key: []byte("4711"), Value: []byte("{}"), Time: time.Now()},
	}
	const topic = "walpost.dead_letter"
	rec, err := letter.Encode(topic)
	if err != nil {
		t.Fatal(err)
	}
	kafka.CreateTopic(t, topic, 1, nil)
	out2 := &kgo.Record{Topic: topic, Key: rec.Key, Value: rec.Value}
	for _, h := range rec.Headers {
		out2.Headers = append(out2.Headers, kgo.RecordHeader{Key: h.Key, Value: h.Value})
	}
	if err := kafka.Client(t).ProduceSync(t.Context(), out2).FirstErr(); err != nil {
		t.Fatal(err)
	}
	if code, out := verify(); code != 0 || !strings.Contains(out, "\nrows whose event is elsewhere, as a dead letter: 1\n") {
		t.Errorf("exit code %d with a dead letter:\n%s", code, out)
	}
}
