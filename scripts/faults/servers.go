package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/walpost/walpost/internal/localpg"
	"github.com/walpost/walpost/internal/testenv"
	"github.com/walpost/walpost/internal/testenv/wire"
)

// servers are what all runs share: three brokers, each behind a wire of its own, and a Postgres of each version.
type servers struct {
	t       testing.TB
	kafka   *testenv.KafkaCluster
	brokers []*wire.Wire // the relays' way to Kafka
	pgs     map[string]*testenv.PG
	walpost string // the program
	points  string // the program with failpoints, "" until points
	number  int    // of runs
}

const brokerCount = 3

// start starts the brokers. The relays use a listener of their own, whose address is that of a wire. The suite reads by the
// other listener, past all faults of the network.
func start(t testing.TB) *servers {
	t.Helper()
	s := &servers{t: t, pgs: map[string]*testenv.PG{}}
	props := map[string]string{"+listener.security.protocol.map": "RELAY:PLAINTEXT"}
	for id := 1; id <= brokerCount; id++ {
		port, err := localpg.FreePort()
		if err != nil {
			t.Fatal(err)
		}
		w, at := wire.New(t), fmt.Sprintf("127.0.0.1:%d", port)
		w.ServeKafka(at)
		s.brokers = append(s.brokers, w)
		props[fmt.Sprintf("%d:+listeners", id)] = "RELAY://" + at
		props[fmt.Sprintf("%d:+advertised.listeners", id)] = "RELAY://" + w.Address()
	}
	s.kafka = testenv.KafkaPrivate(t, brokerCount, props)
	return s
}

// pg returns a running server of a version.
func (s *servers) pg(version string) *testenv.PG {
	if s.pgs[version] == nil {
		s.pgs[version] = testenv.Postgres(s.t, version, testenv.Private(), testenv.Param("max_prepared_transactions", "20"),
			testenv.Param("wal_sender_timeout", "6s"), testenv.Param("wal_keep_size", "0"), testenv.Param("track_commit_timestamp", "on"), testenv.Param("max_wal_size", "64MB"))
	}
	return s.pgs[version]
}

// build builds walpost of this checkout once, as it is released, or with failpoints.
func (s *servers) build(failpoints bool) string {
	to, args := &s.walpost, []string{"build"}
	if failpoints {
		to, args = &s.points, append(args, "-tags", "failpoints")
	}
	if *to != "" {
		return *to
	}
	path := filepath.Join(s.t.TempDir(), "walpost")
	cmd := exec.Command("go", append(args, "-o", path, "github.com/walpost/walpost/cmd/walpost")...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		s.t.Fatalf("build walpost: %v\n%s", err, out)
	}
	*to = path
	return path
}

// relayBrokers are the bootstrap addresses of a relay.
func (s *servers) relayBrokers() string {
	var all []string
	for _, w := range s.brokers {
		all = append(all, w.Address())
	}
	return strings.Join(all, ", ")
}

// wires does something to the way of each broker.
func (s *servers) wires(do func(*wire.Wire)) {
	var wg sync.WaitGroup
	for _, w := range s.brokers {
		wg.Go(func() { do(w) })
	}
	wg.Wait()
}
