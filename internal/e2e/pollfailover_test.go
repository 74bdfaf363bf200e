package e2e

import (
	"strings"
	"testing"
	"time"

	"github.com/walpost/walpost/internal/testenv"
)

// The new server of a failover lacks delivered rows, and gives the ids of their transactions to rows that nobody has delivered. A
// change of the source would take these rows for delivered, so it waits until a person has accepted the gap.
func TestAChangeOfTheSourceAfterALossyFailover(t *testing.T) {
	t.Parallel()
	primary := testenv.Postgres(t, "17", testenv.Private())
	standby := primary.Standby(t)
	s := newSetting(t, primary, primary.Database(t), testenv.Kafka(t))
	s.extra = "halt_linger: 0s\n"
	s.polled(primary, "")
	cursor := s.source
	claim, streams := strings.Replace(cursor, "poll: {", "poll: {strategy: claim, ", 1), ", order_column: n, time_column: created_at"
	s.source = claim
	if code, out := s.command("setup", "--apply"); code != 0 {
		t.Fatalf("setup: code %d\n%s", code, out)
	}
	primary.Exec(t, s.dsn, "ALTER TABLE outbox ADD COLUMN other xid8 NOT NULL DEFAULT pg_current_xact_id()")
	s.source = cursor
	w := s.follow()
	r := s.startReady()
	const lost = 20
	s.losePrimary(w, r, primary, standby, lost)
	s.insert(standby, "b", 1) // with the id of a delivered row
	for _, source := range []string{claim, streams, strings.Replace(cursor, "xid_column: xid", "xid_column: other", 1)} {
		s.source = source
		code, out := s.command("recover", "--yes")
		if code != 3 || !strings.Contains(out, "left timeline 1 at") || !strings.Contains(out, "source.poll.xid_column back") || source == claim && strings.Contains(out, "accept-gap") {
			t.Errorf("recover with%s: code %d\n%s", source, code, out)
		}
	}
	if n := standby.Value(t, s.dsn, "SELECT count(*) FROM outbox WHERE finished_at IS NOT NULL"); n != "0" {
		t.Errorf("%s rows are marked as delivered", n)
	}
	s.source = cursor
	r = s.start()
	if code := r.wait(time.Minute); code != 3 {
		t.Fatalf("code %d:\n%s", code, r.log)
	}
	r = s.startReady("--accept-gap=" + tokenInHint.FindStringSubmatch(r.log.String())[1])
	s.insert(standby, "b", 2)
	eventually(t, time.Minute, "the event behind the gap", func() bool { return w.count() == 2+lost })
	r.stopsClean()
	last := s.insert(standby, "b", 3)
	s.source = claim
	if code, out := s.command("recover", "--yes"); code != 0 {
		t.Fatalf("recover: code %d\n%s", code, out)
	}
	r = s.startReady()
	eventually(t, time.Minute, "the event behind the change", func() bool { return w.ledger.Seen(last) == 1 })
	r.stopsClean()
}
