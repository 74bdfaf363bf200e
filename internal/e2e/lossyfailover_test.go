package e2e

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/walpost/walpost/internal/testenv"
)

var replayPrinted = regexp.MustCompile(`walpost replay (--id \S+)`)

// A standby without the slot is promoted, and lacks delivered transactions. The printed advice finds and publishes what applications
// wrote before a person accepted the gap.
func TestAfterALossyFailoverWithoutTheSlotVerifyFindsWhatIsMissing(t *testing.T) {
	t.Parallel()
	primary := testenv.Postgres(t, "16", testenv.Private())
	standby := primary.Standby(t)
	s := newSetting(t, primary, primary.Database(t), testenv.Kafka(t))
	s.source, s.extra = ", order_column: n", "halt_linger: 0s\n"
	primary.Exec(t, s.dsn, "ALTER TABLE outbox ADD COLUMN n bigint GENERATED ALWAYS AS IDENTITY")
	w := s.follow()
	r := s.startReady()
	s.losePrimary(w, r, primary, standby, 1)
	s.source += ", create: false"        // as walpost debezium convert writes
	missing := s.insert(standby, "b", 1) // before anybody accepts the gap
	r = s.start()
	if code := r.wait(time.Minute); code != 3 {
		t.Fatalf("code %d\n%s", code, r.log)
	}
	hint := hintOf(r.log.String())
	if verify, token, closing := strings.Index(hint, "run walpost verify "), strings.LastIndex(hint, "--accept-gap="), strings.Index(hint, "--close-gap="); verify < 0 || token < verify || closing < verify {
		t.Errorf("the hint: %s", hint)
	}
	if code, out := s.command("recover", "--yes"); code != 3 || !strings.Contains(out, "run walpost verify ") {
		t.Errorf("recover: code %d\n%s", code, out)
	}
	r = s.startReady("--accept-gap=" + tokenInHint.FindStringSubmatch(hint)[1])
	s.insert(standby, "b", 2)
	eventually(t, time.Minute, "the event behind the gap", func() bool { return w.count() == 3 })
	_, out := s.verify()
	printed := replayPrinted.FindStringSubmatch(out)
	if !strings.Contains(out, "DIFFERENCE missing: 1 ") || printed == nil || printed[1] != "--id "+missing {
		t.Fatalf("verify does not print what publishes %s:\n%s", missing, out)
	}
	if code, out := s.command(append([]string{"replay"}, strings.Fields(printed[1])...)...); code != 0 {
		t.Fatalf("replay: code %d\n%s", code, out)
	}
	eventually(t, time.Minute, "the missing event", func() bool { return w.ledger.Seen(missing) == 1 })
	if code, out := s.verify(); code != 0 || strings.Contains(out, "missing") {
		t.Errorf("verify: code %d\n%s", code, out)
	}
	r.stopsClean()
}

// losePrimary delivers the event a1 and then as many as lost, stops the relay, kills the primary, and promotes the standby, which lacks the
// lost ones. The setting has the standby's DSN then.
func (s *setting) losePrimary(w *watch, r *relay, primary, standby *testenv.PG, lost int) {
	t := s.t
	t.Helper()
	s.insert(primary, "a", 1)
	eventually(t, time.Minute, "the first event", func() bool { return w.count() == 1 })
	standby.CatchUp(t, primary)
	if err := standby.Stop("fast", time.Minute); err != nil {
		t.Fatal(err)
	}
	for n := range lost {
		s.insert(primary, "a", 2+n)
	}
	eventually(t, time.Minute, "the events that the standby lacks", func() bool { return w.count() == 1+lost })
	r.stopsClean()
	if err := primary.Stop("immediate", time.Minute); err != nil {
		t.Fatal(err)
	}
	standby.Start(t)
	standby.Promote(t)
	s.dsn = strings.Replace(s.dsn, fmt.Sprintf(":%d/", primary.Port()), fmt.Sprintf(":%d/", standby.Port()), 1)
}
