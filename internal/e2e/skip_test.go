package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// skipCommand finds the command in a hint.
func skipCommand(t *testing.T, log string) string {
	t.Helper()
	_, command, ok := strings.Cut(hintOf(log), "instead, run ")
	command, _, end := strings.Cut(command, " and start")
	if !ok || !end {
		t.Fatalf("no command: %s", hintOf(log))
	}
	return command
}

// A relay holds the file until it ends, also while it is halted. The command that the hint prints is pasted into a shell.
func TestSkipWithTheFileStore(t *testing.T) {
	t.Parallel()
	for _, ends := range []string{"is stopped", "is killed"} {
		t.Run(ends, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, "15")
			path := filepath.Join(t.TempDir(), "position")
			w.extra = fmt.Sprintf("halt_linger: forever\ncheckpoint: {store: file, path: %q}\n", path)
			w.exec("ALTER TABLE outbox ALTER aggregate_type DROP NOT NULL")
			r := w.startReady()
			good := w.insert(5)
			bad := w.pg.Value(t, w.dsn, "INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload) VALUES (NULL, 'k1', 'made', '{}') RETURNING id::text")
			after := w.insert(5)
			eventually(t, 30*time.Second, "halted", func() bool { return r.view().State == "halted" })
			w.arrive(good)
			shell := exec.Command("sh", "-c", skipCommand(t, r.log.String()))
			shell.Env = append(os.Environ(), "PATH="+filepath.Dir(program)+":"+os.Getenv("PATH"))
			again := *shell
			if out, err := shell.CombinedOutput(); shell.ProcessState.ExitCode() != 1 || !strings.Contains(string(out), "is used by another process") {
				t.Errorf("beside the halted relay: %v\n%s", err, out)
			}
			if ends == "is killed" {
				r.kill()
			} else if code := r.stop(); code != 3 {
				t.Errorf("exit code %d", code)
			}
			before, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if code, out := w.command("skip", "0-1-1-00000000"); code != 2 || !strings.Contains(out, ": event "+bad) {
				t.Errorf("another token: code %d\n%s", code, out)
			}
			if left, err := os.ReadFile(path); err != nil || string(left) != string(before) {
				t.Errorf("another token changed the file: %v\n%s", err, left)
			}
			if out, err := again.CombinedOutput(); err != nil || !strings.Contains(string(out), "passes over event "+bad+" of public.outbox in transaction 0/") {
				t.Fatalf("the printed command: %v\n%s", err, out)
			}
			r = w.startReady()
			w.arrive(after)
			w.arrive(w.insert(5))
			eventually(t, 10*time.Second, "one event is counted as skipped", func() bool { return r.metric("walpost_events_skipped_total") == 1 })
			if n := w.arrived([]string{bad}); n > 0 {
				t.Error("the event that was passed over arrived")
			}
			eventually(t, 60*time.Second, "nothing of the halt is left in the file", func() bool {
				text, err := os.ReadFile(path)
				return err == nil && !strings.Contains(string(text), "/halt/") && !strings.Contains(string(text), "/skip/")
			})
			w.stopCleanly(r)
		})
	}
}
