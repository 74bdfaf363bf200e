package deploy

import (
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/walpost/walpost"
)

const unit = "systemd/walpost.service"

// TestTheUnitIsHardened: 2.0 is where systemd-analyze ends to call a service well protected.
func TestTheUnitIsHardened(t *testing.T) {
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		if os.Getenv("WALPOST_REQUIRE_SYSTEMD") != "" {
			t.Fatal("WALPOST_REQUIRE_SYSTEMD is set: ", err)
		}
		t.Skip("no systemd-analyze: the unit is not examined")
	}
	out, err := exec.CommandContext(t.Context(), analyze, "security", "--offline=true", "--no-pager", unit).CombinedOutput()
	found := regexp.MustCompile(`Overall exposure level for walpost.service: (\S+)`).FindSubmatch(out)
	if err != nil || found == nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if level, err := strconv.ParseFloat(string(found[1]), 64); err != nil || level >= 2.0 {
		t.Errorf("the exposure is %s, must be below 2.0:\n%s", found[1], out)
	}
	// systemd-analyze verify also looks for the program and the manual, which are not installed here.
	out, _ = exec.CommandContext(t.Context(), analyze, "verify", unit).CombinedOutput()
	for line := range strings.Lines(string(out)) {
		if !strings.Contains(line, "/usr/bin/walpost is not executable") && !strings.Contains(line, "man walpost(1)") {
			t.Errorf("systemd-analyze verify: %s", line)
		}
	}
}

// TestTheUnitFitsTheProgram: systemd must not kill a relay that waits for acknowledgements, and must not start a relay again that needs
// a person.
func TestTheUnitFitsTheProgram(t *testing.T) {
	text, err := os.ReadFile(unit)
	if err != nil {
		t.Fatal(err)
	}
	value := func(key string) string {
		found := regexp.MustCompile(`(?m)^` + key + `=(.*)$`).FindSubmatch(text)
		if found == nil {
			t.Fatalf("%s is missing", key)
		}
		return string(found[1])
	}
	if got := value("RestartPreventExitStatus"); got != "2 3" {
		t.Errorf("RestartPreventExitStatus is %s: 2 and 3 need a person", got)
	}
	limit, err := time.ParseDuration(value("TimeoutStopSec"))
	if grace := walpost.DefaultConfig().ShutdownGrace; err != nil || limit < grace+20*time.Second {
		t.Errorf("TimeoutStopSec is %s (%v), must be 20 s longer than shutdown_grace, %s", limit, err, grace)
	}
	if value("Type") != "notify" || value("WatchdogSec") == "" {
		t.Error("the service reports itself, so systemd must wait for that")
	}
}
