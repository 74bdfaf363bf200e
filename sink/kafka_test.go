package sink

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/kafka"
	"github.com/walpost/walpost/internal/testenv"
	"github.com/walpost/walpost/relay"
)

var (
	_ relay.Sink = (*Kafka)(nil)
	_ relay.Sink = (*Stdout)(nil)
)

// TestMain ends the shared servers and then looks for goroutines that are left.
func TestMain(m *testing.M) {
	os.Exit(testenv.MainWithoutLeaks(m))
}

// patience bounds every wait of these tests: it is reached only when something is wrong.
const patience = 60 * time.Second

func patient(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

// A bench is a sink with a book of what was sent and what came back.
type bench struct {
	testing.TB
	*Kafka
	sent   map[string][]string // topic/key -> ids in order of Send
	ids    []string            // ticket -> id
	acked  map[string]bool
	poison map[string]error
	buf    []cdc.Ack

	takesBack bool // see passingOver
	backKey   string
	mine      []string // taken back, and not returned yet

	rerunsMayBe bool
}

func config(brokers []string) Config {
	cfg := DefaultConfig()
	cfg.Brokers, cfg.WindowBytes, cfg.Logger = brokers, 64<<20, slog.New(slog.DiscardHandler)
	return cfg
}

func open1(t testing.TB, cfg Config) *bench {
	t.Helper()
	s, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	b := &bench{TB: t, Kafka: s, sent: map[string][]string{}, acked: map[string]bool{}, poison: map[string]error{}}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := s.Close(ctx); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return b
}

// send sends records with the ids n, n+1, ... as values.
func (b *bench) send(topic, key string, count int) {
	for range count {
		b.sendRecord(cdc.Record{Topic: topic, Key: []byte(key), Partition: -1})
	}
}

// sendRecord fills in the id, as the header of the record, and sends it.
func (b *bench) sendRecord(r cdc.Record) string {
	id := strconv.Itoa(len(b.ids))
	b.ids = append(b.ids, id)
	if r.Value == nil {
		r.Value = []byte("v" + id)
	}
	r.Headers = []cdc.Header{{Key: "id", Value: []byte(id)}}
	r.Time = time.UnixMilli(1_700_000_000_000)
	r.Committed = time.Now()
	r.EventID = id
	at := r.Topic + "/" + string(r.Key)
	b.sent[at] = append(b.sent[at], id)
	b.Send(&r, cdc.Ticket{Tx: uint64(len(b.ids) - 1), Size: uint32(r.Size())})
	return id
}

// collect takes acks until done says so.
func (b *bench) collect(done func() bool) {
	b.Helper()
	limit := time.NewTimer(patience)
	defer limit.Stop()
	asked := time.NewTicker(200 * time.Millisecond) // as the relay does
	defer asked.Stop()
	for !done() {
		select {
		case <-b.Wake():
		case <-asked.C:
			_ = b.Stalled() // what it says is for the tests of it
		case <-limit.C:
			b.Fatalf("after %s: %d of %d acknowledged, %d refused; stalled: %v", patience, len(b.acked), len(b.ids), len(b.poison), b.Stalled())
		}
		b.take()
	}
}

func (b *bench) take() {
	b.Helper()
	b.buf = b.Acks(b.buf[:0])
	for _, a := range b.buf {
		id := b.ids[a.Ticket.Tx]
		if b.acked[id] || b.poison[id] != nil {
			b.Fatalf("event %s ended twice", id)
		}
		if a.EventID != id {
			b.Fatalf("the ack of event %s names %q", id, a.EventID)
		}
		if a.Err != nil {
			b.poison[id] = a.Err
		} else {
			b.acked[id] = true
			if a.Latency < 0 {
				b.Fatalf("event %s has latency %s", id, a.Latency)
			}
		}
	}
}

func (b *bench) all() { b.Helper(); b.collect(func() bool { return len(b.acked) == len(b.ids) }) }

// checkLog reads the topics back: each key's events once, in the order of Send, as far as they were acknowledged.
func (b *bench) checkLog(brokers []string, topics ...string) {
	b.Helper()
	got := map[string][]string{}
	for _, topic := range topics {
		for _, r := range readAll(b, brokers, topic) {
			at := topic + "/" + string(r.Key)
			got[at] = append(got[at], header(r, "id"))
		}
	}
	for at, ids := range b.sent {
		var want []string
		for _, id := range ids {
			if b.acked[id] {
				want = append(want, id)
			}
		}
		b.compare(at, got[at], want)
	}
}

// compare says where two lists of ids part. Where re-runs may be, an id may be followed by one that was there before, if the
// list goes on from there.
func (b *bench) compare(at string, got, want []string) {
	b.Helper()
	place := map[string]int{}
	for i, id := range want {
		place[id] = i
	}
	next, seen, reruns := 0, 0, 0
	for i, id := range got {
		p, ok := place[id]
		if ok && p < next && b.rerunsMayBe {
			reruns++
			next = p
		}
		if !ok || p != next || p > seen {
			b.Errorf("%s: record %d of the log is %s, want %s (around: %v)", at, i, id, want[min(next, len(want)-1)], got[max(0, i-5):min(len(got), i+5)])
			return
		}
		next++
		seen = max(seen, next)
	}
	if seen != len(want) || next != len(want) {
		b.Errorf("%s: the log has %d of %d records and ends at %d", at, seen, len(want), next)
	}
	if reruns > 0 {
		b.Logf("%s: %d re-runs", at, reruns)
	}
}

func header(r *kgo.Record, key string) string {
	for _, h := range r.Headers {
		if h.Key == key {
			return string(h.Value)
		}
	}
	return ""
}

// readAll returns what a topic's partitions hold.
func readAll(t testing.TB, brokers []string, topic string) []*kgo.Record {
	t.Helper()
	ctx := patient(t)
	cl, err := kgo.NewClient(kgo.SeedBrokers(brokers...))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	at, err := kafka.DescribeTopic(ctx, cl, topic)
	if err == nil {
		err = at.Err
	}
	if err != nil {
		t.Fatalf("%s: %v", topic, err)
	}
	var out []*kgo.Record
	for p := range at.Partitions {
		r := kafka.Reader{Client: cl, Topic: topic, Partition: int32(p), Each: func(r *kgo.Record) error {
			out = append(out, r)
			return nil
		}}
		if err := r.ToEnd(ctx); err != nil {
			t.Fatal(err)
		}
	}
	return out
}

func TestDeliversInOrder(t *testing.T) {
	c := testenv.FakeKafka(t, kfake.SeedTopics(3, "a", "b"))
	b := open1(t, config(c.ListenAddrs()))
	for i := range 2000 {
		b.send([]string{"a", "b"}[i%2], fmt.Sprint("k", i%7), 1)
	}
	b.all()
	b.checkLog(c.ListenAddrs(), "a", "b")
	if st := b.Status(); st.Delivered["a"] != 1000 || st.Delivered["b"] != 1000 {
		t.Errorf("status is %+v", st)
	}
	if err := b.Stalled(); err != nil {
		t.Errorf("stalled: %v", err)
	}
}

// The reason why a partition that was forgotten is never told the same producer id again (topic.drop): its sequence numbers begin anew, and a
// leader takes the next batch for one that it has already.
func TestPurgeWouldLoseARecord(t *testing.T) {
	c := testenv.FakeKafka(t, kfake.SeedTopics(1, "a"))
	purgeLoses(t, c.ListenAddrs(), "a")
}

func purgeLoses(t *testing.T, brokers []string, topic string) {
	ctx := patient(t)
	cl, err := kgo.NewClient(kgo.SeedBrokers(brokers...))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	for _, v := range []string{"one", "two"} {
		if err := cl.ProduceSync(ctx, &kgo.Record{Topic: topic, Value: []byte(v)}).FirstErr(); err != nil {
			t.Fatal(err)
		}
		cl.PurgeTopicsFromClient(topic)
	}
	var got []string
	for _, r := range readAll(t, brokers, topic) {
		got = append(got, string(r.Value))
	}
	if len(got) != 1 {
		t.Errorf("both records were acknowledged and the log has %v: a purge does not lose a record any more", got)
	}
}

// waitFor polls what only shows from outside. It does not measure time.
func waitFor(t testing.TB, ok func() bool) {
	t.Helper()
	ctx := patient(t)
	for {
		start := time.Now()
		if ok() {
			return
		}
		// A look that is dear takes a tenth of the time at most, so that it does not keep the sink's locks to itself.
		select {
		case <-time.After(max(5*time.Millisecond, 10*time.Since(start))):
		case <-ctx.Done():
			t.Fatal("it did not come about")
		}
	}
}

func setTopicConfig(t testing.TB, cl *kgo.Client, topic, key, value string) {
	t.Helper()
	changed, err := kadm.NewClient(cl).AlterTopicConfigs(patient(t), []kadm.AlterConfig{{Name: key, Value: &value}}, topic)
	if err == nil {
		err = changed[0].Err
	}
	if err != nil {
		t.Fatal(err)
	}
}

func deleteTopic(t testing.TB, cl *kgo.Client, topic string) {
	t.Helper()
	adm := kadm.NewClient(cl)
	if _, err := adm.DeleteTopic(patient(t), topic); err != nil {
		t.Fatal(err)
	}
	waitFor(t, func() bool { // until then a broker goes on taking records for it
		topics, err := adm.ListTopics(patient(t), topic)
		return err == nil && errors.Is(topics[topic].Err, kerr.UnknownTopicOrPartition)
	})
}
