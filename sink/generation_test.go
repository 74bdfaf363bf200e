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

// weight is what the sink remembers of topics, and how many clients that produce it has.
func (b *bench) weight() (topics, limits, told, clients int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.limits.Range(func(any, any) bool { limits++; return true })
	all := map[*client]bool{}
	for k := range kinds {
		all[b.next[k]] = true
		for _, t := range b.topics {
			all[t.cl[k]] = true
		}
	}
	delete(all, nil)
	for c := range all {
		c.mu.Lock()
		told += len(c.limit)
		c.mu.Unlock()
	}
	return len(b.topics), limits, told, len(all)
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

// Topics that are not used any more are forgotten, together with the client that knows them. The order of a topic that is always in
// use holds while it moves from client to client. A topic that comes again is known anew: created again, or with another limit.
func TestTopicsThatAreNotUsedAreForgotten(t *testing.T) {
	short.SkipSlow(t)
	names := topicNames(manyTopics)
	c := testenv.FakeKafka(t, kfake.SeedTopics(1, append([]string{"hot", "limited"}, names...)...))
	b := open1(t, config(c.ListenAddrs()))
	b.keep = keep{topics: 500}
	setTopicConfig(t, b.adm, "limited", "max.message.bytes", "5000")
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
	topics, limits, told, clients := b.weight()
	// A generation, and those that waited while it began.
	if most := b.keep.topics + 400; topics > most || limits > most || told > 2*most || clients > 2 {
		t.Errorf("%d topics, %d limits, %d of clients, %d clients", topics, limits, told, clients)
	}
	waitFor(t, func() bool { return runtime.NumGoroutine() < before+50 })

	setTopicConfig(t, b.adm, "limited", "max.message.bytes", "20000")
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
	if limit, _ := b.clientOf("limited").told("limited"); limit != 20_000 {
		t.Errorf("the client works with a limit of %d", limit)
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

// Topics that are in use do not fill one generation after the other.
func TestAGenerationHasRoomForTheTopicsInUse(t *testing.T) {
	s := &Kafka{keep: keep{topics: 10, recent: time.Minute}, names: map[string]struct{}{}, topics: map[string]*topic{}}
	enter := func(i int) {
		name := fmt.Sprint(i)
		if s.topics[name] == nil {
			s.topics[name] = &topic{s: s, name: name, gate: open}
		}
		s.topics[name].since = time.Now()
		s.enter(s.topics[name])
	}
	for range 20 {
		for i := range 500 { // all in use
			enter(i)
		}
	}
	if s.gen != 0 || len(s.names) != 500 {
		t.Errorf("generation %d with %d topics; want the first one with 500", s.gen, len(s.names))
	}
	for _, o := range s.topics {
		o.since = time.Now().Add(-time.Hour) // none in use
	}
	for i := range 2000 {
		enter(500 + i)
	}
	if s.gen == 0 || s.topics["0"] != nil {
		t.Errorf("generation %d with %d of %d topics", s.gen, len(s.names), len(s.topics))
	}
}
