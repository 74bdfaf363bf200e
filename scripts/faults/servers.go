package main

import (
	"errors"
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

// servers are what all runs share: the brokers, each behind a wire of its own, and a Postgres of each version.
type servers struct {
	t       testing.TB
	kafka   *testenv.KafkaCluster
	brokers []*wire.Wire // the relays' way to Kafka
	logins  []string     // addresses of the brokers where clients log in as the principal of an unsecured token
	disk    string       // of broker 1, which can hang; "" until ownDisk
	pgs     map[string]*testenv.PG
	walpost string // the program
	points  string // the program with failpoints, "" until points
	number  int    // of runs
}

// start starts brokers. The relays use a listener of their own, whose address is that of a wire. The suite reads by the
// other listener, past all faults of the network.
func start(t testing.TB, brokers int) *servers {
	t.Helper()
	s := &servers{t: t, pgs: map[string]*testenv.PG{}}
	props := map[string]string{
		"+listener.security.protocol.map":                           "RELAY:PLAINTEXT,LOGIN:SASL_PLAINTEXT",
		"inter.broker.listener.name":                                "PLAINTEXT",
		"authorizer.class.name":                                     "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
		"super.users":                                               "User:ANONYMOUS",
		"listener.name.login.sasl.enabled.mechanisms":               "OAUTHBEARER",
		"listener.name.login.oauthbearer.sasl.jaas.config":          testenv.Bearer,
		"listener.name.login.oauthbearer.connections.max.reauth.ms": "5000",
	}
	for id := 1; id <= brokers; id++ {
		port, err := localpg.FreePort()
		other, err2 := localpg.FreePort()
		if err := errors.Join(err, err2); err != nil {
			t.Fatal(err)
		}
		w, at, login := wire.New(t), fmt.Sprintf("127.0.0.1:%d", port), fmt.Sprintf("127.0.0.1:%d", other)
		s.logins = append(s.logins, login)
		w.ServeKafka(at)
		s.brokers = append(s.brokers, w)
		props[fmt.Sprintf("%d:+listeners", id)] = "RELAY://" + at + ",LOGIN://" + login
		props[fmt.Sprintf("%d:+advertised.listeners", id)] = "RELAY://" + w.Address() + ",LOGIN://" + login
	}
	s.kafka = testenv.KafkaPrivate(t, brokers, props)
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

// ownDisk puts the data of broker 1 onto a disk of its own, for which it needs root, a loop device and ext4.
func (s *servers) ownDisk() error {
	if s.disk != "" {
		return nil
	}
	data := s.kafka.Data(1)
	if err := s.kafka.Stop(1); err != nil {
		return err
	}
	defer s.kafka.Start(s.t, 1)
	out, err := exec.Command("sh", "-ec", `truncate -s 2G "$1.img"; mkfs.ext4 -q "$1.img"; mkdir "$1.mount"; mount -o loop "$1.img" "$1.mount"
		rmdir "$1.mount/lost+found"; cp -a "$1/." "$1.mount"; fsfreeze -f "$1.mount"; fsfreeze -u "$1.mount"; umount "$1.mount"; mount -o loop "$1.img" "$1"`, "", data).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	s.disk = data
	s.t.Cleanup(func() { _ = exec.Command("umount", "-l", data).Run() }) // the broker still runs
	return nil
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
