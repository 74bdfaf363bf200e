package e2e

import (
	"strings"
	"testing"
	"time"

	"github.com/walpost/walpost/internal/testenv"
)

// Another table takes the name of the polled table, with a row of an old transaction. A relay that runs halts, a start is refused, and both
// name the gap. After the token, the printed advice finds the row.
func TestAPolledTableThatIsReplaced(t *testing.T) {
	t.Parallel()
	pg, kafka := testenv.Postgres(t, "17"), testenv.Kafka(t)
	for _, strategy := range []string{"cursor", "claim"} {
		t.Run(strategy, func(t *testing.T) {
			t.Parallel()
			s := newSetting(t, pg, pg.Database(t), kafka)
			s.extra = "halt_linger: 0s\nmonitor: {interval: 1s}\n"
			s.polled(pg, "")
			if strategy == "claim" {
				s.source = strings.Replace(s.source, "poll: {xid_column: xid, ", "poll: {strategy: claim, ", 1)
				s.setUp(pg)
			}
			w := s.follow()
			pg.Exec(t, s.dsn, "CREATE TABLE next (LIKE outbox INCLUDING ALL)")
			hidden := pg.Value(t, s.dsn, `INSERT INTO next (aggregate_type, aggregate_id, event_type, payload) VALUES ('order', 'h', 'Changed', '{"n": 1}') RETURNING id::text`)
			r := s.startReady()
			first := s.insert(pg, "a", 1)
			eventually(t, time.Minute, "the first event", func() bool { return w.ledger.Seen(first) == 1 })
			pg.Exec(t, s.dsn, "BEGIN; ALTER TABLE outbox RENAME TO before; ALTER TABLE next RENAME TO outbox; COMMIT")
			if code := r.wait(time.Minute); code != 3 || !strings.Contains(r.log.String(), "is a different table") {
				t.Fatalf("code %d\n%s", code, r.log)
			}
			r = s.start()
			if code := r.wait(time.Minute); code != 3 {
				t.Fatalf("code %d\n%s", code, r.log)
			}
			token := tokenInHint.FindStringSubmatch(hintOf(r.log.String()))
			if token == nil {
				t.Fatalf("no token:\n%s", r.log)
			}
			pg.Exec(t, s.dsn, "BEGIN; ALTER TABLE outbox RENAME TO next; ALTER TABLE before RENAME TO outbox; COMMIT")
			r = s.startReady() // as before
			r.stopsClean()
			pg.Exec(t, s.dsn, "BEGIN; ALTER TABLE outbox RENAME TO before; ALTER TABLE next RENAME TO outbox; COMMIT")
			r = s.startReady("--accept-gap=" + token[1])
			after := s.insert(pg, "a", 2)
			eventually(t, time.Minute, "an event of the new table", func() bool { return w.ledger.Seen(after) == 1 })
			if strategy == "claim" { // the row says that it is not delivered
				eventually(t, time.Minute, "the row from before", func() bool { return w.ledger.Seen(hidden) == 1 })
			} else if _, out := s.verify(); !strings.Contains(out, "walpost replay --id "+hidden) {
				t.Errorf("verify does not print what publishes %s:\n%s", hidden, out)
			}
			r.stopsClean()
		})
	}
}
