package e2e

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/walpost/walpost/internal/shop"
	"github.com/walpost/walpost/internal/testenv"
)

// A parked key is listed, and a retry has the running relay deliver its events in order. A dropped event is left out. A drop and a retry
// that are killed can be given again.
func TestARetryReleasesAParkedKey(t *testing.T) {
	t.Parallel()
	pg, kafka := testenv.Postgres(t, "16", testenv.Private()), testenv.Kafka(t)
	s := newSetting(t, pg, pg.Database(t), kafka)
	orders := s.prefix + "later"
	s.yaml = fmt.Sprintf(`source: {dsn: %q, table: public.outbox}
router: {route.topic.replacement: "%s${routedByValue}", table.fields.additional.placement: "p:partition"}
kafka: {brokers: [%s]}
delivery: {on_poison: park_key, dead_letter_topic: %s, parking_topic: %s}
`, s.dsn, s.prefix, strings.Join(s.brokers, ", "), s.prefix+"dead", s.prefix+"parked")
	kafka.CreateTopic(t, orders, 1, nil)
	pg.Exec(t, s.dsn, "ALTER TABLE outbox ADD p int")
	r := s.startReady()
	insert := func(n, p int, key string) {
		pg.Exec(t, s.dsn, fmt.Sprintf(`INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload, p) VALUES ('later', '%s', 'Changed', '{"n": %d}', %d)`, key, n, p))
	}
	insert(1, 0, "a")
	insert(2, 1, "a") // there is no partition 1
	insert(3, 0, "a")
	insert(4, 0, "b")
	insert(5, 0, "a")
	// follow reads the topic from its start, and returns the numbers that arrived in a partition.
	follow := func() func(partition int32) string {
		var mu sync.Mutex
		got := map[int32]string{}
		ctx, cancel := context.WithCancel(context.Background())
		over := make(chan struct{})
		go func() {
			defer close(over)
			if err := shop.Follow(ctx, s.brokers, []string{orders}, func(rec *kgo.Record) {
				mu.Lock()
				defer mu.Unlock()
				got[rec.Partition] += strings.Trim(string(rec.Value), `{"n: }`)
			}); err != nil {
				t.Errorf("consumer: %v", err)
			}
		}()
		t.Cleanup(func() { cancel(); <-over })
		return func(partition int32) string { mu.Lock(); defer mu.Unlock(); return got[partition] }
	}
	first := follow()
	eventually(t, time.Minute, "the events beside the parked ones", func() bool { return first(0) == "14" })
	list := func(want int) (out string) {
		t.Helper()
		eventually(t, time.Minute, fmt.Sprint(want, " events in the list"), func() bool {
			_, out = s.command("dead", "list")
			return strings.Contains(out, fmt.Sprintf("events: %d\n", want))
		})
		return out
	}
	out := list(3)
	if strings.Count(out, " parked ") != 3 || strings.Count(out, " behind ") != 2 {
		t.Errorf("dead list\n%s", out)
	}
	var tokens []string
	for line := range strings.Lines(out) {
		if strings.Contains(line, " parked ") {
			tokens = append(tokens, strings.Fields(line)[0])
		}
	}
	killed := func(args ...string) {
		t.Helper()
		for _, after := range []time.Duration{200, 400, 600} {
			cmd := exec.Command(program, append(args, "--config", s.config())...)
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			time.Sleep(after * time.Millisecond)
			_ = cmd.Process.Kill() // it may have ended
			_ = cmd.Wait()
		}
	}
	killed("dead", "drop", "--reason", "a test", tokens[1])
	if code, out := s.command("dead", "drop", "--reason", "a test", tokens[1]); code != 0 || !strings.Contains(out, "open events: ") {
		t.Errorf("drop: code %d\n%s", code, out)
	}
	// The configuration names no relay: verify finds the events under the name that walpost run gave itself.
	if code, out := s.command("verify"); code != 0 || !strings.Contains(out, "parked event: 2") || !strings.Contains(out, "dropped by a person: 1") {
		t.Errorf("verify: code %d\n%s", code, out)
	}
	list(2)
	if code, out := s.command("dead", "retry", "--key", "a", "--wait"); code != 1 || !strings.Contains(out, "refused again: 1") || strings.Contains(out, "delivered by the relay") {
		t.Errorf("retry before the cause is mended: code %d\n%s", code, out)
	}
	s.addPartition(kafka, orders)
	killed("dead", "retry", "--all", "--wait")
	if code, out := s.command("dead", "retry", "--all", "--wait"); code != 0 {
		t.Errorf("retry: code %d\n%s", code, out)
	}
	list(0)
	insert(6, 0, "a")
	second := follow() // with the new partition
	eventually(t, time.Minute, "the released events, and the newer one behind them", func() bool { return second(0) == "1456" && second(1) == "2" })
	if code, out := s.command("dead", "show", tokens[0]); code != 0 || !strings.Contains(out, "released: the relay has delivered the event") {
		t.Errorf("show: code %d\n%s", code, out)
	}
	r.stopsClean()
}

// addPartition makes the topic one partition larger.
func (s *setting) addPartition(kafka *testenv.KafkaCluster, topic string) {
	s.t.Helper()
	adm := kadm.NewClient(kafka.Client(s.t))
	if _, err := adm.CreatePartitions(s.t.Context(), 1, topic); err != nil {
		s.t.Fatal(err)
	}
}
