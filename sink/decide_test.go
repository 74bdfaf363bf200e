package sink

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/kafka"
	"github.com/walpost/walpost/internal/testenv"
)

// still is a topic of two partitions with broker 0, of a sink that neither sends nor asks. The test holds its lock.
func still(t testing.TB) *topic {
	t.Helper()
	s := newKafka(DefaultConfig())
	s.mu.Lock()
	t.Cleanup(s.mu.Unlock)
	s.ids, s.line.running = ids{newest: producerID{id: 7}, known: true}, true
	s.lanes[0] = &lane{s: s, wake: make(chan struct{}, 1), full: make(chan struct{}, 1)}
	to := s.topicOf("a", time.Now())
	if err := to.hear(described(1, 2), time.Now()); err != nil {
		t.Fatal(err)
	}
	return to
}

// hear has the topic learn, and its partitions go on.
func (t *topic) hear(is *kafka.Topic, now time.Time) error {
	err := t.learn(is, now)
	if err == nil {
		t.resume()
	}
	return err
}

// described is what the brokers say of a topic.
func described(id byte, partitions int) *kafka.Topic {
	is := &kafka.Topic{Name: "a", ID: [16]byte{id}, Settings: map[string]string{"max.message.bytes": "1000"}}
	for n := range int32(partitions) {
		is.Partitions = append(is.Partitions, kmsg.MetadataResponseTopicPartition{Partition: n, Leader: 0, LeaderEpoch: 1})
	}
	return is
}

// give sends records to a partition, and returns it.
func (t *topic) give(n int32, records int) *partition {
	for range records {
		sl := t.s.pool.slot()
		sl.fill(&cdc.Record{Partition: n}, cdc.Ticket{})
		sl.t = t
		t.add(sl, time.Now())
	}
	return t.parts[n]
}

func everything([]byte, *cdc.Ticket) bool { return true }

// A topic was created again while a partition waits for an answer. What waits for the other one may belong behind it now.
func TestATopicCreatedAgainSendsNothingUntilItsRecordsAreGathered(t *testing.T) {
	for _, back := range []bool{false, true} {
		to := still(t)
		p, other := to.give(0, 1), to.give(1, 1)
		b := p.next()
		if err := to.hear(described(2, 1), time.Now()); !errors.Is(err, kerr.UnknownTopicID) {
			t.Fatal(err)
		}
		if to.give(1, 1); other.sendable() {
			t.Error("a partition of the old topic goes on")
		}
		if back { // that was an answer of a broker that knew less
			if err := to.hear(described(1, 2), time.Now()); err != nil || !other.sendable() {
				t.Errorf("%v, and the partition goes on: %t", err, other.sendable())
			}
			continue
		}
		p.answered(b, kerr.UnknownTopicID, time.Now())
		if err := to.hear(described(2, 1), time.Now()); err != nil || to.parts[0].queue.len() != 1 {
			t.Fatal(err)
		}
		if p := to.parts[1]; p.queue.len()+len(to.s.acks) != 2 {
			t.Errorf("%d records wait for the other partition", p.queue.len())
		}
	}
}

func TestATopicIDThatIsNotToldIsNoOtherTopic(t *testing.T) {
	to := still(t)
	p := to.give(0, 1)
	for _, id := range []byte{0, 1, 0} {
		if err := to.hear(described(id, 2), time.Now()); err != nil || to.parts[0] != p || to.id != [16]byte{1} {
			t.Fatalf("after id %d: %v, %v", id, err, to.id)
		}
	}
	if err := to.hear(described(1, 1), time.Now()); !errors.Is(err, errStale) || len(to.leaders) != 2 {
		t.Errorf("after fewer partitions: %v", err)
	}
	if err := to.hear(described(0, 1), time.Now()); err != nil || len(to.leaders) != 1 {
		t.Errorf("after fewer partitions and no id: %v", err)
	}
}

// The dialer's newest error is no answer, whatever it is. And a request that was never written leaves nothing to wait for.
func TestAnAttemptWithoutAnAnswerIsNoRefusal(t *testing.T) {
	for _, sent := range []bool{true, false} {
		to := still(t)
		p := to.give(0, 1)
		b := p.next()
		b.trial = true
		p.answered(b, noAnswer{fmt.Errorf("dial: %w", kerr.MessageTooLarge), sent}, time.Now())
		if len(to.s.acks) > 0 || p.state != waits || !errors.Is(p.reason, kerr.MessageTooLarge) {
			t.Errorf("the record ended: %v; %v", to.s.acks, p.reason)
		}
		if b.lost != sent || p.silence.IsZero() == sent {
			t.Errorf("sent: %t; may be written: %t; silence until %s", sent, b.lost, p.silence)
		}
	}
}

func TestAPartitionTakesAnotherProducerIDBehindADroppedRecord(t *testing.T) {
	to := still(t)
	p := to.give(0, 2)
	p.width = 1
	b := p.next()
	p.answered(b, kerr.InvalidRecord, time.Now())
	if p.state != halted || !p.renew || len(to.s.acks) != 1 {
		t.Fatalf("state %d, renews its producer id: %t", p.state, p.renew)
	}
	if p.passOver(); p.sendable() {
		t.Error("the next record gets a number that was sent")
	}
}

// The numbers of a refused batch are used again for the same records, so none of those can be taken back.
func TestARecordWithANumberIsNotTakenBack(t *testing.T) {
	to := still(t)
	p := to.give(0, 4)
	b := p.next()
	p.answered(b, kerr.InvalidRecord, time.Now())
	to.give(0, 3)
	to.takeBack(everything)
	if len(to.s.acks) != 3 || p.queue.len() != 4 {
		t.Fatalf("%d taken back, %d left", len(to.s.acks), p.queue.len())
	}
	to.give(0, 1)
	for p.queue.len() > 0 {
		b := p.next()
		p.answered(b, nil, time.Now())
	}
	if p.seq != 5 || len(to.s.acks) != 3+5 {
		t.Errorf("%d ended, the next number is %d", len(to.s.acks), p.seq)
	}
}

// A pause that ends late changes nothing for a partition that is halted since.
func TestAHaltedPartitionIsNotResumed(t *testing.T) {
	to := still(t)
	p := to.give(0, 2)
	p.width = 1
	p.answered(p.next(), kerr.InvalidRecord, time.Now())
	p.due = true
	if err := to.hear(described(1, 2), time.Now()); err != nil || p.state != halted {
		t.Errorf("%v, state %d", err, p.state)
	}
}

// A broker may refuse a whole request, so a suspected record is in one of its own, also when it is sent again.
func TestASuspectedRecordIsSentAlone(t *testing.T) {
	for _, again := range []bool{false, true} {
		to := still(t)
		l := to.s.lanes[0]
		to.give(1, 1)
		p := to.give(0, 1)
		p.width = 1
		if again {
			b := p.next()
			p.answered(b, kerr.NotEnoughReplicas, time.Now())
			p.resume()
			if p.listed = true; len(l.ready) < 2 {
				l.add(p)
			}
		}
		for range 2 {
			if batches := l.collect(); len(batches) != 1 {
				t.Errorf("again: %t; %d batches", again, len(batches))
			}
		}
	}
}

// A leader takes any number from a producer id that it does not know, and a new one may not know it.
func TestANewLeaderIsSentOneBatchFirst(t *testing.T) {
	to := still(t)
	p := to.give(0, 1)
	p.answered(p.next(), nil, time.Now())
	is := described(1, 2)
	is.Partitions[0].LeaderEpoch++
	if p.epoch = 1; !p.proven {
		t.Fatal("not proven after an answer")
	}
	if err := to.hear(is, time.Now()); err != nil || p.proven {
		t.Errorf("%v, proven: %t", err, p.proven)
	}
}

func TestANewProducerIDWaitsForRequestsOfTheOldOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		to := still(t)
		p := to.give(0, 1)
		p.answered(p.next(), noAnswer{errModel, true}, time.Now())
		if err := to.hear(described(2, 2), time.Now()); err != nil {
			t.Fatal(err)
		}
		to.s.ids.known = true
		for began := time.Now(); !to.parts[0].sendable(); {
			if time.Since(began) > time.Minute {
				t.Fatal("never goes on")
			}
			to.s.mu.Unlock()
			time.Sleep(100 * time.Millisecond)
			to.s.mu.Lock()
			to.asking = false
			_ = to.hear(described(2, 2), time.Now())
			if to.parts[0].sendable() && time.Since(began) < usualWire {
				t.Errorf("goes on after %s", time.Since(began))
			}
		}
		to.s.mu.Unlock()
		time.Sleep(time.Minute) // the timers end
		to.s.mu.Lock()
	})
}

// A record above the limit does not have the brokers asked each time.
func TestALimitIsAskedForNotMoreThanEverySomeSeconds(t *testing.T) {
	to := still(t)
	to.limit = 10
	if to.give(0, 2); to.asking {
		t.Error("asked at once")
	}
	to.learned = time.Now().Add(-refreshLimit - time.Second)
	if to.give(0, 1); !to.asking {
		t.Error("not asked later")
	}
}

func TestALimitThatIsNotToldIsLearnedFromRefusals(t *testing.T) {
	to := still(t)
	p := to.give(0, 40)
	b := p.next()
	size := b.bytes()
	p.answered(b, kerr.MessageTooLarge, time.Now())
	is := described(1, 2)
	is.Settings, is.Refused = nil, kerr.TopicAuthorizationFailed
	if err := to.hear(is, time.Now()); err != nil || to.limit >= size {
		t.Errorf("%v, the limit is %d after %d bytes were refused", err, to.limit, size)
	}
	if err := to.hear(described(1, 2), time.Now()); err != nil || to.limit != 1000 {
		t.Errorf("%v, the limit is %d when it is told", err, to.limit)
	}
}

// bubble runs a test with a sink and a model of brokers that make no mistakes.
func bubble(t *testing.T, linger time.Duration, do func(t *testing.T, m *model, b *bench, use func(brokers))) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		m := newModel(t, 0, 3)
		m.calm = true
		for _, l := range m.logs {
			l.leaders = []int32{0}
		}
		cfg := DefaultConfig()
		cfg.Linger = Linger(linger)
		s := newKafka(cfg)
		s.brokers = m
		b := &bench{TB: t, Kafka: s, sent: map[string][]string{}, acked: map[string]bool{}, poison: map[string]error{}}
		do(t, m, b, func(other brokers) { s.brokers = other })
		s.mu.Lock()
		s.closed = true
		s.mu.Unlock()
		s.cancel()
		s.wg.Wait()
		m.wg.Wait()
		time.Sleep(time.Minute) // the timers end
	})
}

func (b *bench) sendMany(n int32, count int) {
	for range count {
		b.sendRecord(cdc.Record{Topic: "a", Key: []byte("k"), Partition: n})
	}
}

func TestLingerEndsWhenABatchIsFull(t *testing.T) {
	bubble(t, 10*time.Second, func(t *testing.T, _ *model, b *bench, _ func(brokers)) {
		b.sendMany(0, 1)
		time.Sleep(11 * time.Second)
		b.sendMany(0, 1)
		time.Sleep(time.Second)
		if b.take(); len(b.acked) != 1 {
			t.Fatalf("%d acknowledged before the batch is full", len(b.acked))
		}
		b.sendMany(0, 100)
		time.Sleep(time.Second)
		if b.take(); len(b.acked) < 10 {
			t.Errorf("%d acknowledged after the batch was full", len(b.acked))
		}
	})
}

// promptBroker takes every batch, and answers after a fixed time.
type promptBroker struct {
	*model
	answers time.Duration

	mu   sync.Mutex
	came []time.Time // requests
}

// taken returns when requests came, and forgets them.
func (d *promptBroker) taken() []time.Time {
	d.mu.Lock()
	defer d.mu.Unlock()
	came := d.came
	d.came = nil
	return came
}

func (d *promptBroker) produce(_ context.Context, _ int32, req *request) (kmsg.Response, error) {
	d.mu.Lock()
	d.came = append(d.came, time.Now())
	d.mu.Unlock()
	_ = req.AppendTo(nil)
	resp := kmsg.NewPtrProduceResponse()
	for _, t := range req.Topics {
		rt := kmsg.ProduceResponseTopic{Topic: t.Topic, TopicID: t.TopicID}
		for _, p := range t.Partitions {
			rt.Partitions = append(rt.Partitions, kmsg.ProduceResponseTopicPartition{Partition: p.Partition})
		}
		resp.Topics = append(resp.Topics, rt)
	}
	time.Sleep(d.answers)
	return resp, nil
}

func TestARequestWaitsForTheOneBeforeAndNotForLong(t *testing.T) {
	for answers, want := range map[time.Duration]time.Duration{time.Millisecond: time.Millisecond, 10 * time.Millisecond: autoLinger} {
		bubble(t, 0, func(t *testing.T, m *model, b *bench, use func(brokers)) {
			d := &promptBroker{model: m, answers: answers}
			use(d)
			b.sendMany(0, 1) // has the topic asked for
			time.Sleep(time.Second)
			d.taken()
			began := time.Now()
			for range 10 {
				b.sendMany(0, 1)
				time.Sleep(500 * time.Microsecond)
			}
			time.Sleep(time.Second)
			came := d.taken()
			if len(came) < 3 || !came[0].Equal(began) {
				t.Fatalf("requests at %v, and the first record was sent at %v", came, began)
			}
			for i, at := range came[1:] {
				if gap := at.Sub(came[i]); gap != want {
					t.Errorf("with answers after %s: %s between two requests, want %s", answers, gap, want)
				}
			}
			if b.take(); len(b.acked) != 11 {
				t.Errorf("%d acknowledged", len(b.acked))
			}
		})
	}
}

func TestARecordIsSentWithoutAnAllocation(t *testing.T) {
	const records = 500
	to := still(t)
	to.limit = mostBytes
	p, s := to.give(0, 1), to.s
	press, rec := press{compressor: s.compressor}, benchRecord(0, []byte("key"), testenv.Incompressible(300))
	rec.Topic, rec.Partition = to.name, 0
	var acks []cdc.Ack
	n := testing.AllocsPerRun(20, func() {
		s.mu.Unlock()
		for range records {
			s.Send(&rec, cdc.Ticket{})
		}
		s.mu.Lock()
		b := p.next()
		press.encode(b)
		p.answered(b, nil, time.Now())
		s.mu.Unlock()
		acks = s.Acks(acks[:0])
		s.mu.Lock()
	})
	if len(acks) != records || n > 5 {
		t.Errorf("%d acknowledged, %v allocations for a batch of %d records", len(acks), n, records)
	}
}

// deadBroker is a model whose broker 0 is gone, so each attempt to connect to it takes some time.
type deadBroker struct{ *model }

const deadTime = 10 * time.Second

func (d deadBroker) produce(ctx context.Context, broker int32, req *request) (kmsg.Response, error) {
	if broker == 0 {
		time.Sleep(deadTime)
		return nil, errModel
	}
	return d.model.produce(ctx, broker, req)
}

func TestADeadBrokerHoldsAPartitionThatMovedNotTwice(t *testing.T) {
	bubble(t, 0, func(t *testing.T, m *model, b *bench, use func(brokers)) {
		use(deadBroker{m})
		b.sendMany(0, 1)
		time.Sleep(time.Second)
		b.sendMany(1, 1)
		b.sendMany(2, 1)
		time.Sleep(time.Second)
		m.mu.Lock()
		for _, l := range m.logs {
			m.move(l)
		}
		m.mu.Unlock()
		time.Sleep(deadTime)
		if b.take(); len(b.acked) != 3 {
			t.Errorf("%d acknowledged after the broker was found dead", len(b.acked))
		}
	})
}

// oddTopic is a model that says of the topic that its name is not valid, for a time.
type oddTopic struct {
	*model
	until time.Time
}

func (o oddTopic) topics(ctx context.Context, names []string) ([]kafka.Topic, error) {
	all, err := o.model.topics(ctx, names)
	if time.Now().Before(o.until) {
		all[0].Err = kerr.InvalidTopicException
	}
	return all, err
}

func TestAnInvalidNameOfAKnownTopicIsAskedForAgain(t *testing.T) {
	bubble(t, 0, func(t *testing.T, m *model, b *bench, use func(brokers)) {
		b.sendMany(0, 1)
		time.Sleep(time.Second)
		m.mu.Lock()
		m.move(m.logs[0])
		m.mu.Unlock()
		use(oddTopic{m, time.Now().Add(2 * time.Second)})
		b.sendMany(0, 1)
		time.Sleep(10 * time.Second)
		if b.take(); len(b.acked) != 2 {
			t.Errorf("%d acknowledged, %d refused", len(b.acked), len(b.poison))
		}
	})
}

// Nothing is compressed any more when a broker does not know the compression.
func TestACompressionThatABrokerDoesNotKnowIsGivenUp(t *testing.T) {
	c := testenv.FakeKafka(t, kfake.SeedTopics(1, "a"))
	cfg := config(c.ListenAddrs())
	cfg.Compression = "zstd"
	h := c.Fault(kfake.Fault{Keys: produce, Err: kerr.UnsupportedCompressionType, Count: -1, When: func(req kmsg.Request) bool {
		var rb kmsg.RecordBatch
		err := rb.ReadFrom(req.(*kmsg.ProduceRequest).Topics[0].Partitions[0].Records)
		return err != nil || kgo.CompressionCodecType(rb.Attributes&7) == kgo.CodecZstd
	}})
	b := open1(t, cfg)
	b.sendRecord(cdc.Record{Topic: "a", Key: []byte("k"), Partition: -1, Value: make([]byte, 5000)})
	b.send("a", "k", 100)
	b.all()
	if h.Hits() == 0 {
		t.Error("nothing was compressed")
	}
	b.checkLog(c.ListenAddrs(), "a")
}

// A leader answers NOT_LEADER also to a batch that it has written, when it loses the partition while it waits for the replicas. And whoever
// answers next may not know the producer id, so the first batch goes alone.
func TestAFailedBatchMayBeWrittenAndGoesAloneAgain(t *testing.T) {
	to := still(t)
	p := to.give(0, 1)
	p.answered(p.next(), nil, time.Now())
	to.give(0, 30) // several batches
	b := p.next()
	if !p.sendable() {
		t.Fatal("one batch at a time after an answer")
	}
	p.answered(b, kerr.NotLeaderForPartition, time.Now())
	if !b.lost {
		t.Error("counts as not written")
	}
	p.resume()
	if p.next() != b || p.sendable() {
		t.Error("another batch is sent beside the one that failed")
	}
}
