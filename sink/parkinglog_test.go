package sink

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rs/zerolog"
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

// A logBench is a ParkingLog with a book of what was appended and what has ended.
type logBench struct {
	testing.TB
	*ParkingLog
	values  []string // that were appended first, by ticket
	ended   []cdc.Appended
	written map[string]int64 // value -> offset, of what has ended without an error
	seen    []string         // that Read returned
	next    int64            // of Read
}

// openLog opens the parking log of a holder with the transactional id "relay".
func openLog(t testing.TB, cfg Config, topic string) *logBench {
	t.Helper()
	cfg.Parking = topic
	b := &logBench{TB: t, ParkingLog: NewParkingLog(cfg, "relay-"+topic), written: map[string]int64{}}
	b.patience = 10 * time.Second
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := b.Close(ctx); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return b
}

// fence fences the topic, however often that has to be tried.
func (b *logBench) fence() (state cdc.LogState) {
	b.Helper()
	waitFor(b, func() bool {
		var err error
		state, err = b.Fence(b.Context(), true)
		if err != nil && !fault.Retryable(err) {
			b.Fatal(err)
		}
		return err == nil
	})
	if err := b.Broken(); err != nil {
		b.Fatal(err)
	}
	return state
}

// append appends values that no other append has, and returns the last one.
func (b *logBench) append(count int) string {
	for range count {
		b.appendValue([]byte(fmt.Sprint(b.id, "/", len(b.values))))
	}
	return b.values[len(b.values)-1]
}

func (b *logBench) appendValue(value []byte) {
	b.values = append(b.values, string(value))
	rec := &cdc.Record{Topic: b.cfg.Parking, Key: []byte("k"), Value: value, Time: time.UnixMilli(1_700_000_000_000), Committed: time.Now()}
	rec.Headers = []cdc.Header{{Key: "n", Value: fmt.Append(nil, len(b.values)-1)}}
	b.Append(rec, cdc.Ticket{Tx: uint64(len(b.values) - 1)})
}

// await takes what has ended until done says so.
func (b *logBench) await(done func() bool) {
	b.Helper()
	limit := time.NewTimer(patience)
	defer limit.Stop()
	for {
		before := len(b.ended)
		b.ended = b.Appends(b.ended)
		for _, a := range b.ended[before:] {
			value := string(a.Record.Value)
			if value != b.values[a.Ticket.Tx] || a.Latency < 0 {
				b.Fatalf("the end of append %d: %+v", a.Ticket.Tx, a)
			}
			if _, twice := b.written[value]; twice {
				b.Fatalf("append %d ended twice", a.Ticket.Tx)
			}
			if a.Err == nil {
				b.written[value] = a.Offset
			}
		}
		if done() {
			return
		}
		select {
		case <-b.Wake():
		case <-limit.C:
			b.Fatalf("%d of %d ended; broken: %v; stalled: %v", len(b.ended), len(b.values), b.Broken(), b.Stalled())
		}
	}
}

func (b *logBench) all() { b.Helper(); b.await(func() bool { return len(b.ended) == len(b.values) }) }

func (b *logBench) breaks() error {
	b.Helper()
	b.await(func() bool { return b.Broken() != nil })
	return b.Broken()
}

// read reads on to the end.
func (b *logBench) read() {
	b.Helper()
	waitFor(b, func() bool {
		next, err := b.Read(b.Context(), b.next, func(r *kgo.Record) bool {
			b.seen = append(b.seen, string(r.Value))
			return true
		})
		if b.next = next; err != nil && !fault.Retryable(err) {
			b.Fatal(err)
		}
		return err == nil
	})
}

// goOn does what the holder of a broken log does: it fences the topic, reads what is committed, and appends the rest again.
func (b *logBench) goOn() {
	b.Helper()
	b.fence()
	b.read()
	b.await(func() bool { return true })
	left := b.Unwritten()
	for _, u := range left {
		if value := string(u.Record.Value); slices.Contains(b.seen, value) {
			b.written[value] = -1
			b.ended = append(b.ended, cdc.Appended{Ticket: u.Ticket, Record: u.Record})
		} else {
			b.Append(u.Record, u.Ticket)
		}
	}
}

// holds compares what the topic holds with want.
func (b *logBench) holds(want ...string) {
	b.Helper()
	b.read()
	if !slices.Equal(b.seen, want) {
		b.Fatalf("the topic holds %d records, want %d:\n%s\n%s", len(b.seen), len(want), brief(b.seen), brief(want))
	}
	for value, offset := range b.written {
		if !slices.Contains(b.seen, value) {
			b.Fatalf("%.20q is acknowledged at offset %d and is not in the topic", value, offset)
		}
	}
}

func brief(values []string) (out string) {
	for _, v := range values[max(0, len(values)-20):] {
		out += fmt.Sprintf(" %.20s", v)
	}
	return out
}

// downgrade has the clients add partitions to a transaction before they produce to them, as before Kafka 4.
func downgrade(t testing.TB, c *kfake.Cluster) {
	t.Helper()
	cl, err := config(c.ListenAddrs()).NewClient()
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	req := kmsg.NewPtrUpdateFeaturesRequest()
	f := kmsg.NewUpdateFeaturesRequestFeatureUpdate()
	f.Feature, f.UpgradeType = "transaction.version", 2
	req.FeatureUpdates = append(req.FeatureUpdates, f)
	resp, err := req.RequestWith(t.Context(), cl)
	if err != nil || resp.ErrorCode != 0 {
		t.Fatal(resp, err)
	}
}

// eachProtocol runs a test with the transactions of Kafka 4 and with those from before.
func eachProtocol(t *testing.T, test func(t *testing.T, c *kfake.Cluster)) {
	for _, old := range []bool{false, true} {
		t.Run(fmt.Sprint("old=", old), func(t *testing.T) {
			c := testenv.FakeKafka(t, kfake.NumBrokers(3))
			if old {
				downgrade(t, c)
			}
			test(t, c)
		})
	}
}

// holdCommit holds back the next end of a transaction, from when ended is closed until release is called.
func holdCommit(c *kfake.Cluster) (ended <-chan struct{}, release func()) {
	reached, goOn := make(chan struct{}), make(chan struct{})
	var held atomic.Bool
	c.ControlKey(int16(kmsg.EndTxn), func(kmsg.Request) (kmsg.Response, error, bool) {
		if c.KeepControl(); !held.Swap(true) {
			close(reached)
			c.SleepControl(func() { <-goOn })
		}
		return nil, nil, false
	})
	return reached, func() { close(goOn) }
}

// What is appended is in the topic in that order, and each end has its offset.
func TestTheParkingLogKeepsTheOrder(t *testing.T) {
	eachProtocol(t, func(t *testing.T, c *kfake.Cluster) { parkingLogKeepsTheOrder(t, c.ListenAddrs(), "parked") })
}

func parkingLogKeepsTheOrder(t *testing.T, brokers []string, topic string) {
	b := openLog(t, config(brokers), topic)
	if state, err := b.Fence(t.Context(), false); err != nil || !state.Missing || state.ID != "" {
		t.Fatalf("without the topic: %+v, %v", state, err)
	}
	if _, err := b.Read(t.Context(), 0, func(*kgo.Record) bool { return true }); err != nil {
		t.Errorf("read a missing topic: %v", err)
	}
	b.append(1)
	if err := b.Broken(); !errors.Is(err, errUnfenced) {
		t.Errorf("an append without a topic: %v", err)
	}
	state := b.fence()
	if state.Missing || state.Start != 0 || state.End != 0 || len(state.ID) != 32 {
		t.Fatalf("a new topic: %+v", state)
	}
	for _, u := range b.Unwritten() {
		b.Append(u.Record, u.Ticket)
	}
	for range 5 {
		b.append(700)
		b.await(func() bool { return len(b.ended) > 0 })
	}
	b.all()
	b.holds(b.values...)
	for i, a := range b.ended {
		if a.Ticket.Tx != uint64(i) {
			t.Fatalf("end %d is that of append %d", i, a.Ticket.Tx)
		}
	}
	records := readAll(t, brokers, topic)
	for _, r := range records {
		if b.written[string(r.Value)] != r.Offset || header(r, "n") == "" || string(r.Key) != "k" || r.Timestamp.UnixMilli() != 1_700_000_000_000 {
			t.Fatalf("record at %d: %+v, acknowledged at %d", r.Offset, r, b.written[string(r.Value)])
		}
	}
	again := b.fence()
	if again.ID != state.ID || again.End <= records[len(records)-1].Offset {
		t.Errorf("fenced again: %+v", again)
	}
}

// A second holder fences the first, which has a transaction open. What the first one had not committed is never read, whatever it does then.
func TestTheParkingLogIsFenced(t *testing.T) {
	eachProtocol(t, func(t *testing.T, c *kfake.Cluster) {
		first, second := openLog(t, config(c.ListenAddrs()), "parked"), openLog(t, config(c.ListenAddrs()), "parked")
		first.fence()
		first.append(3)
		first.all()
		ended, release := holdCommit(c)
		first.append(2)
		<-ended
		state := second.fence()
		second.append(1)
		second.all()
		release()
		if err := first.breaks(); !fault.Retryable(err) || !strings.Contains(err.Error(), `"relay-parked"`) {
			t.Errorf("broken: %v", err)
		}
		if state.End < 4 {
			t.Errorf("the second sees %+v", state)
		}
		first.append(2)
		want := append(slices.Clone(first.values[:3]), second.values...)
		second.holds(want...)
		left := first.Unwritten()
		if len(left) != 4 || string(left[0].Record.Value) != first.values[3] || left[3].Ticket.Tx != 6 || first.Unwritten() != nil {
			t.Errorf("unwritten: %+v", left)
		}
		// And back. What is appended while Unwritten has something is behind it.
		first.append(1)
		first.fence()
		first.append(1)
		if left := first.Unwritten(); len(left) != 2 || left[0].Ticket.Tx != 7 || first.Unwritten() != nil {
			t.Errorf("unwritten: %+v", left)
		}
		first.append(1)
		first.await(func() bool { return len(first.written) == 4 })
		second.append(1)
		second.breaks()
		want = append(want, first.values[9])
		first.holds(want...)
	})
}

// A record that alone is refused ends with the reason. What was appended around it is written in order, once.
func TestTheParkingLogPassesOverRefusedRecords(t *testing.T) {
	eachProtocol(t, func(t *testing.T, c *kfake.Cluster) {
		if err := c.CreateTopic("parked", 1, map[string]string{"max.message.bytes": "20000"}); err != nil {
			t.Fatal(err)
		}
		parkingLogPassesOver(t, c.ListenAddrs(), "parked")
	})
}

// parkingLogPassesOver needs a topic whose limit is 20000 bytes.
func parkingLogPassesOver(t *testing.T, brokers []string, topic string) {
	b := openLog(t, config(brokers), topic)
	b.fence()
	bad := map[int]bool{}
	for n := range 12 {
		b.append(1 + 37*n)
		if n%3 == 0 {
			bad[len(b.values)] = true
			b.appendValue(append(fmt.Append(nil, "large/", n), incompressible(50_000)...))
		}
		b.appendValue(append(fmt.Append(nil, "x/", n), bytes.Repeat([]byte("x"), 50_000)...)) // it fits when it's compressed
	}
	b.all()
	var want []string
	for i, a := range b.ended {
		r, refused := errors.AsType[*cdc.Refusal](a.Err)
		if refused != bad[i] || refused && (r.Reason != cdc.TooLarge || r.Topic != topic) || a.Ticket.Tx != uint64(i) {
			t.Fatalf("append %d: %v", i, a.Err)
		}
		if !refused {
			want = append(want, b.values[i])
		}
	}
	b.holds(want...)
	if err := b.Broken(); err != nil {
		t.Error(err)
	}
}

// Records that fit alone are not sent in batches that are too large, so no transaction is aborted. Where the topic has hardly any limit,
// a batch has a few megabytes.
func TestTheParkingLogKeepsItsBatchesBelowTheLimit(t *testing.T) {
	for _, limit := range []int{20_000, kafka.MaxRequest} {
		c := testenv.FakeKafka(t)
		if err := c.CreateTopic("parked", 1, map[string]string{"max.message.bytes": fmt.Sprint(limit)}); err != nil {
			t.Fatal(err)
		}
		var commits, aborts, large atomic.Int32
		c.ControlKey(int16(kmsg.EndTxn), func(req kmsg.Request) (kmsg.Response, error, bool) {
			c.KeepControl()
			if req.(*kmsg.EndTxnRequest).Commit { //nolint:errcheck // ControlKey's
				commits.Add(1)
			} else {
				aborts.Add(1)
			}
			return nil, nil, false
		})
		c.ControlKey(int16(kmsg.Produce), func(req kmsg.Request) (kmsg.Response, error, bool) {
			c.KeepControl()
			large.Store(max(large.Load(), int32(len(req.(*kmsg.ProduceRequest).Topics[0].Partitions[0].Records)))) //nolint:errcheck // ControlKey's
			return nil, nil, false
		})
		cfg := config(c.ListenAddrs())
		cfg.Compression = "none"
		b := openLog(t, cfg, "parked")
		b.fence()
		for n := range 300 {
			b.appendValue(append(fmt.Append(nil, n, "/"), incompressible(min(limit, 1<<20)/20)...))
		}
		b.all()
		b.holds(b.values...)
		if aborts.Load() > 0 || commits.Load() > 100 || large.Load() > batchBytes {
			t.Errorf("limit %d: %d commits, %d aborts, a batch of %d bytes", limit, commits.Load(), aborts.Load(), large.Load())
		}
	}
}

// The brokers may refuse a batch for the sake of one record, which shows only when it is alone.
func TestTheParkingLogFindsTheRefusedRecordInABatch(t *testing.T) {
	eachProtocol(t, func(t *testing.T, c *kfake.Cluster) {
		if err := c.CreateTopic("parked", 1, nil); err != nil {
			t.Fatal(err)
		}
		bad := func(req kmsg.Request) bool { return bytes.Contains(req.AppendTo(nil), []byte("bad")) }
		c.Fault(kfake.Fault{Keys: produce, Err: kerr.InvalidRecord, Count: -1, When: bad})
		cfg := config(c.ListenAddrs())
		cfg.Compression = "none"
		b := openLog(t, cfg, "parked")
		b.fence()
		var want []string
		for n := range 400 {
			if n == 0 || n == 17 || n == 18 || n == 399 {
				b.appendValue(fmt.Append(nil, "bad", n))
			} else {
				want = append(want, b.append(1))
			}
		}
		b.all()
		for i, a := range b.ended {
			if refused := errors.As(a.Err, new(*cdc.Refusal)); refused != strings.HasPrefix(b.values[i], "bad") {
				t.Errorf("append %d: %v", i, a.Err)
			}
		}
		b.holds(want...)
	})
}

// Whatever the brokers answer: a transaction is either written, or the log is broken. Then its records are in the topic all or not
// at all, nothing that was appended later is, and the next Fence tells which.
func TestTheParkingLogBreaksWhenItDoesNotKnow(t *testing.T) {
	short.SkipSlow(t)
	eachProtocol(t, func(t *testing.T, c *kfake.Cluster) {
		b := openLog(t, config(c.ListenAddrs()), "parked")
		b.fence()
		breaks := map[kmsg.Key]int{}
		for _, key := range []kmsg.Key{kmsg.AddPartitionsToTxn, kmsg.Produce, kmsg.EndTxn} {
			for _, err := range []*kerr.Error{
				kerr.NotCoordinator, kerr.CoordinatorLoadInProgress, kerr.ConcurrentTransactions, kerr.NotLeaderForPartition, kerr.NotEnoughReplicas, // tried again
				kerr.InvalidProducerEpoch, kerr.ProducerFenced, kerr.InvalidProducerIDMapping, kerr.InvalidTxnState, kerr.UnknownServerError,
				kerr.TransactionalIDAuthorizationFailed, kerr.TopicAuthorizationFailed, kerr.OutOfOrderSequenceNumber, kerr.UnknownProducerID,
				kerr.TransactionAbortable, kerr.OperationNotAttempted, kerr.UnknownTopicID, kerr.KafkaStorageError,
			} {
				b.read()
				before := len(b.seen)
				h := c.Fault(kfake.Fault{Keys: []kmsg.Key{key}, Err: err, Count: 1})
				b.append(3)
				b.await(func() bool { return b.Broken() != nil || len(b.ended) == len(b.values) })
				h.Remove()
				if broken := b.Broken(); broken == nil {
					continue
				} else if !fault.Retryable(broken) {
					t.Errorf("%v: %v: %v", key.Name(), err, broken)
				}
				breaks[key]++
				b.append(2)
				b.goOn()
				if len(b.seen) > before+3 || !slices.Equal(b.seen, b.values[:len(b.seen)]) {
					t.Fatalf("%s: %v: read%s of%s", key.Name(), err, brief(b.seen), brief(b.values))
				}
				b.all()
			}
		}
		if breaks[kmsg.Produce] == 0 || breaks[kmsg.EndTxn] == 0 {
			t.Errorf("nothing broke: %v", breaks)
		}
		b.holds(b.values...)
	})
}

// The brokers have committed, and their answer is lost.
func TestTheParkingLogBearsLostAnswers(t *testing.T) {
	short.SkipSlow(t)
	eachProtocol(t, func(t *testing.T, c *kfake.Cluster) {
		w := new(wire)
		cfg := config(c.ListenAddrs())
		cfg.Dial = w.dial
		b := openLog(t, cfg, "parked")
		b.fence()
		for n := range 12 {
			w.cut.Store(int32(n % 4))
			b.append(1 + n%3)
			b.await(func() bool { return b.Broken() != nil || len(b.ended) == len(b.values) })
			w.cut.Store(0)
			if b.Broken() != nil {
				b.goOn()
			}
		}
		b.all()
		b.holds(b.values...)
	})
}

// Two processes hold the topic in turn, each sure to be the holder, while everything goes wrong. What both have appended is in the
// topic, each once, and in the order in which each of them appended it.
func TestTheParkingLogUnderRandomFaults(t *testing.T) {
	short.SkipSlow(t)
	for seed := range *seeds {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
			t.Parallel()
			parkingLogChaos(t, rand.New(rand.NewPCG(seed, 2)), seed%2 == 0)
		})
	}
}

func parkingLogChaos(t *testing.T, r *rand.Rand, old bool) {
	c := testenv.FakeKafka(t, kfake.NumBrokers(3))
	if old {
		downgrade(t, c)
	}
	w := new(wire)
	cfg := config(c.ListenAddrs())
	cfg.Dial = w.dial
	one, two := openLog(t, cfg, "parked"), openLog(t, cfg, "parked")
	two.values = append(two.values, "") // so that both have other values
	two.ended = append(two.ended, cdc.Appended{})
	one.fence()
	prefix := func(b *logBench) {
		if b == two {
			b.appendValue(fmt.Append(nil, "two/", len(b.values)))
		} else {
			b.append(1)
		}
	}
	keys := []kmsg.Key{kmsg.AddPartitionsToTxn, kmsg.Produce, kmsg.EndTxn, kmsg.InitProducerID, kmsg.FindCoordinator, kmsg.Fetch, kmsg.ListOffsets, kmsg.Metadata}
	errs := []*kerr.Error{
		kerr.NotCoordinator, kerr.ConcurrentTransactions, kerr.NotLeaderForPartition, kerr.InvalidProducerEpoch, kerr.ProducerFenced,
		kerr.InvalidTxnState, kerr.UnknownServerError, kerr.TransactionAbortable, kerr.RequestTimedOut, kerr.NotEnoughReplicasAfterAppend, kerr.MessageTooLarge,
	}
	var faults []*kfake.FaultHandle
	for range 60 {
		switch r.IntN(6) {
		case 0, 1:
			faults = append(faults, c.Fault(kfake.Fault{Keys: keys[r.IntN(len(keys)):][:1], Topic: "", Err: errs[r.IntN(len(errs)-1)], Count: 1 + r.IntN(2)}))
		case 2:
			w.cut.Store(int32(1 + r.IntN(3)))
		case 3:
			c.ShufflePartitionLeaders()
			c.RehashCoordinators()
		case 4: // a refusal that passes, of a batch of several
			c.Fault(kfake.Fault{Keys: produce, Err: kerr.MessageTooLarge, When: several(c, "parked")})
		}
		for _, b := range []*logBench{one, two} {
			if r.IntN(2) == 0 {
				continue
			}
			for range r.IntN(30) {
				prefix(b)
			}
			if r.IntN(2) == 0 {
				b.await(func() bool { return b.Broken() != nil || len(b.ended) == len(b.values) })
			}
			if b.Broken() != nil {
				b.goOn()
			}
		}
	}
	for _, h := range faults {
		h.Remove()
	}
	w.cut.Store(0)
	for _, b := range []*logBench{one, two} { // each for itself, and nothing breaks the other's log then
		for len(b.ended) < len(b.values) {
			if b.Broken() != nil {
				b.goOn()
			}
			b.await(func() bool { return b.Broken() != nil || len(b.ended) == len(b.values) })
		}
	}
	one.read()
	for _, b := range []*logBench{one, two} {
		var mine []string
		for _, v := range one.seen {
			if strings.HasPrefix(v, "two/") == (b == two) {
				mine = append(mine, v)
			}
		}
		want := b.values
		if b == two {
			want = want[1:]
		}
		if !slices.Equal(mine, want) {
			t.Errorf("the topic holds %d of %d:%s\nwant%s", len(mine), len(want), brief(mine), brief(want))
		}
		for v, at := range b.written {
			if !slices.Contains(one.seen, v) {
				t.Errorf("%s is acknowledged at %d and not there", v, at)
			}
		}
	}
}

// A topic that is deleted, or created again, breaks the log. Nothing is written to the new one before a Fence has told its id.
func TestTheParkingLogBreaksWithItsTopic(t *testing.T) {
	short.SkipSlow(t)
	eachProtocol(t, func(t *testing.T, c *kfake.Cluster) {
		cl, err := config(c.ListenAddrs()).NewClient()
		if err != nil {
			t.Fatal(err)
		}
		defer cl.Close()
		parkingLogBreaksWithItsTopic(t, cl, c.ListenAddrs(), "parked", func() error { return c.CreateTopic("parked", 1, nil) })
	})
}

func parkingLogBreaksWithItsTopic(t *testing.T, cl *kgo.Client, brokers []string, topic string, create func() error) {
	b := openLog(t, config(brokers), topic)
	was := b.fence()
	b.append(3)
	b.all()
	b.read()
	deleteTopic(t, cl, topic)
	b.append(1)
	b.breaks()
	var gone cdc.LogState
	waitFor(t, func() bool {
		var err error
		gone, err = b.Fence(t.Context(), false)
		return err == nil && gone.Missing
	})
	if len(b.Unwritten()) != 1 {
		t.Error("the append is not given back")
	}
	b.values, b.written = b.values[:3], map[string]int64{}
	waitFor(t, func() bool { return create() == nil })
	now := b.fence()
	if now.ID == was.ID || now.End > 1 { // Fence may have ended the former transaction, and Kafka writes that into the topic of this name
		t.Errorf("the new topic: %+v, the one before: %+v", now, was)
	}
	b.append(3)
	b.all()
	// Behind its back.
	deleteTopic(t, cl, topic)
	waitFor(t, func() bool { return create() == nil })
	_, err := b.Read(t.Context(), 0, func(*kgo.Record) bool { return true })
	for fault.Retryable(err) { // until all brokers know
		_, err = b.Read(t.Context(), 0, func(*kgo.Record) bool { return true })
	}
	if !errors.Is(err, kafka.ErrGone) || !fault.NeedsPerson(err) {
		t.Errorf("a topic that was created again reads as %v", err)
	}
	b.append(1)
	b.breaks()
	if last := b.fence(); last.ID == now.ID {
		t.Errorf("the third topic: %+v, the one before: %+v", last, now)
	}
	b.written, b.seen, b.next = map[string]int64{}, nil, 0
	b.holds() // the client may have written to it, before it knew, but not committed
}

// Before Kafka 2.8 topics have no ids, and only the offsets tell that the topic was created again.
func TestTheParkingLogBreaksWithATopicThatHasNoID(t *testing.T) {
	short.SkipSlow(t)
	c := testenv.FakeKafka(t, kfake.MaxVersions(kversion.V2_7_0()))
	b := openLog(t, config(c.ListenAddrs()), "parked")
	if state := b.fence(); state.ID != "" {
		t.Errorf("%+v", state)
	}
	b.append(3)
	b.all()
	b.holds(b.values...)
	if err := errors.Join(c.DeleteTopic("parked"), c.CreateTopic("parked", 1, nil)); err != nil {
		t.Fatal(err)
	}
	b.append(1)
	if err := b.breaks(); !errors.Is(err, errOffset) {
		t.Error(err)
	}
	b.patience = 2 * time.Second
	if _, err := b.Read(t.Context(), b.next, func(*kgo.Record) bool { return true }); !errors.Is(err, kafka.ErrGone) {
		t.Error(err)
	}
	b.fence()
	b.written, b.seen, b.next = map[string]int64{}, nil, 0
	b.holds()
}

// Records may be gone from the front. A reading from a later offset needs none of them.
func TestTheParkingLogSaysWhatIsGone(t *testing.T) {
	short.SkipSlow(t)
	c := testenv.FakeKafka(t)
	b := openLog(t, config(c.ListenAddrs()), "parked")
	b.fence()
	b.append(10)
	b.all()
	if err := c.DeleteRecords("parked", 0, 4); err != nil {
		t.Fatal(err)
	}
	for from, want := range map[int64]int{0: 6, 4: 6, 9: 1} {
		n := 0
		next, err := b.Read(t.Context(), from, func(*kgo.Record) bool { n++; return true })
		if n != want || err != nil || next != 11 {
			t.Errorf("from %d: %d records, %d, %v", from, n, next, err)
		}
	}
	next, err := b.Read(t.Context(), 4, func(r *kgo.Record) bool { return r.Offset < 6 })
	if next != 7 || err != nil {
		t.Errorf("up to the third record: %d, %v", next, err)
	}
	b.patience = 2 * time.Second // such an answer is asked for again
	for _, from := range []int64{3, 99} {
		if _, err := b.Read(t.Context(), from, func(*kgo.Record) bool { return true }); !errors.Is(err, kafka.ErrGone) || !fault.NeedsPerson(err) {
			t.Errorf("from %d: %v", from, err)
		}
	}
	if state := b.fence(); state.Start != 4 || state.End != 11 {
		t.Errorf("%+v", state)
	}
}

// The memory of a reading does not grow with the topic, and a reading that has to start over gives no record twice.
func TestTheParkingLogIsReadInBoundedPieces(t *testing.T) {
	c := testenv.FakeKafka(t)
	b := openLog(t, config(c.ListenAddrs()), "parked")
	b.fence()
	for n := range 40 {
		b.appendValue(append(fmt.Append(nil, n, "/"), incompressible(100_000)...))
		b.all()
	}
	fetches := 0
	c.ControlKey(int16(kmsg.Fetch), func(req kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		fetches++
		if n := req.(*kmsg.FetchRequest).MaxBytes; n > 1<<20 { //nolint:errcheck // ControlKey's
			t.Errorf("asked for %d bytes", n)
		}
		return nil, nil, false
	})
	b.holds(b.values...)
	if fetches < 4 {
		t.Errorf("%d fetches", fetches)
	}
	last, n := int64(-1), 0
	next, err := b.Read(t.Context(), 0, func(r *kgo.Record) bool {
		if r.Offset <= last {
			t.Fatalf("offset %d after %d", r.Offset, last)
		}
		last = r.Offset
		if n++; n == 15 {
			c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Fetch}, Topic: "parked", Err: kerr.OffsetOutOfRange, Count: 1})
		}
		return true
	})
	if n != 40 || next != b.next || err != nil {
		t.Errorf("%d records, %d, %v", n, next, err)
	}
}

// Another producer's open transaction holds up a reading, which says so, and nothing that was appended behind it is passed over.
func TestTheParkingLogWaitsForTheTransactionOfAnother(t *testing.T) {
	c := testenv.FakeKafka(t)
	parkingLogWaitsForAnother(t, c.ListenAddrs(), "parked")
}

func parkingLogWaitsForAnother(t *testing.T, brokers []string, topic string) {
	b := openLog(t, config(brokers), topic)
	b.fence()
	b.append(1)
	b.all()
	other, err := kgo.NewClient(append(config(brokers).Options(), kgo.TransactionalID("other-"+topic), kgo.DefaultProduceTopic(topic))...)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if err := other.BeginTransaction(); err != nil {
		t.Fatal(err)
	}
	if err := other.ProduceSync(t.Context(), kgo.StringRecord("theirs")).FirstErr(); err != nil {
		t.Fatal(err)
	}
	b.append(1)
	b.all() // which is not held up
	b.patience = time.Second
	next, err := b.Read(t.Context(), 0, func(*kgo.Record) bool { return true })
	if !errors.Is(err, kafka.ErrOpen) || !fault.Retryable(err) || next != 1 {
		t.Fatalf("read up to %d, %v", next, err)
	}
	if err := b.Trim(t.Context(), 9, func(*kgo.Record) bool { return true }); err != nil {
		t.Fatal(err)
	}
	if state := b.fence(); state.Start != 1 {
		t.Errorf("trimmed to %+v", state)
	}
	if err := other.EndTransaction(t.Context(), kgo.TryCommit); err != nil {
		t.Fatal(err)
	}
	delete(b.written, b.values[0])
	b.holds("theirs", b.values[1])
}

// Trim deletes this relay's records up to the given offset, and stops at the first record that is not its own.
func TestTheParkingLogIsTrimmed(t *testing.T) {
	c := testenv.FakeKafka(t)
	parkingLogIsTrimmed(t, c.ListenAddrs(), "parked")
}

func parkingLogIsTrimmed(t *testing.T, brokers []string, topic string) {
	b := openLog(t, config(brokers), topic)
	b.fence()
	b.append(10)
	b.all()
	b.appendValue([]byte("theirs"))
	b.append(5)
	b.all()
	own := func(r *kgo.Record) bool { return string(r.Value) != "theirs" }
	theirs := b.written["theirs"]
	for _, step := range []struct{ before, start int64 }{{0, 0}, {4, 4}, {3, 4}, {theirs, theirs - 1}, {theirs + 3, theirs}, {theirs + 3, theirs}} {
		if err := b.Trim(t.Context(), step.before, own); err != nil {
			t.Fatal(err)
		}
		state := b.fence()
		if state.Start != step.start && (step.start != theirs-1 || state.Start < 10) { // the marker of the transaction may stay
			t.Errorf("trimmed before %d: %+v", step.before, state)
		}
	}
	all := func(*kgo.Record) bool { return true }
	if err := b.Trim(t.Context(), 1<<40, all); err != nil {
		t.Fatal(err)
	}
	n := 0
	if _, err := b.Read(t.Context(), 0, func(*kgo.Record) bool { n++; return true }); n != 0 || err != nil {
		t.Errorf("%d records are left, %v", n, err)
	}
	b.append(1)
	b.await(func() bool { return len(b.written) == len(b.values) })
}

// Without the right to delete records the topic only grows.
func TestTheParkingLogIsNotTrimmedWithoutTheRight(t *testing.T) {
	c := testenv.FakeKafka(t)
	cfg := config(c.ListenAddrs())
	var log bytes.Buffer
	cfg.Logger = zerolog.New(&log).Level(zerolog.WarnLevel)
	b := openLog(t, cfg, "parked")
	b.fence()
	b.append(3)
	b.all()
	for _, err := range []*kerr.Error{kerr.TopicAuthorizationFailed, kerr.PolicyViolation, kerr.UnknownServerError} {
		h := c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.DeleteRecords}, Topic: "parked", Err: err, Count: -1})
		got := b.Trim(t.Context(), 2, func(*kgo.Record) bool { return true })
		h.Remove()
		if wants := err == kerr.UnknownServerError; (got != nil) != wants || wants && !fault.Retryable(got) {
			t.Errorf("%v: %v", err, got)
		}
	}
	if n := strings.Count(log.String(), "\n"); n != 1 {
		t.Errorf("%d warnings: %s", n, log.String())
	}
}

// A missing right is told by Fence, and waited out.
func TestTheParkingLogNeedsItsTransactionalID(t *testing.T) {
	acl := func(kind kmsg.ACLResourceType, name string, ops ...kmsg.ACLOperation) (all []kfake.ACL) {
		for _, op := range ops {
			all = append(all, kfake.ACL{Resource: kind, Name: name, Pattern: kmsg.ACLResourcePatternTypeLiteral, Operation: op, Allow: true})
		}
		return all
	}
	write, describe, read := kmsg.ACLOperationWrite, kmsg.ACLOperationDescribe, kmsg.ACLOperationRead
	topic, id := kmsg.ACLResourceTypeTopic, kmsg.ACLResourceTypeTransactionalId
	c := testenv.FakeKafka(t, kfake.SeedTopics(1, "parked"), kfake.EnableSASL(), kfake.EnableACLs(), kfake.Superuser("PLAIN", "admin", "admin"),
		kfake.User("PLAIN", "nothing", "x"),
		kfake.User("PLAIN", "topic", "x", acl(topic, "parked", write, describe, read)...),
		kfake.User("PLAIN", "another", "x", append(acl(topic, "parked", write, describe, read), acl(id, "another", write, describe)...)...),
		kfake.User("PLAIN", "id", "x", append(acl(topic, "parked", describe, read), acl(id, "relay-parked", write, describe)...)...),
		kfake.User("PLAIN", "unread", "x", append(acl(topic, "parked", write, describe), acl(id, "relay-parked", write, describe)...)...),
		kfake.User("PLAIN", "all", "x", append(acl(topic, "parked", write, describe, read), acl(id, "relay-parked", write, describe)...)...))
	for user, want := range map[string]*kerr.Error{
		"nothing": kerr.TopicAuthorizationFailed, "topic": kerr.TransactionalIDAuthorizationFailed, "another": kerr.TransactionalIDAuthorizationFailed,
		"id": kerr.TopicAuthorizationFailed, "unread": nil, "all": nil,
	} {
		t.Run(user, func(t *testing.T) {
			cfg := config(c.ListenAddrs())
			cfg.SASL = kafka.SASL{Mechanism: "PLAIN", Username: user, Password: "x"}
			b := openLog(t, cfg, "parked")
			_, err := b.Fence(t.Context(), false)
			if want != nil {
				if !errors.Is(err, want) || !fault.Retryable(err) || !errors.Is(b.Broken(), want) || !kafka.Denied(err) {
					t.Errorf("%v; broken: %v", err, b.Broken())
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			b.append(1)
			b.all()
			_, err = b.Read(t.Context(), 0, func(*kgo.Record) bool { return true })
			if (user == "unread") != (err != nil) || err != nil && (!kafka.Denied(err) || !fault.Retryable(err)) {
				t.Error(err)
			}
		})
	}
}

func TestTheParkingLogNeedsOnePartitionAndTransactions(t *testing.T) {
	c := testenv.FakeKafka(t, kfake.SeedTopics(2, "two"))
	b := openLog(t, config(c.ListenAddrs()), "two")
	if _, err := b.Fence(t.Context(), true); !errors.Is(err, errPartitions) || !fault.NeedsPerson(err) || fault.Hint(err) == "" {
		t.Error(err)
	}
	if _, err := b.Read(t.Context(), 0, func(*kgo.Record) bool { return true }); !errors.Is(err, errPartitions) || !fault.NeedsPerson(err) {
		t.Error(err)
	}
	versions := kversion.Stable()
	versions.SetMaxKeyVersion(int16(kmsg.InitProducerID), -1)
	old := testenv.FakeKafka(t, kfake.SeedTopics(1, "parked"), kfake.MaxVersions(versions))
	b = openLog(t, config(old.ListenAddrs()), "parked")
	if _, err := b.Fence(t.Context(), true); !errors.Is(err, errNoProducer) || !fault.NeedsPerson(err) || fault.Hint(err) == "" {
		t.Error(err)
	}
}

// A log that comes no further says why, and goes on by itself.
func TestTheParkingLogSaysWhatItWaitsFor(t *testing.T) {
	c := testenv.FakeKafka(t)
	b := openLog(t, config(c.ListenAddrs()), "parked")
	b.fence()
	b.append(1)
	b.all()
	h := c.Fault(kfake.Fault{Keys: produce, Err: kerr.NotEnoughReplicas, Count: -1},
		kfake.Fault{Keys: []kmsg.Key{kmsg.Metadata}, Topic: "parked", Err: kerr.LeaderNotAvailable, Count: -1})
	b.append(2)
	waitFor(t, func() bool { return errors.Is(b.Stalled(), kerr.LeaderNotAvailable) })
	h.Remove()
	b.all()
	if err := b.Stalled(); err != nil {
		t.Error(err)
	}
	b.holds(b.values...)
}

// Brokers that cannot be reached are waited out, and Close is bounded.
func TestTheParkingLogWithoutBrokers(t *testing.T) {
	short.SkipSlow(t)
	c := testenv.FakeKafka(t)
	b := openLog(t, config(c.ListenAddrs()), "parked")
	b.fence()
	c.Close()
	b.append(1)
	waitFor(t, func() bool { return b.Stalled() != nil })
	b.patience = time.Second
	if _, err := b.Read(t.Context(), 0, func(*kgo.Record) bool { return true }); !fault.Retryable(err) {
		t.Error(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := b.Close(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	again := openLog(t, b.cfg, "parked")
	again.patience = time.Second
	if _, err := again.Fence(t.Context(), true); !fault.Retryable(err) || again.Broken() == nil {
		t.Error(err)
	}
	again.append(1)
	if len(again.Unwritten()) != 1 {
		t.Error("the append is not given back")
	}
}

// Close waits for the transaction that is under way.
func TestTheParkingLogEndsItsTransactionWhenItCloses(t *testing.T) {
	c := testenv.FakeKafka(t)
	b := openLog(t, config(c.ListenAddrs()), "parked")
	b.fence()
	ended, release := holdCommit(c)
	b.append(1)
	<-ended
	closed := make(chan error)
	go func() { closed <- b.Close(patient(t)) }()
	waitFor(t, func() bool { b.mu.Lock(); defer b.mu.Unlock(); return b.closed })
	release()
	if err := <-closed; err != nil {
		t.Error(err)
	}
	b.all()
	if _, err := b.Fence(t.Context(), true); !errors.Is(err, errClosed) {
		t.Error(err)
	}
	next := openLog(t, config(c.ListenAddrs()), "parked")
	next.fence()
	next.holds(b.values...)
}

// The topic is created with the settings of a topic of letters.
func TestTheParkingLogCreatesATopicOfLetters(t *testing.T) {
	c := testenv.FakeKafka(t)
	b := openLog(t, config(c.ListenAddrs()), "parked")
	b.fence()
	is := c.TopicInfo("parked")
	for key, value := range LetterTopic {
		if got := is.Configs[key]; got == nil || *got != value {
			t.Errorf("%s is %v, want %s", key, got, value)
		}
	}
	large := append([]byte("large"), incompressible(5<<20)...)
	b.appendValue(large)
	b.append(1)
	b.all()
	b.holds(b.values...)
}
