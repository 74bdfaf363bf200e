//go:build unix

package conf

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestACommandPrintsTheSecret(t *testing.T) {
	sh := func(script string) []string { return []string{"sh", "-c", script} }
	counter := filepath.Join(t.TempDir(), "runs")
	for _, c := range []struct {
		name    string
		command []string
		want    string // the secret, or a part of the error
		fails   bool
	}{
		{"a line", sh(`echo "a b "`), "a b ", false},
		{"no line end", sh("printf secret"), "secret", false},
		{"no shell", []string{"echo", "$HOME; *"}, "$HOME; *", false},
		{"no input", sh("cat; echo done"), "done", false},
		{"another time", sh("echo >> " + counter + "; wc -l < " + counter + " | tr -d ' '"), "1", false},
		{"again", sh("echo >> " + counter + "; wc -l < " + counter + " | tr -d ' '"), "2", false},
		{"it fails", sh("echo hunter2; echo no session >&2; exit 3"), "sh: exit status 3: no session", true},
		{"it fails and says a lot", sh("yes long | head -c 100000 >&2; echo the end >&2; exit 1"), "long the end", true},
		{"nothing", sh("echo hunter2 >/dev/null"), "sh: printed nothing", true},
		{"too much", sh("yes hunter2 | head -c 2000000"), "printed more than", true},
		{"no program", []string{"/does/not/exist"}, "/does/not/exist: no such file", true},
	} {
		got, err := FromCommand(t.Context(), c.command)
		switch {
		case c.fails && (err == nil || !strings.Contains(err.Error(), c.want) || len(err.Error()) > 400):
			t.Errorf("%s: %v, must be %q", c.name, err, c.want)
		case c.fails && strings.Contains(err.Error(), "hunter2"):
			t.Errorf("%s: the error has what was printed: %v", c.name, err)
		case !c.fails && (got != c.want || err != nil):
			t.Errorf("%s: %q, %v, must be %q", c.name, got, err, c.want)
		}
	}
}

// A command that hangs, or leaves a process behind, holds nobody up for ever.
func TestACommandThatHangsIsEnded(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	started := filepath.Join(t.TempDir(), "started")
	done := make(chan error, 1)
	go func() {
		_, err := FromCommand(ctx, []string{"sh", "-c", "sleep 20 & touch " + started + "; wait"})
		done <- err
	}()
	for {
		if _, err := os.Stat(started); err == nil {
			break
		}
		time.Sleep(time.Millisecond)
	}
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
