package sink

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/internal/kafka"
	"github.com/walpost/walpost/internal/testenv"
	"github.com/walpost/walpost/internal/testenv/short"
)

// A bench of transactions: a sink, and what a reader of committed records sees.
type txBench struct {
	*testing.T
	s     *Kafka
	cl    *kgo.Client
	n     uint64
	acked map[uint64]error
}

func newTxBench(t *testing.T, opts ...kfake.Opt) *txBench {
	t.Helper()
	c, err := kfake.NewCluster(append([]kfake.Opt{kfake.NumBrokers(1), kfake.SeedTopics(3, "a", "b"), kfake.SeedTopics(1, "cp")}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return openTx(t, c.ListenAddrs(), new(wire))
}

func openTx(t *testing.T, brokers []string, w *wire) *txBench {
	t.Helper()
	cfg := config(brokers)
	cfg.TransactionalID, cfg.Checkpoints, cfg.Dial = "relay.events", "cp", w.dial
	s, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close(context.Background()) })
	b := &txBench{T: t, s: s, acked: map[uint64]error{}}
	if b.cl, err = kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.ConsumeTopics("a", "b", "cp"), kgo.FetchIsolationLevel(kgo.ReadCommitted())); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.cl.Close)
	return b
}

func (b *txBench) begin() {
	b.Helper()
	if err := b.s.Fence(b.Context()); err != nil {
		b.Fatal(err)
	}
	b.s.Begin()
}

func (b *txBench) send(topic, value string) {
	b.n++
	b.s.Send(&cdc.Record{Topic: topic, Key: []byte(value), Value: []byte(value), Partition: -1}, cdc.Ticket{Tx: b.n})
}

// sees waits until the reader has seen as many values, and returns them as a set.
func (b *txBench) sees(n int) map[string]int {
	b.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	got := map[string]int{}
	for total := 0; total < n; {
		fs := b.cl.PollFetches(ctx)
		if ctx.Err() != nil {
			b.Fatalf("saw %d of %d: %v; stalled: %v", total, n, got, b.s.Stalled())
		}
		fs.EachRecord(func(r *kgo.Record) { got[string(r.Value)]++; total++ })
	}
	return got
}

func (b *txBench) committed(n uint64) {
	b.Helper()
	for until := time.Now().Add(patience); ; {
		got, _, lost := b.s.Committed()
		for _, a := range b.s.Acks(nil) {
			b.acked[a.Ticket.Tx] = a.Err
		}
		switch {
		case lost != nil:
			b.Fatal(lost)
		case got == n:
			return
		case time.Now().After(until):
			b.s.mu.Lock()
			b.Fatalf("%d commits of %d; %+v", got, n, *b.s.tx)
		}
		time.Sleep(time.Millisecond)
	}
}

func TestACommitMakesRecordsAndCheckpointVisibleTogether(t *testing.T) {
	b := newTxBench(t)
	if err := b.s.Fence(t.Context()); err != nil {
		t.Fatal(err)
	}
	if b.send("a", "too soon"); b.s.Commit("k", nil) != 0 {
		t.Fatal("a commit before Begin")
	}
	b.n = 0
	b.s.Begin()
	for round := range 5 {
		for i := range 20 {
			b.send([]string{"a", "b"}[i%2], fmt.Sprintf("r%d-%d", round, i))
		}
		if b.s.Commit("k", fmt.Appendf(nil, "cp%d", round)) == 0 {
			t.Fatal("no commit")
		}
		b.committed(uint64(round + 1))
		if got := b.sees(21); len(got) != 21 || got[fmt.Sprintf("cp%d", round)] != 1 {
			t.Fatalf("%d: %v", len(got), got)
		}
	}
	if len(b.acked) != 100 {
		t.Errorf("%d acks", len(b.acked))
	}
}

// Before Kafka 2.5, a process that was fenced would take its transactional id back, and commit what its successor delivers again.
func TestBrokersThatDoNotFenceAreRefused(t *testing.T) {
	for version, want := range map[*kversion.Versions]error{kversion.V2_4_0(): kafka.ErrNotFenced, kversion.V2_5_0(): nil} {
		b := newTxBench(t, kfake.MaxVersions(version))
		if err := b.s.Fence(t.Context()); !errors.Is(err, want) || want != nil && fault.Hint(err) == "" {
			t.Errorf("%v, want %v; hint %q", err, want, fault.Hint(err))
		}
	}
}

// A txDriver is what the relay is to the sink: it sends numbered events in order, commits how far it has come, and begins behind the newest
// committed position after anything else.
type txDriver struct {
	*txBench
	total, next int // events; the next one to send
	sends       map[string]int
	position    int    // of the Commit under way, 0 for none
	commits     uint64 // that have taken effect
	fences      int
	farthest    int       // position that was committed
	moved       time.Time // when it was
}

// fence begins a new life of the sink, where the checkpoint stands.
func (d *txDriver) fence() {
	d.Helper()
	for d.s.Fence(d.Context()) != nil {
	}
	d.fences++
	d.s.Acks(nil)
	d.s.Begin()
	d.next, d.position = d.checkpoint(), 0
	d.commits, _, _ = d.s.Committed()
}

// checkpoint is the newest committed position.
func (d *txDriver) checkpoint() (at int) {
	d.Helper()
	r := kafka.Reader{Client: d.cl, Topic: "cp", Each: func(rec *kgo.Record) error {
		_, err := fmt.Sscan(string(rec.Value), &at)
		return err
	}}
	if err := r.ToEnd(d.Context()); err != nil {
		d.Fatal(err)
	}
	return at
}

// step sends some events and takes what has ended. It reports whether everything is committed.
func (d *txDriver) step(r *rand.Rand) bool {
	n, _, lost := d.s.Committed()
	for _, a := range d.s.Acks(nil) {
		if a.Err != nil { // passed over without a letter
			d.sends[a.EventID]++
			d.position = 0
			d.s.PassOver(&a, nil)
		}
	}
	if lost != nil {
		d.fence()
		return false
	}
	if n > d.commits {
		d.commits = n
		if d.position > d.farthest {
			d.farthest, d.moved = d.position, time.Now()
		}
		if d.position == d.total && d.next == d.total {
			return true
		}
		d.position = 0
	}
	for range r.IntN(20) {
		if d.next < d.total {
			id := fmt.Sprint(d.next)
			rec := cdc.Record{Topic: []string{"a", "b"}[d.next%2], Key: fmt.Append(nil, "k", d.next%7), Value: []byte(id), EventID: id, Partition: -1}
			if d.next%401 == 400 {
				rec.Value = testenv.Incompressible(30_000)
			}
			d.s.Send(&rec, cdc.Ticket{Tx: uint64(d.next + 1)})
			d.next++
		}
	}
	if d.position == 0 && r.IntN(3) == 0 && d.s.Commit("k", fmt.Append(nil, d.next)) > 0 {
		d.position = d.next
	}
	return false
}

// Whatever happens to the coordinator, the leaders, the connections and the process: each event is seen once, in the order of its key, and
// the checkpoint with it.
func TestTransactionsUnderRandomFaults(t *testing.T) {
	for seed := range short.Pick(*seeds, 2) {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
			t.Parallel()
			r := rand.New(rand.NewPCG(seed, 7))
			opts := []kfake.Opt{kfake.NumBrokers(3)}
			if seed%2 == 1 {
				opts = append(opts, kfake.MaxVersions(kversion.V3_6_0()))
			}
			c := testenv.FakeKafka(t, opts...)
			for topic, n := range map[string]int32{"a": 3, "b": 2, "cp": 1} {
				if err := c.CreateTopic(topic, n, map[string]string{"max.message.bytes": "20000"}); err != nil {
					t.Fatal(err)
				}
			}
			w := new(wire)
			d := &txDriver{txBench: openTx(t, c.ListenAddrs(), w), total: 3000, sends: map[string]int{}}
			d.fence()
			keys := []kmsg.Key{kmsg.Produce, kmsg.EndTxn, kmsg.InitProducerID, kmsg.AddPartitionsToTxn}
			errs := map[kmsg.Key][]*kerr.Error{
				kmsg.Produce: {
					kerr.NotEnoughReplicas, kerr.KafkaStorageError, kerr.NotLeaderForPartition, kerr.RequestTimedOut, kerr.OutOfOrderSequenceNumber,
					kerr.InvalidProducerEpoch, kerr.ConcurrentTransactions, kerr.UnknownProducerID,
				},
				kmsg.EndTxn:             {kerr.CoordinatorNotAvailable, kerr.CoordinatorLoadInProgress, kerr.ConcurrentTransactions, kerr.InvalidProducerEpoch, kerr.InvalidTxnState},
				kmsg.InitProducerID:     {kerr.CoordinatorNotAvailable, kerr.ConcurrentTransactions, kerr.CoordinatorLoadInProgress, kerr.ProducerFenced},
				kmsg.AddPartitionsToTxn: {kerr.ConcurrentTransactions, kerr.CoordinatorLoadInProgress},
			}
			d.moved = time.Now()
			for n := 0; !d.step(r); n++ {
				if time.Since(d.moved) > 2*patience {
					d.dump()
				}
				if n%50 != 0 {
					time.Sleep(time.Millisecond)
					continue
				}
				switch r.IntN(12) {
				case 0, 1:
					w.cut.Store(1)
				case 2:
					c.ShufflePartitionLeaders()
				case 3: // another process begins and ends, as when the slot moves there and back
					other := openTx(t, c.ListenAddrs(), new(wire))
					if err := other.s.Fence(t.Context()); err != nil {
						t.Fatal(err)
					}
					other.s.Begin()
					other.send("a", "never")
					time.Sleep(5 * time.Millisecond)
					_ = other.s.Close(t.Context()) // the fake brokers would let it fence the others once more
				case 4: // the process is killed
					_ = d.s.Close(t.Context())
					d.s = openTx(t, c.ListenAddrs(), w).s
					d.fence()
				case 5, 6, 7:
					key := keys[r.IntN(len(keys))]
					c.Fault(kfake.Fault{Keys: []kmsg.Key{key}, Err: errs[key][r.IntN(len(errs[key]))], Count: 1 + r.IntN(2)})
				}
			}
			d.check()
			t.Logf("%d fences, %d commits", d.fences, d.commits)
		})
	}
}

// check reads what a reader of committed records sees.
func (d *txDriver) check() {
	seen, last := map[string]int{}, map[string]int{}
	for topic, partitions := range map[string]int32{"a": 3, "b": 2} {
		for p := range partitions {
			r := kafka.Reader{Client: d.cl, Topic: topic, Partition: p, Each: func(rec *kgo.Record) error {
				id, n := string(rec.Value), 0
				_, _ = fmt.Sscan(id, &n)
				seen[id]++
				if n < last[string(rec.Key)+topic] {
					d.Errorf("key %s: %d behind %d", rec.Key, n, last[string(rec.Key)+topic])
				}
				last[string(rec.Key)+topic] = n
				return nil
			}}
			if err := r.ToEnd(d.Context()); err != nil {
				d.Fatal(err)
			}
		}
	}
	for i := range d.total {
		if id := fmt.Sprint(i); i%401 == 400 {
			if d.sends[id] == 0 {
				d.Errorf("%s was not refused", id)
			}
		} else if seen[id] != 1 {
			d.Errorf("%s was seen %d times", id, seen[id])
		}
	}
	if seen["never"] > 0 {
		d.Error("what another process did not commit was seen")
	}
	if at := d.checkpoint(); at != d.total {
		d.Errorf("the checkpoint is %d", at)
	}
}

// dump says what the sink waits for.
func (d *txDriver) dump() {
	d.Helper()
	d.Logf("next %d, position %d, commits %d, fences %d, stalled: %v", d.next, d.position, d.commits, d.fences, d.s.Stalled())
	d.s.mu.Lock()
	defer d.s.mu.Unlock()
	d.Logf("%+v; ids %+v", *d.s.tx, d.s.ids)
	for _, t := range d.s.topics {
		d.Logf("topic %s: %d wait, asking %v, halted %v, reason %v", t.name, t.queue.len(), t.asking, t.halted, t.reason)
		for _, p := range t.parts {
			d.Logf("partition %d: %d wait, %d again, %d in flight, %d out, state %d, renew %v, due %v, listed %v, reason %v, producer %v", p.n, p.queue.len(), len(p.again), len(p.flight), p.out, p.state, p.renew, p.due, p.listed, p.reason, p.producer)
		}
	}
	d.FailNow()
}

func TestTheCoordinatorIsAskedForOnceUntilItRefuses(t *testing.T) {
	c := testenv.FakeKafka(t, kfake.NumBrokers(3), kfake.SeedTopics(3, "a"), kfake.SeedTopics(1, "cp"))
	b := openTx(t, c.ListenAddrs(), new(wire))
	b.begin()
	var finds atomic.Int32
	c.ControlKey(kmsg.FindCoordinator.Int16(), func(kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		finds.Add(1)
		return nil, nil, false
	})
	for round := range uint64(6) {
		if round == 4 {
			c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.EndTxn}, Err: kerr.NotCoordinator, Count: 1})
		}
		b.send("a", fmt.Sprint(round))
		b.s.Commit("k", nil)
		b.committed(round + 1)
	}
	if n := finds.Load(); n != 2 {
		t.Errorf("the coordinator was asked for %d times, want 2: at the first commit, and behind the refusal", n)
	}
}

// lateCoordinator gives its first answers to finish when it is told to.
type lateCoordinator struct {
	coordinator
	finishes atomic.Int32
	asked    chan struct{}
	answers  [2]chan error
}

func (c *lateCoordinator) finish(ctx context.Context, id producerID, commit, modern bool) (producerID, error) {
	n := c.finishes.Add(1)
	if n > 2 {
		return c.coordinator.finish(ctx, id, commit, modern)
	}
	c.asked <- struct{}{}
	if err := <-c.answers[n-1]; n == 1 {
		return id, err
	}
	return c.coordinator.finish(ctx, id, commit, modern)
}

// An answer to the commit before a Fence says nothing of the one behind it.
func TestALateAnswerDoesNotEndTheNextTransaction(t *testing.T) {
	for _, answer := range []error{nil, kerr.InvalidProducerEpoch} {
		b := newTxBench(t)
		late := &lateCoordinator{coordinator: b.s.tx.coordinator, asked: make(chan struct{}), answers: [2]chan error{make(chan error), make(chan error)}}
		b.s.tx.coordinator = late
		t.Cleanup(func() { close(late.answers[1]) }) // before the sink is closed
		for _, value := range []string{"first", "second"} {
			b.begin()
			b.send("a", value)
			b.s.Commit("k", []byte("checkpoint of "+value))
			<-late.asked
		}
		late.answers[0] <- answer
		time.Sleep(20 * time.Millisecond) // for the answer to be taken
		if n, underWay, lost := b.s.Committed(); n != 0 || !underWay || lost != nil {
			t.Fatalf("%d commits, under way %v, lost: %v, by a late answer %v", n, underWay, lost, answer)
		}
		late.answers[1] <- nil
		b.committed(1)
		if got := b.sees(2); got["second"] != 1 || got["checkpoint of second"] != 1 {
			t.Errorf("the reader saw %v behind the late answer %v", got, answer)
		}
	}
}
