package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/walpost/walpost/internal/testenv"
)

// The database keeps its disk: with Kafka gone the slot is dropped at retained_critical. Nothing goes on behind that unseen.
func TestTheBreakerDropsTheSlotAndANewStartIsRefused(t *testing.T) {
	t.Parallel()
	pg, kafka := testenv.Postgres(t, "15", testenv.Private()), testenv.KafkaPrivate(t, 1, nil)
	s := newSetting(t, pg, pg.Database(t), kafka)
	s.extra = `monitor: {interval: 1s, retained_warn: 4MiB, retained_critical: 16MiB, breaker: stop_and_drop_slot}
halt_linger: 5s`
	r := s.startReady()
	w := s.follow()
	insert := func(n int) {
		pg.Exec(t, s.dsn, fmt.Sprintf(`INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload) VALUES ('order', 'k', 'Changed', '{"n": %d}')`, n))
	}
	insert(1)
	w.more(t, time.Minute, 1-w.count())
	if err := kafka.Stop(); err != nil {
		t.Fatal(err)
	}
	insert(2)
	pg.Exec(t, s.dsn, "CREATE TABLE filler AS SELECT repeat('x', 1000) FROM generate_series(1, 30000)") // some 30 MB of WAL
	slots := func() string { return pg.Value(t, s.dsn, "SELECT count(*)::text FROM pg_replication_slots") }
	eventually(t, time.Minute, "the slot is dropped", func() bool { return slots() == "0" })
	if !r.ended() { // it lingers
		reason := r.notReady(5*time.Second, "circuit breaker")
		t.Log(reason)
	}
	if code := r.wait(time.Minute); code != 3 {
		t.Errorf("exit code %d", code)
	}

	kafka.Start(t)
	r = s.start()
	if code := r.wait(time.Minute); code != 3 || !strings.Contains(r.log.String(), "--accept-gap=") {
		t.Errorf("a new start ended with code %d", code)
	}
	if n := slots(); n != "0" {
		t.Errorf("%s slots: a new one was made over the gap", n)
	}
}
