package deploy

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
)

// promtoolVersion is what is built where no promtool is installed.
const promtoolVersion = "v0.313.5" // Prometheus 3.13.5

// promtool is a real promtool: $PROMTOOL, an installed one, or one built from its module into the cache folder. Building takes two
// minutes on two cores, once. Without WALPOST_REQUIRE_PROMTOOL=1 it is not built: then the test is skipped where there is none.
func promtool(t *testing.T) string {
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
	path := filepath.Join(cache, "promtool-"+promtoolVersion)
	if _, err := os.Stat(path); err == nil {
		return path
	}
	if os.Getenv("WALPOST_REQUIRE_PROMTOOL") != "1" {
		fmt.Fprintln(os.Stderr, "SKIP: no promtool: the alert rules are not tested; WALPOST_REQUIRE_PROMTOOL=1 builds one (minutes, once)")
		t.Skip("no promtool")
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
func build(t *testing.T, path string) error {
	t.Helper()
	download := exec.CommandContext(t.Context(), "go", "mod", "download", "-json", "github.com/prometheus/prometheus@"+promtoolVersion)
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

func TestPromtoolAcceptsTheRulesAndTheirTestsHold(t *testing.T) {
	tool := promtool(t)
	all, err := filepath.Glob("prometheus/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	files := slices.DeleteFunc(slices.Clone(all), func(f string) bool { return strings.HasSuffix(f, "_test.yaml") })
	tests, _ := filepath.Glob("prometheus/*_test.yaml")
	if len(files) < 3 || len(tests) < 4 {
		t.Fatalf("rules %v, tests %v", files, tests)
	}
	for _, args := range [][]string{append([]string{"check", "rules"}, files...), append([]string{"test", "rules"}, tests...)} {
		if out, err := exec.CommandContext(t.Context(), tool, args...).CombinedOutput(); err != nil {
			t.Errorf("promtool %s: %v\n%s", strings.Join(args[:2], " "), err, out)
		}
	}
}
