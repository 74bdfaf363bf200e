package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/walpost/walpost/internal/testenv"
)

// The relays that take over do not know the keys that the relay before them has parked. They would deliver the later events of such a
// key, and its parked events would come behind them or never.
func TestShardsWaitForParkedKeys(t *testing.T) {
	t.Parallel()
	pg, kafka := testenv.Postgres(t, "16", testenv.Private()), testenv.Kafka(t)
	s := newSetting(t, pg, pg.Database(t), kafka)
	parked, slot := s.prefix+"parked", strings.ReplaceAll(unique("parks"), "-", "_")
	kafka.CreateTopic(t, s.prefix+"a", 1, nil)
	pg.Exec(t, s.dsn, "CREATE TABLE mixed (id text PRIMARY KEY, aggregate_type text, aggregate_id text NOT NULL, payload text)")
	s.yaml = fmt.Sprintf(`name: %s
source: {dsn: %q, table: public.mixed, slot: %[5]s, publication: %[5]s}
router: {route.topic.replacement: "%[3]s${routedByValue}"}
kafka: {brokers: [%[4]s]}
delivery: {on_poison: park_key, parking_topic: %[6]s}
`, s.name, s.dsn, s.prefix, strings.Join(s.brokers, ", "), slot, parked)
	old := s.startReady()
	pg.Exec(t, s.dsn, "INSERT INTO mixed VALUES ('1', NULL, 'k', 'x')", "INSERT INTO mixed VALUES ('2', 'a', 'k', 'x')")
	eventually(t, time.Minute, "two events are parked", func() bool {
		code, out := s.command("dead", "list")
		return code == 0 && strings.Contains(out, "events: 2\n")
	})
	one, two := s.start("--shard", "1/2"), s.start("--shard", "2/2")
	says := "relay " + s.name + " has 1 parked keys with 2 events"
	one.notReady(time.Minute, says)
	two.notReady(time.Minute, says)
	if _, out := s.command("check", "--shard", "1/2"); !strings.Contains(strings.Join(strings.Fields(out), " "), says) {
		t.Errorf("check says:\n%s", out)
	}
	if code := old.stop(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	if reason := one.notReady(time.Minute, says); !strings.Contains(reason, `walpost dead retry`) {
		t.Error(reason)
	}
	if code, out := s.command("dead", "drop", "--key", "k", "--reason", "test"); code != 0 {
		t.Fatalf("exit code %d:\n%s", code, out)
	}
	eventually(t, time.Minute, "ready", one.ready)
	eventually(t, time.Minute, "ready", two.ready)
	for _, r := range []*relay{one, two} {
		if code := r.stop(); code != 0 {
			t.Errorf("exit code %d", code)
		}
	}
}
