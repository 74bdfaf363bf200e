package e2e

import (
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/walpost/walpost/internal/testenv"
)

// Restarts at which Debezium has lost events, by its issue. It looked for the place where it had stopped by the positions of
// changes. These are neither unique nor ascending.
func TestRestartsAtWhichDebeziumLostEvents(t *testing.T) {
	t.Parallel()
	pg, kafka := testenv.Postgres(t, "17"), testenv.Kafka(t)
	settings := 0
	begin := func(t *testing.T, window int) (*setting, *watch) {
		s := newSetting(t, pg, pg.Database(t), kafka)
		settings++
		s.source = fmt.Sprintf(", slot: restarts_%d", settings)
		s.extra = fmt.Sprintf("delivery: {window: {events: %d}}", window)
		return s, s.follow()
	}
	insert := func(key string, n int) string {
		return fmt.Sprintf(`INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload) VALUES ('order', '%s', 'Changed', '{"n": %d}')`, key, n)
	}

	t.Run("dbz#1554: rows of a COPY share a position", func(t *testing.T) {
		s, w := begin(t, 5)
		r, conn, torn := s.startReady(), testenv.Conn(t, s.dsn), 0
		for try := range 3 {
			const rows = 500
			_, err := conn.CopyFrom(t.Context(), pgx.Identifier{"outbox"}, []string{"aggregate_type", "aggregate_id", "event_type", "payload"},
				pgx.CopyFromSlice(rows, func(i int) ([]any, error) {
					return []any{"order", fmt.Sprintf("%d-%d", try, i%7), "Changed", map[string]int{"n": i/7 + 1}}, nil
				}))
			if err != nil {
				t.Fatal(err)
			}
			w.more(t, patience, 1)
			r.kill()
			if w.count() < rows*(try+1) {
				torn++
			}
			r = s.startReady()
		}
		s.noLoss(w, patience)
		if torn == 0 {
			t.Error("no kill came inside a COPY: this says nothing")
		}
	})

	for _, how := range []string{"stop", "kill"} {
		t.Run("dbz#51, dbz#76: a transaction is in progress, "+how, func(t *testing.T) {
			s, w := begin(t, 100)
			r, open := s.startReady(), testenv.Conn(t, s.dsn)
			for n := range 3 {
				testenv.Run(t, open, "BEGIN", insert("open", n+1))
				w.expect("other")
				pg.Exec(t, s.dsn, insert("other", n+1))
				eventually(t, patience, "the other event", func() bool { return w.expected() == 0 })
				if how == "kill" {
					r.kill()
				} else {
					r.stopsClean()
				}
				testenv.Run(t, open, "COMMIT")
				r = s.startReady()
			}
			s.noLoss(w, patience)
		})
	}

	t.Run("DBZ-5915, DBZ-6204: a transaction begins where the one before ends", func(t *testing.T) {
		s, w := begin(t, 100)
		for n := range 4 {
			r := s.startReady()
			w.expect("order")
			pg.Exec(t, s.dsn, insert("order", 2*n+1))
			eventually(t, patience, "the event", func() bool { return w.expected() == 0 })
			r.stopsClean()
			pg.Exec(t, s.dsn, insert("order", 2*n+2))
		}
		s.startReady()
		s.onceEach(w, time.Minute)
	})
}
