//go:build linux || darwin

package statelog

import (
	"errors"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/internal/kafka"
	"github.com/walpost/walpost/internal/testenv"
)

func init() {
	realWorld = func(t *testing.T, settings map[string]string) *world {
		k := testenv.Kafka(t)
		w := &world{brokers: k.Brokers(), cl: k.Client(t), topic: k.Topic(t, 1, settings)}
		if settings == nil {
			w.topic += ".own"
			t.Cleanup(func() { w.deleteTopic(t) })
		}
		return w
	}
}

// Brokers die in the midst of transactions: the one that leads the topic. A transaction that takes longer than its timeout is aborted
// by the brokers, and its process can't commit it any more.
func TestRealALogBearsABrokerThatDies(t *testing.T) {
	k := testenv.KafkaPrivate(t, 3, map[string]string{
		"broker.session.timeout.ms": "3000", "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
	})
	w := &world{brokers: k.Brokers(), cl: k.Client(t), topic: "own"}
	k.CreateTopic(t, w.topic, 1, map[string]string{"min.insync.replicas": "1"})
	b := w.open(t)
	b.timeout = 2 * time.Second
	b.fence()
	flushed, commit := make(chan struct{}), make(chan struct{})
	b.beforeCommit = func() { close(flushed); <-commit }
	b.append(1) // of two, the second may be in the next transaction
	reached := func() bool {
		select {
		case <-flushed:
			return true
		default:
			return false
		}
	}
	either := func() bool { return reached() || b.Broken() != nil }
	waitFor(t, either)
	for try := 0; try < 5 && !reached(); try++ { // the machine is so busy that the transaction timed out too early
		b.timeout *= 2
		b.goOn()
		waitFor(t, either)
	}
	if !reached() {
		t.Fatal(b.Broken())
	}
	b.beforeCommit = nil
	reader := w.open(t)
	reader.holds() // when the transaction is aborted
	if reader.next < 1 {
		t.Fatalf("read up to %d", reader.next)
	}
	close(commit)
	b.breaks()
	b.append(1)
	b.timeout = transactionTimeout
	b.goOn()
	b.all()

	until := func(n int) {
		b.await(func() bool { return b.Broken() != nil || len(b.written) >= n })
		if b.Broken() != nil {
			b.goOn()
		}
	}
	b.append(200)
	until(len(b.values) - 100)
	is, err := kafka.DescribeTopic(patient(t), w.cl, w.topic)
	if err != nil {
		t.Fatal(err)
	}
	if err := k.Kill(int(is.Partitions[0].Leader)); err != nil {
		t.Fatal(err)
	}
	for range 5 {
		b.append(50)
		until(len(b.values))
	}
	for len(b.ended) < len(b.values) {
		until(len(b.values))
	}
	b.holds(b.values...)
}

// park_key needs Write and Describe on the transactional id, and neither IdempotentWrite nor anything else of the cluster.
func TestRealALogNeedsItsTransactionalID(t *testing.T) {
	k, asked := testenv.KafkaWithACLs(t, map[string]string{"relay": "secret"}, nil)
	w := &world{brokers: []string{asked}, cl: k.Client(t), topic: "own"}
	k.CreateTopic(t, w.topic, 1, nil)
	cfg := config(w.brokers, w.topic)
	cfg.SASL = kafka.SASL{Mechanism: "PLAIN", Username: "relay", Password: "secret"}
	b := openLog(t, cfg)
	b.patience = 3 * time.Second
	allow := func(acls *kadm.ACLBuilder, ops ...kadm.ACLOperation) {
		t.Helper()
		made, err := kadm.NewClient(w.cl).CreateACLs(patient(t), acls.Allow("User:relay").AllowHosts("*").ResourcePatternType(kadm.ACLPatternLiteral).Operations(ops...))
		if err != nil || made[0].Err != nil {
			t.Fatal(err, made)
		}
	}
	refused := func(want *kerr.Error) {
		t.Helper()
		waitFor(t, func() bool {
			_, err := b.Open(t.Context(), false)
			if err == nil || !fault.Retryable(err) {
				t.Fatal(err)
			}
			return errors.Is(err, want)
		})
	}
	allow(kadm.NewACLs().Topics(w.topic), kadm.OpDescribe, kadm.OpRead)
	refused(kerr.TopicAuthorizationFailed)
	allow(kadm.NewACLs().Topics(w.topic), kadm.OpWrite)
	refused(kerr.TransactionalIDAuthorizationFailed)
	b.patience = 30 * time.Second
	allow(kadm.NewACLs().TransactionalIDs(b.TransactionalID), kadm.OpDescribe, kadm.OpWrite)
	b.fence()
	b.append(3)
	b.all()
	b.holds(b.values...)
	// A checkpoint needs the topic alone.
	allow(kadm.NewACLs().Topics("checkpoints"), kadm.OpRead, kadm.OpWrite, kadm.OpCreate)
	cfg.Topic = "checkpoints"
	store := openStore(t, cfg)
	waitFor(t, func() bool { return store.Save(t.Context(), "n/1", []byte("x")) == nil })
	if got, err := store.Load(t.Context(), "n"); err != nil || len(got) != 1 {
		t.Error(got, err)
	}
	// It may not delete records, which only lets the topic grow.
	waitFor(t, func() bool {
		err := b.Trim(t.Context(), 2, every)
		if err != nil && !fault.Retryable(err) {
			t.Fatal(err)
		}
		return err == nil
	})
	if !b.warned {
		t.Error("nobody is told that it may not delete records")
	}
	allow(kadm.NewACLs().Topics(w.topic), kadm.OpDelete)
	waitFor(t, func() bool {
		err := b.Trim(t.Context(), 2, every)
		var state cdc.LogState
		if err == nil {
			state, err = b.Open(t.Context(), false)
		}
		return err == nil && state.Start == 2
	})
}
