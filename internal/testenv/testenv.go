//go:build linux || darwin

// Package testenv gives tests real servers: Postgres 14 to 18 and Kafka, without Docker, each
// downloaded once.
//
// The first test of a test binary that needs a server starts it, later tests share it, and it ends
// with the binary, even if the binary is killed. Tests use unique names, from PG.Database and
// KafkaCluster.Topic. A test that stops, kills, copies or configures a server takes a private one.
//
// Nothing starts with go test -short: see package short. Without -short, a test fails if the machine lacks what its server
// needs, such as Java.
//
// testcontainers would need Docker on every machine, and the tests kill, freeze and restart servers on the same port, make
// standbys and lose slots. embedded-postgres knows no Kafka, and neither has certificates, ACLs or a topic whose change has
// reached each broker. All of that is here once, so that a test says only what it needs.
//
// Environment:
//
//	WALPOST_PG     the Postgres version of tests that do not name one (default 15)
//	WALPOST_CACHE  folder for downloads (default: the user's cache folder; /var/cache/walpost as root)
package testenv

import (
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/walpost/walpost/internal/keeper"
)

// shared are the servers that outlive the test that started them.
var shared struct {
	mu      sync.Mutex
	closers []func() error
}

// Main runs the tests of a package, stops its shared servers and returns the exit code:
//
//	func TestMain(m *testing.M) { os.Exit(testenv.Main(m)) }
//
// A TestMain that does something before Main must call keeper.Init first.
func Main(m *testing.M) int {
	keeper.Init()
	code := m.Run()
	for _, f := range slices.Backward(shared.closers) {
		if err := f(); err != nil {
			fmt.Fprintln(os.Stderr, "testenv:", err)
			code = max(code, 1)
		}
	}
	return code
}

func closeAtEnd(f func() error) {
	shared.mu.Lock()
	defer shared.mu.Unlock()
	shared.closers = append(shared.closers, f)
}

var said sync.Map

// loudly prints a line once in a test binary, even if the test passes.
func loudly(format string, args ...any) {
	line := fmt.Sprintf("testenv: "+format, args...)
	if _, again := said.LoadOrStore(line, true); !again {
		fmt.Fprintln(os.Stderr, line)
	}
}

var names atomic.Int64

// unique makes a name that no other test uses, nor another test binary on the same server.
func unique(prefix string) string { return fmt.Sprintf("%s_%d_%d", prefix, os.Getpid(), names.Add(1)) }
