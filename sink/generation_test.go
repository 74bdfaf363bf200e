package sink

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/testenv"
	"github.com/walpost/walpost/internal/testenv/short"
)

const manyTopics = 20_000

func topicNames(n int) []string {
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf("t%05d", i)
	}
	return names
}

// only keeps of what was sent what went to these topics, for checkLog.
func (b *bench) only(topics ...string) []string {
	for at := range b.sent {
		if name, _, _ := strings.Cut(at, "/"); !slices.Contains(topics, name) {
			delete(b.sent, at)
		}
	}
	return topics
}

// Topics that are not used any more are forgotten. The order of a topic that is always in
// use holds beside them. A topic that comes again is known anew: created again, or with another limit.
func TestTopicsThatAreNotUsedAreForgotten(t *testing.T) {
	short.SkipSlow(t)
	names := topicNames(manyTopics)
	c := testenv.FakeKafka(t, kfake.SeedTopics(1, append([]string{"hot", "limited"}, names...)...))
	b := open1(t, config(c.ListenAddrs()))
	b.keep = keep{topics: 500}
	setTopicConfig(t, b.cl, "limited", "max.message.bytes", "5000")
	b.send("limited", "k", 1)
	b.send("hot", "k", 1) // before the others: the first topics that are delivered to are told apart
	b.all()
	before := runtime.NumGoroutine()
	for i, name := range names {
		b.send(name, "k", 1)
		b.send("hot", "k", 1)
		if i%250 == 249 {
			b.collect(func() bool { return len(b.ids)-len(b.acked) < 100 })
		}
	}
	b.all()
	b.mu.Lock()
	known := len(b.topics)
	b.mu.Unlock()
	if most := b.keep.topics + 400; known > most { // and those that waited
		t.Errorf("%d topics are known", known)
	}
	waitFor(t, func() bool { return runtime.NumGoroutine() < before+50 })

	setTopicConfig(t, b.cl, "limited", "max.message.bytes", "20000")
	if err := c.DeleteTopic(names[0]); err != nil {
		t.Fatal(err)
	}
	if err := c.CreateTopic(names[0], 1, nil); err != nil {
		t.Fatal(err)
	}
	b.sent[names[0]+"/k"] = nil // went with the old topic
	for range 3 {
		for _, name := range append(names[:50:50], "limited", "hot") {
			b.sendRecord(cdc.Record{Topic: name, Key: []byte("k"), Partition: -1, Value: testenv.Incompressible(6000)})
		}
	}
	b.all()
	b.checkLog(c.ListenAddrs(), b.only(append(names[:60:60], "limited", "hot")...)...)
	if limit := b.limitOf("limited"); limit != 20_000 {
		t.Errorf("the sink works with a limit of %d", limit)
	}

	st := b.Status()
	sum := uint64(0)
	for _, n := range st.Delivered {
		sum += n
	}
	if len(st.Delivered) != MaxTopicSeries+1 || sum != uint64(len(b.ids)) || st.Delivered["hot"] != manyTopics+4 || st.Delivered[OtherTopics] == 0 {
		t.Errorf("%d topics are told apart, %d records counted of %d, %d of hot", len(st.Delivered), sum, len(b.ids), st.Delivered["hot"])
	}
}

// A topic that is missing waits without a goroutine, and the brokers are asked about many at once.
func TestMissingTopicsCostNoGoroutines(t *testing.T) {
	short.SkipSlow(t)
	names := topicNames(manyTopics)
	c := testenv.FakeKafka(t, kfake.SeedTopics(1, "a"))
	b := open1(t, config(c.ListenAddrs()))
	b.send("a", "k", 1)
	b.all()
	before := runtime.NumGoroutine()
	for _, name := range names {
		b.send(name, "k", 2)
	}
	waiting := func() (n int) {
		b.mu.Lock()
		defer b.mu.Unlock()
		for _, t := range b.topics {
			if t.reason != nil {
				n++
			}
		}
		return n
	}
	waitFor(t, func() bool { return waiting() == manyTopics })
	waitFor(t, func() bool { return runtime.NumGoroutine() <= before+manyTopics/20 }) // some timers may run now
	b.send("a", "k", 100)
	b.collect(func() bool { return len(b.acked) == 101 })
	late := names[manyTopics-3:]
	for _, name := range late {
		if err := c.CreateTopic(name, 1, nil); err != nil {
			t.Fatal(err)
		}
	}
	b.collect(func() bool { return len(b.acked) == 101+2*len(late) })
	b.checkLog(c.ListenAddrs(), b.only(append(late, "a")...)...)
}

// Topics that are in use are not looked at for each new one.
func TestTopicsInUseMakeRoomForMore(t *testing.T) {
	s := &Kafka{directory: directory{keep: keep{topics: 10, recent: time.Minute}, topics: map[string]*topic{}}}
	now := time.Now()
	for i := range 500 { // all in use
		s.topicOf(fmt.Sprint(i), now).pending = 1
	}
	if len(s.topics) != 500 || s.crowd < 500 {
		t.Errorf("%d topics are known, and the next look comes with %d; want 500 and more", len(s.topics), s.crowd)
	}
}
