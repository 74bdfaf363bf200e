package e2e

import (
	"strings"
	"testing"
	"time"

	"github.com/walpost/walpost/internal/testenv"
)

// From claim to the WAL and back, while 16 writers go on: nothing is lost, nothing comes twice, and the order per key is kept. One step is
// refused. The way is by the strategy cursor, with which no relay runs in between.
func TestSwitchingBetweenClaimAndTheWAL(t *testing.T) {
	t.Parallel()
	pg, kafka := testenv.Postgres(t, "17", testenv.Private()), testenv.Kafka(t)
	s := newSetting(t, pg, pg.Database(t), kafka)
	s.extra = "halt_linger: 0s\n"
	s.claimed(pg, "claim", "")
	claims, streams := s.source, ", order_column: n, time_column: created_at"
	w := s.follow()
	writers := 16
	numbers(t, map[string]*int{"WALPOST_POLL_WRITERS": &writers})
	r := s.startReady()
	c := s.crowd(writers, 40)
	change := func(to string) {
		t.Helper()
		w.more(t, time.Minute, 50)
		r.stopsClean()
		s.source = to
		if code, out := s.command("recover", "--yes"); code != 2 || !strings.Contains(out, "in one step") || !strings.Contains(out, "cursor") {
			t.Fatalf("in one step: code %d\n%s", code, out)
		}
		for _, source := range []string{strings.Replace(claims, "strategy: claim", "strategy: cursor", 1), to} {
			s.source = source
			if code, out := s.command("recover", "--yes"); code != 0 {
				t.Fatalf("recover with %s: code %d\n%s", source, code, out)
			}
		}
		r = s.startReady()
		w.more(t, time.Minute, 50)
	}
	change(streams)
	change(claims)
	pg.Exec(t, s.dsn, "SELECT pg_drop_replication_slot('walpost')")
	c.stop()
	s.onceEach(w, 2*time.Minute)
	eventually(t, time.Minute, "every row is finished", func() bool {
		return pg.Value(t, s.dsn, "SELECT count(*) FROM outbox WHERE finished_at IS NULL") == "0"
	})
	r.stopsClean()
}
