//go:build linux || darwin

package keeper

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Init must be the first call in main or TestMain. In a process that New started, it is the keeper
// and does not return.
func Init() {
	initialized = true
	if len(os.Args) == 2 && os.Args[1] == subcommand {
		// Linux sends the parent-death signal when the thread ends that started the server.
		runtime.LockOSThread()
		os.Exit(serve(os.Stdin, os.Stdout))
	}
}

// keeping is the state of the child side; main goroutine only.
type keeping struct {
	folder string
	cmd    Command
	proc   *exec.Cmd
	ended  chan struct{} // closed when proc has been waited for
	how    string        // valid after ended
}

func serve(in io.Reader, out io.Writer) int {
	// Writing to a program that has ended must return an error. A SIGPIPE would prevent the cleanup.
	pipe := make(chan os.Signal, 1)
	signal.Notify(pipe, syscall.SIGPIPE)
	end := make(chan os.Signal, 4)
	signal.Notify(end, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)

	requests := make(chan request)
	go func() {
		defer close(requests)
		dec := json.NewDecoder(in)
		for {
			var q request
			if dec.Decode(&q) != nil {
				return
			}
			requests <- q
		}
	}()
	adoptOrphans()
	var k keeping
	enc := json.NewEncoder(out)
	for {
		select {
		case <-end:
			return k.close()
		case q, ok := <-requests:
			if !ok {
				return k.close()
			}
			r, err := k.handle(q)
			if err != nil {
				r.Err = err.Error()
			}
			if enc.Encode(r) != nil {
				return k.close()
			}
		}
	}
}

func (k *keeping) handle(q request) (reply, error) {
	switch q.Op {
	case "folder":
		dir, err := os.MkdirTemp(q.Folder.Base, q.Folder.Name)
		if err != nil {
			return reply{}, fmt.Errorf("folder: %w", err)
		}
		k.folder = dir
		if os.Geteuid() == 0 && q.Folder.UID != 0 {
			if err := os.Chown(dir, q.Folder.UID, q.Folder.GID); err != nil {
				return reply{}, fmt.Errorf("folder: %w", err)
			}
		}
		return reply{Folder: dir}, nil
	case "start":
		return k.start(*q.Command)
	case "signal":
		if !k.running() {
			return reply{}, nil
		}
		if err := k.proc.Process.Signal(q.Signal); err != nil && !errors.Is(err, os.ErrProcessDone) {
			return reply{}, fmt.Errorf("signal: %w", err)
		}
		return reply{}, nil
	case "wait":
		if k.proc == nil {
			return reply{Exited: "never started"}, nil
		}
		select {
		case <-k.ended:
		case <-time.After(q.Wait):
		}
		if k.running() {
			return reply{}, nil
		}
		return reply{Exited: k.how}, nil
	}
	return reply{}, fmt.Errorf("unknown request %q", q.Op)
}

func (k *keeping) running() bool {
	if k.proc == nil {
		return false
	}
	select {
	case <-k.ended:
		return false
	default:
		return true
	}
}

func (k *keeping) start(c Command) (reply, error) {
	if k.running() {
		return reply{}, fmt.Errorf("start %s: another server is still running", c.Path)
	}
	reapOrphans(0) // of a killed server
	log, err := os.OpenFile(c.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return reply{}, fmt.Errorf("start %s: %w", c.Path, err)
	}
	defer log.Close()
	attr := &syscall.SysProcAttr{Setpgid: true}
	if c.UID != 0 {
		attr.Credential = &syscall.Credential{Uid: uint32(c.UID), Gid: uint32(c.GID)}
	}
	dieWithParent(attr, c.Quit)
	proc := &exec.Cmd{
		Path: c.Path, Args: append([]string{c.Path}, c.Args...),
		Dir: c.Dir, Env: c.Env, Stdout: log, Stderr: log, SysProcAttr: attr,
	}
	if err := proc.Start(); err != nil {
		return reply{}, fmt.Errorf("start: %w", err)
	}
	ended := make(chan struct{})
	k.cmd, k.proc, k.ended = c, proc, ended
	go func() {
		_ = proc.Wait() // ProcessState has the same information
		k.how = proc.ProcessState.String()
		close(ended)
	}()
	return reply{PID: proc.Process.Pid}, nil
}

// close stops the server and removes the folder. Its result is the exit code.
func (k *keeping) close() int {
	if k.running() {
		_ = k.proc.Process.Signal(k.cmd.Quit)
		_ = k.proc.Process.Signal(syscall.SIGCONT) // it may have been stopped by a test
		select {
		case <-k.ended:
		case <-time.After(k.cmd.Grace):
			_ = syscall.Kill(-k.proc.Process.Pid, syscall.SIGKILL)
			<-k.ended
		}
	}
	if k.proc != nil && k.cmd.PidFile != "" {
		removeSharedMemory(k.cmd.PidFile)
	}
	reapOrphans(k.cmd.Grace)
	if k.folder == "" {
		return 0
	}
	// On systems without subreapers, orphans may still write for some milliseconds.
	var err error
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if err = os.RemoveAll(k.folder); err == nil {
			return 0
		}
	}
	fmt.Fprintln(os.Stderr, err)
	return 1
}

// reapOrphans waits up to d for the children of a server that was killed. No server may be running.
func reapOrphans(d time.Duration) {
	for deadline := time.Now().Add(d); ; time.Sleep(5 * time.Millisecond) {
		for {
			pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil)
			if pid == 0 && err == nil {
				break
			}
			if err != nil && !errors.Is(err, syscall.EINTR) {
				return // none left
			}
		}
		if !time.Now().Before(deadline) {
			return
		}
	}
}

// removeSharedMemory removes the small System V segment by which a Postgres recognises children of a former postmaster. A postmaster
// that ends by itself removes the segment and the file. Line 7 of the file has the key and the id of the segment.
func removeSharedMemory(pidFile string) {
	b, err := os.ReadFile(pidFile)
	if err != nil {
		return
	}
	lines := strings.Split(string(b), "\n")
	if len(lines) < 7 {
		return
	}
	f := strings.Fields(lines[6])
	if len(f) != 2 {
		return
	}
	if id, err := strconv.Atoi(f[1]); err == nil {
		_, _ = unix.SysvShmCtl(id, unix.IPC_RMID, nil)
	}
}
