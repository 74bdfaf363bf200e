//go:build linux

package localpg

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/walpost/walpost/internal/testenv/short"
)

// memory is where the tests put data directories: some file systems take a second to make and
// delete the thousand files of one.
const memory = "/dev/shm"

func start(t *testing.T, c Config) *Server {
	t.Helper()
	short.Skip(t, "Postgres")
	c.Folder = memory
	s, err := Start(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func connect(t *testing.T, s *Server) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), s.DSN("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

func value(t *testing.T, s *Server, sql string) (v string) {
	t.Helper()
	if err := connect(t, s).QueryRow(t.Context(), sql).Scan(&v); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return v
}

func TestEachVersionStartsWithLogicalWALAndLeavesNothing(t *testing.T) {
	for _, version := range Versions() {
		t.Run(version, func(t *testing.T) {
			s := start(t, Config{Version: version, Parameters: map[string]string{"application_name": "it's"}})
			if got := value(t, s, "SELECT current_setting('server_version_num')::int / 10000 || ''"); got != version {
				t.Errorf("server version %s, want %s", got, version)
			}
			for name, want := range map[string]string{
				"wal_level": "logical", "fsync": "off", "application_name": "it's", "TimeZone": "UTC", "server_encoding": "UTF8",
			} {
				if got := value(t, s, "SHOW "+name); got != want {
					t.Errorf("%s = %s, want %s", name, got, want)
				}
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			gone(t, s.Folder())
		})
	}
}

func TestEveryServerHasAnIdentityOfItsOwn(t *testing.T) {
	a, b := start(t, Config{}), start(t, Config{})
	const sql = "SELECT system_identifier::text FROM pg_control_system()"
	if x, y := value(t, a, sql), value(t, b, sql); x == y {
		t.Errorf("both have the system identifier %s", x)
	}
}

func TestOtherRolesAndReplicationConnectWithoutAPassword(t *testing.T) {
	s := start(t, Config{})
	if _, err := connect(t, s).Exec(t.Context(), "CREATE ROLE walpost LOGIN REPLICATION"); err != nil {
		t.Fatal(err)
	}
	dsn := strings.Replace(s.DSN("postgres"), "postgres@", "walpost@", 1)
	for _, dsn := range []string{dsn, dsn + "&replication=database"} {
		conn, err := pgx.Connect(t.Context(), dsn)
		if err != nil {
			t.Errorf("%s: %v", dsn, err)
			continue
		}
		_ = conn.Close(t.Context())
	}
}

func TestAStopThatDoesNotEndInTimeIsAnError(t *testing.T) {
	s := start(t, Config{})
	connect(t, s) // a smart stop waits for it
	err := s.Stop("smart", 200*time.Millisecond)
	if err == nil || !strings.Contains(err.Error(), "still running") {
		t.Errorf("smart stop with a client: %v, want that it is still running", err)
	}
	if !s.Running() {
		t.Error("the server has ended")
	}
	if err := s.Stop("fast", time.Minute); err != nil {
		t.Error(err)
	}
	if s.Running() {
		t.Error("the server runs after a fast stop")
	}
	if err := s.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func TestAFailedStartSaysWhatTheServerSaid(t *testing.T) {
	short.Skip(t, "Postgres")
	_, err := Start(t.Context(), Config{Parameters: map[string]string{"wal_level": "rather logical"}})
	if err == nil || !strings.Contains(err.Error(), `invalid value for parameter "wal_level"`) {
		t.Errorf("got %v, want the server's complaint about wal_level", err)
	}
	if _, err := Start(t.Context(), Config{Version: "13"}); err == nil || !strings.Contains(err.Error(), "14, 15") {
		t.Errorf("got %v, want a list of versions", err)
	}
}

func TestAnotherPortIsTriedWhenTheFirstIsTaken(t *testing.T) {
	s := start(t, Config{})
	if err := s.Stop("immediate", time.Minute); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	ports := []int{l.Addr().(*net.TCPAddr).Port, s.port}
	err = OnFreePorts(func() error {
		s.port, ports = ports[0], ports[1:]
		return s.start(t.Context())
	})
	if err != nil || len(ports) > 0 || !s.Running() {
		t.Errorf("%v, ports left %v", err, ports)
	}
}

// ownCache gives a test a cache that has only the binaries.
func ownCache(t *testing.T) (cache string) {
	t.Helper()
	short.Skip(t, "Postgres")
	bin, err := binaries(t.Context(), DefaultVersion, nil)
	if err != nil {
		t.Fatal(err)
	}
	cache = t.TempDir()
	if err := os.Chmod(filepath.Dir(cache), 0o755); err != nil { // the server's user enters it
		t.Fatal(err)
	}
	if err := os.Symlink(bin, filepath.Join(cache, filepath.Base(bin))); err != nil {
		t.Fatal(err)
	}
	t.Setenv("WALPOST_CACHE", cache)
	return cache
}

func TestAReusedClusterIsACopy(t *testing.T) {
	ownCache(t)
	const identifier = "SELECT system_identifier::text FROM pg_control_system()"
	first := start(t, Config{Reuse: true})
	if _, err := connect(t, first).Exec(t.Context(), "CREATE TABLE mine ()"); err != nil {
		t.Fatal(err)
	}
	second, other := start(t, Config{Reuse: true}), start(t, Config{})
	if a, b, c := value(t, first, identifier), value(t, second, identifier), value(t, other, identifier); a != b || a == c {
		t.Errorf("the system identifiers are %s and %s with Reuse, and %s without", a, b, c)
	}
	if tables := value(t, second, "SELECT count(*)::text FROM pg_class WHERE relname = 'mine'"); tables != "0" {
		t.Error("the second server has a table of the first one")
	}
}

func TestAServerStartsWithoutACache(t *testing.T) {
	cache := ownCache(t)
	bin, err := filepath.Glob(filepath.Join(cache, "postgres-*"))
	if err != nil || len(bin) != 1 {
		t.Fatal(bin, err)
	}
	// Root can write everywhere, so a folder is in the way.
	if err := os.Mkdir(filepath.Join(cache, "cluster-"+filepath.Base(bin[0])+".lock"), 0o755); err != nil {
		t.Fatal(err)
	}
	if got := value(t, start(t, Config{Reuse: true}), "SELECT 'up'"); got != "up" {
		t.Error(got)
	}
}

// A crash of the machine can leave a half of what was written.
func TestABrokenClusterInTheCacheIsMadeAgain(t *testing.T) {
	cache := ownCache(t)
	start(t, Config{Reuse: true})
	control, err := filepath.Glob(filepath.Join(cache, "cluster-*", "data", "global", "pg_control"))
	if err != nil || len(control) != 1 {
		t.Fatal(control, err)
	}
	if err := os.Truncate(control[0], 0); err != nil {
		t.Fatal(err)
	}
	const identifier = "SELECT system_identifier::text FROM pg_control_system()"
	value(t, start(t, Config{Reuse: true}), identifier)
	a, b := value(t, start(t, Config{Reuse: true}), identifier), value(t, start(t, Config{Reuse: true}), identifier)
	if a != b {
		t.Error("the cache has no cluster again")
	}
}

// The cluster is not the reason, so it stays.
func TestAServerThatCannotStartLeavesTheCache(t *testing.T) {
	cache := ownCache(t)
	start(t, Config{Reuse: true})
	s, err := Start(t.Context(), Config{Reuse: true, Folder: memory, Parameters: map[string]string{"wal_level": "none"}})
	if err == nil {
		_ = s.Close()
		t.Fatal("it starts")
	}
	if !strings.Contains(err.Error(), "wal_level") {
		t.Error(err)
	}
	if kept, err := filepath.Glob(filepath.Join(cache, "cluster-*", "data", "global", "pg_control")); err != nil || len(kept) != 1 {
		t.Error(kept, err)
	}
}
