package e2e

import (
	"testing"
	"time"

	"github.com/walpost/walpost/internal/testenv"
)

// A crash in the middle of a large transaction repeats what was delivered since the newest checkpoint, and not the transaction.
func TestACrashInALargeTransactionDoesNotStartItOver(t *testing.T) {
	t.Parallel()
	pg, kafka := testenv.Postgres(t, "17"), testenv.Kafka(t)
	for _, k := range kinds[:2] { // those with a position
		t.Run(k.name, func(t *testing.T) {
			s := k.newSetting(t, pg, kafka)
			s.wired(pg).Slow(2 << 20) // so slow that there are several checkpoints on the way
			w := s.follow()
			r := s.startReady()
			const many = 120_000
			pg.Exec(t, s.dsn, `INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload)
 SELECT 'order', 'k' || i % 50, 'Changed', json_build_object('n', i) FROM generate_series(1, 120000) i`)
			eventually(t, 3*time.Minute, "the first half", func() bool { return w.count() > many/2 })
			r.kill()
			if n := w.count(); n >= many {
				t.Fatalf("all %d records were there when the relay was killed: this says nothing", n)
			}
			r = s.startReady()
			rep := s.settle(w, 3*time.Minute)
			if rep.Lost+rep.Invented+rep.Disordered+rep.Changed+rep.Moved > 0 || !k.byKey && rep.Scattered > 0 || rep.Duplicates > many/4 {
				t.Errorf("less than half of what was delivered may come twice, but: %s", &rep)
			}
			t.Logf("%d events came twice", rep.Duplicates)
			r.stopsClean()
		})
	}
}
