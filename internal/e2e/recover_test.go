package e2e

import (
	"bytes"
	"io"
	"math/rand/v2"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/walpost/walpost/internal/shop"
	"github.com/walpost/walpost/internal/testenv"
)

// gapKinds are the ways in which the rows of a gap can be found and ordered.
var gapKinds = []struct {
	name, version string
	commitTimes   string
	source        string
}{
	{"by commit time", "17", "on", ", order_column: n"},
	{"by a time column without a zone", "15", "off", ", order_column: n, time_column: created_at"},
	{"by what is in Kafka alone", "15", "off", ", order_column: n"},
}

// A lossy is a setting on a server that gives up slots soon.
type lossy struct {
	*setting
	pg *testenv.PG
}

func newLossy(t *testing.T, i int) *lossy {
	t.Helper()
	g := gapKinds[i]
	pg := testenv.Postgres(t, g.version, testenv.Private(), testenv.Param("track_commit_timestamp", g.commitTimes),
		testenv.Param("max_slot_wal_keep_size", "16MB"), testenv.Param("wal_keep_size", "0"), testenv.Param("max_wal_size", "32MB"))
	s := newSetting(t, pg, pg.Database(t), testenv.Kafka(t))
	pg.Exec(t, s.dsn, "ALTER TABLE outbox ADD COLUMN n bigint GENERATED ALWAYS AS IDENTITY")
	if strings.Contains(g.name, "without a zone") { // rows look seven hours older than they are, at least
		pg.Exec(t, s.dsn, "ALTER TABLE outbox ALTER created_at TYPE timestamp",
			"DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET timezone = %L', current_database(), 'America/Los_Angeles'); END $$")
	}
	s.source, s.extra = g.source, "halt_linger: 0s"
	return &lossy{s, pg}
}

// lose makes the server give up the slot.
func (s *lossy) lose() {
	s.t.Helper()
	s.pg.Exec(s.t, s.dsn, "CREATE TABLE IF NOT EXISTS filler (a text)")
	for range 40 {
		if s.pg.Value(s.t, s.dsn, "SELECT wal_status FROM pg_replication_slots") == "lost" {
			return
		}
		s.pg.Exec(s.t, s.dsn, "INSERT INTO filler SELECT repeat('x', 1000) FROM generate_series(1, 2000)", "SELECT pg_switch_wal()", "CHECKPOINT")
	}
	s.t.Fatal("the slot is not lost")
}

// refuses runs the relay, which must end with code 3.
func (s *lossy) refuses(words ...string) {
	s.t.Helper()
	r := s.start()
	if code := r.wait(time.Minute); code != 3 {
		s.t.Errorf("run ended with code %d", code)
	}
	for _, word := range words {
		if !strings.Contains(r.log.String(), word) {
			s.t.Errorf("run did not say %q:\n%s", word, r.log)
		}
	}
}

// gap delivers something, loses the slot behind it, and writes more before and after: a is delivered, b is not.
func (s *lossy) gap(kill bool) *watch {
	s.t.Helper()
	r := s.startReady()
	w := s.follow()
	<-s.load(&shop.Shop{Writers: 4, Rows: 3000, Seed: 1, Tag: "a"}).done
	s.onceEach(w, time.Minute)
	if kill {
		r.kill()
	} else {
		r.stopsClean()
	}
	<-s.load(&shop.Shop{Writers: 4, Rows: 5000, Seed: 2, Tag: "a"}).done
	s.lose()
	<-s.load(&shop.Shop{Writers: 4, Rows: 1000, Seed: 3, Tag: "a"}).done
	return w
}

// A slot that was lost is replaced, and every row of the gap arrives, those before it not twice, in the order of its key. Writers go on all
// the while.
func TestRecoverClosesTheGapOfALostSlot(t *testing.T) {
	t.Parallel()
	for i, g := range gapKinds {
		t.Run(g.name, func(t *testing.T) {
			t.Parallel()
			s := newLossy(t, i)
			if i == 0 { // what is in Kafka is known again, whatever run id its headers have
				s.extra += "\nrecords: {topic.prefix: shop, extended.headers.enabled: true}"
			}
			origins := s.origins()
			w := s.gap(i == 1)
			s.refuses("is lost", "walpost recover")
			during := s.load(&shop.Shop{Writers: 2, Seed: 4, Tag: "b", Pause: 10 * time.Millisecond})
			// So little that the events of before are not among those that are looked at, unless they must be.
			code, out := s.command("recover", "--yes", "--overlap", "1ms")
			if strings.Contains(out, "the age of the rows is unknown (set source.time_column)") == (g.commitTimes == "on" || strings.Contains(g.source, "time_column")) {
				t.Errorf("%s: what recover says of the age:\n%s", g.name, out)
			}
			if code != 0 || !strings.Contains(out, "recovered: ") || !strings.Contains(out, "no row of public.outbox is gone") && !strings.Contains(out, "are lost") {
				t.Errorf("recover: code %d\n%s", code, out)
			}
			t.Logf("recover said:\n%s", said(out))
			r := s.startReady()
			during.reach(t, during.Committed()+200)
			during.stop()
			s.onceEach(w, time.Minute)
			eventually(t, time.Minute, "all origins counted", func() bool { return origins.of("recover")+origins.of("") == w.count() })
			if n := origins.of("recover"); n < 6000 {
				t.Errorf("%d records are recovered", n)
			}
			r.stopsClean()
			code, out = s.command("recover", "--yes")
			if code != 0 || !strings.Contains(out, "nothing to recover") {
				t.Errorf("recover once more: code %d\n%s", code, out)
			}
		})
	}
}

// said is what a command said to the user: its log left out.
func said(out string) string {
	var text strings.Builder
	for line := range strings.Lines(out) {
		if !strings.HasPrefix(line, "{") {
			text.WriteString(line)
		}
	}
	return text.String()
}

// answer runs recover with answers to its questions.
func (s *setting) answer(answers string, args ...string) (code int, out string) {
	s.t.Helper()
	cmd := exec.Command(program, append([]string{"recover", "--config", s.config()}, args...)...)
	cmd.Stdin = strings.NewReader(answers)
	text, err := cmd.CombinedOutput()
	if cmd.ProcessState == nil {
		s.t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), string(text)
}

func TestRecoverAsksAndCanBeInterruptedAtEachStep(t *testing.T) {
	t.Parallel()
	s := newLossy(t, 0)
	w := s.gap(false)
	slot := func() string {
		return s.pg.Value(t, s.dsn, "SELECT wal_status FROM pg_replication_slots")
	}
	// The first question: nothing was changed.
	code, out := s.answer("n\n")
	if code != 1 || !strings.Contains(out, "last confirmed: ") || !strings.Contains(out, "was committed at 20") || !strings.Contains(out, "Drop the lost slot walpost") || !strings.Contains(out, "Nothing was changed") || slot() != "lost" {
		t.Errorf("no to the first question: code %d, slot %s\n%s", code, slot(), out)
	}
	code, out = s.answer("")
	if code != 2 || !strings.Contains(out, "Add --yes") || slot() != "lost" {
		t.Errorf("no answer: code %d, slot %s\n%s", code, slot(), out)
	}
	s.refuses("is lost", "walpost recover")
	// The second: the slot is there, and run knows that the rows are not published.
	code, out = s.answer("y\nno\n")
	if code != 1 || !strings.Contains(out, "Publish ") || slot() != "reserved" && slot() != "extended" {
		t.Errorf("no to the second question: code %d, slot %s\n%s", code, slot(), out)
	}
	s.refuses("a recovery of the gap after", "is not finished", "walpost recover --config ", " continues it")
	// A later call follows --since for what it reads, and says that --overlap comes too late.
	if code, out := s.answer("no\n", "--overlap", "1h"); code != 1 || !strings.Contains(out, "--overlap has no effect") {
		t.Errorf("another overlap: code %d\n%s", code, out)
	}
	if code, out := s.answer("no\n", "--since", "2000-01-01T00:00:00Z"); code != 1 || !strings.Contains(out, "this call examines rows committed since 2000-01-01") || strings.Contains(out, " 0 of them are in Kafka") {
		t.Errorf("an older time: code %d\n%s", code, out)
	}
	if code, out := s.command("recover", "--yes", "--since", "2100-01-01T00:00:00Z"); code != 2 || !strings.Contains(out, "later than now") {
		t.Errorf("a time in the future: code %d\n%s", code, out)
	}
	if n := w.count(); n > 3500 { // about 3000 were delivered before
		t.Errorf("%d records: something was published before it was wanted", n)
	}
	// Killed in the middle of publishing, again and again.
	s.extra += "\ndelivery: {window: {events: 20}}"
	seed := uint64(time.Now().UnixNano())
	t.Logf("moments of the kills from seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	for range 6 {
		cmd := exec.Command(program, "recover", "--yes", "--config", s.config())
		var text bytes.Buffer
		cmd.Stdout, cmd.Stderr = &text, io.Discard
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Duration(rnd.Int64N(int64(600 * time.Millisecond))))
		_ = cmd.Process.Kill() // it may have ended
		_ = cmd.Wait()         // it was killed
		if strings.Contains(text.String(), "recovered: ") {
			t.Log("finished before it was killed")
			break
		}
	}
	code, out = s.command("recover", "--yes")
	if code != 0 {
		t.Errorf("recover: code %d\n%s", code, out)
	}
	t.Logf("recover said:\n%s", said(out))
	r := s.startReady()
	t.Logf("%d duplicates", s.nothingLost(w, time.Minute))
	r.stopsClean()
}

// Killed at any moment from the first step on, and a person who runs it again.
func TestAKilledRecoverLosesNothing(t *testing.T) {
	t.Parallel()
	s := newLossy(t, 1)
	w := s.gap(true)
	work := s.load(&shop.Shop{Writers: 2, Seed: 4, Tag: "b", Pause: 20 * time.Millisecond})
	seed := uint64(time.Now().UnixNano())
	t.Logf("moments of the kills from seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	for range 10 {
		cmd := exec.Command(program, "recover", "--yes", "--config", s.config())
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Duration(rnd.Int64N(int64(500 * time.Millisecond))))
		_ = cmd.Process.Kill() // it may have ended
		_ = cmd.Wait()         // it was killed
	}
	if code, out := s.command("recover", "--yes"); code != 0 {
		t.Errorf("recover: code %d\n%s", code, out)
	}
	r := s.startReady()
	work.stop()
	t.Logf("%d duplicates", s.nothingLost(w, time.Minute))
	r.stopsClean()
}

// What was deleted before it was published is gone, and recover says how many.
func TestRecoverCountsWhatIsGoneFromTheTable(t *testing.T) {
	t.Parallel()
	s := newLossy(t, 0)
	r := s.startReady()
	w := s.follow()
	insert := "INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload) VALUES ('order', 'a', 'made', '{\"n\": 1}')"
	s.pg.Exec(t, s.dsn, insert)
	w.total(t, time.Minute, 1)
	r.stopsClean()
	s.pg.Exec(t, s.dsn, insert, insert, insert, "DELETE FROM outbox WHERE n IN (2, 4)")
	s.lose()
	// A slot that is made by hand in its place begins behind the gap: that is refused, and helped by dropping it.
	s.pg.Exec(t, s.dsn, dropSlot, "SELECT pg_create_logical_replication_slot('walpost', 'pgoutput')")
	s.refuses("created again", dropSlot+";) and run walpost recover --config ", " to publish the missing events from the table", "walpost run --accept-gap=")
	if code, out := s.command("recover", "--yes"); code != 3 || !strings.Contains(out, dropSlot) {
		t.Errorf("recover of a slot that is there: code %d\n%s", code, out)
	}
	s.pg.Exec(t, s.dsn, dropSlot)
	since := s.pg.Value(t, s.dsn, `SELECT to_char(pg_xact_commit_timestamp(xmin) + interval '1 microsecond', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') FROM outbox WHERE n = 1`)
	s.source += ", create: false" // recover creates the slot all the same
	code, out := s.command("recover", "--yes", "--since", since)
	for _, word := range []string{"column n of public.outbox has 2 missing numbers", "1 rows of the table may be in the gap, 0 of them are in Kafka, 1 are missing", "recovered: 1 rows"} {
		if code != 0 || !strings.Contains(out, word) {
			t.Errorf("code %d, it did not say %q:\n%s", code, word, out)
		}
	}
	eventually(t, time.Minute, "two records", func() bool { return w.count() == 2 })
}
