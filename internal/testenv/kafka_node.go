//go:build linux || darwin

package testenv

import (
	"bytes"
	"context"
	"crypto/rand"
	_ "embed"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/walpost/walpost/internal/localpg"
)

// A node is a broker that is also a controller.
type node struct {
	*JavaServer
	id         int
	controller int      // port
	options    []string // of the JVM
}

//go:embed pom.xml
var kafkaPOM []byte

// A release of Kafka is its jars, in lib, and formatted/bootstrap.checkpoint, which lists the features of a new cluster.
type release struct {
	Jars
	classes func() (option string, err error) // see archive
}

var (
	kafka        = newRelease("4.2.2") // the newest one without KAFKA-20734, with which exactly_once promises nothing
	hangingKafka = newRelease("4.3.0") // with it
)

func newRelease(version string) *release {
	r := &release{}
	r.Jars = Jars{
		Name: "kafka-" + version, What: "Kafka " + version,
		POMs: map[string][]byte{"lib": bytes.ReplaceAll(kafkaPOM, []byte("${release}"), []byte(version))}, finish: formatOnce,
	}
	r.classes = sync.OnceValues(r.archive)
	return r
}

// formatOnce makes formatted/bootstrap.checkpoint, which is the same for all nodes and clusters of a release.
func formatOnce(ctx context.Context, dir, java string) error {
	data := filepath.Join(dir, "formatted")
	conf := filepath.Join(dir, "format.properties")
	err := WriteProperties(conf, map[string]string{
		"process.roles": "broker,controller", "node.id": "1", "controller.quorum.voters": "1@127.0.0.1:9093",
		"listeners": "PLAINTEXT://127.0.0.1:9092,CONTROLLER://127.0.0.1:9093", "controller.listener.names": "CONTROLLER",
		"log.dirs": data,
	})
	if err != nil {
		return err
	}
	err = command(ctx, dir, java, "-XX:-UsePerfData", "-cp", filepath.Join(dir, "lib", "*"), "kafka.tools.StorageTool",
		"format", "-t", kafkaUUID(), "-c", conf)
	if err != nil {
		return fmt.Errorf("kafka: format: %w", err)
	}
	return os.Remove(filepath.Join(data, "meta.properties"))
}

// archive returns the option of a JVM that reads the classes of Kafka from an archive, which halves the work of
// a start. The archive belongs to one version of Java. A broker makes it once, at its end.
func (r *release) archive() (option string, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	_, _, java, err := r.Open(ctx)
	if err != nil {
		return "", err
	}
	const file = "kafka.jsa"
	dir, err := localpg.Cached(r.Name+"-classes-"+java, func(tmp string) error {
		loudly("making an archive of the classes of %s, once", r.What)
		c, err := r.try(ctx, 1, nil, "-XX:ArchiveClassesAtExit="+filepath.Join(tmp, file))
		if err != nil {
			return err
		}
		if err = c.use(ctx); err == nil {
			err = c.nodes[0].End(syscall.SIGTERM, 5*time.Minute)
		}
		return errors.Join(err, c.close())
	})
	return "-XX:SharedArchiveFile=" + filepath.Join(dir, file), err
}

// use loads the classes that most tests need: it creates a topic, and writes and reads a record.
func (c *KafkaCluster) use(ctx context.Context) error {
	adm, err := adminOf(c.Brokers()...)
	if err != nil {
		return err
	}
	defer adm.Close()
	if _, err := adm.CreateTopic(ctx, 1, -1, nil, "a"); err != nil {
		return err
	}
	cl, err := kgo.NewClient(kgo.SeedBrokers(c.Brokers()...), kgo.ConsumeTopics("a"), kgo.ConsumerGroup("a"))
	if err != nil {
		return err
	}
	defer cl.Close()
	err = cl.ProduceSync(ctx, &kgo.Record{Topic: "a"}).FirstErr()
	return errors.Join(err, cl.PollFetches(ctx).Err())
}

func (r *release) start(ctx context.Context, nodes int, props map[string]string, options ...string) (c *KafkaCluster, err error) {
	classes, err := r.classes()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	err = localpg.OnFreePorts(func() error {
		c, err = r.try(ctx, nodes, props, append(options, classes)...)
		return err
	})
	return c, err
}

func (r *release) try(ctx context.Context, nodes int, props map[string]string, options ...string) (*KafkaCluster, error) {
	c := &KafkaCluster{}
	for id := 1; id <= nodes; id++ {
		s, err := r.Server(ctx, "walpost-kafka-")
		if err != nil {
			return nil, errors.Join(err, c.close())
		}
		n := &node{JavaServer: s, id: id, options: append([]string{"-Xmx384m", "-Xms96m"}, options...)}
		c.nodes = append(c.nodes, n)
		if n.controller, err = localpg.FreePort(); err != nil {
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

// format writes the files that `kafka-storage format` writes. formatOnce has made the file that is
// the same for all clusters.
func (n *node) format(c *KafkaCluster, cluster string, props map[string]string) error {
	data := n.File("data")
	if err := localpg.CopyDir(filepath.Join(n.Jars, "formatted"), data); err != nil {
		return err
	}
	meta := map[string]string{
		"version": "1", "cluster.id": cluster, "node.id": strconv.Itoa(n.id), "directory.id": kafkaUUID(),
	}
	if err := WriteProperties(filepath.Join(data, "meta.properties"), meta); err != nil {
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
		"listeners":                                        fmt.Sprintf("PLAINTEXT://127.0.0.1:%d,CONTROLLER://127.0.0.1:%d", n.Port, n.controller),
		"advertised.listeners":                             fmt.Sprintf("PLAINTEXT://127.0.0.1:%d", n.Port),
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
		"group.min.session.timeout.ms":                     "500",
		"log.retention.ms":                                 "-1", // the records of many tests have old timestamps

		// A small machine runs several of these at once.
		"num.network.threads":            "2",
		"num.io.threads":                 "2",
		"background.threads":             "2",
		"log.cleaner.dedupe.buffer.size": "2097152",

		// The cluster soon notices that a node was killed, and accepts it again.
		"controlled.shutdown.max.retries":       "1",
		"controller.quorum.election.timeout.ms": "500",
		"controller.quorum.fetch.timeout.ms":    "1000",
		"broker.session.timeout.ms":             "3000",
		"broker.heartbeat.interval.ms":          "500",
	}
	for k, v := range props {
		if id, of, ok := strings.Cut(k, ":"); ok {
			if id != strconv.Itoa(n.id) {
				continue
			}
			k = of
		}
		if name, ok := strings.CutPrefix(k, "+"); ok {
			p[name] += "," + v
		} else {
			p[k] = v
		}
	}
	return WriteProperties(n.File("server.properties"), p)
}

// kafkaUUID makes an identifier as Kafka writes it.
func kafkaUUID() string {
	var b [16]byte
	rand.Read(b[:])
	b[0] &= 0x7f // it must not begin with a dash, because Kafka's tools would take it for an option
	return base64.RawURLEncoding.EncodeToString(b[:])
}

// start starts nodes and waits until each of them answers and knows of all of them.
func (c *KafkaCluster) start(ctx context.Context, nodes []*node) error {
	for _, n := range nodes {
		if err := n.Run(n.options, nil, "kafka.Kafka", n.File("server.properties")); err != nil {
			return fmt.Errorf("kafka node %d: start: %w", n.id, err)
		}
	}
	for _, n := range nodes {
		if err := n.ready(ctx, nodes); err != nil {
			return fmt.Errorf("kafka node %d: start: %w", n.id, err)
		}
	}
	return nil
}

// ready asks the node itself. After a kill, the other nodes count it as alive until its session
// ends, and it answers only after they have accepted it again.
func (n *node) ready(ctx context.Context, nodes []*node) error {
	adm, err := adminOf(n.Address())
	if err != nil {
		return err
	}
	defer adm.Close()
	return n.Await(ctx, func() error {
		once, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		brokers, err := adm.ListBrokers(once)
		live := brokers.NodeIDs()
		if err == nil && slices.ContainsFunc(nodes, func(other *node) bool { return !slices.Contains(live, int32(other.id)) }) {
			err = fmt.Errorf("the cluster has only the nodes %v", live)
		}
		return err
	})
}

// eachNode acts on several nodes at the same time, because the last controllers of a quorum can
// stop only together.
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
	return eachNode(c.nodes, func(n *node) error { return n.Close() })
}
