// Package promtool finds a real promtool for tests of alert rules, or builds one.
package promtool

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/walpost/walpost/internal/localpg"
)

// version is built if no promtool is installed.
const version = "v0.313.5" // Prometheus 3.13.5

var errNone = errors.New("SKIP: no promtool: the alert rules are not tested; WALPOST_REQUIRE_PROMTOOL=1 builds one (minutes, once)")

// Find returns the path of a real promtool: $PROMTOOL, an installed one, or one that is built from
// its module into the cache folder, which takes two minutes on two cores, once. If there is none
// and WALPOST_REQUIRE_PROMTOOL is not 1, Find says so on standard error and returns "".
func Find(t testing.TB) string {
	t.Helper()
	if path := os.Getenv("PROMTOOL"); path != "" {
		return path
	}
	if path, err := exec.LookPath("promtool"); err == nil {
		return path
	}
	dir, err := localpg.Cached("prometheus-"+version, func(dir string) error {
		if os.Getenv("WALPOST_REQUIRE_PROMTOOL") != "1" {
			return errNone
		}
		return build(t, filepath.Join(dir, "promtool"))
	})
	if errors.Is(err, errNone) {
		fmt.Fprintln(os.Stderr, errNone)
		return ""
	}
	if err != nil {
		t.Fatalf("build promtool: %v", err)
	}
	return filepath.Join(dir, "promtool")
}

// build builds in the module's own folder, as the main module: go install refuses a module with
// replace directives.
func build(t testing.TB, path string) error {
	download := exec.CommandContext(t.Context(), "go", "mod", "download", "-json", "github.com/prometheus/prometheus@"+version)
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
