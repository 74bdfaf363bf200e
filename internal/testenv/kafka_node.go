//go:build linux || darwin

package testenv

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/walpost/walpost/internal/keeper"
	"github.com/walpost/walpost/internal/localpg"
)

// A node is a broker that is a controller, too.
type node struct {
	id         int
	port       int
	controller int // port
	java       string
	lib        string
	keeper     *keeper.Keeper
}

func (n *node) address() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(n.port)) }
func (n *node) log() string     { return filepath.Join(n.keeper.Folder(), "log") }

func startKafka(ctx context.Context, nodes int, props map[string]string) (*KafkaCluster, error) {
	lib, java, err := kafkaLib(ctx)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	for try := 1; ; try++ {
		c, err := tryKafka(ctx, lib, java, nodes, props)
		// Somebody else may have taken a port between our choice and the broker's start.
		if err == nil || try == 3 || !strings.Contains(err.Error(), "already in use") {
			return c, err
		}
	}
}

func tryKafka(ctx context.Context, lib, java string, nodes int, props map[string]string) (*KafkaCluster, error) {
	c := &KafkaCluster{}
	for id := 1; id <= nodes; id++ {
		k, err := keeper.New(keeper.Folder{Base: os.TempDir(), Name: "walpost-kafka-"})
		if err != nil {
			return nil, errors.Join(err, c.close())
		}
		n := &node{id: id, java: java, lib: lib, keeper: k}
		c.nodes = append(c.nodes, n)
		if n.port, err = localpg.FreePort(); err == nil {
			n.controller, err = localpg.FreePort()
		}
		if err != nil {
			return nil, errors.Join(err, c.close())
		}
	}
	cluster := kafkaUUID()
	for _, n := range c.nodes {
		if err := n.format(c, cluster, props); err != nil {
			return nil, errors.Join(fmt.Errorf("kafka node %d: %w", n.id, err), c.close())
		}
	}
	if err := c.start(ctx, c.nodes); err != nil {
		return nil, errors.Join(err, c.close())
	}
	return c, nil
}

// format writes what `kafka-storage format` would write, except that the file which is the same for all clusters was made once.
func (n *node) format(c *KafkaCluster, cluster string, props map[string]string) error {
	dir := n.keeper.Folder()
	data := filepath.Join(dir, "data")
	if err := localpg.CopyDir(filepath.Join(n.lib, "formatted"), data); err != nil {
		return err
	}
	meta := map[string]string{
		"version": "1", "cluster.id": cluster, "node.id": strconv.Itoa(n.id), "directory.id": kafkaUUID(),
	}
	if err := writeProperties(filepath.Join(data, "meta.properties"), meta); err != nil {
		return err
	}
	var voters []string
	for _, v := range c.nodes {
		voters = append(voters, fmt.Sprintf("%d@127.0.0.1:%d", v.id, v.controller))
	}
	replicas, inSync := strconv.Itoa(min(3, len(c.nodes))), "1"
	if len(c.nodes) >= 3 {
		inSync = "2"
	}
	p := map[string]string{
		"process.roles":                                    "broker,controller",
		"node.id":                                          strconv.Itoa(n.id),
		"controller.quorum.voters":                         strings.Join(voters, ","),
		"listeners":                                        fmt.Sprintf("PLAINTEXT://127.0.0.1:%d,CONTROLLER://127.0.0.1:%d", n.port, n.controller),
		"advertised.listeners":                             fmt.Sprintf("PLAINTEXT://127.0.0.1:%d", n.port),
		"controller.listener.names":                        "CONTROLLER",
		"listener.security.protocol.map":                   "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
		"log.dirs":                                         data,
		"auto.create.topics.enable":                        "false",
		"unclean.leader.election.enable":                   "false",
		"default.replication.factor":                       replicas,
		"min.insync.replicas":                              inSync,
		"offsets.topic.replication.factor":                 replicas,
		"offsets.topic.num.partitions":                     "3",
		"transaction.state.log.replication.factor":         replicas,
		"transaction.state.log.min.isr":                    inSync,
		"transaction.state.log.num.partitions":             "3",
		"share.coordinator.state.topic.replication.factor": replicas,
		"share.coordinator.state.topic.min.isr":            inSync,
		"group.initial.rebalance.delay.ms":                 "0",

		// A small machine runs several of these at once.
		"num.network.threads":            "2",
		"num.io.threads":                 "2",
		"background.threads":             "2",
		"log.cleaner.dedupe.buffer.size": "2097152",

		// A node that was killed gives way soon, to its successors and to itself.
		"controlled.shutdown.max.retries":       "1",
		"controller.quorum.election.timeout.ms": "500",
		"controller.quorum.fetch.timeout.ms":    "1000",
		"broker.session.timeout.ms":             "3000",
		"broker.heartbeat.interval.ms":          "500",
	}
	for k, v := range props {
		if own, ok := strings.CutPrefix(k, "+"); ok {
			p[own] += "," + v
		} else {
			p[k] = v
		}
	}
	if err := writeProperties(filepath.Join(dir, "server.properties"), p); err != nil {
		return err
	}
	return writeProperties(filepath.Join(dir, "log4j2.properties"), map[string]string{
		"status":                         "error",
		"appender.out.type":              "Console",
		"appender.out.name":              "out",
		"appender.out.layout.type":       "PatternLayout",
		"appender.out.layout.pattern":    "%d %p %c{1}: %m%n",
		"rootLogger.level":               "warn",
		"rootLogger.appenderRef.out.ref": "out",
	})
}

func writeProperties(path string, p map[string]string) error {
	var b strings.Builder
	for _, k := range slices.Sorted(maps.Keys(p)) {
		fmt.Fprintf(&b, "%s=%s\n", k, strings.ReplaceAll(p[k], `\`, `\\`))
	}
	return os.WriteFile(path, []byte(b.String()), 0o644)
}

// kafkaUUID makes an identifier as Kafka writes it.
func kafkaUUID() string {
	var b [16]byte
	rand.Read(b[:])
	b[0] &= 0x7f // none that begins with a dash: Kafka avoids them because tools take them for options
	return base64.RawURLEncoding.EncodeToString(b[:])
}

// jvm are options for a short life: little memory, no optimising compiler, no file in the temporary folder.
var jvm = []string{"-Xmx384m", "-Xms96m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData", "-Xshare:auto"}

// start starts nodes and waits until each of them answers and knows of all of them.
func (c *KafkaCluster) start(ctx context.Context, nodes []*node) error {
	for _, n := range nodes {
		if err := n.run(); err != nil {
			return fmt.Errorf("kafka node %d: start: %w", n.id, err)
		}
	}
	for _, n := range nodes {
		if err := n.ready(ctx, nodes); err != nil {
			return fmt.Errorf("kafka node %d: start: %w: %s", n.id, err, n.logTail(30))
		}
	}
	return nil
}

// ready asks the node itself: after a kill, the others count it among the living until its session ends, and it answers only when
// they have let it in again.
func (n *node) ready(ctx context.Context, nodes []*node) error {
	if err := n.listening(ctx); err != nil {
		return err
	}
	adm, err := adminOf(n.address())
	if err != nil {
		return err
	}
	defer adm.Close()
	for {
		once, cancel := context.WithTimeout(ctx, 5*time.Second)
		brokers, err := adm.ListBrokers(once)
		cancel()
		live := brokers.NodeIDs()
		missing := slices.ContainsFunc(nodes, func(other *node) bool { return !slices.Contains(live, int32(other.id)) })
		if err == nil && !missing {
			return nil
		}
		exited, waitErr := n.keeper.Wait(20 * time.Millisecond)
		if waitErr != nil {
			return waitErr
		}
		if exited != "" {
			return errors.New(exited)
		}
		if ctx.Err() != nil {
			return errors.Join(fmt.Errorf("nodes in the cluster: %v", live), err, context.Cause(ctx))
		}
	}
}

func (n *node) run() error {
	dir := n.keeper.Folder()
	_, err := n.keeper.Start(keeper.Command{
		Path: n.java,
		Args: append(slices.Clone(jvm),
			"-Djava.io.tmpdir="+dir, "-Dlog4j2.configurationFile="+filepath.Join(dir, "log4j2.properties"),
			"-cp", filepath.Join(n.lib, "lib", "*"), "kafka.Kafka", filepath.Join(dir, "server.properties")),
		Dir: dir, Env: os.Environ(), Log: n.log(), Quit: syscall.SIGKILL, Grace: 10 * time.Second,
	})
	return err
}

// listening waits for the node's port.
func (n *node) listening(ctx context.Context) error {
	for {
		exited, err := n.keeper.Wait(20 * time.Millisecond)
		if err != nil {
			return err
		}
		if exited != "" {
			return errors.New(exited)
		}
		var d net.Dialer
		if conn, err := d.DialContext(ctx, "tcp", n.address()); err == nil {
			return conn.Close()
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
}

func (n *node) stop() error   { return n.end(syscall.SIGTERM) }
func (n *node) kill() error   { return n.end(syscall.SIGKILL) }
func (n *node) pause() error  { return n.keeper.Signal(syscall.SIGSTOP) }
func (n *node) resume() error { return n.keeper.Signal(syscall.SIGCONT) }

func (n *node) end(s syscall.Signal) error {
	if err := n.keeper.Signal(s); err != nil {
		return err
	}
	exited, err := n.keeper.Wait(time.Minute)
	if err == nil && exited == "" {
		err = fmt.Errorf("still running a minute after %s: %s", s, n.logTail(20))
	}
	return err
}

func (n *node) logTail(lines int) string {
	b, err := os.ReadFile(n.log())
	if err != nil {
		return err.Error()
	}
	all := strings.Split(strings.TrimSpace(string(b)), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

// eachNode does one thing to several nodes at once: the last controllers of a quorum can only stop together.
func eachNode(nodes []*node, do func(*node) error) error {
	errs := make([]error, len(nodes))
	var wg sync.WaitGroup
	for i, n := range nodes {
		wg.Go(func() {
			if err := do(n); err != nil {
				errs[i] = fmt.Errorf("kafka node %d: %w", n.id, err)
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

func (c *KafkaCluster) close() error {
	return eachNode(c.nodes, func(n *node) error { return n.keeper.Close() })
}
