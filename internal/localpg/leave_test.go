//go:build linux

package localpg

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/walpost/walpost/internal/keeper"
	"github.com/walpost/walpost/internal/testenv/short"
)

const programEnv = "LOCALPG_TEST_PROGRAM"

// TestMain makes the test binary also the program whose end the tests look at: it starts a server,
// says so, and ends, or waits to be killed.
func TestMain(m *testing.M) {
	keeper.Init()
	how := os.Getenv(programEnv)
	if how == "" {
		os.Exit(m.Run())
	}
	os.Unsetenv(programEnv)
	s, err := Start(context.Background(), Config{Folder: memory})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println(s.Folder(), sharedMemory(s))
	switch how {
	case "exit":
		os.Exit(3)
	case "panic":
		panic("on purpose")
	case "postmaster killed":
		if err := s.Kill(); err != nil {
			panic(err)
		}
		os.Exit(0)
	}
	select {} // until killed
}

func TestNothingIsLeftHoweverTheProgramEnds(t *testing.T) {
	short.Skip(t, "Postgres")
	for _, how := range []string{"killed", "exit", "panic", "postmaster killed"} {
		t.Run(how, func(t *testing.T) {
			cmd := exec.Command(os.Args[0])
			cmd.Env = append(os.Environ(), programEnv+"="+how)
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			line, err := bufio.NewReader(out).ReadString('\n')
			if err != nil {
				t.Fatal(err)
			}
			folder, segment, _ := strings.Cut(strings.TrimSpace(line), " ")
			killed := how == "killed"
			if !sharedMemoryExists(t, segment) && killed {
				t.Fatalf("no shared memory segment %q of a running server found; the test would not see one that is left", segment)
			}
			if killed {
				if n := len(processesIn(t, folder)); n < 5 {
					t.Fatalf("%d processes of a running server found; the test would not see any that are left", n)
				}
				kill(t, cmd.Process.Pid)
			}
			_, _ = io.Copy(io.Discard, out)
			_ = cmd.Wait()
			gone(t, folder)
			if sharedMemoryExists(t, segment) {
				t.Errorf("the shared memory segment %s is still there", segment)
			}
		})
	}
}

// sharedMemory returns the id of the server's System V segment.
func sharedMemory(s *Server) string { return strings.Fields(pidFileLine(s, 7))[1] }

// pidFileLine returns a line, from 1, of postmaster.pid.
func pidFileLine(s *Server, n int) string {
	b, err := os.ReadFile(filepath.Join(s.DataDir(), "postmaster.pid"))
	if err != nil {
		panic(err)
	}
	return strings.Split(string(b), "\n")[n-1]
}

func sharedMemoryExists(t *testing.T, id string) bool {
	t.Helper()
	b, err := os.ReadFile("/proc/sysvipc/shm") // key, shmid, …
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) > 1 && f[1] == id {
			return true
		}
	}
	return false
}

// Whoever imports the package may start their program under any name.
func TestTheNameOfAProgramDoesNotMatter(t *testing.T) {
	for _, name := range []string{"walpost-keeper", "walpost-fetch-postgres"} {
		cmd := exec.Command(os.Args[0])
		cmd.Args = []string{name, "-test.run=^$", "-test.v"}
		if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "PASS") {
			t.Errorf("under the name %s the program prints %q (%v), want what it always prints", name, out, err)
		}
	}
}

func TestCloseStopsAServerWhoseGuardWasKilled(t *testing.T) {
	s := start(t, Config{})
	kill(t, guardOf(t, s.Folder()))
	if s.Close() == nil {
		t.Error("no error from a guard that was killed")
	}
	gone(t, s.Folder())
}

func TestAServerThatIgnoresItsEndIsKilled(t *testing.T) {
	k, err := keeper.New(t.TempDir(), "k-")
	if err != nil {
		t.Fatal(err)
	}
	folder := k.Folder()
	_, err = k.Start(keeper.Command{
		Path: "/bin/sh", Args: []string{"-c", "trap '' QUIT; echo ready; while :; do sleep 1; done", folder},
		Quit: syscall.SIGQUIT, Grace: 100 * time.Millisecond,
	})
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, func() error {
		if k.Said() != "ready" {
			return errors.New("no output yet")
		}
		return nil
	})
	if err := k.Close(); err != nil {
		t.Fatal(err)
	}
	gone(t, folder)
}

// gone waits until no process runs in the folder and it is not there.
func gone(t *testing.T, folder string) {
	t.Helper()
	eventually(t, func() error {
		if err := noProcess(t, folder); err != nil {
			return err
		}
		if _, err := os.Stat(folder); !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("%s is still there: %w", folder, cmp.Or(err, errors.New("stat finds it")))
		}
		return nil
	})
}

func noProcess(t *testing.T, folder string) error {
	if p := processesIn(t, folder); len(p) != 0 {
		return fmt.Errorf("processes that still run in %s: %v", folder, p)
	}
	return nil
}

func eventually(t *testing.T, check func() error) {
	t.Helper()
	var err error
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if err = check(); err == nil {
			return
		}
	}
	t.Fatal(err)
}

// processesIn returns the command lines of the processes whose working directory or command line
// lies in the folder, by id.
func processesIn(t *testing.T, folder string) map[int]string {
	t.Helper()
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	found := map[int]string{}
	for _, dir := range dirs {
		cwd, _ := os.Readlink(filepath.Join(dir, "cwd"))
		args, _ := os.ReadFile(filepath.Join(dir, "cmdline"))
		if strings.HasPrefix(cwd, folder) || strings.Contains(string(args), folder) {
			pid, err := strconv.Atoi(filepath.Base(dir))
			if err != nil {
				t.Fatal(err)
			}
			found[pid] = string(args)
		}
	}
	return found
}

// guardOf returns the process id of a folder's guard.
func guardOf(t *testing.T, folder string) int {
	t.Helper()
	for pid, args := range processesIn(t, folder) {
		if strings.Contains(args, "keep-server") {
			return pid
		}
	}
	t.Fatalf("no guard of %s", folder)
	return 0
}

func kill(t *testing.T, pid int) {
	t.Helper()
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
}
