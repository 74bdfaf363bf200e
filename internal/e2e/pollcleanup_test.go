package e2e

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/walpost/walpost/internal/testenv"
)

// The cleanup removes what is delivered, and no row that waits for a transaction.
func TestTheCleanupOfAPolledTable(t *testing.T) {
	t.Parallel()
	pg, kafka := testenv.Postgres(t, "17", testenv.Private()), testenv.Kafka(t)
	s := newSetting(t, pg, pg.Database(t), kafka)
	s.extra = "cleanup: {mode: delete, keep: 0s}\n"
	s.polled(pg, "")
	w := s.follow()
	r := s.startReady()
	insert := `INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload) VALUES ('order', 'a', 'Changed', '{"n": 1}')`
	rows := func() string { return pg.Value(t, s.dsn, "SELECT count(*)::text FROM outbox") }
	pg.Exec(t, s.dsn, insert, insert)
	eventually(t, time.Minute, "two events", func() bool { return w.count() == 2 })
	eventually(t, time.Minute, "an empty table", func() bool { return rows() == "0" })
	eventually(t, time.Minute, "both rows are counted", func() bool { return r.metric("walpost_cleanup_rows_total") == 2 })
	long, err := pgx.Connect(t.Context(), s.dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer long.Close(t.Context()) //nolint:errcheck // it was used
	testenv.Run(t, long, "BEGIN", "SAVEPOINT a", insert)
	pg.Exec(t, s.dsn, insert)
	// The cleaner passes meanwhile, and finds nothing that it may remove.
	removed, from := r.metric("walpost_cleanup_rows_total"), r.metric("walpost_cleanup_last_success_timestamp_seconds")
	eventually(t, time.Minute, "another pass", func() bool { return r.metric("walpost_cleanup_last_success_timestamp_seconds") > from })
	if rows() != "1" || r.metric("walpost_cleanup_rows_total") != removed {
		t.Errorf("%s rows are left, must be 1", rows())
	}
	testenv.Run(t, long, "RELEASE a", "COMMIT")
	eventually(t, time.Minute, "four events", func() bool { return w.count() == 4 })
	eventually(t, time.Minute, "an empty table again", func() bool { return rows() == "0" })
	r.stopsClean()
}

// TestTheReplayOfAPolledTable: replay reads the table as it does beside a slot.
func TestTheReplayOfAPolledTable(t *testing.T) {
	t.Parallel()
	pg, kafka := testenv.Postgres(t, "17"), testenv.Kafka(t)
	s := newSetting(t, pg, pg.Database(t), kafka)
	s.polled(pg, "")
	w := s.follow()
	r := s.startReady()
	pg.Exec(t, s.dsn, `INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload) SELECT 'order', 'a', 'Changed', json_build_object('n', i) FROM generate_series(1, 3) i`)
	eventually(t, time.Minute, "three events", func() bool { return w.count() == 3 })
	code, out := s.command("replay", "--all", "--state", t.TempDir()+"/replay")
	if code != 0 {
		t.Fatalf("code %d\n%s", code, out)
	}
	eventually(t, time.Minute, "the same events again", func() bool { return w.count() == 6 })
	r.stopsClean()
}
