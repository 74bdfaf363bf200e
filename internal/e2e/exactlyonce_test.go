package e2e

import (
	"fmt"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/walpost/walpost/internal/kafka"
	"github.com/walpost/walpost/internal/shop"
	"github.com/walpost/walpost/internal/testenv"
)

// With exactly_once, kills in the midst of everything repeat nothing for a consumer that reads committed records: with the
// transactions of Kafka 4 (KIP-890), and with those of older brokers.
func TestExactlyOnceThroughKills(t *testing.T) {
	t.Parallel()
	t.Run("transaction.version=2", func(t *testing.T) {
		t.Parallel()
		exactlyOnceThroughKills(t, "17", testenv.Kafka(t))
	})
	t.Run("transaction.version=0", func(t *testing.T) {
		t.Parallel()
		k := testenv.KafkaPrivate(t, 3, map[string]string{"broker.session.timeout.ms": "60000"}) // no broker is killed
		k.OldTransactions(t)
		eventually(t, time.Minute, "the brokers have old transactions", func() bool {
			has, err := kafka.FeaturesOf(t.Context(), k.Client(t))
			return err == nil && has.Transaction == 0
		})
		exactlyOnceThroughKills(t, "16", k)
	})
}

func exactlyOnceThroughKills(t *testing.T, postgres string, k *testenv.KafkaCluster) {
	t.Helper()
	pg := testenv.Postgres(t, postgres)
	s := newSetting(t, pg, pg.Database(t), k)
	s.source = ", slot: " + s.slot() // the server is shared
	s.extra = "delivery: {guarantee: exactly_once}"
	kills := 10
	numbers(t, map[string]*int{"WALPOST_EXACTLY_KILLS": &kills})
	w := s.follow()
	r := s.startReady()
	l := s.load(&shop.Shop{Writers: 8, Seed: 21, Pause: time.Millisecond})
	for range kills {
		w.more(t, time.Minute, 500)
		r.kill()
		r = s.start()
	}
	w.more(t, time.Minute, 500)
	l.stop()
	rep := s.settle(w, time.Minute)
	r.stopsClean()
	if !rep.OK() || rep.Duplicates > 0 {
		t.Errorf("%s", rep.String())
	}
	t.Logf("%s", rep.String())
}

// A process is frozen in the middle of a transaction, and another one takes over. When the first one wakes up, it can't end its transaction, and
// ends with the name of its successor.
func TestAFrozenProcessIsFenced(t *testing.T) {
	t.Parallel()
	pg, kafka := testenv.Postgres(t, "16"), testenv.Kafka(t)
	s := newSetting(t, pg, pg.Database(t), kafka)
	s.source = ", slot: " + s.slot() // the server is shared
	s.extra = "delivery: {guarantee: exactly_once}\nhalt_linger: 0s"
	var mu sync.Mutex
	seen := map[string]int{}
	s.consume(s.topics, func(r *kgo.Record) {
		mu.Lock()
		defer mu.Unlock()
		seen[string(r.Value)]++
	})
	total := func(n int) {
		t.Helper()
		eventually(t, time.Minute, fmt.Sprintf("%d events arrived", n), func() bool {
			mu.Lock()
			defer mu.Unlock()
			return len(seen) >= n
		})
	}
	waitsFor := func(r *relay) bool {
		_, body := r.get("/readyz")
		return strings.Contains(body, "late")
	}
	first := s.startReady()
	written := 0
	write := func(typ string, n int) {
		for range n {
			written++
			pg.Exec(t, s.dsn, fmt.Sprintf(`INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload) VALUES ('%s', 'k', 'made', '%d')`, typ, written))
		}
	}
	write("order", 10)
	total(10)
	write("late", 1) // waits for its topic, and with it the transaction
	write("order", 10)
	eventually(t, time.Minute, "the first process waits", func() bool { return waitsFor(first) })
	signal := func(sig syscall.Signal) {
		if err := first.cmd.Process.Signal(sig); err != nil {
			t.Fatal(err)
		}
	}
	signal(syscall.SIGSTOP)
	pg.Exec(t, s.dsn, "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE active AND database = current_database()")
	second := s.start()
	eventually(t, time.Minute, "the second process waits", func() bool { return waitsFor(second) })
	kafka.CreateTopic(t, s.prefix+"late", 1, nil)
	total(20)
	signal(syscall.SIGCONT)
	if code := first.wait(time.Minute); code != 3 || !strings.Contains(first.log.String(), "another process has taken over: holder") {
		t.Errorf("the first process: exit code %d\n%s", code, first.log)
	}
	write("order", 10)
	total(30)
	second.stopsClean()
	mu.Lock()
	defer mu.Unlock()
	for value, n := range seen {
		if n != 1 {
			t.Errorf("event %s arrived %d times", value, n)
		}
	}
}
