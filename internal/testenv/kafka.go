//go:build linux || darwin

package testenv

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
)

// A KafkaCluster is one or more running brokers. Topics are not created by producing to them.
type KafkaCluster struct {
	nodes   []*node
	private bool
}

var sharedKafka = sync.OnceValues(func() (*KafkaCluster, error) {
	// No test kills it, and a pause of a busy machine must not end its session: without a live broker, no topic can be created.
	c, err := kafka.start(context.Background(), 1, map[string]string{"broker.session.timeout.ms": "60000"})
	if err == nil {
		closeAtEnd(c.close)
	}
	return c, err
})

// Kafka returns a running broker, which the tests of this binary share.
func Kafka(t testing.TB) *KafkaCluster {
	t.Helper()
	kafka.Need(t, "Kafka")
	c, err := sharedKafka()
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// OptimisedKafka returns a broker of this benchmark's own, whose JVM optimises code as one in production does. The one that Kafka
// returns doesn't, because tests end before that pays off.
func OptimisedKafka(b *testing.B) *KafkaCluster {
	b.Helper()
	return privateKafka(b, kafka, 1, nil, "-XX:TieredStopAtLevel=4", "-Xmx1g", "-Xms1g")
}

// FakeKafka starts a broker in this process, for faults that a real one cannot show. It ends with
// the test.
func FakeKafka(t testing.TB, opts ...kfake.Opt) *kfake.Cluster {
	t.Helper()
	c, err := kfake.NewCluster(append([]kfake.Opt{kfake.NumBrokers(1)}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// KafkaPrivate returns a cluster that only this test uses, so the test may stop, kill and pause its
// nodes, which are numbered from 1. With three nodes or more, topics have three replicas, of which
// two must be in sync. props are broker properties that replace testenv's own. A name with a plus,
// such as "+listeners", appends its value to testenv's own after a comma. A number and a colon in front, such as
// "2:+listeners", are for that node only.
func KafkaPrivate(t testing.TB, nodes int, props map[string]string) *KafkaCluster {
	t.Helper()
	return privateKafka(t, kafka, nodes, props)
}

// KafkaWithHangingTransactions is KafkaPrivate with a release that has KAFKA-20734.
func KafkaWithHangingTransactions(t testing.TB, nodes int) *KafkaCluster {
	t.Helper()
	return privateKafka(t, hangingKafka, nodes, nil)
}

// privateKafka is KafkaPrivate with a release and further options of the JVM.
func privateKafka(t testing.TB, r *release, nodes int, props map[string]string, options ...string) *KafkaCluster {
	t.Helper()
	r.Need(t, "Kafka")
	c, err := r.start(t.Context(), nodes, props, options...)
	if err != nil {
		t.Fatal(err)
	}
	c.private = true
	t.Cleanup(func() {
		if t.Failed() {
			for _, n := range c.nodes {
				t.Logf("last messages of kafka node %d:\n%s", n.id, n.Said())
			}
		}
		if err := c.close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// Brokers returns the addresses (host:port) of all nodes, including stopped ones.
func (c *KafkaCluster) Brokers() []string {
	var all []string
	for _, n := range c.nodes {
		all = append(all, n.Address())
	}
	return all
}

// PID is the process of a node.
func (c *KafkaCluster) PID(node int) int { return c.nodes[node-1].PID }

// Data returns the folder of a node's data.
func (c *KafkaCluster) Data(node int) string { return c.nodes[node-1].File("data") }

// Client returns a client that is closed at the end of the test.
func (c *KafkaCluster) Client(t testing.TB, opts ...kgo.Opt) *kgo.Client {
	t.Helper()
	cl, err := kgo.NewClient(append([]kgo.Opt{kgo.SeedBrokers(c.Brokers()...)}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cl.Close)
	return cl
}

// Topic creates a topic with a unique name, and returns the name when each partition has a leader.
// configs are the topic's, such as max.message.bytes, or nil.
func (c *KafkaCluster) Topic(t testing.TB, partitions int, configs map[string]string) string {
	t.Helper()
	name := unique("wp")
	c.CreateTopic(t, name, partitions, configs)
	return name
}

// CreateTopic creates a topic with the given name, which must not exist.
func (c *KafkaCluster) CreateTopic(t testing.TB, name string, partitions int, configs map[string]string) {
	t.Helper()
	adm, ctx := c.admin(t)
	withNil := map[string]*string{}
	for k, v := range configs {
		withNil[k] = kadm.StringPtr(v)
	}
	soon(t, "there is no topic "+name, func() bool { // a broker may still know one that was deleted
		topics, err := adm.ListTopics(ctx, name)
		return err == nil && !topics.Has(name)
	})
	for give := time.Now().Add(30 * time.Second); ; time.Sleep(100 * time.Millisecond) {
		_, err := adm.CreateTopic(ctx, int32(partitions), -1, withNil, name)
		if err == nil || errors.Is(err, kerr.TopicAlreadyExists) { // the client repeats a request whose answer is lost
			break
		}
		// The controller has lost a broker, which comes back if it was only late.
		if !errors.Is(err, kerr.InvalidReplicationFactor) || time.Now().After(give) {
			t.Fatalf("create topic %s: %v", name, err)
		}
	}
	soon(t, "each partition of "+name+" has a leader", func() bool {
		topics, err := adm.ListTopics(ctx, name)
		return err == nil && ledBy(topics[name], partitions)
	})
}

func ledBy(d kadm.TopicDetail, partitions int) bool {
	if d.Err != nil || len(d.Partitions) != partitions {
		return false
	}
	for _, p := range d.Partitions {
		if p.Err != nil || p.Leader < 0 {
			return false
		}
	}
	return true
}

func adminOf(brokers ...string) (*kadm.Client, error) {
	return kadm.NewOptClient(
		kgo.SeedBrokers(brokers...),
		kgo.RetryBackoffFn(func(int) time.Duration { return 20 * time.Millisecond }),
		kgo.MetadataMinAge(10*time.Millisecond),
	)
}

// own returns the given nodes of a private cluster, or all nodes if none is given.
func (c *KafkaCluster) own(ids []int) []*node {
	if !c.private {
		panic("testenv: this needs a private cluster: use testenv.KafkaPrivate")
	}
	if len(ids) == 0 {
		return c.nodes
	}
	var nodes []*node
	for _, id := range ids {
		if id < 1 || id > len(c.nodes) {
			panic(fmt.Sprintf("testenv: there is no node %d in a cluster of %d", id, len(c.nodes)))
		}
		nodes = append(nodes, c.nodes[id-1])
	}
	return nodes
}

// Stop shuts nodes of a private cluster down in good order, and returns when they have ended.
// Without arguments, Stop, Kill, Pause, Resume and Start act on all nodes.
func (c *KafkaCluster) Stop(nodes ...int) error {
	return eachNode(c.own(nodes), func(n *node) error { return n.End(syscall.SIGTERM, time.Minute) })
}

// Kill kills nodes of a private cluster with SIGKILL.
func (c *KafkaCluster) Kill(nodes ...int) error {
	return eachNode(c.own(nodes), func(n *node) error { return n.End(syscall.SIGKILL, time.Minute) })
}

// Pause freezes nodes of a private cluster with SIGSTOP. Their connections stay open, but they
// answer nothing.
func (c *KafkaCluster) Pause(nodes ...int) error {
	return eachNode(c.own(nodes), func(n *node) error { return n.Freeze() })
}

// Resume continues paused nodes.
func (c *KafkaCluster) Resume(nodes ...int) error {
	return eachNode(c.own(nodes), func(n *node) error { return n.Signal(syscall.SIGCONT) })
}

// Start starts stopped or killed nodes of a private cluster again, on the same ports and data. It
// returns when the cluster counts them among its live brokers.
func (c *KafkaCluster) Start(t testing.TB, nodes ...int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	if err := c.start(ctx, c.own(nodes)); err != nil {
		t.Fatal(err)
	}
}
