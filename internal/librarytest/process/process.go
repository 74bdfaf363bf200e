//go:build linux || darwin

// Package process runs a test binary again in another role, as a process that the test can kill.
//
// What a crash leaves behind can't be tested within one process: its connections, its transactions and its membership of a group
// end as those of a service only if a process ends.
package process

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"sync"
	"syscall"
	"testing"
)

const variable = "WALPOST_TEST_PROCESS"

// Run runs role and exits if Start has started this process. Otherwise it returns. Call it first in TestMain. ctx ends when the process
// is asked to stop, by SIGTERM. From then on an error of role is no failure. The lines that role prints are heard by the test.
func Run[C any](role func(ctx context.Context, cfg C) error) {
	text, is := os.LookupEnv(variable)
	if !is {
		return
	}
	var cfg C
	if err := json.Unmarshal([]byte(text), &cfg); err != nil {
		panic(err)
	}
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(1)
	}()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	fmt.Println("ready")
	if err := role(ctx, cfg); err != nil && ctx.Err() == nil {
		fmt.Fprintf(os.Stderr, "process %s: %v\n", text, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// A Process is this test binary in another role. It ends with the test, or when the test binary does.
type Process struct {
	process *os.Process
	alive   io.Closer // closed when the test binary ends
	wait    func() (*os.ProcessState, error)
}

// Start starts a process that calls the role of Run with cfg, which must survive JSON. It returns when the process can be asked to stop.
// heard, if not nil, gets each line that the role prints. The lines of several processes come at the same time.
func Start[C any](t testing.TB, cfg C, heard func(line string)) *Process {
	t.Helper()
	p, err := start(cfg, heard)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = p.End(syscall.SIGKILL) })
	return p
}

func start(cfg any, heard func(line string)) (*Process, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	text, err := json.Marshal(cfg)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), variable+"="+string(text))
	cmd.Stderr = os.Stderr
	alive, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	lines := bufio.NewScanner(out)
	if !lines.Scan() {
		return nil, errors.Join(errors.New("the process ended before it was ready"), cmd.Wait())
	}
	all := make(chan struct{})
	go func() {
		defer close(all)
		for lines.Scan() {
			if heard != nil {
				heard(lines.Text())
			}
		}
	}()
	return &Process{process: cmd.Process, alive: alive, wait: sync.OnceValues(func() (*os.ProcessState, error) {
		<-all // Wait closes the pipe
		err := cmd.Wait()
		return cmd.ProcessState, err
	})}, nil
}

// Signal sends a signal, such as SIGSTOP. A process that has ended ignores it.
func (p *Process) Signal(sig syscall.Signal) { _ = p.process.Signal(sig) }

// End sends a signal that ends the process, and waits for its end. All of its lines are heard by then. End reports whether the signal
// killed the process. Otherwise err says how the process ended by itself.
func (p *Process) End(sig syscall.Signal) (killed bool, err error) {
	p.Signal(sig)
	return p.Wait()
}

// Wait is End without a signal.
func (p *Process) Wait() (killed bool, err error) {
	state, err := p.wait()
	if status, ok := state.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return true, nil
	}
	return false, err
}
