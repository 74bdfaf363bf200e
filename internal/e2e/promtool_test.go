package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/walpost/walpost/internal/localpg"
)

// The rules are in deploy. fire, in alerts_test.go, holds them to a real slot.
func TestPromtoolAcceptsTheRulesAndTheirTestsHold(t *testing.T) {
	t.Parallel()
	tool := promtool(t)
	if tool == "" {
		t.Skip("no promtool")
	}
	all, err := filepath.Glob("../../deploy/prometheus/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	files := slices.DeleteFunc(slices.Clone(all), func(f string) bool { return strings.HasSuffix(f, "_test.yaml") })
	tests, _ := filepath.Glob("../../deploy/prometheus/*_test.yaml")
	if len(files) < 3 || len(tests) < 4 {
		t.Fatalf("rules %v, tests %v", files, tests)
	}
	for _, args := range [][]string{append([]string{"check", "rules"}, files...), append([]string{"test", "rules"}, tests...)} {
		if out, err := exec.CommandContext(t.Context(), tool, args...).CombinedOutput(); err != nil {
			t.Errorf("promtool %s: %v\n%s", strings.Join(args[:2], " "), err, out)
		}
	}
}

// promtoolVersion is built if no promtool is installed.
const promtoolVersion = "v0.313.5" // Prometheus 3.13.5

var errNoPromtool = errors.New("SKIP: no promtool: the alert rules are not tested; WALPOST_REQUIRE_PROMTOOL=1 builds one (minutes, once)")

// promtool returns the path of a real promtool: $PROMTOOL, an installed one, or one that is built from
// its module into the cache folder, which takes two minutes on two cores, once. If there is none
// and WALPOST_REQUIRE_PROMTOOL is not 1, promtool says so on standard error and returns "".
func promtool(t testing.TB) string {
	t.Helper()
	if path := os.Getenv("PROMTOOL"); path != "" {
		return path
	}
	if path, err := exec.LookPath("promtool"); err == nil {
		return path
	}
	dir, err := localpg.Cached("prometheus-"+promtoolVersion, func(dir string) error {
		if os.Getenv("WALPOST_REQUIRE_PROMTOOL") != "1" {
			return errNoPromtool
		}
		return buildPromtool(t, filepath.Join(dir, "promtool"))
	})
	if errors.Is(err, errNoPromtool) {
		fmt.Fprintln(os.Stderr, errNoPromtool)
		return ""
	}
	if err != nil {
		t.Fatalf("build promtool: %v", err)
	}
	return filepath.Join(dir, "promtool")
}

// buildPromtool builds in the module's own folder, as the main module: go install refuses a module with
// replace directives.
func buildPromtool(t testing.TB, path string) error {
	download := exec.CommandContext(t.Context(), "go", "mod", "download", "-json", "github.com/prometheus/prometheus@"+promtoolVersion)
	download.Dir = t.TempDir() // outside any module
	download.Stderr = os.Stderr
	out, err := download.Output()
	var module struct{ Dir string }
	if err := errors.Join(err, json.Unmarshal(out, &module)); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	compile := exec.CommandContext(t.Context(), "go", "build", "-mod=readonly", "-buildvcs=false", "-trimpath", "-tags", "remove_all_sd",
		"-ldflags", "-s -w", "-o", path, "./cmd/promtool")
	compile.Dir = module.Dir
	compile.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=", "CGO_ENABLED=0") // the module comes with a go.work of folders that it lacks
	if out, err := compile.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}
