package e2e

import (
	"fmt"
	"testing"
	"time"

	"github.com/walpost/walpost/internal/testenv"
)

// What others write moves the slot too, without a row of ours: keepalives are confirmed.
func TestIdleOutboxFollowsABusyServer(t *testing.T) {
	t.Parallel()
	const busy = 5 * time.Second
	pg, kafka := testenv.Postgres(t, "15", testenv.Private()), testenv.Kafka(t)
	s := newSetting(t, pg, pg.Database(t), kafka)
	other := pg.Database(t)
	for _, dsn := range []string{s.dsn, other} {
		pg.Exec(t, dsn, "CREATE TABLE busy (id bigserial, filler text)")
	}
	tables := func() string {
		return pg.Value(t, s.dsn, `SELECT string_agg(relname, ' ' ORDER BY relname) FROM pg_class WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace`)
	}
	before := tables()
	r := s.startReady()
	first := pg.Value(t, s.dsn, "SELECT pg_current_wal_lsn()::text")
	behind := func(lsn string) string {
		return pg.Value(t, s.dsn, "SELECT greatest($1::pg_lsn - confirmed_flush_lsn, 0)::text FROM pg_replication_slots WHERE database = current_database()", lsn)
	}
	const insert = "INSERT INTO busy (filler) SELECT repeat('x', 500) FROM generate_series(1, 200)"
	followed := false
	for least, most := time.Now().Add(busy), time.Now().Add(patience); time.Now().Before(least) || !followed && time.Now().Before(most); {
		pg.Exec(t, s.dsn, insert)
		pg.Exec(t, other, insert)
		followed = followed || behind(first) == "0" // what was written before the load, confirmed while it goes on
		time.Sleep(50 * time.Millisecond)
	}
	last := pg.Value(t, s.dsn, "SELECT pg_current_wal_lsn()::text")
	if !followed {
		t.Errorf("nothing was confirmed in %s in which others wrote", patience)
	}
	t.Logf("%s bytes written in all, %s bytes behind when the load paused", pg.Value(t, s.dsn, "SELECT ($1::pg_lsn - $2)::text", last, first), behind(last))
	paused := time.Now()
	eventually(t, 30*time.Second, "the slot confirmed all that others wrote", func() bool { return behind(last) == "0" })
	t.Logf("confirmed %s after the pause", time.Since(paused).Round(time.Millisecond))
	if after := tables(); after != before {
		t.Errorf("tables %s, before the relay ran %s", after, before)
	}
	r.stopsClean()
}

// bigTransaction commits rows outbox rows with payloads of 300 bytes in one transaction, and returns when it is committed.
func bigTransaction(t *testing.T, pg *testenv.PG, s *setting, tag string, rows int) {
	t.Helper()
	pg.Exec(t, s.dsn, fmt.Sprintf(`
		INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload)
		SELECT (ARRAY['order', 'invoice'])[1 + i %% 2], '%s-' || i %% 200, 'Changed', jsonb_build_object('n', 1 + i / 200, 'filler', repeat('x', 270))
		FROM generate_series(0, %d) i ORDER BY i`, tag, rows-1))
}

func TestBigTransactionLeavesMemoryFlat(t *testing.T) {
	t.Parallel()
	const rows, most = 500_000, 200 * mib
	pg, kafka := testenv.Postgres(t, "15", testenv.Private(), testenv.Param("wal_sender_timeout", "30s")), testenv.Kafka(t)
	s := newSetting(t, pg, pg.Database(t), kafka)
	r := s.startReady()
	w := s.follow()
	pid := s.walsender(pg)
	bigTransaction(t, pg, s, "flat", rows)
	from := time.Now()
	w.total(t, time.Minute, 1)
	_, early := r.rss()
	t.Logf("first record %s after the commit, peak memory %d MiB", time.Since(from).Round(time.Millisecond), early/mib)
	s.onceEach(w, 2*time.Minute)
	_, peak := r.rss()
	t.Logf("all after %s, peak memory %d MiB", time.Since(from).Round(time.Millisecond), peak/mib)
	if peak > most {
		t.Errorf("peak memory %d MiB, more than %d", peak/mib, most/mib)
	}
	if now := s.walsender(pg); now != pid {
		t.Errorf("walsender %s became %s: the session was lost", pid, now)
	}
	r.stopsClean()
}

// A clean stop in the midst of a transaction writes down how far it was delivered. A crash there is another test.
func TestBigTransactionIsInterrupted(t *testing.T) {
	t.Parallel()
	const rows = 60_000
	pg, kafka := testenv.Postgres(t, "15", testenv.Private(), testenv.Param("wal_sender_timeout", "5s")), testenv.Kafka(t)
	s := newSetting(t, pg, pg.Database(t), kafka)
	s.wired(pg).Slow(4 << 20)
	r := s.startReady()
	w := s.follow()

	from := time.Now()
	step := func(what string) { t.Logf("%6s %s", time.Since(from).Round(10*time.Millisecond), what) }
	events := func() float64 { return max(0, r.metric(`walpost_events_total{topic="`+s.topics[0]+`"}`)) } // the relay says it earlier than the consumer
	underWay := func(before float64) {
		eventually(t, time.Minute, "a part is delivered", func() bool { return events() > before+rows/100 })
	}
	before := events()
	bigTransaction(t, pg, s, "stopped", rows)
	step("committed")
	underWay(before)
	r.stopsClean()
	if n := w.count(); n >= rows {
		t.Errorf("all %d records were there when the relay was stopped: this says nothing", n)
	} else {
		t.Logf("stopped after about %d of %d", n, rows)
	}
	step("stopped")
	r = s.startReady()
	step("ready again")
	s.onceEach(w, time.Minute)
	step("all there")
	r.stopsClean()
}
