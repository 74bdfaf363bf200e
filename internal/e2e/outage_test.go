package e2e

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/walpost/walpost/internal/shop"
	"github.com/walpost/walpost/internal/testenv"
)

// While Kafka is down nothing can be confirmed, and the server still has to hear from us, or it ends the stream.
func TestKafkaDownKeepsSessionAndMemory(t *testing.T) {
	t.Parallel()
	const timeout, most, growth = 10 * time.Second, 250 * mib, 40 * mib
	pg := testenv.Postgres(t, "15", testenv.Private(), testenv.Param("wal_sender_timeout", timeout.String()))
	kafka := testenv.KafkaPrivate(t, 1, nil)
	s := newSetting(t, pg, pg.Database(t), kafka)
	const window = 10_000
	r := s.startReady("--window-events", "10000")
	w := s.follow()
	work := s.load(&shop.Shop{Writers: 4, Seed: 3, Pause: 30 * time.Millisecond})
	w.more(t, time.Minute, 1000)
	pid := s.walsender(pg)

	if err := kafka.Stop(); err != nil {
		t.Fatal(err)
	}
	down, committed := time.Now(), work.Committed()
	reason := r.notReady(20*time.Second, kafka.Brokers()[0])
	t.Logf("not ready %s after Kafka was gone: %s", time.Since(down).Round(time.Millisecond), reason)
	if code, out := s.command("status", "--http", strings.TrimPrefix(r.page, "http://")); code != 1 || !strings.Contains(out, "the relay is not ready (stalled): delivery waits: ") {
		t.Errorf("walpost status while delivery is stalled: code %d\n%s", code, out)
	}
	// From the full window on, memory has no reason to grow.
	eventually(t, time.Minute, "the window is full", func() bool { return r.metric("walpost_in_flight_events") >= window })
	early, _ := r.rss()
	full := time.Now()
	// Twice wal_sender_timeout with the window full, so that neither reading nor acknowledgements keep the session alive.
	for time.Since(full) < 2*timeout {
		if now := s.walsender(pg); now != pid {
			t.Fatalf("%s after Kafka was gone walsender %s became %q", time.Since(down), pid, now)
		}
		time.Sleep(200 * time.Millisecond)
	}
	late, peak := r.rss()
	t.Logf("%d rows committed while Kafka was down for %s; memory %d MiB when the window was full, %d MiB at the end, peak %d MiB",
		work.Committed()-committed, time.Since(down).Round(time.Second), early/mib, late/mib, peak/mib)
	if late-early > growth || peak > most {
		t.Errorf("memory is not flat: %d MiB when the window was full, %d MiB %s later, peak %d MiB", early/mib, late/mib, 2*timeout, peak/mib)
	}
	r.notReady(time.Second, kafka.Brokers()[0])
	for line := range strings.Lines(r.log.String()) {
		if reason = line; strings.Contains(line, "delivery stalled") && strings.Contains(line, "refused") {
			break
		}
	}
	if !strings.Contains(reason, "refused") || strings.Contains(reason, `"for":"1m`) {
		t.Errorf("the log names the cause of the outage a minute late: %s", reason)
	}

	kafka.Start(t)
	up := time.Now()
	w.more(t, time.Minute, 1)
	t.Logf("delivery goes on %s after Kafka was back", time.Since(up).Round(time.Millisecond))
	work.stop()
	s.onceEach(w, 2*time.Minute)
	if now := s.walsender(pg); now != pid {
		t.Errorf("walsender %s became %q", pid, now)
	}
	eventually(t, 30*time.Second, "ready", r.ready)
	r.stopsClean()
}

// A server that stops waits for the confirmation of all it has sent, without end, while we cannot give it.
func TestPostgresStopsWhileKafkaIsDown(t *testing.T) {
	t.Parallel()
	pg, kafka := testenv.Postgres(t, "15", testenv.Private()), testenv.KafkaPrivate(t, 1, nil)
	for _, c := range []struct {
		name   string
		args   []string
		flying float64 // events
	}{
		{name: "window not full", flying: 500},
		{name: "window full", args: []string{"--window-events", "100"}, flying: 100},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newSetting(t, pg, pg.Database(t), kafka)
			r := s.startReady(c.args...)
			w := s.follow()
			write := func(from, to int) {
				pg.Exec(t, s.dsn, `INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload)
					SELECT 'order', 'k' || i % 10, 'Changed', jsonb_build_object('n', 1 + i / 10) FROM generate_series(`+strconv.Itoa(from)+`, `+strconv.Itoa(to)+` - 1) i ORDER BY i`)
			}
			write(0, 50)
			w.total(t, time.Minute, 50)
			if err := kafka.Stop(); err != nil {
				t.Fatal(err)
			}
			for i := 50; i < 550; i += 10 {
				write(i, i+10)
			}
			eventually(t, time.Minute, "rows are in flight", func() bool { return r.metric("walpost_in_flight_events") >= c.flying })
			from := time.Now()
			if err := pg.Stop("fast", patience); err != nil {
				t.Fatalf("pg_ctl stop -m fast: %v", err)
			}
			t.Logf("Postgres stopped within %s", time.Since(from).Round(time.Millisecond))
			reason := r.notReady(20*time.Second, "")
			t.Logf("not ready: %s", reason)
			pg.Start(t)
			kafka.Start(t)
			s.onceEach(w, time.Minute)
			eventually(t, 30*time.Second, "ready", r.ready)
			r.stopsClean()
		})
	}
}
