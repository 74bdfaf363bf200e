package e2e

import (
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/walpost/walpost/internal/testenv"
)

// A process that stands still, a broker that is killed, a transaction larger than a range, and a row that cannot be routed: nothing is lost,
// and the order per key is kept.
func TestPollingThroughPausesBrokersAndBadRows(t *testing.T) {
	t.Parallel()
	pg := testenv.Postgres(t, "17", testenv.Private())
	kafka := testenv.KafkaPrivate(t, 1, nil)
	s := newSetting(t, pg, pg.Database(t), kafka)
	s.extra = "halt_linger: 0s\n"
	s.polled(pg, "")
	pg.Exec(t, s.dsn, "ALTER TABLE outbox ALTER COLUMN aggregate_type DROP NOT NULL")
	w := s.follow()
	writers, rounds, large := 16, 1, 12_000
	numbers(t, map[string]*int{"WALPOST_POLL_WRITERS": &writers, "WALPOST_POLL_ROUNDS": &rounds, "WALPOST_POLL_LARGE": &large})
	r := s.startReady()
	c := s.crowd(writers, 5)
	signal := func(what syscall.Signal) {
		t.Helper()
		if err := r.cmd.Process.Signal(what); err != nil {
			t.Fatal(err)
		}
	}
	for range rounds {
		w.more(t, time.Minute, 50)
		signal(syscall.SIGSTOP)
		time.Sleep(3 * time.Second)
		signal(syscall.SIGCONT)
		w.more(t, time.Minute, 50)

		if err := kafka.Kill(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Second)
		kafka.Start(t)
		w.more(t, 2*time.Minute, 50)

		conn := testenv.Conn(t, s.dsn)
		for _, sql := range []string{"BEGIN", "SAVEPOINT a", "", "RELEASE a", "SAVEPOINT b", "", "COMMIT"} {
			if sql == "" {
				if _, err := conn.Exec(t.Context(), `WITH c AS (UPDATE counters SET n = n + $1 WHERE key = 'k1' RETURNING n)
 INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload) SELECT 'order', 'k1', 'Changed', json_build_object('n', n - $1 + i) FROM c, generate_series(1, $1::int) i ORDER BY i`, large/2); err != nil {
					t.Fatal(err)
				}
				continue
			}
			testenv.Run(t, conn, sql)
		}
		w.more(t, 2*time.Minute, large/2)

		bad := pg.Value(t, s.dsn, "INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload) VALUES (NULL, 'bad', 'Changed', '{}') RETURNING id::text")
		if code := r.wait(time.Minute); code != 3 || !strings.Contains(r.log.String(), bad) {
			t.Fatalf("a row that cannot be routed: code %d\n%s", code, r.log)
		}
		r = s.start()
		if code := r.wait(time.Minute); code != 3 {
			t.Fatalf("started again: code %d\n%s", code, r.log)
		}
		token := regexp.MustCompile(`walpost skip (\S+)`).FindStringSubmatch(r.log.String())
		if token == nil {
			t.Fatalf("no token:\n%s", r.log)
		}
		if code, out := s.command("skip", "--discard", "--reason", "a test", token[1]); code != 0 {
			t.Fatalf("skip: code %d\n%s", code, out)
		}
		r = s.startReady()
		w.more(t, time.Minute, 50)
		pg.Exec(t, s.dsn, "DELETE FROM outbox WHERE aggregate_type IS NULL")
	}
	c.stop()
	if rep := s.settle(w, 2*time.Minute); rep.Lost+rep.Invented+rep.Disordered+rep.Changed+rep.Moved > 0 {
		t.Errorf("broken promises: %s", &rep)
	}
	r.stopsClean()
}
