package sink

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/kafka"
	"github.com/walpost/walpost/internal/testenv"
)

// A suspected record needs a request of its own, also beside a partition that always has something to send.
func TestASuspectedRecordDoesNotStarve(t *testing.T) {
	to := still(t)
	l := to.s.lanes[0]
	to.give(1, 1)
	to.parts[1].answered(l.collect()[0], nil, time.Now()) // so that several of its batches may be on their way
	to.give(1, 50)
	p := to.give(0, 1)
	p.width = 1
	for range 2 {
		if l.collect()[0].p == p {
			return
		}
	}
	t.Error("other batches were sent twice before it")
}

// oneID is a model that gives one producer id, and then what then returns.
type oneID struct {
	*model
	given *bool
	then  func(ctx context.Context) error
}

func (o oneID) identify(ctx context.Context) (*kmsg.InitProducerIDResponse, error) {
	if *o.given {
		return nil, o.then(ctx)
	}
	*o.given = true
	return o.model.identify(ctx)
}

func TestAPartitionThatNeedsNoProducerIDGoesOnWithout(t *testing.T) {
	bubble(t, 0, func(t *testing.T, m *model, b *bench, use func(brokers)) {
		use(oneID{m, new(bool), func(context.Context) error { return errModel }})
		b.sendMany(0, 1)
		time.Sleep(time.Second)
		b.mu.Lock()
		b.Kafka.ids.known = false // as when a topic was forgotten
		b.mu.Unlock()
		b.sendMany(1, 1)
		time.Sleep(time.Second)
		m.mu.Lock()
		m.move(m.logs[0])
		m.mu.Unlock()
		b.sendMany(0, 1)
		time.Sleep(10 * time.Second)
		if b.take(); len(b.acked) != 2 {
			t.Errorf("%d acknowledged", len(b.acked))
		}
		if why := b.Stalled(); !errors.Is(why, errModel) {
			t.Errorf("stalled: %v", why)
		}
	})
}

// A topic whose creation takes long holds no other.
func TestATopicThatIsCreatedHoldsNoOther(t *testing.T) {
	c := testenv.FakeKafka(t, kfake.SeedTopics(1, "a"))
	cfg := config(c.ListenAddrs())
	cfg.Topics.Create = true
	release := make(chan struct{})
	end := sync.OnceFunc(func() { close(release) })
	t.Cleanup(end)
	creates := make(chan struct{}, 1)
	c.ControlKey(int16(kmsg.CreateTopics), func(kmsg.Request) (kmsg.Response, error, bool) {
		poke(creates)
		c.SleepControl(func() { <-release })
		return nil, nil, false
	})
	b := open1(t, cfg)
	b.send("new", "k", 1)
	<-creates
	b.send("a", "k", 1)
	b.collect(func() bool { return len(b.acked) == 1 })
	b.mu.Lock()
	if why := b.topics["new"].reason; why != nil {
		t.Errorf("the creation had ended: %v", why)
	}
	b.mu.Unlock()
	end()
	b.all()
	b.checkLog(c.ListenAddrs(), "a", "new")
}

// The brokers' answer about the leaders counts, whether or not another one says what the limit is.
func TestLeadersAreLearnedWithoutTheLimit(t *testing.T) {
	to := still(t)
	is := described(1, 2)
	is.Settings, is.Refused = nil, errModel
	is.Partitions[1].Leader = 0
	is.Partitions[1].LeaderEpoch = 7
	p := to.give(1, 1)
	if err := to.hear(is, time.Now()); err != nil || to.limit != 1000 || p.epoch != 7 {
		t.Errorf("%v, the limit is %d, the epoch %d", err, to.limit, p.epoch)
	}
	other := to.s.topicOf("b", time.Now())
	if err := other.hear(is, time.Now()); !errors.Is(err, errModel) || len(other.leaders) > 0 {
		t.Errorf("without any limit: %v, %d partitions", err, len(other.leaders))
	}
}

// A lane may wait for a broker that is gone. What moved to another leader isn't held by that.
func TestAPartitionThatMovedLeavesItsLane(t *testing.T) {
	to := still(t)
	old, now := to.s.lanes[0], &lane{s: to.s, id: 1, wake: make(chan struct{}, 1), full: make(chan struct{}, 1)}
	to.s.lanes[1] = now
	p := to.give(0, 1)
	is := described(1, 2)
	is.Partitions[0].Leader, is.Partitions[0].LeaderEpoch = 1, 2
	if err := to.hear(is, time.Now()); err != nil || len(old.ready) != 0 || len(now.ready) != 1 || now.ready[0] != p {
		t.Errorf("%v; %d in the old lane, %d in the new one", err, len(old.ready), len(now.ready))
	}
}

func TestAPartitionWithoutALeaderWaits(t *testing.T) {
	to := still(t)
	p := to.give(0, 1)
	p.answered(p.next(), nil, time.Now())
	is := described(1, 2)
	is.Partitions[0].Leader = -1
	if err := to.hear(is, time.Now()); err != nil {
		t.Fatal(err)
	}
	if to.give(0, 1); p.state != waits || !errors.Is(p.reason, kerr.LeaderNotAvailable) || to.s.lanes[-1] != nil {
		t.Errorf("state %d: %v", p.state, p.reason)
	}
	if err := to.hear(described(1, 2), time.Now()); err != nil {
		t.Fatal(err)
	}
	if p.resume(); !p.sendable() {
		t.Error("the partition doesn't go on with a leader")
	}
}

// As long as an old request may be written, no partition begins anew under another producer id, so it isn't forgotten either.
func TestAPartitionWithAnUnansweredRequestIsNotForgotten(t *testing.T) {
	to := still(t)
	p := to.give(0, 1)
	p.answered(p.next(), nil, time.Now())
	p.silence = time.Now().Add(time.Hour)
	to.s.keep, to.asking = keep{}, false
	cl, err := kgo.NewClient() // forgets what the sink forgets
	if err != nil {
		t.Fatal(err)
	}
	to.s.cl = cl
	t.Cleanup(func() {
		to.s.wg.Wait()
		cl.Close()
	})
	if to.s.sweep(time.Now()); to.s.topics["a"] == nil {
		t.Error("forgotten")
	}
	p.silence = time.Time{}
	if to.s.sweep(time.Now()); to.s.topics["a"] != nil {
		t.Error("not forgotten later")
	}
}

// A record asks for a partition that the topic gets later.
func TestAPartitionThatIsAddedLaterGoesOn(t *testing.T) {
	to := still(t)
	hear := func(partitions int) {
		to.asking = false
		if err := to.hear(described(1, partitions), time.Now()); err != nil {
			t.Fatal(err)
		}
	}
	p := to.give(5, 1)
	if hear(2); p.state != halted {
		t.Fatalf("state %d", p.state)
	}
	p.passOver()
	hear(2)
	hear(6)
	to.give(5, 1)
	if hear(6); !p.sendable() {
		t.Errorf("the record never ends: state %d", p.state)
	}
}

// The brokers refuse a name when the topic is created: it differs from another one only in . and _.
func TestATopicThatCannotBeCreatedRefusesItsRecord(t *testing.T) {
	c := testenv.FakeKafka(t)
	cfg := config(c.ListenAddrs())
	cfg.Topics.Create = true
	c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.CreateTopics}, Err: kerr.InvalidTopicException, Count: -1})
	b := open1(t, cfg)
	id := b.sendRecord(cdc.Record{Topic: "a.b", Key: []byte("k"), Partition: -1})
	b.collect(func() bool { return b.poison[id] != nil })
	if refused, ok := errors.AsType[*cdc.Refusal](b.poison[id]); !ok || refused.Reason != cdc.InvalidTopic {
		t.Error(b.poison[id])
	}
}

func TestAPartitionThatNeedsNoProducerIDWaitsForNoneTwice(t *testing.T) {
	bubble(t, 0, func(t *testing.T, m *model, b *bench, use func(brokers)) {
		use(oneID{m, new(bool), func(ctx context.Context) error { // no answer
			<-ctx.Done()
			return ctx.Err()
		}})
		b.sendMany(0, 1)
		time.Sleep(time.Second)
		b.mu.Lock()
		b.Kafka.ids.known = false // as when a topic was forgotten
		b.mu.Unlock()
		b.sendRecord(cdc.Record{Topic: "b", Key: []byte("k")})
		time.Sleep(kafka.ProbeLimit + time.Second) // the first request had no answer
		m.mu.Lock()
		m.move(m.logs[0])
		m.mu.Unlock()
		b.sendMany(0, 1)
		time.Sleep(2 * time.Second)
		if b.take(); len(b.acked) != 2 {
			t.Errorf("%d acknowledged", len(b.acked))
		}
	})
}

// sameID is a model of a proxy that gives the same producer id to all.
type sameID struct {
	*model
	asked *atomic.Int64
}

func (s sameID) identify(context.Context) (*kmsg.InitProducerIDResponse, error) {
	s.asked.Add(1)
	return &kmsg.InitProducerIDResponse{ProducerID: 1}, nil
}

func TestTheSameProducerIDIsAskedForWithPauses(t *testing.T) {
	bubble(t, 0, func(t *testing.T, m *model, b *bench, use func(brokers)) {
		ids := sameID{m, new(atomic.Int64)}
		use(ids)
		b.sendMany(0, 1)
		time.Sleep(time.Second)
		b.mu.Lock()
		p := b.topics["a"].parts[0]
		p.renumber()
		p.wait(kerr.OutOfOrderSequenceNumber)
		b.mu.Unlock()
		b.sendMany(0, 1)
		before := ids.asked.Load()
		time.Sleep(10 * time.Second)
		if n := ids.asked.Load() - before; n < 2 || n > 50 {
			t.Errorf("asked %d times in ten seconds", n)
		}
	})
}

// No broker's answer about some of the partitions counts.
func TestADescriptionWithAGapIsNoAnswer(t *testing.T) {
	to := still(t)
	p := to.give(1, 1)
	p.next()
	desc := described(1, 2)
	desc.Partitions[1].Partition = 0
	if err := to.hear(desc, time.Now()); !errors.Is(err, errStale) || to.leaders[1] != 0 {
		t.Errorf("%v, leaders %v", err, to.leaders)
	}
}

// missingTopics is a model that has no topic.
type missingTopics struct {
	*model
	asked *atomic.Int64
}

func (m missingTopics) topics(_ context.Context, names []string) (all []kafka.Topic, err error) {
	m.asked.Add(1)
	for _, name := range names {
		all = append(all, kafka.Topic{Name: name, Err: kerr.UnknownTopicOrPartition})
	}
	return all, nil
}

func TestAMissingTopicIsForgottenWhenNothingWaitsForIt(t *testing.T) {
	bubble(t, 0, func(t *testing.T, m *model, b *bench, use func(brokers)) {
		none := missingTopics{m, new(atomic.Int64)}
		use(none)
		b.sendMany(0, 1)
		time.Sleep(time.Second)
		b.TakeBack("a", everything)
		time.Sleep(2 * time.Second)
		before := none.asked.Load()
		time.Sleep(time.Minute)
		if n := none.asked.Load() - before; n > 0 {
			t.Errorf("asked %d times", n)
		}
		b.take()
		b.mu.Lock()
		defer b.mu.Unlock()
		if to := b.topics["a"]; to.pending > 0 || to.asking {
			t.Errorf("%d pending, asking: %t", to.pending, to.asking)
		}
	})
}

func TestAGatheringTopicSaysWhyItWaits(t *testing.T) {
	to := still(t)
	p, other := to.give(0, 1), to.give(1, 1)
	p.answered(p.next(), nil, time.Now())
	other.width = 1
	other.answered(other.next(), kerr.InvalidRecord, time.Now()) // halted until PassOver
	to.reason = to.learn(described(2, 2), time.Now())
	to.give(0, 1)
	var why error
	to.s.waiters(func(w waiter) {
		if w.n == 0 {
			why = w.why
		}
	})
	if !errors.Is(why, kerr.UnknownTopicID) {
		t.Errorf("%v", why)
	}
}

// A broker that throttles has the client wait before it sends that broker anything else. Questions don't wait with it.
func TestAThrottledBrokerHoldsNoQuestion(t *testing.T) {
	c := testenv.FakeKafka(t, kfake.NumBrokers(1), kfake.SeedTopics(1, "a", "b"))
	b := open1(t, config(c.ListenAddrs()))
	b.send("a", "k", 1)
	b.all()
	throttled := make(chan struct{})
	c.ControlKey(int16(kmsg.Produce), func(req kmsg.Request) (kmsg.Response, error, bool) {
		r := req.(*kmsg.ProduceRequest)
		resp := r.ResponseKind().(*kmsg.ProduceResponse)
		resp.ThrottleMillis = 600_000
		for _, rt := range r.Topics {
			answer := kmsg.NewProduceResponseTopic()
			answer.Topic, answer.TopicID = rt.Topic, rt.TopicID
			for _, rp := range rt.Partitions {
				part := kmsg.NewProduceResponseTopicPartition()
				part.Partition = rp.Partition
				answer.Partitions = append(answer.Partitions, part)
			}
			resp.Topics = append(resp.Topics, answer)
		}
		close(throttled)
		return resp, nil, true
	})
	b.send("a", "k", 1)
	<-throttled
	b.all()
	b.send("a", "k", 1) // waits in the client
	b.send("b", "k", 1)
	known := func() bool {
		b.mu.Lock()
		defer b.mu.Unlock()
		return len(b.topics["b"].leaders) > 0
	}
	for began := time.Now(); !known(); time.Sleep(time.Millisecond) {
		if time.Since(began) > patience {
			t.Fatal("the brokers aren't asked about another topic")
		}
	}
}

// A broker comes back under another address, and nobody but its partitions is asked for.
func TestABrokerWithANewAddressIsFound(t *testing.T) {
	c := testenv.FakeKafka(t, kfake.NumBrokers(2), kfake.SeedTopics(1, "a"))
	b := open1(t, config(c.ListenAddrs()))
	b.send("a", "k", 1)
	b.all()
	id := c.LeaderFor("a", 0)
	if err := c.RemoveNode(id); err != nil {
		t.Fatal(err)
	}
	if _, _, err := c.AddNode(id, 0); err != nil {
		t.Fatal(err)
	}
	if err := c.MoveTopicPartition("a", 0, id); err != nil {
		t.Fatal(err)
	}
	b.send("a", "k", 1)
	b.all()
	b.checkLog(c.ListenAddrs(), "a")
}

// A broker that stops gives its partitions away first. The log must name the next cause at once.
func TestAnElectionIsNoKnownCause(t *testing.T) {
	to := still(t)
	p := to.give(0, 1)
	p.answered(p.next(), kerr.NotLeaderForPartition, time.Now())
	p.since = time.Now().Add(-time.Minute)
	to.s.mu.Unlock()
	why := to.s.Stalled()
	to.s.mu.Lock()
	var cause interface{ CauseKnown() bool }
	if !errors.Is(why, kerr.NotLeaderForPartition) || !errors.As(why, &cause) || cause.CauseKnown() {
		t.Errorf("%v", why)
	}
	p.reason = to.why(noAnswer{errModel, true})
	to.s.mu.Unlock()
	why = to.s.Stalled()
	to.s.mu.Lock()
	if why == nil || errors.Is(why, kerr.NotLeaderForPartition) || errors.As(why, &cause) {
		t.Errorf("%v", why)
	}
}

// Two of three brokers are gone: some partitions have no leader, and the others too few replicas, which says more.
func TestACauseIsShownBeforeAnElection(t *testing.T) {
	to := still(t)
	p, other := to.give(0, 1), to.give(1, 1)
	p.answered(p.next(), kerr.LeaderNotAvailable, time.Now())
	other.answered(other.next(), kerr.NotEnoughReplicas, time.Now())
	p.since, other.since = time.Now().Add(-time.Hour), time.Now().Add(-time.Minute)
	to.s.mu.Unlock()
	why := to.s.Stalled()
	to.s.mu.Lock()
	if !errors.Is(why, kerr.NotEnoughReplicas) {
		t.Error(why)
	}
}

// A broker that starts or stops accepts a connection and closes it, which the client takes for missing TLS.
func TestAClosedConnectionIsNoMissingTLSOnceBrokersHaveAnswered(t *testing.T) {
	to := still(t)
	eof := fmt.Errorf("ask: %w", &kgo.ErrFirstReadEOF{})
	if why := to.s.unreachable(eof); !errors.As(why, new(*kgo.ErrFirstReadEOF)) {
		t.Errorf("before: %v", why)
	}
	to.s.answered.Store(true)
	var cause interface{ CauseKnown() bool }
	if why := to.s.unreachable(eof); !errors.Is(why, errClosed) || strings.Contains(why.Error(), "TLS") || !errors.As(why, &cause) || cause.CauseKnown() {
		t.Errorf("after: %v", why)
	}
	for err, known := range map[error]bool{io.EOF: false, net.ErrClosed: false, errors.New("SASL authentication failed"): true} {
		if why := to.s.unreachable(err); !errors.Is(why, err) || (!errors.As(why, &cause) || cause.CauseKnown()) != known {
			t.Errorf("%v: %v, cause %v", err, why, cause)
		}
	}
	to.s.dials.OnBrokerConnect(kgo.BrokerMetadata{}, 0, nil, &kgo.ErrFirstReadEOF{}) // which the dial may have met, too
	if why := to.s.unreachable(io.EOF); !errors.Is(why, errClosed) || strings.Contains(why.Error(), "TLS") || !errors.As(why, &cause) || cause.CauseKnown() {
		t.Errorf("in the dial: %v", why)
	}
	refused := errors.New("connection refused") // the dialer's own error is a cause
	to.s.dials.OnBrokerConnect(kgo.BrokerMetadata{}, 0, nil, refused)
	for _, err := range []error{eof, io.EOF} {
		if why := to.s.unreachable(err); !errors.Is(why, refused) || strings.Contains(why.Error(), "TLS") || errors.As(why, &cause) {
			t.Errorf("%v: %v", err, why)
		}
	}
}
