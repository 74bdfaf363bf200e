package sink

import (
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/kafka"
	"github.com/walpost/walpost/internal/testenv"
	"github.com/walpost/walpost/internal/testenv/short"
)

// renewals is how often topics were taken from a stuck client.
func renewals(s *Kafka) int {
	return int(s.Status().Abandoned)
}

// A client that does not go on with a topic, for whatever reason, is left by that topic: everything arrives in order, once or in a
// contiguous re-run, also what is sent while the topic moves. Other topics stay.
func TestATopicLeavesAClientThatIsStuck(t *testing.T) {
	short.SkipSlow(t)
	c := testenv.FakeKafka(t, kfake.SeedTopics(1, "a", "b"))
	b := open1(t, config(c.ListenAddrs()))
	b.stuckWait = stuckWait{least: 5 * time.Second, unknown: 5 * time.Second, wire: 70 * time.Millisecond}
	for range 3 { // both topics are known, and their gates open
		b.send("a", "k", 200)
		b.send("b", "k", 200)
		b.all()
	}
	before := b.clientOf("b")

	ida := c.TopicInfo("a").TopicID
	var hold atomic.Bool
	hold.Store(true)
	release := make(chan struct{})
	end := sync.OnceFunc(func() { close(release) })
	t.Cleanup(end)
	c.ControlKey(int16(kmsg.Produce), func(req kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		p := req.(*kmsg.ProduceRequest)
		for i := range p.Topics {
			if (p.Topics[i].TopicID == ida || p.Topics[i].Topic == "a") && hold.CompareAndSwap(true, false) {
				c.SleepControl(func() { <-release }) // this connection hears nothing any more
			}
		}
		return nil, nil, false
	})
	b.send("a", "k", 100)
	waitFor(t, func() bool {
		b.sendRecord(cdc.Record{Topic: "a", Key: []byte("k"), Partition: -1})
		_ = b.Stalled()
		return renewals(b.Kafka) > 0
	})
	b.all()
	b.send("a", "k", 100)
	b.all()
	b.rerunsMayBe = true
	b.checkLog(c.ListenAddrs(), "a", "b") // before the broker goes on with what it holds
	end()
	b.send("b", "k", 100)
	b.all()
	if b.clientOf("a") == before {
		t.Error("topic a still has its client")
	}
	if b.clientOf("b") != before {
		t.Error("topic b lost its client")
	}
}

func (b *bench) clientOf(topic string) *client {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.topics[topic].cl[ordinary]
}

// Only a wait without any reason counts, all of it, and each time it must be twice as long.
func TestOnlyALongWaitWithoutAReasonIsStuck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &Kafka{closed: true} // closed: no tender starts
		a := &topic{s: s, name: "a", wake: make(chan struct{}, 1), flight: 1, since: time.Now()}
		// looks at the topic every two seconds, and returns after how long it was found to be stuck, 0 if it was not.
		look := func(d time.Duration, well func(i int) bool) time.Duration {
			begin := time.Now()
			for i := 0; time.Since(begin) <= d; i++ {
				s.suspect(a, well(i), 30*time.Second)
				if a.stuck.found {
					a.stuck.found = false
					return time.Since(begin)
				}
				time.Sleep(kafka.ProbeEvery)
			}
			return 0
		}
		always := func(int) bool { return true }
		if d := look(time.Hour, func(int) bool { return false }); d != 0 {
			t.Errorf("with brokers that are not well: stuck after %s", d)
		}
		if d := look(time.Hour, func(i int) bool { return i%10 != 0 }); d != 0 {
			t.Errorf("with brokers that are not well now and then: stuck after %s", d)
		}
		if d := look(time.Hour, func(i int) bool {
			if i%10 == 0 {
				a.since = time.Now() // an acknowledgement
			}
			return true
		}); d != 0 {
			t.Errorf("with acknowledgements now and then: stuck after %s", d)
		}
		a.flight = 0
		if d := look(time.Hour, always); d != 0 {
			t.Errorf("with nothing in flight: stuck after %s", d)
		}
		a.flight = 0
		sl := newSlot()
		a.leaves(sl)
		if d := look(time.Hour, func(int) bool {
			a.returns(sl) // an attempt has failed, and the next one begins
			a.leaves(sl)
			return true
		}); d != 0 {
			t.Errorf("with one attempt after another: stuck after %s", d)
		}
		a.stuck, a.reason = stuck{}, kerr.ClusterAuthorizationFailed // of an earlier attempt
		for times, want := range []time.Duration{30 * time.Second, time.Minute, 2 * time.Minute} {
			if d := look(time.Hour, always); d != want {
				t.Errorf("stuck after %s, the %d. time; must be %s", d, times+1, want)
			}
		}
	})
}

// The oldest record decides: partitions that go on do not hide one that does not.
func TestAPartitionThatIsStuckShowsBesideOthers(t *testing.T) {
	a := &topic{name: "a", wake: make(chan struct{}, 1)}
	s := &Kafka{topics: map[string]*topic{"a": a}, delivered: map[string]*uint64{}, wake: make(chan struct{}, 1)}
	a.s = s
	slots := make([]*slot, 4)
	for i := range slots {
		slots[i] = newSlot()
		slots[i].t = a
		a.pending++
		a.leaves(slots[i])
	}
	slots[1].done(nil, nil) // from the middle
	slots[3].done(nil, nil) // the newest
	if !a.since.IsZero() || a.oldest != slots[0] || a.newest != slots[2] {
		t.Error("an acknowledgement of a later record counts")
	}
	slots[0].done(nil, nil)
	if a.since.IsZero() || a.oldest != slots[2] || a.newest != slots[2] {
		t.Error("an acknowledgement of the oldest record does not count")
	}
	slots[2].done(nil, nil)
	if a.oldest != nil || a.newest != nil || a.flight != 0 {
		t.Errorf("%d are left", a.flight)
	}
}

// A gate does not open while its topic is to leave the client: nobody would tend it any more.
func TestTheGateStaysShutWhileATopicIsStuck(t *testing.T) {
	s := new(Kafka)
	a := &topic{s: s, gate: tended}
	a.stuck.found = true
	if s.reopen(a) || a.gate != tended {
		t.Error("the gate opens")
	}
}

// What a slow broker has of the client that was left is written before anything that comes through the next one, or never: else
// the log would end with what is long past.
func TestARequestOnTheWireIsOverBeforeTheNextClientBegins(t *testing.T) {
	short.SkipSlow(t)
	c := testenv.FakeKafka(t, kfake.SeedTopics(1, "a"))
	b := open1(t, config(c.ListenAddrs()))
	b.stuckWait = stuckWait{least: 3 * time.Second, unknown: 3 * time.Second, wire: 2 * time.Second}
	for range 3 {
		b.send("a", "k", 200)
		b.all()
	}
	var hold atomic.Bool
	hold.Store(true)
	release := make(chan struct{})
	end := sync.OnceFunc(func() { close(release) })
	t.Cleanup(end)
	c.ControlKey(int16(kmsg.Produce), func(kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		if hold.CompareAndSwap(true, false) {
			c.SleepControl(func() { <-release })
		}
		return nil, nil, false
	})
	b.send("a", "k", 100)
	waitFor(t, func() bool {
		_ = b.Stalled()
		return renewals(b.Kafka) > 0
	})
	b.send("a", "k", 50)                      // which the old client never has
	time.AfterFunc(700*time.Millisecond, end) // a good part of the two seconds, in which another client would be through
	b.all()
	<-release
	b.send("a", "k", 1)
	b.all()
	b.rerunsMayBe = true
	b.checkLog(c.ListenAddrs(), "a")
}

// Where the leader tells its replica.lag.time.max.ms, a topic waits three times as long, so that a slow follower is dropped first.
func TestATopicWaitsForItsSlowestLeader(t *testing.T) {
	c := testenv.FakeKafka(t, kfake.NumBrokers(3), kfake.SeedTopics(3, "a"))
	b := open1(t, config(c.ListenAddrs()))
	told := map[int32]string{}
	c.ControlKey(int16(kmsg.DescribeConfigs), func(kreq kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		req := kreq.(*kmsg.DescribeConfigsRequest)
		if len(req.Resources) != 1 || req.Resources[0].ResourceType != kmsg.ConfigResourceTypeBroker {
			return nil, nil, false
		}
		id, _ := strconv.Atoi(req.Resources[0].ResourceName)
		resp := req.ResponseKind().(*kmsg.DescribeConfigsResponse)
		r := kmsg.NewDescribeConfigsResponseResource()
		r.ResourceType, r.ResourceName = kmsg.ConfigResourceTypeBroker, req.Resources[0].ResourceName
		switch v := told[int32(id)]; v {
		case "":
		case "refused":
			r.ErrorCode = kerr.ClusterAuthorizationFailed.Code
		default:
			kv := kmsg.NewDescribeConfigsResponseResourceConfig()
			kv.Name, kv.Value = lagSetting, &v
			r.Configs = append(r.Configs, kv)
		}
		resp.Resources = append(resp.Resources, r)
		return resp, nil, true
	})
	for i, test := range []struct {
		told [3]string // by the leader of each partition
		want time.Duration
	}{
		{[3]string{"1000", "1000", "1000"}, 30 * time.Second}, // not less, whatever the brokers say
		{[3]string{"30000", "30000", "30000"}, 90 * time.Second},
		{[3]string{"30000", "120000", "30000"}, 6 * time.Minute},
		{[3]string{"1000", "", "1000"}, 90 * time.Second},
		{[3]string{"1000", "1000", "refused"}, 90 * time.Second},
	} {
		is, err := kafka.DescribeTopic(patient(t), b.adm, "a")
		if err != nil {
			t.Fatal(err)
		}
		for p := range is.Partitions {
			is.Partitions[p].Leader = int32(p)
			told[int32(p)] = test.told[p]
		}
		wait, err := b.mustWait(patient(t), is, map[int32]time.Duration{})
		if err != nil || wait != test.want {
			t.Errorf("case %d, %q: %s, %v; want %s", i, test.told, wait, err, test.want)
		}
	}
	if usualStuckWait.least <= usualStuckWait.wire || usualStuckWait.unknown < usualStuckWait.least {
		t.Errorf("%+v", usualStuckWait)
	}
}
