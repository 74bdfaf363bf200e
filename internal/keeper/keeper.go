//go:build linux || darwin

// Package keeper runs a server process that must not outlive the program that started it: the
// Postgres of the demo, and the real servers of the tests.
//
// A Keeper is a child process: this program again, with the subcommand "keep-server". It holds one
// temporary folder and at most one server at a time, and gets its orders through a pipe. The pipe
// closes when Close is called or when the program ends in any way (return, panic, os.Exit,
// SIGKILL). Then the keeper stops the server, removes the folder and ends.
//
// The program must call Init before everything else, so that it can be started as a keeper.
package keeper

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"syscall"
	"time"
)

const subcommand = "keep-server"

var initialized bool

// A Folder says where the keeper's folder goes and who owns it.
type Folder struct {
	Base string // must exist
	Name string // beginning of the name
	UID  int    // owner; used only if the program runs as root
	GID  int
}

// A Command is a server to run.
type Command struct {
	Path string
	Args []string // without argument 0
	Dir  string
	Env  []string // the whole environment
	Log  string   // standard output and error are appended to this file

	// UID and GID, if not 0, are the user and group of the server. This requires root.
	UID, GID int

	// Quit is the signal that stops the server when the keeper ends. The server is killed if it still runs after Grace.
	Quit  syscall.Signal
	Grace time.Duration

	// PidFile is the postmaster.pid of a Postgres, or "". It names the System V shared memory that the keeper removes after the server
	// was killed.
	PidFile string
}

// A Keeper runs one server at a time. Several goroutines may call its methods. It starts no goroutine in this process.
type Keeper struct {
	mu     sync.Mutex
	cmd    *exec.Cmd
	in     *os.File
	out    *os.File
	dec    *json.Decoder
	folder string
	closed bool
}

type request struct {
	Op      string
	Folder  *Folder        `json:",omitempty"`
	Command *Command       `json:",omitempty"`
	Signal  syscall.Signal `json:",omitempty"`
	Wait    time.Duration  `json:",omitempty"`
}

type reply struct {
	Err    string `json:",omitempty"`
	Folder string `json:",omitempty"`
	PID    int    `json:",omitempty"`
	Exited string `json:",omitempty"` // how the server ended; empty while it runs
}

// New starts a keeper, which makes its folder. The caller must Close it. If the program ends before
// that, the keeper cleans up by itself.
func New(f Folder) (*Keeper, error) {
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
	inR, inW, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("keeper: pipe: %w", err)
	}
	outR, outW, err := os.Pipe()
	if err != nil {
		inR.Close()
		inW.Close()
		return nil, fmt.Errorf("keeper: pipe: %w", err)
	}
	// The child is in another session, so that a Ctrl-C in the terminal reaches only the program, which stops its servers in order.
	cmd := &exec.Cmd{Path: self, Args: []string{os.Args[0], subcommand}, Stdin: inR, Stdout: outW, SysProcAttr: &syscall.SysProcAttr{Setsid: true}}
	err = cmd.Start()
	inR.Close()
	outW.Close()
	if err != nil {
		inW.Close()
		outR.Close()
		return nil, fmt.Errorf("keeper: start: %w", err)
	}
	k := &Keeper{cmd: cmd, in: inW, out: outR, dec: json.NewDecoder(outR)}
	r, err := k.do(request{Op: "folder", Folder: &f})
	if err != nil {
		return nil, errors.Join(err, k.Close())
	}
	k.folder = r.Folder
	return k, nil
}

// Folder returns the keeper's folder, which is removed with it.
func (k *Keeper) Folder() string { return k.folder }

// Start runs a server and returns its process id. No other server may be running.
func (k *Keeper) Start(c Command) (pid int, err error) {
	r, err := k.do(request{Op: "start", Command: &c})
	return r.PID, err
}

// Signal sends a signal to the server. It returns nil if the server has ended.
func (k *Keeper) Signal(s syscall.Signal) error {
	_, err := k.do(request{Op: "signal", Signal: s})
	return err
}

// Wait waits until the server has ended, but at most d. It returns how the server ended, or "" if it still runs.
func (k *Keeper) Wait(d time.Duration) (exited string, err error) {
	// Wait in slices, so that another goroutine can send a signal.
	const slice = 20 * time.Millisecond
	deadline := time.Now().Add(d)
	for {
		left := max(min(time.Until(deadline), slice), 0)
		r, err := k.do(request{Op: "wait", Wait: left})
		if err != nil || r.Exited != "" || left < slice {
			return r.Exited, err
		}
	}
}

// Close stops the server as Command.Quit says, removes the folder, and returns when both are gone.
func (k *Keeper) Close() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.closed {
		return nil
	}
	k.closed = true
	k.in.Close()
	err := k.cmd.Wait()
	k.out.Close()
	if err != nil {
		return fmt.Errorf("keeper: %w", err)
	}
	return nil
}

func (k *Keeper) do(q request) (reply, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.closed {
		return reply{}, errors.New("keeper: closed")
	}
	b, err := json.Marshal(q)
	if err != nil {
		return reply{}, fmt.Errorf("keeper: %s: %w", q.Op, err)
	}
	if _, err := k.in.Write(append(b, '\n')); err != nil {
		return reply{}, fmt.Errorf("keeper: %s: %w", q.Op, err)
	}
	var r reply
	if err := k.dec.Decode(&r); err != nil {
		return reply{}, fmt.Errorf("keeper: %s: no answer: %w", q.Op, err)
	}
	if r.Err != "" {
		return reply{}, fmt.Errorf("keeper: %s", r.Err)
	}
	return r, nil
}
