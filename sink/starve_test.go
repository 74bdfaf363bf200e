package sink

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

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

// noIDs is a model that gives one producer id, and then errors.
type noIDs struct {
	*model
	given *bool
}

func (n noIDs) identify(ctx context.Context) (*kmsg.InitProducerIDResponse, error) {
	if *n.given {
		return nil, errModel
	}
	*n.given = true
	return n.model.identify(ctx)
}

func TestAPartitionThatNeedsNoProducerIDGoesOnWithout(t *testing.T) {
	bubble(t, 0, func(t *testing.T, m *model, b *bench, use func(brokers)) {
		use(noIDs{m, new(bool)})
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
