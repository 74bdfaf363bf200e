//go:build linux

package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/walpost/walpost/internal/testenv"
)

// cage starts walpost as an unprivileged user who sees nothing but the program and its configuration, and can write nowhere.
func cage(t *testing.T) func(*exec.Cmd) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root may change the user and the root folder of a process")
	}
	root := t.TempDir()
	binary, err := os.ReadFile(program)
	if err == nil {
		err = os.WriteFile(filepath.Join(root, "walpost"), binary, 0o555)
	}
	if err != nil {
		t.Fatal(err)
	}
	return func(cmd *exec.Cmd) {
		i := slices.Index(cmd.Args, "--config") + 1
		text, err := os.ReadFile(cmd.Args[i])
		if err == nil {
			err = os.WriteFile(filepath.Join(root, "walpost.yaml"), text, 0o444)
		}
		if err == nil {
			err = os.Chmod(root, 0o555)
		}
		if err != nil {
			t.Fatal(err)
		}
		cmd.Path, cmd.Args[i], cmd.Dir, cmd.Env = "/walpost", "/walpost.yaml", "/", []string{}
		cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: root, Credential: &syscall.Credential{Uid: 65532, Gid: 65532}}
	}
}

// The relay and the commands beside it need no privilege, no environment and no writable folder. Those that sort what they read need one.
func TestAnUnprivilegedRelayOnAReadOnlyFileSystem(t *testing.T) {
	t.Parallel()
	pg := testenv.Postgres(t, "17")
	s := newSetting(t, pg, pg.Database(t), testenv.Kafka(t))
	s.source, s.extra = ", slot: "+s.slot(), "delivery: {on_poison: park_key, parking_topic: "+s.prefix+"parked, dead_letter_topic: "+s.prefix+"dead}\n"
	s.caged = cage(t)
	s.counters(pg)
	w := s.follow()
	r := s.startReady()
	c := s.crowd(4, 7)
	w.more(t, time.Minute, 50)
	for _, args := range [][]string{{"check"}, {"status"}, {"explain", "--last=1"}, {"config", "validate"}, {"dead", "list"}} {
		if code, out := s.command(args...); code != 0 && !(args[0] == "status" && strings.Contains(out, "http.listen")) {
			t.Errorf("%v: code %d\n%s", args, code, out)
		}
	}
	c.stop()
	s.onceEach(w, time.Minute)
	r.stopsClean()
	for _, args := range [][]string{{"verify"}, {"replay", "--all"}} {
		if code, out := s.command(args...); code == 0 || !strings.Contains(out, "folder that can be written") && !strings.Contains(out, "/tmp") {
			t.Errorf("%v, which needs a folder: code %d\n%s", args, code, out)
		}
	}
}
