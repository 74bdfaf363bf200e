package sink

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/kafka"
	"github.com/walpost/walpost/internal/testenv"
	"github.com/walpost/walpost/internal/testenv/short"
)

// passingOver collects until done, and passes over each record that is refused, as a relay does. With takesBack it takes back what the
// refused record's key, or backKey, has behind it in the topic.
func (b *bench) passingOver(done func() bool) {
	b.Helper()
	b.collect(func() bool {
		for i := range b.buf {
			switch a := &b.buf[i]; {
			case a.Err == nil:
			case errors.Is(a.Err, cdc.ErrTakenBack):
				b.wantBack(a)
			case !b.takesBack:
				b.PassOver(a, nil)
			default:
				mine := cmp.Or(b.backKey, string(a.Record.Key))
				for _, id := range b.sent[a.Topic+"/"+mine] {
					if n, _ := strconv.Atoi(id); n > int(a.Ticket.Tx) && b.poison[id] == nil {
						b.mine = append(b.mine, id)
					}
				}
				b.PassOver(a, func(key []byte, ticket *cdc.Ticket) bool { return string(key) == mine && ticket.Tx > a.Ticket.Tx })
			}
		}
		b.buf = b.buf[:0]
		return done()
	})
}

// wantBack checks a record that was taken back: it is whole, and in the order of Send.
func (b *bench) wantBack(a *cdc.Ack) {
	b.Helper()
	if len(b.mine) == 0 || b.mine[0] != a.EventID || a.Record == nil || a.Record.EventID != a.EventID || string(a.Record.Headers[0].Value) != a.EventID || a.Record.Value == nil {
		b.Fatalf("taken back: %+v, want %v", a, b.mine[:min(len(b.mine), 5)])
	}
	b.mine = b.mine[1:]
}

// refused waits for one refusal and returns it.
func (b *bench) refused() (refusal cdc.Ack) {
	b.Helper()
	before := len(b.poison)
	b.collect(func() bool { return len(b.poison) > before })
	return b.buf[slices.IndexFunc(b.buf, func(a cdc.Ack) bool { return a.Err != nil })]
}

func tooLargeFor(b *bench, topic, key string) string {
	return b.sendRecord(cdc.Record{Topic: topic, Key: []byte(key), Partition: -1, Value: testenv.Incompressible(50_000)})
}

// The record that was refused comes back as it was sent, with the reason.
func TestARefusedRecordComesBack(t *testing.T) {
	c := limited(t, 20_000)
	b := open1(t, config(c.ListenAddrs()))
	for reason, rec := range map[cdc.Reason]cdc.Record{
		cdc.TooLarge:      {Topic: "a", Key: []byte("k"), Partition: -1, Value: testenv.Incompressible(50_000)},
		cdc.InvalidRecord: {Topic: "b", Key: []byte{}, Partition: 77, Value: []byte("v")},
		cdc.InvalidTopic:  {Topic: "c d", Partition: -1, Value: []byte("v")},
	} {
		id := b.sendRecord(rec)
		a := b.refused()
		var r *cdc.Refusal
		if !errors.As(a.Err, &r) || r.Reason != reason || r.Topic != rec.Topic || refusal(r.Err) != reason {
			t.Fatalf("%s: %+v", reason, a.Err)
		}
		got := a.Record
		if got == nil || got.Topic != rec.Topic || got.Partition != rec.Partition || !bytes.Equal(got.Key, rec.Key) || (got.Key == nil) != (rec.Key == nil) ||
			!bytes.Equal(got.Value, rec.Value) || got.EventID != id || got.Time.UnixMilli() != 1_700_000_000_000 || len(got.Headers) != 1 || string(got.Headers[0].Value) != id {
			t.Errorf("%s: %+v", reason, got)
		}
	}
}

// The topic goes on behind each refused record, in order. Between the refusal and PassOver nothing is delivered.
func TestPassOverGoesOnInOrder(t *testing.T) {
	c := limited(t, 20_000)
	b := open1(t, config(c.ListenAddrs()))
	b.send("a", "k", 300)
	tooLargeFor(b, "a", "k")
	tooLargeFor(b, "a", "j") // the next one is refused too
	b.send("a", "k", 300)
	tooLargeFor(b, "a", "k")
	for n := range 3 {
		a := b.refused()
		b.send("a", "k", 50)
		b.send("b", "k", 50)
		want := 300 + 50*(n+1)
		if n == 2 {
			want += 300
		}
		b.collect(func() bool { return len(b.acked) >= want })
		if len(b.acked) != want || !b.isHalted("a") {
			t.Fatalf("refusal %d: %d acknowledged, want %d; halted: %t", n, len(b.acked), want, b.isHalted("a"))
		}
		b.PassOver(&a, nil)
		b.PassOver(&a, nil) // called twice, and for what is not halted
		b.PassOver(&cdc.Ack{Topic: "b"}, nil)
		b.PassOver(&cdc.Ack{Topic: "a", Partition: 7}, nil)
		b.PassOver(&cdc.Ack{Topic: "unknown"}, nil)
	}
	b.collect(func() bool { return len(b.acked)+len(b.poison) == len(b.ids) })
	if len(b.poison) != 3 {
		t.Errorf("%d refused", len(b.poison))
	}
	b.checkLog(c.ListenAddrs(), "a", "b")
	if err := b.Stalled(); err != nil {
		t.Errorf("stalled: %v", err)
	}
}

// To a topic with no valid name nothing can be delivered: each record is refused alone, also one that is sent after a PassOver with
// nothing behind the refused record.
func TestEachRecordToAnInvalidTopicIsRefused(t *testing.T) {
	c := testenv.FakeKafka(t, kfake.SeedTopics(1, "a"))
	b := open1(t, config(c.ListenAddrs()))
	b.send("a b", "k", 5)
	b.passingOver(func() bool { return len(b.poison) == 5 })
	waitFor(t, func() bool { return !b.isHalted("a b") })
	for n := range 3 {
		b.send("a b", "k", 1)
		b.passingOver(func() bool { return len(b.poison) == 6+n })
		if n == 1 {
			waitFor(t, func() bool { return !b.isHalted("a b") })
		}
	}
	if err := b.Stalled(); err != nil {
		t.Errorf("stalled: %v", err)
	}
	b.send("a", "k", 1)
	b.collect(func() bool { return len(b.acked) == 1 })
}

// A record that asks for a partition which is not there holds nothing up, and is delivered when the partition is there.
func TestARecordOfAMissingPartitionIsPassedOver(t *testing.T) {
	c := testenv.FakeKafka(t, kfake.SeedTopics(2, "a"))
	b := open1(t, config(c.ListenAddrs()))
	to := func(p int32) {
		b.sendRecord(cdc.Record{Topic: "a", Key: fmt.Append(nil, "to", p), Partition: p})
	}
	for n := range 60 {
		to(int32(n % 2))
		if n%7 == 0 {
			to(5)
		}
	}
	b.passingOver(func() bool { return len(b.acked) == 60 && len(b.poison) == 9 })
	b.checkLog(c.ListenAddrs(), "a")
}

// PassOver and Send while the sink closes, and after it.
func TestPassOverOfAClosedSinkDoesNothing(t *testing.T) {
	for range 5 {
		c := limited(t, 20_000)
		b := open1(t, config(c.ListenAddrs()))
		tooLargeFor(b, "a", "k")
		b.send("a", "k", 10)
		a := b.refused()
		done := make(chan error)
		go func() { done <- b.Close(context.Background()) }()
		b.PassOver(&a, nil)
		b.send("a", "k", 10)
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		b.PassOver(&a, nil)
	}
}

// A topic that is halted is not forgotten, although nothing may wait for it.
func TestAHaltedTopicIsNotForgotten(t *testing.T) {
	c := limited(t, 20_000)
	b := open1(t, config(c.ListenAddrs()))
	b.send("a", "k", 10)
	b.send("b", "k", 10)
	b.all()
	tooLargeFor(b, "a", "k")
	a := b.refused()
	b.mu.Lock()
	b.keep = keep{}
	b.sweep(time.Now())
	_, isA := b.topics["a"]
	_, isB := b.topics["b"]
	b.mu.Unlock()
	if !isA || isB {
		t.Errorf("a is known: %t, b is known: %t", isA, isB)
	}
	b.send("a", "k", 10)
	b.send("b", "k", 10)
	b.collect(func() bool { return len(b.acked) == 30 })
	b.PassOver(&a, nil)
	b.collect(func() bool { return len(b.acked) == 40 })
	b.checkLog(c.ListenAddrs(), "a", "b")
}

// The order per key holds whatever the brokers answer while records are refused and passed over.
func TestPassOverUnderRandomFaults(t *testing.T) {
	for seed := range short.Pick(max(*seeds/3, 1), 1) {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
			t.Parallel()
			r := rand.New(rand.NewPCG(seed, 8))
			c := testenv.FakeKafka(t, kfake.NumBrokers(3))
			for _, topic := range []string{"a", "b"} {
				if err := c.CreateTopic(topic, 2, map[string]string{"max.message.bytes": "20000"}); err != nil {
					t.Fatal(err)
				}
			}
			b := open1(t, config(c.ListenAddrs()))
			b.takesBack = seed%2 == 1
			bad := 0
			errs := []*kerr.Error{kerr.NotEnoughReplicas, kerr.UnknownTopicOrPartition, kerr.NotLeaderForPartition, kerr.TopicAuthorizationFailed}
			var faults []*kfake.FaultHandle
			for range 40 {
				if topic := "ab"[r.IntN(2):][:1]; r.IntN(2) == 0 {
					faults = append(faults, c.Fault(kfake.Fault{Keys: produce, Topic: topic, Err: errs[r.IntN(len(errs))], Count: 1 + r.IntN(3)}))
				}
				if r.IntN(6) == 0 {
					c.ShufflePartitionLeaders()
				}
				for range r.IntN(100) {
					rec := cdc.Record{Topic: "ab"[r.IntN(2):][:1], Key: fmt.Append(nil, "k", r.IntN(9)), Partition: -1}
					switch r.IntN(40) {
					case 0:
						rec.Value = testenv.Incompressible(30_000)
						bad++
					case 1:
						rec.Partition, rec.Key = 9, []byte("k9")
						bad++
					}
					b.sendRecord(rec)
				}
				if r.IntN(4) == 0 {
					n := len(b.ids) * r.IntN(100) / 100
					b.passingOver(func() bool { return len(b.acked)+len(b.poison) >= n })
				}
			}
			b.passingOver(func() bool { return len(b.acked)+len(b.poison) == len(b.ids) })
			if len(b.poison) != bad && !b.takesBack || len(b.mine) > 0 {
				t.Errorf("%d refused, %d are bad; not taken back: %v", len(b.poison), bad, b.mine)
			}
			for _, h := range faults {
				h.Remove()
			}
			b.rerunsMayBe = renewals(b.Kafka) > 0
			b.checkLog(c.ListenAddrs(), "a", "b")
		})
	}
}

// The dead letter topic is made at the start, with settings that keep every event, also where no other topic is made.
func TestTheTopicOfDeadLettersIsMade(t *testing.T) {
	c := testenv.FakeKafka(t)
	cfg := config(c.ListenAddrs())
	cfg.DeadLetters, cfg.Bury = "dead", true
	b := open1(t, cfg)
	waitFor(t, func() bool { return len(c.PartitionInfos("dead")) == 1 })
	b.sendRecord(cdc.Record{Topic: "dead", Key: []byte("k"), Partition: -1, Value: testenv.Incompressible(3 << 20)})
	b.all()
	if got := c.TopicInfo("dead").Configs; got["retention.ms"] == nil || *got["retention.ms"] != "-1" {
		t.Errorf("%v", got)
	}
}

// Brokers that allow no large records make a topic with their own limit.
func TestATopicOfDeadLettersWithTheBrokersOwnLimit(t *testing.T) {
	c := testenv.FakeKafka(t)
	c.ControlKey(int16(kmsg.CreateTopics), func(req kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		create := req.(*kmsg.CreateTopicsRequest) //nolint:errcheck // ControlKey's
		large := slices.ContainsFunc(create.Topics[0].Configs, func(s kmsg.CreateTopicsRequestTopicConfig) bool { return s.Name == "max.message.bytes" })
		if !large {
			return nil, nil, false
		}
		resp := create.ResponseKind().(*kmsg.CreateTopicsResponse) //nolint:errcheck // its own
		answer := kmsg.NewCreateTopicsResponseTopic()
		answer.Topic, answer.ErrorCode = create.Topics[0].Topic, kerr.PolicyViolation.Code
		resp.Topics = append(resp.Topics, answer)
		return resp, nil, true
	})
	cfg := config(c.ListenAddrs())
	cfg.DeadLetters, cfg.Bury = "dead", true
	b := open1(t, cfg)
	b.send("dead", "k", 1)
	b.all()
	if got := c.TopicInfo("dead").Configs; got["retention.ms"] == nil || got["max.message.bytes"] != nil {
		t.Errorf("%v", got)
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
	a := b.refused()
	b.collect(func() bool { return len(b.acked) == 6 })
	b.PassOver(&a, func(key []byte, ticket *cdc.Ticket) bool { return string(key) == "k" })
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

// Of what waits for a topic that does not exist, TakeBack gives back what its caller wants, and the rest is delivered once it exists.
func TestTakeBackReturnsWhatWaitsForATopic(t *testing.T) {
	c := limited(t, 20_000)
	b := open1(t, config(c.ListenAddrs()))
	b.send("a", "k", 1)
	b.all()
	var mine []string
	for n := range 5 {
		b.send("none", "j", 1)
		mine = append(mine, b.sendRecord(cdc.Record{Topic: "none", Key: []byte("k"), Partition: -1, Value: fmt.Append(nil, "value ", n)}))
	}
	b.collect(func() bool { return b.Stalled() != nil })
	b.TakeBack("none", func(key []byte, _ *cdc.Ticket) bool { return string(key) == "k" })
	var back []string
	b.collect(func() bool {
		for i := range b.buf {
			if a := &b.buf[i]; errors.Is(a.Err, cdc.ErrTakenBack) {
				back = append(back, a.EventID)
			}
		}
		b.buf = b.buf[:0]
		return len(back) == len(mine)
	})
	if !slices.Equal(back, mine) {
		t.Errorf("%q taken back, want %q", back, mine)
	}
	how := kafka.NewTopic{Name: "none", Partitions: 1}
	if made, err := how.Create(t.Context(), b.cl, false); err != nil || made.Err != nil {
		t.Fatal(err, made.Err)
	}
	b.collect(func() bool { return len(b.acked) == 6 })
}
