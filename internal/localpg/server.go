//go:build linux || darwin

// Package localpg runs a private Postgres server on a free port of 127.0.0.1, with a data directory in a temporary folder. The
// binaries are downloaded once. `walpost demo` and the tests use it.
//
// The server is for trials and tests: every user of this machine may connect as any role without a password. A server never
// outlives its program: see package keeper.
package localpg

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/walpost/walpost/internal/keeper"
)

// A Config says which server to run.
type Config struct {
	// Version is the major version, "14" to "18". If it is empty, it is DefaultVersion.
	Version string

	// Parameters are server parameters as in postgresql.conf, without quotes. They replace this package's own: wal_level logical, 100
	// connections, 40 WAL senders and slots, a log in the file Server.Log.
	Parameters map[string]string

	// Data is the data directory of a stopped server of the same version. The new server starts from a copy. If it is empty, the new
	// server has an empty cluster.
	Data string

	// Folder is the parent of the temporary folder. If it is empty, it is the system's temporary folder.
	Folder string

	// Prepare, if set, is called before the server starts for the first time, to change its data directory (WriteFile).
	Prepare func(*Server) error

	// Progress, if set, is called before a step that takes long: the download.
	Progress func(step string)
}

// A Server is a private Postgres server. Several goroutines may call its methods, but Start, Restore and Close must not overlap.
type Server struct {
	major   string
	bin     string
	account account
	keeper  *keeper.Keeper
	data    string
	log     string
	port    int

	mu     sync.Mutex
	params map[string]string
}

// A Mode is a way to stop, with the names of pg_ctl.
type Mode string

const (
	Smart     Mode = "smart"     // waits until all clients have disconnected
	Fast      Mode = "fast"      // disconnects clients, and waits until WAL senders have sent everything and got it confirmed
	Immediate Mode = "immediate" // like a crash: the next start recovers
)

var stopSignals = map[Mode]syscall.Signal{Smart: syscall.SIGTERM, Fast: syscall.SIGINT, Immediate: syscall.SIGQUIT}

// startTimeout allows for a machine under load. A start usually takes less than a second.
const startTimeout = 90 * time.Second

// orphansLimit is the time for the children of a killed postmaster to end.
const orphansLimit = 20 * time.Second

// Start runs a server and returns when it accepts connections. The caller must Close it.
func Start(ctx context.Context, c Config) (*Server, error) {
	s := &Server{major: c.Version, account: serverAccount(), params: c.Parameters}
	if s.major == "" {
		s.major = DefaultVersion
	}
	var err error
	if s.bin, err = binaries(ctx, s.major, c.Progress); err != nil {
		return nil, err
	}
	if err := s.account.mayEnter(s.bin); err != nil {
		return nil, fmt.Errorf("cache (WALPOST_CACHE sets another folder): %w", err)
	}
	base, err := tempBase(s.account, c.Folder)
	if err != nil {
		return nil, err
	}
	s.keeper, err = keeper.New(keeper.Folder{Base: base, Name: "walpost-pg-", UID: s.account.uid, GID: s.account.gid})
	if err != nil {
		return nil, err
	}
	s.data = filepath.Join(s.keeper.Folder(), "data")
	s.log = filepath.Join(s.keeper.Folder(), "log")
	if err := s.first(ctx, c); err != nil {
		return nil, errors.Join(fmt.Errorf("postgres %s: %w", s.major, err), s.keeper.Close())
	}
	return s, nil
}

func (s *Server) first(ctx context.Context, c Config) error {
	if c.Data != "" {
		if err := s.Restore(c.Data); err != nil {
			return err
		}
	} else if err := initCluster(ctx, s.major, s.bin, s.data, s.account); err != nil {
		return err
	}
	if c.Prepare != nil {
		if err := c.Prepare(s); err != nil {
			return err
		}
	}
	for try := 1; ; try++ {
		var err error
		if s.port, err = FreePort(); err != nil {
			return err
		}
		err = s.start(ctx)
		// Another program may have taken the port.
		if err == nil || try == 5 || !strings.Contains(s.LogTail(50), "could not bind") {
			return err
		}
		if err := os.Truncate(s.log, 0); err != nil {
			return err
		}
	}
}

// Start starts a stopped or killed server again, on the same data directory and port.
func (s *Server) Start(ctx context.Context) error {
	for deadline := time.Now().Add(orphansLimit); ; {
		err := s.start(ctx)
		if err == nil {
			return nil
		}
		// The children of a killed postmaster end a moment later. Until then they hold its shared memory.
		if !strings.Contains(err.Error(), "pre-existing shared memory block") || ctx.Err() != nil || time.Now().After(deadline) {
			return fmt.Errorf("postgres %s: %w", s.major, err)
		}
		time.Sleep(100 * time.Millisecond)
	}
}

func (s *Server) start(ctx context.Context) error {
	if err := s.writeConf(); err != nil {
		return err
	}
	from := int64(0)
	if info, err := os.Stat(s.log); err == nil {
		from = info.Size()
	}
	pidFile := filepath.Join(s.data, "postmaster.pid")
	pid, err := s.keeper.Start(keeper.Command{
		Path:    filepath.Join(s.bin, "bin", "postgres"),
		Args:    []string{"-D", s.data},
		Dir:     s.keeper.Folder(),
		Env:     serverEnv(s.keeper.Folder()),
		Log:     s.log,
		UID:     s.account.uid,
		GID:     s.account.gid,
		Quit:    syscall.SIGQUIT,
		Grace:   10 * time.Second,
		PidFile: pidFile,
	})
	if err != nil {
		return err
	}
	// The postmaster writes its state into line 8 of its pid file.
	for deadline := time.Now().Add(startTimeout); ; {
		exited, err := s.keeper.Wait(10 * time.Millisecond)
		if err != nil {
			return err
		}
		if exited != "" {
			return fmt.Errorf("start: %s: %s", exited, s.logSince(from))
		}
		if state := pidFileState(pidFile, pid); state == "ready" || state == "standby" {
			return nil
		}
		if ctx.Err() != nil || time.Now().After(deadline) {
			err := context.Cause(ctx)
			if err == nil {
				err = errors.New("not ready after " + startTimeout.String())
			}
			return errors.Join(fmt.Errorf("start: %w: %s", err, s.logSince(from)), s.Kill())
		}
	}
}

func pidFileState(path string, pid int) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	lines := strings.Split(string(b), "\n")
	if len(lines) < 8 || strings.TrimSpace(lines[0]) != strconv.Itoa(pid) {
		return ""
	}
	return strings.TrimSpace(lines[7])
}

// writeConf writes the parameters to a file that postgresql.conf includes.
func (s *Server) writeConf() error {
	s.mu.Lock()
	p := map[string]string{
		"listen_addresses":           "127.0.0.1",
		"port":                       strconv.Itoa(s.port),
		"unix_socket_directories":    "",
		"wal_level":                  "logical",
		"max_connections":            "100",
		"max_wal_senders":            "40",
		"max_replication_slots":      "40",
		"fsync":                      "off", // commits survive a crash of the server, and not of the machine
		"timezone":                   "UTC",
		"log_timezone":               "UTC",
		"logging_collector":          "off",
		"dynamic_shared_memory_type": "mmap", // in the data directory: nothing is left in /dev/shm by a kill
		"shared_buffers":             "32MB",
	}
	maps.Copy(p, s.params)
	s.mu.Unlock()
	var b strings.Builder
	for _, k := range slices.Sorted(maps.Keys(p)) {
		fmt.Fprintf(&b, "%s = '%s'\n", k, strings.ReplaceAll(p[k], "'", "''"))
	}
	if err := s.WriteFile("walpost.conf", b.String()); err != nil {
		return err
	}
	conf := filepath.Join(s.data, "postgresql.conf")
	old, err := os.ReadFile(conf)
	if err != nil {
		return err
	}
	const include = "include 'walpost.conf'\n"
	if strings.Contains(string(old), include) {
		return nil
	}
	return writeInPlace(conf, int64(len(old)), []byte("\n"+include))
}

// WriteFile writes a file of the data directory, such as standby.signal. The server can read, change and remove it.
func (s *Server) WriteFile(name, content string) error {
	return s.writeFile(filepath.Join(s.data, name), content)
}

func (s *Server) writeFile(path, content string) error {
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		return err
	}
	if s.account.uid == 0 {
		return nil
	}
	return os.Chown(path, s.account.uid, s.account.gid)
}

// Import copies a folder to a folder called name beside the data directory, where the server can read it.
func (s *Server) Import(from, name string) error {
	return copyDir(from, filepath.Join(s.Folder(), name), s.account)
}

// SetParameters changes server parameters, effective at the next start. An empty value restores the default.
func (s *Server) SetParameters(p map[string]string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := map[string]string{}
	maps.Copy(all, s.params)
	for k, v := range p {
		if v == "" {
			delete(all, k)
		} else {
			all[k] = v
		}
	}
	s.params = all
}

// Stop stops the server and returns when it has ended. If the server still runs after the timeout, Stop returns an error and the
// server continues to stop. A Kill or a harder Stop may follow.
func (s *Server) Stop(mode Mode, timeout time.Duration) error {
	sig, ok := stopSignals[mode]
	if !ok {
		return fmt.Errorf("postgres %s: stop: %q must be one of smart, fast, immediate", s.major, mode)
	}
	return s.end(sig, string(mode)+" stop", timeout)
}

// Kill kills the postmaster, as the kernel does when memory runs out. Its children notice and end.
func (s *Server) Kill() error { return s.end(syscall.SIGKILL, "kill", 30*time.Second) }

func (s *Server) end(sig syscall.Signal, what string, timeout time.Duration) error {
	if err := s.keeper.Signal(sig); err != nil {
		return fmt.Errorf("postgres %s: %s: %w", s.major, what, err)
	}
	exited, err := s.keeper.Wait(timeout)
	if err != nil {
		return fmt.Errorf("postgres %s: %s: %w", s.major, what, err)
	}
	if exited == "" {
		return fmt.Errorf("postgres %s: %s: still running after %s", s.major, what, timeout)
	}
	return nil
}

// Running reports whether the server's process exists.
func (s *Server) Running() bool {
	exited, err := s.keeper.Wait(0)
	return err == nil && exited == ""
}

// Close stops the server at once and removes its folder.
func (s *Server) Close() error { return s.keeper.Close() }

// Restore replaces the data directory by a copy of a data directory of the same version. Both servers must be stopped.
func (s *Server) Restore(from string) error {
	if s.Running() {
		return fmt.Errorf("postgres %s: restore: the server is running", s.major)
	}
	if err := os.RemoveAll(s.data); err != nil {
		return fmt.Errorf("postgres %s: restore: %w", s.major, err)
	}
	if err := copyDir(from, s.data, s.account); err != nil {
		return fmt.Errorf("postgres %s: restore: %w", s.major, err)
	}
	// A server that was killed, or copied while it ran, leaves these files.
	for _, stale := range []string{"postmaster.pid", "postmaster.opts"} {
		if err := os.Remove(filepath.Join(s.data, stale)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("postgres %s: restore: %w", s.major, err)
		}
	}
	return nil
}

// DSN returns the address of a database, for the superuser postgres.
func (s *Server) DSN(database string) string {
	u := url.URL{
		Scheme: "postgres", User: url.User("postgres"), Host: net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port)),
		Path: "/" + database, RawQuery: "sslmode=disable",
	}
	return u.String()
}

// Version returns the major version.
func (s *Server) Version() int {
	n, err := strconv.Atoi(s.major)
	if err != nil {
		panic(err) // Start accepted it
	}
	return n
}

// Port returns the port on 127.0.0.1, which restarts do not change.
func (s *Server) Port() int { return s.port }

// DataDir returns the data directory. Close removes it.
func (s *Server) DataDir() string { return s.data }

// Folder returns the folder around the data directory. Close removes it with its content.
func (s *Server) Folder() string { return s.keeper.Folder() }

// Log returns the file with the server's messages.
func (s *Server) Log() string { return s.log }

// LogTail returns the last lines of the server's messages.
func (s *Server) LogTail(lines int) string {
	all := strings.Split(strings.TrimSpace(s.logSince(0)), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

func (s *Server) logSince(from int64) string {
	b, err := os.ReadFile(s.log)
	if err != nil {
		return err.Error()
	}
	return strings.TrimSpace(string(b[min(from, int64(len(b))):]))
}

// FreePort returns a TCP port on 127.0.0.1 without a listener. It is below the range of ports that systems choose themselves, so it is
// still free when a server restarts.
func FreePort() (int, error) {
	var last error
	for range 200 {
		port := 20000 + rand.IntN(12000)
		l, err := net.Listen("tcp4", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		if err != nil {
			last = err
			continue
		}
		return port, l.Close()
	}
	return 0, fmt.Errorf("no free port: %w", last)
}
