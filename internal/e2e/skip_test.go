package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/walpost/walpost/internal/testenv"
)

// skipCommand finds the command in a hint.
func skipCommand(t *testing.T, log string) string {
	t.Helper()
	_, command, ok := strings.Cut(hintOf(log), " Run ")
	command, _, end := strings.Cut(command, " and start")
	if !ok || !end {
		t.Fatalf("no command: %s", hintOf(log))
	}
	return command
}

// A relay holds the file until it ends, even while it is halted. The command that the hint prints is pasted into a shell.
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
			eventually(t, time.Minute, "the halt is in the file", func() bool {
				text, _ := os.ReadFile(path)
				return strings.Contains(string(text), skipInHint.FindStringSubmatch(r.log.String())[1])
			})
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
			if out, err := again.CombinedOutput(); err != nil || !strings.Contains(string(out), "skips event "+bad+" of public.outbox in transaction 0/") {
				t.Fatalf("the printed command: %v\n%s", err, out)
			}
			r = w.startReady()
			w.arrive(after)
			w.arrive(w.insert(5))
			eventually(t, 10*time.Second, "one event is counted as skipped", func() bool { return r.metric("walpost_events_skipped_total") == 1 })
			eventually(t, 10*time.Second, "the event is in the dead letter topic", func() bool {
				return r.metric(`walpost_events_total{topic="walpost.dead_letter"}`) == 1 && r.metric(`walpost_dead_letters_total{reason="unroutable"}`) == 1
			})
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

var shellBlock = regexp.MustCompile("(?s)```sh\n(.*?)```")

// Every command of the runbook of a bad event works while the relay is halted, in the order of the page, and ends the halt.
func TestTheRunbookOfABadEventWorks(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/runbooks/WalpostRelayHalted.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, values, problem string
		larger                bool // the way is a larger topic, and else to pass over the event
	}{
		{"a row that cannot be routed", "(NULL, 'k1', 'made', '{}')", "no record: ", false},
		{"a record that Kafka refuses", "('order', 'k1', 'made', (SELECT to_jsonb(string_agg(md5(i::text), '')) FROM generate_series(1, 100000) i))", "would not be delivered: ", false},
		{"a topic with a low limit", "('order', 'k1', 'made', (SELECT to_jsonb(string_agg(md5(i::text), '')) FROM generate_series(1, 100000) i))", "would not be delivered: ", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			pg, slot := testenv.Postgres(t, "15"), strings.ReplaceAll(unique("runbook"), "-", "_")
			w := worldIn(t, testenv.Kafka(t), pg, pg.Database(t), slot)
			w.extra, w.source = "halt_linger: forever\n", ", slot: "+slot
			w.exec("ALTER TABLE outbox ALTER aggregate_type DROP NOT NULL")
			r := w.startReady()
			w.arrive(w.insert(3))
			bad := w.pg.Value(t, w.dsn, "INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload) VALUES "+c.values+" RETURNING id::text")
			later := w.insert(3)
			eventually(t, 60*time.Second, "halted", func() bool { return r.view().State == "halted" })
			token := r.view().Halt.Token
			if code, out := w.command("status", "--http", strings.TrimPrefix(r.page, "http://")); code != 3 || !strings.Contains(out, bad) {
				t.Errorf("status: code %d\n%s", code, out)
			}
			ran := 0
			for _, block := range shellBlock.FindAllStringSubmatch(string(page), -1) {
				for line := range strings.Lines(block[1]) {
					command, _, _ := strings.Cut(strings.TrimPrefix(strings.TrimSpace(line), "sudo -u walpost "), " #")
					words := strings.Fields(strings.NewReplacer("--config /etc/walpost/walpost.yaml", "", "<id>", bad, "<token>", token).Replace(command))
					if len(words) == 0 {
						continue
					}
					switch ran++; words[0] + " " + words[1] {
					case "journalctl -u":
						if log := r.log.String(); !strings.Contains(log, bad) || !strings.Contains(log, token) {
							t.Errorf("%s: %s", line, log)
						}
					case "kubectl logs", "kubectl exec", "kubectl rollout": // the same in a pod
					case "walpost explain":
						if code, out := w.command(words[1:]...); code != 1 || !strings.Contains(out, "PROBLEM    "+c.problem) {
							t.Errorf("%s: code %d\n%s", line, code, out)
						}
					case "kafka-configs.sh --bootstrap-server":
						if !c.larger {
							continue
						}
						if !strings.Contains(line, "max.message.bytes=") {
							t.Fatal(line)
						}
						testenv.Kafka(t).Configure(t, "max.message.bytes", "10000000", w.prefix+"order")
						later = append(later, bad)
					case "walpost skip":
						if c.larger {
							continue
						}
						if code, out := w.command(words[1:]...); code != 0 {
							t.Errorf("%s: code %d\n%s", line, code, out)
						}
					case "systemctl restart":
						if code := r.stop(); code != 3 {
							t.Errorf("exit code %d", code)
						}
						w.startReady()
						w.arrive(later)
					default:
						t.Errorf("the runbook has another command: %s", line)
					}
				}
			}
			if ran < 9 || !c.larger && w.arrived([]string{bad}) > 0 {
				t.Errorf("%d commands; %d arrivals of the bad event", ran, w.arrived([]string{bad}))
			}
		})
	}
}
