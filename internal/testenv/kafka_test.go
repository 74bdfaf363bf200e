//go:build linux || darwin

package testenv

import (
	"strings"
	"testing"

	"github.com/walpost/walpost/internal/testenv/short"
)

func TestAMachineWithoutJavaIsToldWhatIsMissing(t *testing.T) {
	short.Skip(t, "the full tier, whose Kafka it asks for")
	t.Setenv("PATH", t.TempDir())
	t.Setenv("JAVA_HOME", "")
	r := &recorder{TB: t}
	func() {
		defer func() { _ = recover() }()
		Kafka(r)
	}()
	if !strings.Contains(r.fatal, "Java 17") || !strings.Contains(r.fatal, "go test -short") {
		t.Errorf("fatal %q, want what is missing, and what needs none of it", r.fatal)
	}
}

// recorder notes Fatal instead of failing.
type recorder struct {
	testing.TB
	fatal string
}

func (r *recorder) Fatal(args ...any) {
	r.fatal = args[0].(error).Error()
	panic("fatal")
}
