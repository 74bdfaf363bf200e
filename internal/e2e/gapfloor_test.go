package e2e

import (
	"strings"
	"testing"
	"time"

	"github.com/walpost/walpost/internal/testenv"
)

// The new server of a failover has rows that the accepted gap leaves out. The cleanup keeps them until the printed advice has published
// them and a person has closed the gap, also over a restart and another name of the table.
func TestTheCleanupKeepsTheRowsOfAnAcceptedGap(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"wal", "cursor"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			primary := testenv.Postgres(t, "17", testenv.Private())
			standby := primary.Standby(t)
			s := newSetting(t, primary, primary.Database(t), testenv.Kafka(t))
			s.extra = "halt_linger: 0s\nmonitor: {interval: 1s}\n"
			if kind == "wal" {
				primary.Exec(t, s.dsn, "ALTER TABLE outbox ADD COLUMN n bigint GENERATED ALWAYS AS IDENTITY")
				s.source = ", order_column: n, time_column: created_at"
			} else {
				s.polled(primary, "")
			}
			w := s.follow()
			r := s.startReady()
			s.losePrimary(w, r, primary, standby, 20)
			missing := s.insert(standby, "b", 1) // before anybody accepts the gap
			s.extra += "cleanup: {mode: delete, keep: 0s}\n"
			r = s.start()
			if code := r.wait(time.Minute); code != 3 {
				t.Fatalf("code %d\n%s", code, r.log)
			}
			token := tokenInHint.FindStringSubmatch(hintOf(r.log.String()))[1]
			r = s.startReady("--accept-gap=" + token)
			there := func() string { return standby.Value(t, s.dsn, "SELECT count(*) FROM outbox WHERE id = '"+missing+"'") }
			holds := func() {
				t.Helper()
				eventually(t, time.Minute, "the cleanup names the gap", func() bool {
					_, status := r.get("/api/status")
					return strings.Contains(status, "gap "+token+" was accepted")
				})
				if n := there(); n != "1" {
					t.Fatalf("%s rows are left of the gap", n)
				}
			}
			after := s.insert(standby, "b", 2)
			eventually(t, time.Minute, "the event behind the gap", func() bool { return w.ledger.Seen(after) == 1 })
			holds()
			r.stopsClean()
			standby.Exec(t, s.dsn, "ALTER TABLE outbox RENAME TO before", "ALTER TABLE before RENAME TO outbox")
			r = s.startReady()
			holds()

			_, out := s.verify()
			printed := replayPrinted.FindStringSubmatch(out)
			if printed == nil || printed[1] != "--id "+missing {
				t.Fatalf("verify does not print what publishes %s:\n%s", missing, out)
			}
			if code, out := s.command(append([]string{"replay"}, strings.Fields(printed[1])...)...); code != 0 {
				t.Fatalf("replay: code %d\n%s", code, out)
			}
			eventually(t, time.Minute, "the missing event", func() bool { return w.ledger.Seen(missing) == 1 })
			if code, out := s.command("recover", "--close-gap=0123"); code != 2 || !strings.Contains(out, token) {
				t.Errorf("another gap: code %d\n%s", code, out)
			}
			if code, out := s.command("status", "--http", strings.TrimPrefix(r.page, "http://")); !strings.Contains(out, "--close-gap="+token) {
				t.Errorf("status: code %d\n%s", code, out)
			}
			if code, out := s.command("check"); code != 0 || !strings.Contains(out, "accepted gap "+token) || !strings.Contains(out, "recover --close-gap="+token) {
				t.Errorf("check: code %d\n%s", code, out)
			}
			if code, out := s.command("recover", "--close-gap="+token); code != 0 {
				t.Fatalf("recover --close-gap: code %d\n%s", code, out)
			}
			eventually(t, time.Minute, "an empty table", func() bool { return standby.Value(t, s.dsn, "SELECT count(*) FROM outbox") == "0" })
			r.stopsClean()
			r = s.startReady()
			if code, out := s.command("check"); code != 0 || strings.Contains(out, "accepted gap") {
				t.Errorf("check: code %d\n%s", code, out)
			}
			if _, status := r.get("/api/status"); !strings.Contains(status, `"accepted_gaps": []`) {
				t.Errorf("the gap is open again: %s", status)
			}
			r.stopsClean()
		})
	}
}
