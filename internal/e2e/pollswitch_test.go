package e2e

import (
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/walpost/walpost/internal/testenv"
)

// From polling to the WAL and back, while 16 writers go on: nothing is lost, nothing comes twice, and the order per key is kept. A
// transaction is open over the change to polling, and other rows with higher ids are delivered before it commits.
func TestSwitchingBetweenPollingAndTheWAL(t *testing.T) {
	t.Parallel()
	pg, kafka := testenv.Postgres(t, "17", testenv.Private()), testenv.Kafka(t)
	s := newSetting(t, pg, pg.Database(t), kafka)
	s.extra = "halt_linger: 0s\n"
	s.polled(pg, "")
	polls, streams := s.source, ", order_column: n, time_column: created_at"
	w := s.follow()
	writers, rounds := 16, 1
	numbers(t, map[string]*int{"WALPOST_POLL_WRITERS": &writers, "WALPOST_POLL_ROUNDS": &rounds})
	r := s.startReady()
	c := s.crowd(writers, 3)
	recovers := func(source, told string, then func()) {
		t.Helper()
		former := s.source
		s.source = source
		if code, out := s.command("recover", "--yes"); code != 2 || !strings.Contains(out, "the relay runs with its former configuration") {
			t.Fatalf("beside the former relay: code %d\n%s", code, out)
		}
		s.source = former
		r.stopsClean()
		s.source = source
		r = s.start()
		if code := r.wait(time.Minute); code != 3 || !strings.Contains(r.log.String(), "walpost recover") {
			t.Fatalf("run without a recover: code %d\n%s", code, r.log)
		}
		code, out := s.command("recover", "--yes")
		if code != 0 || !strings.Contains(out, told) {
			t.Fatalf("recover: code %d\n%s", code, out)
		}
		t.Logf("recover:\n%s", out)
		r = s.startReady()
		then()
		w.more(t, time.Minute, 50)
	}
	for range rounds {
		w.more(t, time.Minute, 50)
		recovers(streams, "recovered: ", func() {})
		long, err := pgx.Connect(t.Context(), s.dsn)
		if err != nil {
			t.Fatal(err)
		}
		insert := `INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload) VALUES ('order', 'long', 'Changed', '{"n": 1}')`
		testenv.Run(t, long, "BEGIN", "SELECT pg_current_xact_id()")
		w.more(t, time.Minute, 20) // with higher ids
		recovers(polls, "SELECT pg_drop_replication_slot", func() { testenv.Run(t, long, "SAVEPOINT a", insert, "COMMIT") })
		pg.Exec(t, s.dsn, "SELECT pg_drop_replication_slot('walpost')")
		_ = long.Close(t.Context()) // it was used
	}
	w.more(t, time.Minute, 50)
	c.stop()
	s.onceEach(w, 2*time.Minute)
	r.stopsClean()
}
