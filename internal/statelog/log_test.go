package statelog

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
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

// What is appended is in the topic in that order, and each end has its offset. The topic is one of letters, and takes large ones.
func TestALogKeepsTheOrder(t *testing.T) { eachKafka(t, nil, logKeepsTheOrder) }

func logKeepsTheOrder(t *testing.T, w *world) {
	b := w.open(t)
	if state, err := b.Open(t.Context(), false); err != nil || !state.Missing || state.ID != "" {
		t.Fatalf("without the topic: %+v, %v", state, err)
	}
	if at, err := b.Read(t.Context(), 0, every); err != nil || !at.Missing {
		t.Errorf("read a missing topic: %+v, %v", at, err)
	}
	b.append(1)
	if err := b.Broken(); !errors.Is(err, errUnopened) {
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
		b.until(func() bool { return len(b.ended) > 0 })
	}
	b.all()
	b.holds(b.values...)
	for i, a := range b.ended {
		if a.Ticket.Tx != uint64(i) {
			t.Fatalf("end %d is that of append %d", i, a.Ticket.Tx)
		}
	}
	last := int64(-1)
	at, err := b.Read(t.Context(), 0, func(r *kgo.Record) bool {
		if b.written[string(r.Value)] != r.Offset || len(r.Headers) != 1 || r.Headers[0].Key != "n" || string(r.Key) != "k" || r.Timestamp.UnixMilli() != 1_700_000_000_000 {
			t.Errorf("record at %d: %+v, acknowledged at %d", r.Offset, r, b.written[string(r.Value)])
		}
		last = r.Offset
		return true
	})
	again := b.fence()
	if again.ID != state.ID || again.End <= last || at.ID != again.ID || at.Start != 0 || at.End != again.End || err != nil {
		t.Errorf("fenced again: %+v; read: %+v, %v", again, at, err)
	}
	if is := w.settings(t, "cleanup.policy", "retention.ms", "retention.bytes", "max.message.bytes"); !maps.Equal(is, Letters[0]) {
		t.Errorf("created with %v", is)
	}
	b.appendValue(append([]byte("large"), testenv.Incompressible(5<<20)...))
	b.append(1)
	b.all()
	b.holds(b.values...)
}

// A second holder fences the first, which has a transaction open. What the first one had not committed is never read, whatever it does then.
func TestALogIsFenced(t *testing.T) {
	eachKafka(t, nil, func(t *testing.T, w *world) {
		first, second := w.open(t), w.open(t)
		first.fence()
		first.append(3)
		first.all()
		flushed, commit := make(chan struct{}), make(chan struct{})
		first.beforeCommit = func() { close(flushed); <-commit }
		first.append(2)
		<-flushed
		state := second.fence()
		second.append(1)
		second.all()
		want := append(slices.Clone(first.values[:3]), second.values...)
		second.holds(want...)
		close(commit)
		if err := first.breaks(); !fault.Retryable(err) || !strings.Contains(err.Error(), first.TransactionalID) {
			t.Errorf("broken: %v", err)
		}
		first.beforeCommit = nil
		if state.End < 4 {
			t.Errorf("the second sees %+v", state)
		}
		first.append(2)
		second.holds(want...)
		left := first.Unwritten()
		if len(left) != 4 || string(left[0].Record.Value) != first.values[3] || left[3].Ticket.Tx != 6 || first.Unwritten() != nil {
			t.Errorf("unwritten: %+v", left)
		}
		// And back, without a transaction open. What is appended while Unwritten has something is behind it.
		first.append(1)
		first.fence()
		first.append(1)
		if left := first.Unwritten(); len(left) != 2 || left[0].Ticket.Tx != 7 || first.Unwritten() != nil {
			t.Errorf("unwritten: %+v", left)
		}
		first.append(1)
		first.until(func() bool { return len(first.written) == 4 })
		second.append(1)
		second.breaks()
		first.holds(append(want, first.values[9])...)
	})
}

// A commit that is on its way to the brokers is overtaken in the same way.
func TestALogIsFencedWhileItCommits(t *testing.T) {
	eachProtocol(t, nil, func(t *testing.T, w *world) {
		first, second := w.open(t), w.open(t)
		first.fence()
		first.append(1)
		first.all() // the first transaction of a writer may not reach its commit
		ended, release := holdCommit(w.fake)
		first.append(2)
		<-ended
		second.fence()
		second.append(1)
		second.all()
		release()
		first.breaks()
		second.holds(append([]string{first.values[0]}, second.values...)...)
	})
}

// A record that alone is refused ends with the reason. What was appended around it is written in order, once.
func TestALogPassesOverRefusedRecords(t *testing.T) {
	eachKafka(t, map[string]string{"max.message.bytes": "20000"}, logPassesOver)
}

func logPassesOver(t *testing.T, w *world) {
	b := w.open(t)
	b.fence()
	bad := map[int]bool{}
	for n := range 12 {
		b.append(1 + 37*n)
		if n%3 == 0 {
			bad[len(b.values)] = true
			b.appendValue(append(fmt.Append(nil, "large/", n), testenv.Incompressible(50_000)...))
		}
		b.appendValue(append(fmt.Append(nil, "x/", n), bytes.Repeat([]byte("x"), 50_000)...)) // it fits when it's compressed
	}
	b.all()
	var want []string
	for i, a := range b.ended {
		r, refused := errors.AsType[*cdc.Refusal](a.Err)
		if refused != bad[i] || refused && (r.Reason != cdc.TooLarge || r.Topic != w.topic) || a.Ticket.Tx != uint64(i) {
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

// A letter, and what is appended behind it, waits until its payload is stored.
func TestALogWaitsForAPayload(t *testing.T) {
	eachKafka(t, nil, func(t *testing.T, w *world) {
		b := w.open(t)
		var wake func()
		b.Upload = func(_ *cdc.Claim, then func()) { wake = then }
		b.fence()
		b.append(3)
		claim := &cdc.Claim{Key: "k", Size: 1 << 20}
		b.values = append(b.values, "claim")
		b.Append(&cdc.Record{Topic: b.Topic, Key: []byte("k"), Value: []byte("claim"), Time: time.Now(), Claim: claim}, cdc.Ticket{Tx: 3})
		b.append(2)
		b.until(func() bool { return len(b.ended) == 3 })
		time.Sleep(50 * time.Millisecond) // more would have come
		if b.ended = b.Appends(b.ended); len(b.ended) != 3 {
			t.Fatalf("%d ended", len(b.ended))
		}
		claim.Stored()
		wake()
		b.all()
		b.holds(b.values...)
	})
}

// Records that fit alone are not sent in batches that are too large, so no transaction is aborted. Where the topic has hardly any limit,
// a batch has a few megabytes.
func TestALogKeepsItsBatchesBelowTheLimit(t *testing.T) {
	for _, limit := range []int{20_000, kafka.MaxRequest} {
		w := fakeWorld(t, map[string]string{"max.message.bytes": fmt.Sprint(limit)})
		c := w.fake
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
		cfg := config(w.brokers, w.topic)
		cfg.Codec = kgo.NoCompression()
		b := openLog(t, cfg)
		b.fence()
		for n := range 300 {
			b.appendValue(append(fmt.Append(nil, n, "/"), testenv.Incompressible(min(limit, 1<<20)/20)...))
		}
		b.all()
		b.holds(b.values...)
		if aborts.Load() > 0 || commits.Load() > 100 || large.Load() > batchBytes {
			t.Errorf("limit %d: %d commits, %d aborts, a batch of %d bytes", limit, commits.Load(), aborts.Load(), large.Load())
		}
	}
}

// The brokers may refuse a batch for the sake of one record, which shows only when it is alone.
func TestALogFindsTheRefusedRecordInABatch(t *testing.T) {
	eachProtocol(t, nil, func(t *testing.T, w *world) {
		w.fake.Fault(kfake.Fault{Keys: produce, Err: kerr.InvalidRecord, Count: -1, When: holdsBytes("bad")})
		cfg := config(w.brokers, w.topic)
		cfg.Codec = kgo.NoCompression()
		b := openLog(t, cfg)
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
// at all, nothing that was appended later is, and the next Open tells which.
func TestALogBreaksWhenItDoesNotKnow(t *testing.T) {
	short.SkipSlow(t)
	eachProtocol(t, nil, func(t *testing.T, w *world) {
		b := w.open(t)
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
				h := w.fake.Fault(kfake.Fault{Keys: []kmsg.Key{key}, Err: err, Count: 1})
				b.append(3)
				b.settle()
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

// The client takes its first transaction for empty, so it sends nothing at the end of it, or an abort, and there's no error. A client
// that doesn't know the topic's partitions any more is in the same state.
func TestALogBreaksWhenTheClientDoesNotCommit(t *testing.T) {
	eachKafka(t, nil, func(t *testing.T, w *world) {
		b := w.open(t)
		b.fence()
		b.beforeCommit = func() {
			b.mu.Lock()
			cl := b.writer.cl
			b.mu.Unlock()
			cl.PurgeTopicsFromProducing(b.Topic)
		}
		b.append(3)
		if err := b.breaks(); !fault.Retryable(err) || len(b.ended) != 0 {
			t.Fatalf("%d ended, %v", len(b.ended), err)
		}
		b.beforeCommit = nil
		b.goOn()
		b.all()
		b.append(2)
		b.all()
		b.holds(b.values...)
	})
}

// The brokers have committed, and their answer is lost.
func TestALogBearsLostAnswers(t *testing.T) {
	short.SkipSlow(t)
	eachProtocol(t, nil, func(t *testing.T, w *world) {
		line := new(wire)
		cfg := config(w.brokers, w.topic)
		cfg.Dial = line.dial
		b := openLog(t, cfg)
		b.fence()
		for n := range 12 {
			line.cut.Store(int32(n % 4))
			b.append(1 + n%3)
			b.settle()
			line.cut.Store(0)
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
func TestALogUnderRandomFaults(t *testing.T) {
	short.SkipSlow(t)
	for seed := range *seeds {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
			t.Parallel()
			logChaos(t, rand.New(rand.NewPCG(seed, 2)), seed%2 == 0)
		})
	}
}

func logChaos(t *testing.T, r *rand.Rand, old bool) {
	w, line := fakeWorld(t, nil, kfake.NumBrokers(3)), new(wire)
	if old {
		w.downgrade(t)
	}
	c, cfg := w.fake, config(w.brokers, w.topic)
	cfg.Dial = line.dial
	one, two := openLog(t, cfg), openLog(t, cfg)
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
			line.cut.Store(int32(1 + r.IntN(3)))
		case 3:
			c.ShufflePartitionLeaders()
			c.RehashCoordinators()
		case 4: // a refusal that passes, of a batch of several
			c.Fault(kfake.Fault{Keys: produce, Err: kerr.MessageTooLarge, When: severalRecords})
		}
		for _, b := range []*logBench{one, two} {
			if r.IntN(2) == 0 {
				continue
			}
			for range r.IntN(30) {
				prefix(b)
			}
			if r.IntN(2) == 0 {
				b.settle()
			}
			if b.Broken() != nil {
				b.goOn()
			}
		}
	}
	for _, h := range faults {
		h.Remove()
	}
	line.cut.Store(0)
	for _, b := range []*logBench{one, two} { // each for itself, and nothing breaks the other's log then
		for len(b.ended) < len(b.values) {
			if b.Broken() != nil {
				b.goOn()
			}
			b.settle()
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

// A topic that is deleted, or created again, breaks the log. Nothing is written to the new one before an Open has told its id.
func TestALogBreaksWithItsTopic(t *testing.T) { eachKafka(t, nil, logBreaksWithItsTopic) }

func logBreaksWithItsTopic(t *testing.T, w *world) {
	short.SkipSlow(t)
	b := w.open(t)
	was := b.fence()
	b.append(3)
	b.all()
	b.read()
	w.deleteTopic(t)
	for b.Broken() == nil { // the first appends may still reach the former topic
		b.append(1)
		b.settle()
	}
	var gone cdc.LogState
	waitFor(t, func() bool {
		var err error
		gone, err = b.Open(t.Context(), false)
		return err == nil && gone.Missing
	})
	if len(b.Unwritten()) != 1 {
		t.Error("the append is not given back")
	}
	b.values, b.ended, b.written = b.values[:3], b.ended[:3], map[string]int64{}
	w.recreate(t)
	now := b.fence()
	if now.ID == was.ID || now.End > 1 { // Open may have ended the former transaction, and Kafka writes that into the topic of this name
		t.Errorf("the new topic: %+v, the one before: %+v", now, was)
	}
	b.append(3)
	b.all()
	// Behind its back.
	w.deleteTopic(t)
	w.recreate(t)
	b.patience = time.Second // such an answer is asked for again
	_, err := b.Read(t.Context(), 0, every)
	for fault.Retryable(err) { // until all brokers know
		_, err = b.Read(t.Context(), 0, every)
	}
	b.patience = patience
	if !errors.Is(err, kafka.ErrGone) || !fault.NeedsPerson(err) {
		t.Errorf("a topic that was created again reads as %v", err)
	}
	b.append(1)
	b.breaks()
	if last := b.fence(); last.ID == now.ID {
		t.Errorf("the third topic: %+v, the one before: %+v", last, now)
	}
	b.forget()
	b.holds() // the client may have written to it, before it knew, but not committed
}

// Before Kafka 2.8 topics have no ids, and only the offsets tell that the topic was created again.
func TestALogBreaksWithATopicThatHasNoID(t *testing.T) {
	short.SkipSlow(t)
	w := fakeWorld(t, nil, kfake.MaxVersions(kversion.V2_7_0()))
	b := w.open(t)
	if state := b.fence(); state.ID != "" {
		t.Errorf("%+v", state)
	}
	b.append(3)
	b.all()
	b.holds(b.values...)
	w.deleteTopic(t)
	w.recreate(t)
	b.append(1)
	if err := b.breaks(); !errors.Is(err, errOffset) {
		t.Error(err)
	}
	b.patience = 2 * time.Second
	if _, err := b.Read(t.Context(), b.next, every); !errors.Is(err, kafka.ErrGone) {
		t.Error(err)
	}
	b.fence()
	b.forget()
	b.holds()
}

// Records may be gone from the front. A reading from a later offset needs none of them.
func TestALogSaysWhatIsGone(t *testing.T) {
	short.SkipSlow(t)
	w := fakeWorld(t, nil)
	b := w.open(t)
	b.fence()
	b.append(10)
	b.all()
	w.truncate(t, 4)
	offsets := slices.Sorted(maps.Values(b.written)) // with the markers of one transaction or more between them
	end := offsets[len(offsets)-1] + 2
	behind := func(from int64) []int64 {
		i, _ := slices.BinarySearch(offsets, from)
		return offsets[i:]
	}
	for _, from := range []int64{0, 4, 9} {
		n := 0
		at, err := b.Read(t.Context(), from, func(*kgo.Record) bool { n++; return true })
		if n != len(behind(max(from, 4))) || err != nil || at.Next != end || at.Start != 4 || at.End != end {
			t.Errorf("from %d: %d records of %v, %+v, %v", from, n, offsets, at, err)
		}
	}
	at, err := b.Read(t.Context(), 4, func(r *kgo.Record) bool { return r.Offset < 6 })
	if at.Next != behind(6)[0]+1 || err != nil {
		t.Errorf("up to the first record from offset 6 of %v: %+v, %v", offsets, at, err)
	}
	b.patience = 2 * time.Second // such an answer is asked for again
	for _, from := range []int64{3, 99} {
		if _, err := b.Read(t.Context(), from, every); !errors.Is(err, kafka.ErrGone) || !fault.NeedsPerson(err) {
			t.Errorf("from %d: %v", from, err)
		}
	}
	if state := b.fence(); state.Start != 4 || state.End != end {
		t.Errorf("%+v", state)
	}
}

// The memory of a reading does not grow with the topic, and a reading that has to start over gives no record twice.
func TestALogIsReadInBoundedPieces(t *testing.T) {
	w := fakeWorld(t, nil)
	c, b := w.fake, w.open(t)
	b.fence()
	for n := range 40 {
		b.appendValue(append(fmt.Append(nil, n, "/"), testenv.Incompressible(100_000)...))
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
	at, err := b.Read(t.Context(), 0, func(r *kgo.Record) bool {
		if r.Offset <= last {
			t.Fatalf("offset %d after %d", r.Offset, last)
		}
		last = r.Offset
		if n++; n == 15 {
			c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Fetch}, Topic: w.topic, Err: kerr.OffsetOutOfRange, Count: 1})
		}
		return true
	})
	if n != 40 || at.Next != b.next || err != nil {
		t.Errorf("%d records, %+v, %v", n, at, err)
	}
}

// Another producer's open transaction holds up a reading, which says so, and nothing that was appended behind it is passed over.
func TestALogWaitsForTheTransactionOfAnother(t *testing.T) { eachKafka(t, nil, logWaitsForAnother) }

func logWaitsForAnother(t *testing.T, w *world) {
	short.SkipSlow(t)
	b := w.open(t)
	b.fence()
	b.append(1)
	b.all()
	other, err := kgo.NewClient(kgo.SeedBrokers(w.brokers...), kgo.TransactionalID("other-"+w.topic),
		kgo.TransactionTimeout(2*patience), kgo.DefaultProduceTopic(w.topic))
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
	b.all()                      // which is not held up
	b.patience = 3 * time.Second // longer than the wait of a fetch
	waitFor(t, func() bool {
		at, err := b.Read(t.Context(), 0, every)
		if err == nil || !fault.Retryable(err) || at.Next > 1 {
			t.Fatalf("read up to %+v, %v", at, err)
		}
		if errors.As(err, new(*kafka.HangingTransaction)) {
			t.Fatalf("a transaction whose producer works: %v", err)
		}
		return errors.Is(err, kafka.ErrOpen) && at.Next == 1
	})
	b.patience = 10 * time.Second
	if err := b.Trim(t.Context(), 9, every); err != nil {
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
func TestALogIsTrimmed(t *testing.T) { eachKafka(t, nil, logIsTrimmed) }

func logIsTrimmed(t *testing.T, w *world) {
	b := w.open(t)
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
	if err := b.Trim(t.Context(), 1<<40, every); err != nil {
		t.Fatal(err)
	}
	n := 0
	if _, err := b.Read(t.Context(), 0, func(*kgo.Record) bool { n++; return true }); n != 0 || err != nil {
		t.Errorf("%d records are left, %v", n, err)
	}
	b.append(1)
	b.all()
	if len(b.written) != len(b.values) {
		t.Errorf("%d of %d are written", len(b.written), len(b.values))
	}
}

// Without the right to delete records the topic only grows.
func TestALogIsNotTrimmedWithoutTheRight(t *testing.T) {
	w := fakeWorld(t, nil)
	cfg := config(w.brokers, w.topic)
	var log bytes.Buffer
	cfg.Logger = slog.New(slog.NewJSONHandler(&log, &slog.HandlerOptions{Level: slog.LevelWarn}))
	b := openLog(t, cfg)
	b.fence()
	b.append(3)
	b.all()
	for _, err := range []*kerr.Error{kerr.TopicAuthorizationFailed, kerr.PolicyViolation, kerr.UnknownServerError} {
		h := w.fake.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.DeleteRecords}, Topic: w.topic, Err: err, Count: -1})
		got := b.Trim(t.Context(), 2, every)
		h.Remove()
		if wants := err == kerr.UnknownServerError; (got != nil) != wants || wants && !fault.Retryable(got) {
			t.Errorf("%v: %v", err, got)
		}
	}
	if n := strings.Count(log.String(), "\n"); n != 1 {
		t.Errorf("%d warnings: %s", n, log.String())
	}
}

// A missing right is told by Open, and waited out.
func TestALogNeedsItsTransactionalID(t *testing.T) {
	acl := func(kind kmsg.ACLResourceType, name string, ops ...kmsg.ACLOperation) (all []kfake.ACL) {
		for _, op := range ops {
			all = append(all, kfake.ACL{Resource: kind, Name: name, Pattern: kmsg.ACLResourcePatternTypeLiteral, Operation: op, Allow: true})
		}
		return all
	}
	write, describe, read := kmsg.ACLOperationWrite, kmsg.ACLOperationDescribe, kmsg.ACLOperationRead
	topic, id := kmsg.ACLResourceTypeTopic, kmsg.ACLResourceTypeTransactionalId
	w := fakeWorld(t, nil, kfake.SeedTopics(1, "own"), kfake.EnableSASL(), kfake.EnableACLs(), kfake.Superuser("PLAIN", "admin", "admin"),
		kfake.User("PLAIN", "nothing", "x"),
		kfake.User("PLAIN", "topic", "x", acl(topic, "own", write, describe, read)...),
		kfake.User("PLAIN", "another", "x", append(acl(topic, "own", write, describe, read), acl(id, "another", write, describe)...)...),
		kfake.User("PLAIN", "id", "x", append(acl(topic, "own", describe, read), acl(id, "relay-own", write, describe)...)...),
		kfake.User("PLAIN", "unread", "x", append(acl(topic, "own", write, describe), acl(id, "relay-own", write, describe)...)...),
		kfake.User("PLAIN", "all", "x", append(acl(topic, "own", write, describe, read), acl(id, "relay-own", write, describe)...)...))
	for user, want := range map[string]*kerr.Error{
		"nothing": kerr.TopicAuthorizationFailed, "topic": kerr.TransactionalIDAuthorizationFailed, "another": kerr.TransactionalIDAuthorizationFailed,
		"id": kerr.TopicAuthorizationFailed, "unread": nil, "all": nil,
	} {
		t.Run(user, func(t *testing.T) {
			cfg := config(w.brokers, w.topic)
			cfg.SASL = kafka.SASL{Mechanism: "PLAIN", Username: user, Password: "x"}
			b := openLog(t, cfg)
			_, err := b.Open(t.Context(), false)
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
			if user == "all" {
				b.all()
			} else if err := b.breaks(); !kafka.Denied(err) || !strings.Contains(err.Error(), "grant Read") {
				t.Error(err)
			}
			_, err = b.Read(t.Context(), 0, every)
			if (user == "unread") != (err != nil) || err != nil && (!kafka.Denied(err) || !fault.Retryable(err)) {
				t.Error(err)
			}
		})
	}
}

// Somebody has added a partition to the topic: everything stays in partition 0.
func TestALogUsesOnePartition(t *testing.T) {
	w := fakeWorld(t, nil, kfake.SeedTopics(1, "own"))
	a, b := w.open(t), w.open(t)
	a.fence()
	a.append(20)
	a.all()
	if _, err := kadm.NewClient(w.cl).CreatePartitions(t.Context(), 2, w.topic); err != nil {
		t.Fatal(err)
	}
	waitFor(t, func() bool {
		is, err := kafka.DescribeTopic(t.Context(), w.cl, w.topic)
		return err == nil && len(is.Partitions) == 3
	})
	b.fence()
	b.append(20)
	b.all()
	b.holds(append(a.values, b.values...)...)
}

func TestALogNeedsTransactions(t *testing.T) {
	versions := kversion.Stable()
	versions.SetMaxKeyVersion(int16(kmsg.InitProducerID), -1)
	b := fakeWorld(t, nil, kfake.SeedTopics(1, "own"), kfake.MaxVersions(versions)).open(t)
	if _, err := b.Open(t.Context(), true); !errors.Is(err, errNoProducer) || !fault.NeedsPerson(err) || fault.Hint(err) == "" {
		t.Error(err)
	}
}

// A log that comes no further says why, and goes on by itself.
func TestALogSaysWhatItWaitsFor(t *testing.T) {
	w := fakeWorld(t, nil)
	b := w.open(t)
	b.fence()
	b.append(1)
	b.all()
	h := w.fake.Fault(kfake.Fault{Keys: produce, Err: kerr.NotEnoughReplicas, Count: -1},
		kfake.Fault{Keys: []kmsg.Key{kmsg.Metadata}, Topic: w.topic, Err: kerr.LeaderNotAvailable, Count: -1})
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
func TestALogWithoutBrokers(t *testing.T) {
	short.SkipSlow(t)
	w := fakeWorld(t, nil)
	b := w.open(t)
	b.fence()
	w.fake.Close()
	b.append(1)
	waitFor(t, func() bool { return b.Stalled() != nil })
	b.patience = time.Second
	if _, err := b.Read(t.Context(), 0, every); !fault.Retryable(err) {
		t.Error(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := b.Close(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	again := w.open(t)
	again.patience = time.Second
	if _, err := again.Open(t.Context(), true); !fault.Retryable(err) || again.Broken() == nil {
		t.Error(err)
	}
	again.append(1)
	if len(again.Unwritten()) != 1 {
		t.Error("the append is not given back")
	}
}

// Close waits for the transaction that is under way.
func TestALogEndsItsTransactionWhenItCloses(t *testing.T) {
	w := fakeWorld(t, nil)
	b := w.open(t)
	b.fence()
	b.append(1)
	b.all() // the first transaction of a writer may not reach its commit
	ended, release := holdCommit(w.fake)
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
	if _, err := b.Open(t.Context(), true); !errors.Is(err, errClosed) {
		t.Error(err)
	}
	next := w.open(t)
	next.fence()
	next.holds(b.values...)
}
