//go:build linux || darwin

package sink

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/internal/kafka"
	"github.com/walpost/walpost/internal/testenv"
)

func TestRealTheParkingLogKeepsTheOrder(t *testing.T) {
	k := testenv.Kafka(t)
	topic := k.Topic(t, 1, nil) + ".parked"
	parkingLogKeepsTheOrder(t, k.Brokers(), topic)
	cl := k.Client(t)
	is, err := kafka.DescribeTopic(patient(t), cl, topic, "cleanup.policy", "retention.ms", "retention.bytes", "max.message.bytes")
	if err != nil {
		t.Fatal(err)
	}
	for key, value := range LetterTopic {
		if is.Settings[key] != value {
			t.Errorf("%s is %q, want %s", key, is.Settings[key], value)
		}
	}
	b := openLog(t, config(k.Brokers()), topic)
	b.fence()
	b.appendValue(append([]byte("large"), incompressible(30<<20)...))
	b.all()
	if a := b.ended[0]; a.Err != nil {
		t.Error(a.Err)
	}
	deleteTopic(t, cl, topic)
}

func TestRealTheParkingLogPassesOverRefusedRecords(t *testing.T) {
	k := testenv.Kafka(t)
	parkingLogPassesOver(t, k.Brokers(), k.Topic(t, 1, map[string]string{"max.message.bytes": "20000"}))
}

func TestRealTheParkingLogWaitsForTheTransactionOfAnother(t *testing.T) {
	k := testenv.Kafka(t)
	parkingLogWaitsForAnother(t, k.Brokers(), k.Topic(t, 1, nil))
}

func TestRealTheParkingLogIsTrimmed(t *testing.T) {
	k := testenv.Kafka(t)
	parkingLogIsTrimmed(t, k.Brokers(), k.Topic(t, 1, nil))
}

func TestRealTheParkingLogBreaksWithItsTopic(t *testing.T) {
	k := testenv.Kafka(t)
	topic := k.Topic(t, 1, nil)
	cl := k.Client(t)
	parkingLogBreaksWithItsTopic(t, cl, k.Brokers(), topic, func() error {
		how := kafka.NewTopic{Name: topic, Partitions: 1}
		made, err := how.Create(patient(t), cl, false)
		return errors.Join(err, made.Err) // which is there still, for a moment
	})
}

// A process that has a transaction open is fenced: what it wrote is aborted at once, and its commit is refused.
func TestRealTheParkingLogIsFenced(t *testing.T) {
	k := testenv.Kafka(t)
	topic := k.Topic(t, 1, nil)
	first, second := openLog(t, config(k.Brokers()), topic), openLog(t, config(k.Brokers()), topic)
	first.fence()
	first.append(3)
	first.all()
	flushed, commit := make(chan struct{}), make(chan struct{})
	first.beforeCommit = func() { close(flushed); <-commit }
	first.append(1)
	<-flushed
	began := time.Now()
	state := second.fence()
	t.Logf("fenced within %s", time.Since(began))
	second.append(1)
	second.all()
	want := append(slices.Clone(first.values[:3]), second.values...)
	second.holds(want...)
	if state.End < second.written[second.values[0]]-1 {
		t.Errorf("%+v", state)
	}
	close(commit)
	if err := first.breaks(); !fault.Retryable(err) || !strings.Contains(err.Error(), first.id) {
		t.Errorf("broken: %v", err)
	}
	first.append(1)
	second.holds(want...)
	if left := first.Unwritten(); len(left) != 2 {
		t.Errorf("%d unwritten", len(left))
	}
	// Without a transaction open.
	first.beforeCommit = nil
	first.fence()
	second.append(1)
	second.breaks()
	first.next, first.seen = 0, nil
	first.written = map[string]int64{}
	first.holds(want...)
}

// A transaction that takes longer than its timeout is aborted by the brokers. Its process can't commit it any more.
func TestRealTheParkingLogBreaksWhenItsTransactionTimesOut(t *testing.T) {
	k := testenv.KafkaPrivate(t, 1, map[string]string{"transaction.abort.timed.out.transaction.cleanup.interval.ms": "500"})
	b := openLog(t, config(k.Brokers()), "parked")
	b.timeout = time.Second
	b.fence()
	flushed, commit := make(chan struct{}), make(chan struct{})
	b.beforeCommit = func() { close(flushed); <-commit }
	b.append(2)
	<-flushed
	b.beforeCommit = nil
	reader := openLog(t, config(k.Brokers()), "parked")
	reader.holds() // when the transaction is aborted
	if reader.next < 2 {
		t.Fatalf("read up to %d", reader.next)
	}
	close(commit)
	b.breaks()
	b.append(1)
	b.goOn()
	b.all()
	b.holds(b.values...)
}

// The brokers die and come back, in the midst of transactions.
func TestRealTheParkingLogBearsBrokersThatDie(t *testing.T) {
	k := testenv.KafkaPrivate(t, 3, map[string]string{"broker.session.timeout.ms": "3000"})
	k.CreateTopic(t, "parked", 1, map[string]string{"min.insync.replicas": "1"})
	b := openLog(t, config(k.Brokers()), "parked")
	b.fence()
	until := func(n int) {
		b.await(func() bool { return b.Broken() != nil || len(b.written) >= n })
		if b.Broken() != nil {
			b.goOn()
		}
	}
	for node := 1; node <= 3; node++ {
		b.append(200)
		until(len(b.values) - 100)
		if err := k.Kill(node); err != nil {
			t.Fatal(err)
		}
		died := time.Now()
		for range 5 {
			b.append(50)
			until(len(b.values))
		}
		t.Logf("without broker %d: 250 records within %s", node, time.Since(died))
		k.Start(t, node)
	}
	for len(b.ended) < len(b.values) {
		until(len(b.values))
	}
	b.holds(b.values...)
}

// park_key needs Write and Describe on the transactional id, and neither IdempotentWrite nor anything else of the cluster.
func TestRealTheParkingLogNeedsItsTransactionalID(t *testing.T) {
	k, asked := testenv.KafkaWithACLs(t, map[string]string{"relay": "secret"}, nil)
	k.CreateTopic(t, "parked", 1, nil)
	cl := k.Client(t)
	cfg := config([]string{asked})
	cfg.SASL = kafka.SASL{Mechanism: "PLAIN", Username: "relay", Password: "secret"}
	b := openLog(t, cfg, "parked")
	b.patience = 3 * time.Second
	try := func(want *kerr.Error, grant func()) {
		t.Helper()
		_, err := b.Fence(t.Context(), false)
		if !errors.Is(err, want) || !fault.Retryable(err) {
			t.Errorf("%v, want %v", err, want)
		}
		grant()
	}
	for _, op := range []kmsg.ACLOperation{kmsg.ACLOperationDescribe, kmsg.ACLOperationRead} {
		setACL(t, cl, "parked", op, true)
	}
	waitFor(t, func() bool { _, err := b.Fence(t.Context(), false); return kafka.Denied(err) })
	try(kerr.TopicAuthorizationFailed, func() { setACL(t, cl, "parked", kmsg.ACLOperationWrite, true) })
	waitFor(t, func() bool {
		_, err := b.Fence(t.Context(), false)
		return errors.Is(err, kerr.TransactionalIDAuthorizationFailed)
	})
	try(kerr.TransactionalIDAuthorizationFailed, func() { setTransactionalACL(t, cl, b.id, kmsg.ACLOperationDescribe) })
	try(kerr.TransactionalIDAuthorizationFailed, func() { setTransactionalACL(t, cl, b.id, kmsg.ACLOperationWrite) })
	b.fence()
	b.append(3)
	b.all()
	b.holds(b.values...)
	// It may not delete records, which only lets the topic grow.
	if err := b.Trim(t.Context(), 2, func(*kgo.Record) bool { return true }); err != nil || !b.warned {
		t.Error(err)
	}
	setACL(t, cl, "parked", kmsg.ACLOperationDelete, true)
	waitFor(t, func() bool {
		err := b.Trim(t.Context(), 2, func(*kgo.Record) bool { return true })
		var state cdc.LogState
		if err == nil {
			state, err = b.Fence(t.Context(), false)
		}
		return err == nil && state.Start == 2
	})
}

func setTransactionalACL(t testing.TB, cl *kgo.Client, id string, op kmsg.ACLOperation) {
	t.Helper()
	req := kmsg.NewPtrCreateACLsRequest()
	c := kmsg.NewCreateACLsRequestCreation()
	c.ResourceType, c.ResourceName, c.ResourcePatternType = kmsg.ACLResourceTypeTransactionalId, id, kmsg.ACLResourcePatternTypeLiteral
	c.Principal, c.Host, c.Operation, c.PermissionType = "User:relay", "*", op, kmsg.ACLPermissionTypeAllow
	req.Creations = append(req.Creations, c)
	if _, err := req.RequestWith(patient(t), cl); err != nil {
		t.Fatal(err)
	}
}
