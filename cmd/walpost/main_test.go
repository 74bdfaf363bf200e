package main

import (
	"errors"
	"os"
	"os/exec"
	"strconv"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/walpost/walpost/internal/keeper"
	"github.com/walpost/walpost/internal/testenv"
)

// servers runs the tests and then stops the servers that they started.
type servers struct{ *testing.M }

func (s servers) Run() int { return testenv.Main(s.M) }

// TestMain makes the test binary the walpost command too, for scripts and for tests that run it as a process.
func TestMain(m *testing.M) {
	keeper.Init()
	testscript.Main(servers{m}, map[string]func(){"walpost": main})
}

func TestCommandLine(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script",
		Setup: func(env *testscript.Env) error {
			env.Setenv("GORACE", os.Getenv("GORACE")) // see .ci/run
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"exitcode": exitCodeCommand},
	})
}

// exitCodeCommand is like exec, for a command that must end with a code.
func exitCodeCommand(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exitcode CODE COMMAND ...")
	}
	code := 0
	if err := ts.Exec(args[1], args[2:]...); err != nil {
		var exit *exec.ExitError
		if !errors.As(err, &exit) {
			ts.Fatalf("%v", err)
		}
		code = exit.ExitCode()
	}
	if args[0] != strconv.Itoa(code) {
		ts.Fatalf("exit code %d, want %s\n%s%s", code, args[0], ts.ReadFile("stdout"), ts.ReadFile("stderr"))
	}
}
