package e2e

import (
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/walpost/walpost/internal/testenv"
)

// A parked key is listed, and a retry has the running relay deliver its events in order. A dropped event is left out. A drop and a retry
// that are killed can be given again.
func TestARetryReleasesAParkedKey(t *testing.T) {
	t.Parallel()
	s := newParkedSetting(t, testenv.Postgres(t, "16", testenv.Private()), testenv.Kafka(t), "on_poison: park_key")
	s.name = `""` // verify finds the events under the name that walpost run gave itself
	r := s.parkThree()
	if out := s.does("dead", "list"); !strings.HasSuffix(out, "events: 3\n") || strings.Count(out, " parked ") != 3 || strings.Count(out, " behind ") != 1 {
		t.Errorf("dead list\n%s", out)
	}
	killed := func(args ...string) {
		t.Helper()
		for _, after := range []time.Duration{200, 400, 600} {
			cmd := exec.Command(program, append(args, "--config", s.config())...)
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			time.Sleep(after * time.Millisecond)
			_ = cmd.Process.Kill() // it may have ended
			_ = cmd.Wait()
		}
	}
	listed := s.list()
	drop := []string{"dead", "drop", "--reason", "a test", listed[3].Token}
	killed(drop...)
	s.does(drop...)
	if out := s.does("verify"); !strings.Contains(out, "parked event: 2") || !strings.Contains(out, "dropped by a person: 1") {
		t.Errorf("verify\n%s", out)
	}
	if out := s.does("replay", "--all", "--unordered", "--dry-run"); !strings.Contains(out, "because their events are parked (walpost dead retry delivers them in order): 2\n") {
		t.Errorf("replay\n%s", out)
	}
	s.holds(r, 2)
	if code, out := s.command("dead", "retry", "--key", "a", "--wait"); code != 1 || !strings.Contains(out, "refused again: 1") || strings.Contains(out, "delivered by the relay") {
		t.Errorf("retry before the cause is mended: code %d\n%s", code, out)
	}
	s.kafka.Grow(t, 3, s.topics[0])
	killed("dead", "retry", "--all", "--wait")
	s.release()
	s.holds(r, 0)
	s.insert(6, 0, "a")
	s.arrives(s.topics[0], "1 4 6 2 5")
	if out := s.does("dead", "show", listed[2].Token); !strings.Contains(out, "released: the relay has delivered the event") {
		t.Errorf("show\n%s", out)
	}
	r.stopsClean()
}
