// Package promtool finds a real promtool for tests of alert rules, and builds one where it must.
package promtool

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// version is what is built where no promtool is installed.
const version = "v0.313.5" // Prometheus 3.13.5

// Find returns the path of a real promtool: $PROMTOOL, an installed one, or one built from its module into the cache folder. Building takes two
// minutes on two cores, once. Without WALPOST_REQUIRE_PROMTOOL=1 it is not built: where there is none it says so and returns "".
func Find(t testing.TB) string {
	t.Helper()
	if path := os.Getenv("PROMTOOL"); path != "" {
		return path
	}
	if path, err := exec.LookPath("promtool"); err == nil {
		return path
	}
	cache, err := cacheFolder()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(cache, "promtool-"+version)
	if _, err := os.Stat(path); err == nil {
		return path
	}
	if os.Getenv("WALPOST_REQUIRE_PROMTOOL") != "1" {
		fmt.Fprintln(os.Stderr, "SKIP: no promtool: the alert rules are not tested; WALPOST_REQUIRE_PROMTOOL=1 builds one (minutes, once)")
		return ""
	}
	if err := build(t, path); err != nil {
		t.Fatalf("build promtool: %v", err)
	}
	return path
}

func cacheFolder() (string, error) {
	if path := os.Getenv("WALPOST_CACHE"); path != "" {
		return path, os.MkdirAll(path, 0o755)
	}
	path, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	path = filepath.Join(path, "walpost")
	return path, os.MkdirAll(path, 0o755)
}

// build builds in the module's own folder, as the main module: go install refuses a module with replace directives.
func build(t testing.TB, path string) error {
	t.Helper()
	download := exec.CommandContext(t.Context(), "go", "mod", "download", "-json", "github.com/prometheus/prometheus@"+version)
	download.Dir = t.TempDir() // outside any module
	out, err := download.Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			return fmt.Errorf("%w: %s%s", err, out, exit.Stderr)
		}
		return err
	}
	var module struct{ Dir string }
	if err := json.Unmarshal(out, &module); err != nil {
		return err
	}
	temp := fmt.Sprintf("%s.%d", path, os.Getpid())
	defer os.Remove(temp)
	compile := exec.CommandContext(t.Context(), "go", "build", "-mod=readonly", "-buildvcs=false", "-trimpath", "-tags", "remove_all_sd",
		"-ldflags", "-s -w", "-o", temp, "./cmd/promtool")
	compile.Dir = module.Dir
	compile.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=", "CGO_ENABLED=0") // the module comes with a go.work of folders that it lacks
	if out, err := compile.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return os.Rename(temp, path)
}
