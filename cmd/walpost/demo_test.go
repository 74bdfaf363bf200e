package main

import (
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/walpost/walpost/internal/testenv/short"
)

func TestDemoChecksItselfAndLeavesNothing(t *testing.T) {
	short.Skip(t, "servers")
	tmp, err := os.MkdirTemp("", "demo-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(tmp) })  // nothing is in it, if the test passes
	if err := os.Chmod(tmp, 0o755); err != nil { // as root the server runs as another user
		t.Fatal(err)
	}
	const nothing = "check: 0 committed, 0 arrived: "
	var out []byte
	for length := 4 * time.Second; length <= 2*time.Minute; length *= 2 { // the time runs from the relay's creation, which may take long
		cmd := exec.Command("walpost", "demo", "--for", length.String())
		cmd.Env = append(os.Environ(), "TMPDIR="+tmp)
		if out, err = cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		if !strings.Contains(string(out), nothing) {
			break
		}
	}
	for _, want := range []string{"status page  http://127.0.0.1:", " committed, ", "commit to ack p50", "slot lag", " 0 lost,", " 0 duplicates", "check: ok: everything that was committed arrived once, in order per key"} {
		if !strings.Contains(string(out), want) {
			t.Errorf("the output lacks %q", want)
		}
	}
	if strings.Contains(string(out), nothing) {
		t.Error("nothing was committed: the check proves nothing")
	}
	left, err := os.ReadDir(tmp)
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	if t.Failed() {
		t.Logf("output:\n%s", out)
	}
}
