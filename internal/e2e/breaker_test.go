package e2e

import (
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/walpost/walpost/internal/testenv"
)

// The database keeps its disk: with Kafka gone the slot is dropped at retained_critical. Nothing goes on behind that unseen, and what
// a person is told to do brings every row.
func TestTheBreakerDropsTheSlotAndRecoverClosesTheGap(t *testing.T) {
	t.Parallel()
	pg, kafka := testenv.Postgres(t, "15", testenv.Private()), testenv.KafkaPrivate(t, 1, nil)
	s := newSetting(t, pg, pg.Database(t), kafka)
	s.extra = `monitor: {interval: 1s, retained_warn: 4MiB, retained_critical: 16MiB, breaker: stop_and_drop_slot}
halt_linger: 0s`
	r := s.startReady()
	state := func(want string) func() bool {
		return func() bool {
			v, ok := r.scrape().of("walpost_breaker_state", `state="`+want+`"`)
			return ok && v == 1
		}
	}
	eventually(t, 30*time.Second, "the breaker is armed", state("armed"))
	w := s.follow()
	insert := func(n int) {
		pg.Exec(t, s.dsn, fmt.Sprintf(`INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload) VALUES ('order', 'k', 'Changed', '{"n": %d}')`, n))
	}
	insert(1)
	w.total(t, time.Minute, 1)
	if err := kafka.Stop(); err != nil {
		t.Fatal(err)
	}
	insert(2)
	pg.Exec(t, s.dsn, "CREATE TABLE filler AS SELECT repeat('x', 1000) FROM generate_series(1, 30000)") // some 30 MB of WAL
	slots := func() string { return pg.Value(t, s.dsn, "SELECT count(*)::text FROM pg_replication_slots") }
	eventually(t, time.Minute, "the slot is dropped", func() bool { return slots() == "0" })
	t.Log(r.notReady(5*time.Second, "circuit breaker"))
	eventually(t, 5*time.Second, "the breaker says that the slot is dropped", state("dropped"))
	if err := r.cmd.Process.Signal(syscall.SIGTERM); err != nil { // it stays for a minute, although there is no linger
		t.Fatal(err)
	}
	if code := r.wait(time.Minute); code != 3 {
		t.Errorf("exit code %d", code)
	}

	if hint := hintOf(r.log.String()); !strings.Contains(hint, "walpost recover --config ") {
		t.Errorf("the halt does not name recover: %s", hint)
	}

	kafka.Start(t)
	r = s.start()
	code := r.wait(time.Minute)
	hint := hintOf(r.log.String())
	first, second := strings.Index(hint, "Run walpost recover --config "), strings.Index(hint, "walpost run --accept-gap=")
	if code != 3 || first < 0 || second < first {
		t.Errorf("a new start ended with code %d and said to do: %s", code, hint)
	}
	if n := slots(); n != "0" {
		t.Errorf("%s slots: a new one was made over the gap", n)
	}

	if code, out := s.command("recover", "--yes", "--unordered"); code != 0 || !strings.Contains(out, "recovered: 1 rows") {
		t.Errorf("recover: code %d\n%s", code, out)
	}
	r = s.startReady()
	insert(3)
	s.onceEach(w, time.Minute)
	r.stopsClean()
}

// A relay that is halted holds WAL as one that waits does: the breaker acts there too.
func TestTheBreakerActsDuringAHalt(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "17")
	w.extra = `monitor: {interval: 1s, retained_warn: 4MiB, retained_critical: 16MiB, breaker: stop_and_drop_slot}
halt_linger: forever`
	w.exec("ALTER TABLE outbox ALTER aggregate_type DROP NOT NULL")
	r := w.startReady()
	bad := w.pg.Value(t, w.dsn, "INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload) VALUES (NULL, 'k', 'made', '{}') RETURNING id::text")
	r.notReady(30*time.Second, bad)
	w.exec("CREATE TABLE filler AS SELECT repeat('x', 1000) FROM generate_series(1, 30000)") // some 30 MB of WAL
	eventually(t, time.Minute, "the slot is dropped", func() bool {
		return w.pg.Value(t, w.dsn, "SELECT count(*)::text FROM pg_replication_slots") == "0"
	})
	r.notReady(5*time.Second, "circuit breaker")
	if code := r.stop(); code != 3 {
		t.Errorf("exit code %d", code)
	}
	// The row is in the table: recover reads it as it is now.
	if code, out := w.command("recover", "--yes", "--unordered"); code != 3 || !strings.Contains(out, bad) || !strings.Contains(out, "Or update or delete the row.") {
		t.Errorf("recover: code %d\n%s", code, out)
	}
	w.exec("UPDATE outbox SET aggregate_type = 'order' WHERE id = '" + bad + "'")
	if code, out := w.command("recover", "--yes", "--unordered"); code != 0 {
		t.Errorf("recover: code %d\n%s", code, out)
	}
	r = w.startReady()
	w.arrive(append(w.insert(3), bad))
	w.stopCleanly(r)
}
