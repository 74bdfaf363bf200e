package sink

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/testenv"
	"github.com/walpost/walpost/internal/testenv/short"
)

// lateConn gives what it reads that much later, however much is on its way.
type lateConn struct {
	net.Conn
	by    time.Duration
	begin sync.Once
	parts chan latePart
	rest  []byte
}

type latePart struct {
	at   time.Time
	data []byte
	err  error
}

func late(by time.Duration) func(net.Conn) net.Conn {
	return func(c net.Conn) net.Conn { return &lateConn{Conn: c, by: by, parts: make(chan latePart, 1<<16)} }
}

func (c *lateConn) Read(p []byte) (int, error) {
	c.begin.Do(func() {
		go func() {
			for {
				buf := make([]byte, 1<<16)
				n, err := c.Conn.Read(buf)
				c.parts <- latePart{time.Now().Add(c.by), buf[:n], err}
				if err != nil {
					return
				}
			}
		}()
	})
	if len(c.rest) == 0 {
		part := <-c.parts
		time.Sleep(time.Until(part.at))
		if c.rest = part.data; len(part.data) == 0 {
			return 0, part.err
		}
	}
	n := copy(p, c.rest)
	c.rest = c.rest[n:]
	return n, nil
}

// While a record fails, later ones of its key are on their way to the brokers, and more come before the sink hears of the failure. None
// of them is in the log before it: neither where the leader knows the producer, nor where it hears of it for the first time and so
// would take any sequence number.
func TestALaterRecordNeverOvertakesAFailedOne(t *testing.T) {
	for _, e := range []*kerr.Error{
		kerr.UnknownServerError, kerr.TopicAuthorizationFailed, kerr.CorruptMessage, kerr.NotEnoughReplicas, kerr.RequestTimedOut,
	} {
		for _, first := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s/first=%t", e.Message, first), func(t *testing.T) {
				t.Parallel()
				c := testenv.FakeKafka(t, kfake.SeedTopics(1, "a"))
				other, err := kgo.NewClient(kgo.SeedBrokers(c.ListenAddrs()...))
				if err != nil {
					t.Fatal(err)
				}
				defer other.Close()
				if err := other.ProduceSync(patient(t), &kgo.Record{Topic: "a", Key: []byte("other")}).FirstErr(); err != nil {
					t.Fatal(err) // a log that was never written to takes no sequence number but zero
				}
				w := &wire{wrap: late(5 * time.Millisecond)}
				cfg := config(c.ListenAddrs())
				cfg.Dial = w.dial
				b := open1(t, cfg)
				if !first {
					b.send("a", "k", 1)
					b.all()
				}
				h := c.Fault(kfake.Fault{Keys: produce, Err: e, Count: 1})
				for range 100 {
					b.send("a", "k", 1)
					time.Sleep(100 * time.Microsecond) // so that many requests are made
				}
				b.all()
				if h.Hits() != 1 {
					t.Fatalf("the fault was hit %d times", h.Hits())
				}
				b.checkLog(c.ListenAddrs(), "a")
			})
		}
	}
}

// A leader remembers five batches. If more were written behind one whose answer is missing, it would not know that one again.
func TestNoMoreBatchesAreSentThanALeaderRemembers(t *testing.T) {
	s := &Kafka{}
	p := &partition{t: &topic{s: s, limit: 1000, leaders: []int32{0}}, state: sends, proven: true, listed: true, since: time.Now()}
	for range 10 {
		p.push(&slot{bytes: 900}, time.Now())
	}
	for range maxFlight {
		if !p.sendable() {
			t.Fatalf("only %d batches are sent", len(p.flight))
		}
		p.next()
	}
	for _, b := range slices.Clone(p.flight[1:]) {
		p.answered(b, nil, time.Now())
	}
	if p.sendable() {
		t.Error("a sixth batch is sent behind one without an answer")
	}
}

// sendTo sends a record to a partition.
func (b *bench) sendTo(n int32, value []byte) string {
	return b.sendRecord(cdc.Record{Topic: "a", Key: fmt.Append(nil, "to", n), Partition: n, Value: value})
}

// A refused record holds its partition, the others go on. Each of two halted partitions waits for its own PassOver.
func TestARefusedRecordHoldsItsPartitionOnly(t *testing.T) {
	c := testenv.FakeKafka(t)
	if err := c.CreateTopic("a", 3, map[string]string{"max.message.bytes": "20000"}); err != nil {
		t.Fatal(err)
	}
	b := open1(t, config(c.ListenAddrs()))
	for n := range int32(2) {
		b.sendTo(n, nil)
		b.sendTo(n, testenv.Incompressible(50_000))
	}
	for range 10 {
		for n := range int32(3) {
			b.sendTo(n, nil)
		}
	}
	var acks []cdc.Ack
	b.collect(func() bool {
		for _, a := range b.buf {
			if a.Err != nil {
				acks = append(acks, a)
			}
		}
		b.buf = b.buf[:0]
		return len(acks) == 2 && len(b.acked) == 2+10
	})
	for i, a := range acks {
		if a.Partition != a.Record.Partition || a.Partition > 1 {
			t.Errorf("refused in partition %d: a record for %d", a.Partition, a.Record.Partition)
		}
		closed := 0
		b.Pending(func(_ string, records int, why error, isClosed bool) {
			if isClosed && errors.As(why, new(*cdc.Refusal)) {
				closed += records
			}
		})
		if want := 10 * (2 - i); closed != want {
			t.Errorf("%d records are closed, want %d", closed, want)
		}
		b.PassOver(&a, nil)
		b.PassOver(&a, nil)
		b.collect(func() bool { return len(b.acked) >= 2+10*(i+2) })
		if len(b.acked) != 2+10*(i+2) {
			t.Fatalf("%d acknowledged after %d partitions were passed over", len(b.acked), i+1)
		}
	}
	b.checkLog(c.ListenAddrs(), "a")
}

// Records without a key stay in a partition until it has a batch of them, and go to all of them in the long run.
func TestRecordsWithoutAKeyStayTogether(t *testing.T) {
	c := testenv.FakeKafka(t, kfake.SeedTopics(4, "a"))
	b := open1(t, config(c.ListenAddrs()))
	for range 500 {
		b.sendRecord(cdc.Record{Topic: "a", Partition: -1, Value: testenv.Incompressible(5000)})
	}
	b.all()
	in := map[string]int32{}
	used := map[int32]int{}
	for _, r := range readAll(t, c.ListenAddrs(), "a") {
		in[header(r, "id")] = r.Partition
		used[r.Partition]++
	}
	moves := 0
	for i := 1; i < len(b.ids); i++ {
		if in[b.ids[i]] != in[b.ids[i-1]] {
			moves++
		}
	}
	if len(in) != 500 || len(used) != 4 || moves > 2*500/(stickBytes/5200) { // twice as many as it should be; without staying, some 375
		t.Errorf("%d records in %d partitions; %d moves", len(in), len(used), moves)
	}
}

// A broker that gives no answer to a request is asked again over another connection, and has each record once, in order: also where
// it goes on with the first request later.
func TestABrokerThatGivesNoAnswerIsAskedAgain(t *testing.T) {
	short.SkipSlow(t)
	c := testenv.FakeKafka(t, kfake.SeedTopics(1, "a", "b"))
	b := open1(t, config(c.ListenAddrs()))
	b.send("a", "k", 200)
	b.send("b", "k", 200)
	b.all()
	release := make(chan struct{})
	end := sync.OnceFunc(func() { close(release) })
	t.Cleanup(end)
	var hold atomic.Bool
	hold.Store(true)
	c.ControlKey(int16(kmsg.Produce), func(kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		if hold.CompareAndSwap(true, false) {
			c.SleepControl(func() { <-release }) // this connection hears nothing any more
		}
		return nil, nil, false
	})
	b.send("a", "k", 100)
	b.send("b", "k", 100)
	b.all()
	b.send("a", "k", 50)
	end()
	b.send("a", "k", 50)
	b.all()
	b.checkLog(c.ListenAddrs(), "a", "b")
	if n := renewals(b.Kafka); n != 0 {
		t.Errorf("%d producer ids were given up", n)
	}
}
