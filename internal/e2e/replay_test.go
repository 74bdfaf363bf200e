package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/walpost/walpost/internal/shop"
	"github.com/walpost/walpost/internal/testenv"
)

// A replayed is what a consumer sees of a replay, in one topic or several.
type replayed struct {
	mu    sync.Mutex
	first map[string]string  // what the relay has delivered, by event id
	again map[string][]int64 // the numbers of the replayed events, by key
	other []string           // replayed events whose bytes differ from the relay's
	count int
}

// replays judges records by their header walpost.origin, until the test ends.
func (s *setting) replays(topics ...string) *replayed {
	r := &replayed{first: map[string]string{}, again: map[string][]int64{}}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	s.t.Cleanup(func() { cancel(); <-done })
	go func() {
		defer close(done)
		err := shop.Follow(ctx, s.brokers, topics, func(rec *kgo.Record) {
			r.mu.Lock()
			defer r.mu.Unlock()
			origin := ""
			if last := len(rec.Headers) - 1; rec.Headers[last].Key == "walpost.origin" {
				origin, rec.Headers = string(rec.Headers[last].Value), rec.Headers[:last]
			}
			e := shop.Entry(rec)
			all := fmt.Sprintf("%q", e.Bytes)
			if origin == "" {
				r.first[e.ID] = all
				return
			}
			if first := r.first[e.ID]; origin != "replay" || first != "" && first != all {
				r.other = append(r.other, fmt.Sprintf("%s %q: %s, not %s", e.ID, origin, all, first))
			}
			var payload struct{ N int64 }
			if err := json.Unmarshal(rec.Value, &payload); err != nil {
				s.t.Errorf("payload %q: %v", rec.Value, err)
			}
			r.again[e.Key] = append(r.again[e.Key], payload.N)
			r.count++
		})
		if err != nil {
			s.t.Errorf("consumer: %v", err)
		}
	}()
	return r
}

func (r *replayed) seen() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.count
}

// newest has the number of the newest replayed event of each key.
func (r *replayed) newest() map[string]int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	newest := map[string]int64{}
	for key, got := range r.again {
		newest[key] = slices.Max(got)
	}
	return newest
}

// wants compares the replayed events with the table. The numbers of a key begin with 1, and have no gap. One may come again, as an
// interrupted replay goes on.
func (r *replayed) wants(t *testing.T, keys map[string]int64) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, text := range r.other[:min(3, len(r.other))] {
		t.Errorf("%d replayed events differ from the first delivery: %s", len(r.other), text)
	}
	for key, n := range keys {
		var newest int64
		for _, got := range r.again[key] {
			if got > newest+1 {
				t.Errorf("key %s: event %d comes behind %d", key, got, newest)
			}
			newest = max(newest, got)
		}
		if newest != n {
			t.Errorf("key %s: %d of %d events are replayed", key, newest, n)
		}
	}
	if len(r.again) != len(keys) {
		t.Errorf("events of %d keys are replayed, and the filter selects %d keys", len(r.again), len(keys))
	}
}

// A replay that is killed again and again, while a relay delivers new events, goes on where it was: every event comes, in the order of
// its key, as it was delivered the first time. verify finds nothing wrong.
func TestAReplayThatIsKilledGoesOn(t *testing.T) {
	t.Parallel()
	const kills, rate = 4, 2000
	pg, kafka := testenv.Postgres(t, "17", testenv.Private(), testenv.Param("track_commit_timestamp", "on")), testenv.Kafka(t)
	s := newSetting(t, pg, pg.Database(t), kafka)
	pg.Exec(t, s.dsn, "ALTER TABLE outbox ADD COLUMN n bigint GENERATED ALWAYS AS IDENTITY")
	s.source = ", order_column: n"
	relay := s.startReady()
	w := s.follow()
	<-s.load(&shop.Shop{Writers: 4, Rows: 20_000, Seed: 1, Tag: "a"}).done
	s.onceEach(w, time.Minute)
	until := strings.Replace(pg.Value(t, s.dsn, "SELECT to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS.US') || 'Z'"), " ", "T", 1)
	during := s.load(&shop.Shop{Writers: 2, Seed: 2, Tag: "b", Pause: 10 * time.Millisecond})
	keys := map[string]int64{}
	for _, line := range strings.Split(pg.Value(t, s.dsn, "SELECT string_agg(k, ' ') FROM (SELECT aggregate_id || '=' || count(*) AS k FROM outbox WHERE starts_with(aggregate_id, 'a') GROUP BY aggregate_id) t"), " ") {
		key, n, _ := strings.Cut(line, "=")
		if _, err := fmt.Sscan(n, new(int64)); err != nil {
			t.Fatal(err)
		}
		var count int64
		fmt.Sscan(n, &count) //nolint:errcheck // it was read above
		keys[key] = count
	}

	seen, dir := s.replays(s.topics...), t.TempDir()
	eventually(t, time.Minute, "the first deliveries are seen", func() bool {
		seen.mu.Lock()
		defer seen.mu.Unlock()
		return len(seen.first) >= 20_000
	})
	replay := func(more ...string) (*exec.Cmd, *testenv.Output) {
		cmd, log := exec.Command(program, append([]string{"replay", "--config", s.config(), "--until", until}, more...)...), new(testenv.Output)
		cmd.Dir, cmd.Stdout, cmd.Stderr = dir, log, log
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		return cmd, log
	}
	for i := range kills {
		cmd, log := replay("--rate", fmt.Sprint(rate))
		from := seen.seen()
		eventually(t, time.Minute, "the replay has gone on for more than a second", func() bool { return seen.seen() >= from+3*rate/2 })
		_ = cmd.Process.Kill() // it may have ended
		_ = cmd.Wait()
		if i > 0 && !strings.Contains(log.String(), "this replay continues after them") {
			t.Errorf("call %d says:\n%s", i+1, log)
		}
	}
	cmd, log := replay()
	if err := cmd.Wait(); err != nil || !strings.Contains(log.String(), "rows that this replay had published before it was interrupted: ") {
		t.Fatalf("the last call: %v\n%s", err, log)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("the replay has left %v, %v", left, err)
	}
	total := 0
	for _, n := range keys {
		total += int(n)
	}
	eventually(t, time.Minute, "all replayed events are seen", func() bool { return seen.seen() >= total && maps.Equal(seen.newest(), keys) })
	during.stop()
	time.Sleep(500 * time.Millisecond) // for what comes too much
	seen.wants(t, keys)
	t.Logf("%d rows, %d replayed events after %d kills\n%s", total, seen.seen(), kills, log)

	code, out := s.command("verify", "--json")
	var got verified
	if err := json.Unmarshal([]byte(out[strings.Index(out, "{"):]), &got); code != 0 || err != nil || !got.Clean || sum(got.CannotTell) > 0 {
		t.Errorf("verify: code %d, %v: %s", code, err, out)
	}
	relay.stopsClean()
}

// A small is a table with eight events: 1 to 8, of two types and two keys, one a day from 2026-01-01 on.
type small struct {
	*setting
	pg    *testenv.PG
	kafka *testenv.KafkaCluster
	dir   string
}

func newSmall(t *testing.T) *small {
	t.Helper()
	pg, kafka := testenv.Postgres(t, "16", testenv.Private()), testenv.Kafka(t)
	s := &small{newSetting(t, pg, pg.Database(t), kafka), pg, kafka, t.TempDir()}
	pg.Exec(t, s.dsn, "ALTER TABLE outbox ADD COLUMN n bigint GENERATED ALWAYS AS IDENTITY, ALTER COLUMN aggregate_type DROP NOT NULL",
		`INSERT INTO outbox (id, aggregate_type, aggregate_id, event_type, payload, created_at)
		 SELECT ('00000000-0000-0000-0000-00000000000' || g)::uuid, (ARRAY['order', 'invoice'])[1 + g % 2], 'k' || g / 5, 'x', jsonb_build_object('n', g), '2025-12-31'::timestamptz + g * interval '1 day'
		 FROM generate_series(1, 8) g`)
	s.source = ", order_column: n, time_column: created_at"
	return s
}

// replay runs the command, and returns its exit code and what it prints.
func (s *small) replay(args ...string) (code int, out string) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, append([]string{"replay", "--config", s.config()}, args...)...)
	cmd.Dir = s.dir
	text, err := cmd.CombinedOutput()
	if cmd.ProcessState == nil {
		s.t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), string(text)
}

// wants runs the command, and compares the exit code and pieces of its output.
func (s *small) wants(code int, args []string, pieces ...string) (out string) {
	s.t.Helper()
	got, out := s.replay(args...)
	for _, piece := range pieces {
		if !strings.Contains(out, piece) {
			s.t.Errorf("replay %q does not say %q", args, piece)
			got = -1
		}
	}
	if got != code {
		s.t.Errorf("replay %q: exit code %d, must be %d\n%s", args, got, code, out)
	}
	return out
}

// topic makes a topic with one partition.
func (s *small) topic(name string, settings map[string]string) string {
	s.kafka.CreateTopic(s.t, s.prefix+name, 1, settings)
	return s.prefix + name
}

// ids are the last digits of the event ids in a topic, which must have so many.
func (s *small) ids(topic string, n int) (ids string) {
	s.t.Helper()
	client := s.kafka.Client(s.t, kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	take := func(rec *kgo.Record) { id := shop.Entry(rec).ID; ids += id[len(id)-1:] }
	waiting, stop := context.WithTimeout(s.t.Context(), patience)
	defer stop()
	for len(ids) < n {
		fetches := client.PollFetches(waiting)
		if err := fetches.Err(); err != nil {
			s.t.Fatal(err)
		}
		fetches.EachRecord(take)
	}
	ctx, cancel := context.WithTimeout(s.t.Context(), 300*time.Millisecond)
	defer cancel()
	client.PollFetches(ctx).EachRecord(take)
	return ids
}

func id(n int) string { return fmt.Sprintf("00000000-0000-0000-0000-%012d", n) }

func TestReplayPublishesWhatItsFilterSelects(t *testing.T) {
	t.Parallel()
	s := newSmall(t)
	for i, c := range []struct {
		args []string
		ids  string
	}{
		{[]string{"--id", id(5), "--id", id(3)}, "35"},
		{[]string{"--first-id", id(2), "--last-id", id(4)}, "234"},
		{[]string{"--since", "2026-01-02T00:00:00Z", "--until", "2026-01-05T00:00:00Z"}, "234"},
		{[]string{"--aggregate-type", "invoice"}, "1357"},
		{[]string{"--key", "k0"}, "1234"},
		{[]string{"--key", "k0", "--key", "k1", "--aggregate-type", "order", "--last-id", id(6)}, "246"},
		{[]string{"--all"}, "12345678"},
		{[]string{"--all", "--rate", "100"}, "12345678"},
		{[]string{"--key", "nobody"}, ""},
	} {
		topic := s.topic(fmt.Sprint("case", i), nil)
		args := append(c.args, "--to-topic", topic)
		n := len(c.ids)
		selects := fmt.Sprintf("selected rows: %d\n", n)
		if out := s.wants(0, append(args, "--dry-run"), selects, "nothing was published (--dry-run)"); n > 0 && !strings.Contains(out, fmt.Sprintf("topic %s: %d events\n", topic, n)) {
			t.Errorf("%q: %s", args, out)
		}
		s.wants(0, args, selects, fmt.Sprintf("published: %d events\n", n))
		if got := s.ids(topic, n); got != c.ids {
			t.Errorf("%q publishes %q, must be %q", args, got, c.ids)
		}
	}
	var report struct {
		Rows, Published int
		DryRun          bool `json:"dry_run"`
		Topics          map[string]int
	}
	out := s.wants(0, []string{"--key", "k1", "--dry-run", "--json"})
	if err := json.Unmarshal([]byte(out), &report); err != nil || report.Rows != 4 || report.Published != 0 || !report.DryRun || report.Topics[s.topics[0]] != 2 {
		t.Errorf("%v: %s", err, out)
	}
	if left, err := os.ReadDir(s.dir); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

func TestReplaySaysWhatItCannotDo(t *testing.T) {
	t.Parallel()
	s := newSmall(t)
	s.wants(2, []string{"--id", "4711"}, "the filter does not fit its column: invalid input syntax for type uuid")
	s.wants(1, []string{"--all", "--state", "no/such/folder"}, "the state of the replay: ", "--state")
	other := s.topic("other", map[string]string{"cleanup.policy": "compact"})
	s.wants(0, []string{"--all", "--to-topic", other}, "topic "+other+" is compacted: a replayed event replaces the newer events of its key")
	s.source = ", order_column: n"
	s.wants(2, []string{"--since", "2026-01-02T00:00:00Z"}, "the time at which a row was written is unknown")
	s.source = ""
	s.wants(2, []string{"--all"}, "the order of rows in public.outbox is unknown", "--unordered")
	s.wants(0, []string{"--all", "--unordered"}, "published: 8 events")
}

// A replay stops before a bad event. The same command continues there, after the repair or with --skip-bad.
func TestAReplayStopsAtABadEvent(t *testing.T) {
	t.Parallel()
	s := newSmall(t)
	s.pg.Exec(t, s.dsn, "UPDATE outbox SET aggregate_type = NULL WHERE id = '"+id(3)+"'",
		"UPDATE outbox SET payload = jsonb_build_object('n', 6, 'x', (SELECT string_agg(md5(g::text), '') FROM generate_series(1, 200) g)) WHERE id = '"+id(6)+"'")
	small := s.topic("small", map[string]string{"max.message.bytes": "3000"})
	args := []string{"--first-id", id(1), "--to-topic", small}
	s.wants(3, args, "event "+id(3)+" of public.outbox cannot be routed: ", "run the same command again: the replay continues at this event", "--skip-bad")
	if got := s.ids(small, 2); got != "12" {
		t.Errorf("before the bad event: %s", got)
	}
	s.wants(2, []string{"--all", "--state", s.stateFile()}, "the state file belongs to a replay with another filter or topic")
	s.pg.Exec(t, s.dsn, "UPDATE outbox SET aggregate_type = 'order' WHERE id = '"+id(3)+"'")
	s.wants(3, args, "an earlier replay was interrupted after 2 rows", "event "+id(6)+" of public.outbox cannot be delivered to topic "+small)
	if got := s.ids(small, 5); got != "12345" {
		t.Errorf("before the large event: %s", got)
	}
	s.wants(1, append(args, "--skip-bad"), "an earlier replay was interrupted after 5 rows", "bad: event "+id(6), "bad events, named above: 1", "published: 2 events")
	if got := s.ids(small, 7); got != "1234578" {
		t.Errorf("behind the large event: %s", got)
	}
	s.pg.Exec(t, s.dsn, "UPDATE outbox SET aggregate_type = NULL WHERE id = '"+id(7)+"'")
	s.wants(1, []string{"--all", "--dry-run"}, "selected rows: 8", "bad: event "+id(7), "bad events, named above: 1")
}

// stateFile is the file that an interrupted replay has left.
func (s *small) stateFile() string {
	s.t.Helper()
	all, err := filepath.Glob(filepath.Join(s.dir, "walpost-replay-*.json"))
	if err != nil || len(all) != 1 {
		s.t.Fatalf("state files: %v, %v", all, err)
	}
	return all[0]
}
