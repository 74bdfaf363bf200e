package sink

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/internal/kafka"
	"github.com/walpost/walpost/internal/testenv"
)

func parkingOf(t *testing.T, brokers []string, topic string) *Parking {
	t.Helper()
	cfg := config(brokers)
	cfg.Parking = topic
	p := NewParking(cfg)
	t.Cleanup(p.Close)
	return p
}

// values reads from an offset on, and returns what it read.
func (p *Parking) values(t *testing.T, from int64) (all []string, next int64) {
	t.Helper()
	next, err := p.Read(t.Context(), from, func(r *kgo.Record) bool {
		all = append(all, string(r.Value))
		return true
	})
	if err != nil {
		t.Fatal(err)
	}
	return all, next
}

func park(t *testing.T, cl *kgo.Client, topic string, values ...string) {
	t.Helper()
	for _, v := range values {
		if err := cl.ProduceSync(t.Context(), &kgo.Record{Topic: topic, Value: []byte(v)}).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
}

func gone(t *testing.T, p *Parking, from int64) {
	t.Helper()
	p.patience = 3 * time.Second // it waits for a new leader
	_, err := p.Read(t.Context(), from, func(*kgo.Record) bool { return true })
	if !errors.Is(err, kafka.ErrGone) || !fault.NeedsPerson(err) || fault.Hint(err) == "" {
		t.Errorf("from %d: %v", from, err)
	}
}

// The topic is read from any offset to the end that it has, through compressed batches, aborted transactions and markers, and only as far
// as the caller wants.
func TestRealTheParkingTopicIsReadFromAnyOffset(t *testing.T) {
	k := testenv.Kafka(t)
	topic := k.Topic(t, 1, nil)
	cl := k.Client(t)
	p := parkingOf(t, k.Brokers(), topic)
	if all, next := p.values(t, 0); len(all) != 0 || next != 0 {
		t.Errorf("an empty topic: %q, %d", all, next)
	}
	var want []string
	for i := range 50 {
		want = append(want, fmt.Sprint(i))
	}
	park(t, cl, topic, want...)
	all, next := p.values(t, 0)
	if !slices.Equal(all, want) || next != 50 {
		t.Errorf("%q, %d", all, next)
	}
	for _, from := range []int64{49, 7, 50} {
		if all, next := p.values(t, from); !slices.Equal(all, want[from:]) || next != 50 {
			t.Errorf("from %d: %q, %d", from, all, next)
		}
	}
	var some []string
	next, err := p.Read(t.Context(), 3, func(r *kgo.Record) bool {
		some = append(some, string(r.Value))
		return len(some) < 4
	})
	if err != nil || next != 7 || !slices.Equal(some, want[3:7]) {
		t.Errorf("four of them: %q, %d, %v", some, next, err)
	}
	tx := k.Client(t, kgo.TransactionalID("parking-"+topic))
	if err := tx.BeginTransaction(); err != nil {
		t.Fatal(err)
	}
	park(t, tx, topic, "aborted")
	if err := tx.EndTransaction(t.Context(), kgo.TryAbort); err != nil {
		t.Fatal(err)
	}
	if all, next := p.values(t, 50); len(all) != 0 || next != 52 {
		t.Errorf("behind an aborted transaction: %q, %d", all, next)
	}
	park(t, cl, topic, "last")
	if all, next := p.values(t, 52); !slices.Equal(all, []string{"last"}) || next != 53 {
		t.Errorf("%q, %d", all, next)
	}
	if _, err := kadm.NewClient(cl).DeleteRecords(t.Context(), offsets(topic, 10)); err != nil {
		t.Fatal(err)
	}
	if all, _ := p.values(t, 0); !slices.Equal(all, append(slices.Clone(want[10:]), "last")) {
		t.Errorf("a start behind removed records: %q", all)
	}
	if all, _ := p.values(t, 10); len(all) != 41 {
		t.Errorf("from the first record that is left: %q", all)
	}
	gone(t, p, 9)
}

func offsets(topic string, at int64) kadm.Offsets {
	var o kadm.Offsets
	o.Add(kadm.Offset{Topic: topic, At: at})
	return o
}

// A topic that does not exist has no records. One that was made again has lost what was parked in it, whatever it has now.
func TestRealAParkingTopicThatWasMadeAgainNeedsAPerson(t *testing.T) {
	k := testenv.Kafka(t)
	topic := k.Topic(t, 1, nil)
	cl := k.Client(t)
	p := parkingOf(t, k.Brokers(), topic+".new")
	if all, next := p.values(t, 0); len(all) != 0 || next != 0 {
		t.Errorf("a missing topic: %q, %d", all, next)
	}
	k.CreateTopic(t, topic+".new", 1, nil)
	park(t, cl, topic+".new", "a", "b")
	if all, next := p.values(t, 0); len(all) != 2 || next != 2 {
		t.Errorf("the new topic: %q, %d", all, next)
	}
	gone(t, p, 3) // such as behind an unclean election
	deleteTopic(t, cl, topic+".new")
	_, err := p.Read(t.Context(), 2, func(*kgo.Record) bool { return true })
	if !fault.Retryable(err) || !errors.Is(err, kerr.UnknownTopicOrPartition) || !strings.Contains(err.Error(), topic+".new") {
		t.Errorf("a topic that is missing now: %v", err)
	}
	k.CreateTopic(t, topic+".new", 1, nil)
	again := k.Client(t)
	park(t, again, topic+".new", "c", "d", "e")
	gone(t, p, 2)
	gone(t, p, 0)
	if all, _ := parkingOf(t, k.Brokers(), topic+".new").values(t, 0); len(all) != 3 {
		t.Errorf("the next start: %q", all)
	}
}

// The memory of a reading does not grow with the topic: what the brokers send at once is bounded.
func TestTheParkingTopicIsReadInBoundedPieces(t *testing.T) {
	c := testenv.FakeKafka(t, kfake.SeedTopics(1, "parked"))
	cl, err := config(c.ListenAddrs()).NewClient()
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	for range 40 {
		park(t, cl, "parked", string(incompressible(100_000)))
	}
	fetches := 0
	c.ControlKey(int16(kmsg.Fetch), func(req kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		fetches++
		if max := req.(*kmsg.FetchRequest).MaxBytes; max > 1<<20 { //nolint:errcheck // ControlKey's
			t.Errorf("asked for %d bytes", max)
		}
		return nil, nil, false
	})
	p := parkingOf(t, c.ListenAddrs(), "parked")
	if all, _ := p.values(t, 0); len(all) != 40 || fetches < 4 {
		t.Errorf("%d records by %d fetches", len(all), fetches)
	}
	fetches = 0
	if all, _ := p.values(t, 38); len(all) != 2 || fetches != 1 {
		t.Errorf("the last two: %d records by %d fetches", len(all), fetches)
	}
	// A reading that has to start over gives no record twice.
	n := 0
	next, err := p.Read(t.Context(), 0, func(r *kgo.Record) bool {
		if r.Offset != int64(n) {
			t.Fatalf("offset %d is record %d", r.Offset, n)
		}
		if n++; n == 15 {
			c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Fetch}, Topic: "parked", Err: kerr.OffsetOutOfRange, Count: 1})
		}
		return true
	})
	if n != 40 || next != 40 || err != nil {
		t.Errorf("%d records, %d, %v", n, next, err)
	}
}

// A topic with several partitions keeps no order, also one that gets them later.
func TestAParkingTopicNeedsOnePartition(t *testing.T) {
	c := testenv.FakeKafka(t, kfake.SeedTopics(2, "two"))
	p := parkingOf(t, c.ListenAddrs(), "two")
	if _, err := p.Read(t.Context(), 0, func(*kgo.Record) bool { return true }); !errors.Is(err, errPartitions) || !fault.NeedsPerson(err) {
		t.Error(err)
	}
}

// Without a policy that parks, walpost needs no right to a topic that it cannot see. A topic that it sees is read.
func TestAParkingTopicThatCannotBeSeen(t *testing.T) {
	c := testenv.FakeKafka(t, kfake.SeedTopics(1, "parked"))
	for _, what := range []struct {
		denied kmsg.Key
		parks  bool
		waits  bool
	}{{kmsg.Metadata, true, true}, {kmsg.Metadata, false, false}, {kmsg.ListOffsets, false, true}} {
		p := parkingOf(t, c.ListenAddrs(), "parked")
		p.cfg.Park = what.parks
		f := c.Fault(kfake.Fault{Keys: []kmsg.Key{what.denied}, Topic: "parked", Err: kerr.TopicAuthorizationFailed, Count: 1})
		next, err := p.Read(t.Context(), 0, func(*kgo.Record) bool { return true })
		f.Remove()
		if next != 0 || (err != nil) != what.waits || err != nil && !fault.Retryable(err) {
			t.Errorf("%+v: %d, %v", what, next, err)
		}
	}
}

// Brokers that cannot be reached, and a right that is missing, are waited out.
func TestAReadOfTheParkingTopicThatFailsIsWaitedOut(t *testing.T) {
	c := testenv.FakeKafka(t, kfake.SeedTopics(1, "parked"))
	p := parkingOf(t, c.ListenAddrs(), "parked")
	p.patience = time.Second
	f := c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.ListOffsets}, Topic: "parked", Err: kerr.TopicAuthorizationFailed, Count: 1})
	_, err := p.Read(t.Context(), 0, func(*kgo.Record) bool { return true })
	f.Remove()
	if !fault.Retryable(err) || !kafka.Denied(err) {
		t.Errorf("%v", err)
	}
	c.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	if _, err := p.Read(ctx, 0, func(*kgo.Record) bool { return true }); !fault.Retryable(err) {
		t.Errorf("%v", err)
	}
}

// Of what waits behind a refused record, PassOver gives back what its caller wants, in order and whole, and delivers the rest.
func TestPassOverTakesRecordsBack(t *testing.T) {
	c := limited(t, 20_000)
	b := open1(t, config(c.ListenAddrs()))
	b.send("a", "k", 5)
	b.all()
	tooLargeFor(b, "a", "k")
	var mine []string
	for n := range 200 {
		b.send("a", "j", 1)
		mine = append(mine, b.sendRecord(cdc.Record{Topic: "a", Key: []byte("k"), Partition: -1, Value: fmt.Append(nil, "value ", n)}))
	}
	b.send("b", "k", 1) // another topic
	b.refused()
	b.collect(func() bool { return len(b.acked) == 6 })
	b.PassOver("a", func(key []byte, ticket *cdc.Ticket) bool { return string(key) == "k" })
	var back []string
	b.collect(func() bool {
		for i := range b.buf {
			if a := &b.buf[i]; errors.Is(a.Err, cdc.ErrTakenBack) {
				if a.Record == nil || string(a.Record.Value) != fmt.Sprint("value ", len(back)) || a.Record.EventID != a.EventID || a.Topic != "a" {
					t.Fatalf("%+v", a)
				}
				back = append(back, a.EventID)
			}
		}
		b.buf = b.buf[:0]
		return len(b.acked)+len(b.poison) == len(b.ids)
	})
	if !slices.Equal(back, mine) || len(b.acked) != 206 {
		t.Errorf("%d taken back, %d acknowledged", len(back), len(b.acked))
	}
	b.send("a", "k", 5) // and the key is usable again
	b.collect(func() bool { return len(b.acked) == 211 })
	b.checkLog(c.ListenAddrs(), "a", "b")
}
