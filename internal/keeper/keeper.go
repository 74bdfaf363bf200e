//go:build linux || darwin

// Package keeper runs a server process that must not outlive the program that started it: the
// Postgres of the demo, and the real servers of the tests.
//
// A Keeper has a temporary folder and runs at most one server at a time. Its guard is a child
// process: this program again, with the subcommand "keep-server". The guard reads a pipe that
// closes when Close is called or when the program ends in any way (return, panic, os.Exit,
// SIGKILL). Then the guard stops the server, removes the folder and ends.
//
// The program must call Init before everything else, so that it can be started as a guard.
//
// Why not leave that to embedded-postgres: it starts the server by pg_ctl and forgets it, so a test that is killed, panics
// or runs into its timeout leaves a server, its folder and its System V segment behind, and it runs Postgres only, not Kafka
// or Connect. A parent-death signal is no replacement. It removes nothing, macOS has none, and Linux sends it when a thread
// ends.
package keeper

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"
)

const subcommand = "keep-server"

var initialized bool

// Init must be the first call in main or TestMain. In a process that New started, it is the guard
// and does not return.
func Init() {
	initialized = true
	if len(os.Args) == 3 && os.Args[1] == subcommand {
		os.Exit(guard(os.Args[2]))
	}
}

// A Command is a server to run.
type Command struct {
	Path string
	Args []string // without argument 0
	Env  []string // the whole environment

	// Credential is the user and group of the server, or nil for those of this program.
	Credential *syscall.Credential

	// Quit is the signal that stops the server when the keeper ends. The server is killed if it
	// still runs after Grace.
	Quit  syscall.Signal
	Grace time.Duration

	// PidFile is the postmaster.pid of a Postgres, or "". It names the System V shared memory that
	// the guard removes after the server was killed.
	PidFile string
}

// A Keeper runs one server at a time. Several goroutines may call its methods.
type Keeper struct {
	folder string
	guard  *exec.Cmd
	orders *os.File // to the guard
	alive  *os.File // inherited by the processes of the server: the guard reads its end when all of them have ended

	close func() error

	mu     sync.Mutex
	server *server
}

// A server is a process that was started.
type server struct {
	process *os.Process
	quit    syscall.Signal
	ended   chan struct{} // closed when the process has ended
	how     string        // the way it ended; valid after ended
	logged  int64         // the size of the log before the start
}

// order tells the guard which server to stop.
type order struct {
	PID     int // 0 if the server has ended
	Quit    syscall.Signal
	Grace   time.Duration
	PidFile string
}

// New makes a folder in base, whose name begins with name, and starts the guard of the folder. The
// caller must Close the Keeper.
func New(base, name string) (*Keeper, error) {
	if !initialized { // the child would run the program again and start another child
		return nil, errors.New("keeper: the program did not call Init")
	}
	self := "/proc/self/exe" // it stays valid after `go test` removes the file
	if runtime.GOOS != "linux" {
		exe, err := os.Executable()
		if err != nil {
			return nil, fmt.Errorf("keeper: own executable: %w", err)
		}
		self = exe
	}
	folder, err := os.MkdirTemp(base, name)
	if err != nil {
		return nil, fmt.Errorf("keeper: %w", err)
	}
	ordersR, ordersW, err1 := os.Pipe()
	aliveR, aliveW, err2 := os.Pipe()
	// The guard is in another session, so that a Ctrl-C in the terminal reaches only the program,
	// which stops its servers in order.
	cmd := &exec.Cmd{
		Path: self, Args: []string{os.Args[0], subcommand, folder}, Stdin: ordersR, ExtraFiles: []*os.File{aliveR},
		SysProcAttr: &syscall.SysProcAttr{Setsid: true},
	}
	if err = errors.Join(err1, err2); err == nil {
		err = cmd.Start()
	}
	ordersR.Close()
	aliveR.Close()
	if err != nil {
		ordersW.Close()
		aliveW.Close()
		return nil, errors.Join(fmt.Errorf("keeper: %w", err), os.Remove(folder))
	}
	never := &server{ended: make(chan struct{}), how: "never started"}
	close(never.ended)
	k := &Keeper{folder: folder, guard: cmd, orders: ordersW, alive: aliveW, server: never}
	k.close = sync.OnceValue(k.end)
	return k, nil
}

// Folder returns the keeper's folder, which is removed with it.
func (k *Keeper) Folder() string { return k.folder }

// Start runs a server in the folder and returns its process id. No other server may be running. Its
// messages are appended to the file Log.
func (k *Keeper) Start(c Command) (pid int, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.server.running() {
		return 0, fmt.Errorf("start %s: another server is still running", c.Path)
	}
	log, err := os.OpenFile(k.log(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return 0, fmt.Errorf("start %s: %w", c.Path, err)
	}
	defer log.Close()
	info, err := log.Stat()
	if err != nil {
		return 0, fmt.Errorf("start %s: %w", c.Path, err)
	}
	cmd := &exec.Cmd{
		Path: c.Path, Args: append([]string{c.Path}, c.Args...), Dir: k.folder, Env: c.Env,
		Stdout: log, Stderr: log, ExtraFiles: []*os.File{k.alive},
		SysProcAttr: &syscall.SysProcAttr{Setsid: true, Credential: c.Credential},
	}
	if err := cmd.Start(); err != nil {
		return 0, fmt.Errorf("start: %w", err)
	}
	s := &server{process: cmd.Process, quit: c.Quit, ended: make(chan struct{}), logged: info.Size()}
	k.server = s
	tell := json.NewEncoder(k.orders)
	err = tell.Encode(order{cmd.Process.Pid, c.Quit, c.Grace, c.PidFile})
	go func() {
		_ = cmd.Wait() // ProcessState has the same information
		s.how = cmd.ProcessState.String()
		_ = tell.Encode(order{0, c.Quit, c.Grace, c.PidFile}) // the guard may have ended
		close(s.ended)
	}()
	if err != nil {
		return 0, errors.Join(fmt.Errorf("start: the guard has ended: %w", err), s.process.Kill())
	}
	return cmd.Process.Pid, nil
}

func (k *Keeper) current() *server {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.server
}

// Running reports whether the server's process exists.
func (k *Keeper) Running() bool { return k.current().running() }

func (s *server) running() bool {
	select {
	case <-s.ended:
		return false
	default:
		return true
	}
}

// Signal sends a signal to the server. It returns nil if the server has ended.
func (k *Keeper) Signal(s syscall.Signal) error {
	p := k.current().process
	if p == nil {
		return nil
	}
	if err := p.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("send %s: %w", s, err)
	}
	return nil
}

// Freeze stops the server's process with SIGSTOP, and returns when none of its threads runs any
// more. On a machine that does not tell the state of threads, it returns at once.
func (k *Keeper) Freeze() error {
	if err := k.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		if frozen(k.current().process) {
			return nil
		}
		if time.Now().After(end) {
			return errors.New("the process runs a minute after SIGSTOP")
		}
	}
}

func frozen(p *os.Process) bool {
	if p == nil {
		return true
	}
	threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", p.Pid)) // the pattern is good
	for _, file := range threads {
		text, err := os.ReadFile(file)
		_, state, _ := strings.Cut(string(text), ") ") // the name of the thread is before it
		if err == nil && state != "" && strings.ContainsRune("RS", rune(state[0])) {
			return false
		}
	}
	return true
}

// Await returns nil as soon as ready returns nil. It returns an error if the server or ctx ends
// before.
func (k *Keeper) Await(ctx context.Context, ready func() error) error {
	s := k.current()
	for {
		if !s.running() {
			return fmt.Errorf("%s: %s", s.how, k.Said())
		}
		err := ready()
		if err == nil {
			return nil
		}
		select {
		case <-s.ended:
		case <-ctx.Done():
			return fmt.Errorf("%w: %w: %s", context.Cause(ctx), err, k.Said())
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// End sends a signal that ends the server. It returns an error if the server still runs after the
// timeout.
func (k *Keeper) End(s syscall.Signal, timeout time.Duration) error {
	if err := k.Signal(s); err != nil {
		return err
	}
	select {
	case <-k.current().ended:
		return nil
	case <-time.After(timeout):
		return fmt.Errorf("still running after %s: %s", timeout, k.Said())
	}
}

// log returns the file with the messages of all servers.
func (k *Keeper) log() string { return filepath.Join(k.folder, "log") }

// Said returns the last messages of the server since its last start.
func (k *Keeper) Said() string {
	b, err := os.ReadFile(k.log())
	if err != nil {
		return err.Error()
	}
	const most = 40
	lines := strings.Split(strings.TrimSpace(string(b[min(k.current().logged, int64(len(b))):])), "\n")
	return strings.Join(lines[max(0, len(lines)-most):], "\n")
}

// Close stops the server as Command.Quit says, removes the folder, and returns when both are gone.
func (k *Keeper) Close() error {
	return k.close()
}

// end is Close at its first call.
func (k *Keeper) end() error {
	k.orders.Close()
	k.alive.Close()
	if err := k.guard.Wait(); err != nil {
		// A Postgres that quits waits for its children. After a SIGKILL, an autovacuum launcher without
		// its files fails and tries again for ever.
		return errors.Join(fmt.Errorf("keeper: the guard has ended: %w", err), k.End(k.current().quit, time.Minute), os.RemoveAll(k.folder))
	}
	return nil
}
