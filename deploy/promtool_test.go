package deploy

import (
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/walpost/walpost/internal/promtool"
)

func TestPromtoolAcceptsTheRulesAndTheirTestsHold(t *testing.T) {
	tool := promtool.Find(t)
	if tool == "" {
		t.Skip("no promtool")
	}
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
