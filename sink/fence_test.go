package sink

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
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

// meddler is a hook that holds the client at two points: a record before it is buffered, and the report of a failure.
type meddler struct {
	hold    atomic.Pointer[string] // id of the record to hold until one before it has failed
	held    sync.Once
	failed  chan struct{} // closed when the first failure is about to be reported
	release chan struct{} // the report goes on when this is closed
}

func (m *meddler) OnProduceRecordBuffered(r *kgo.Record) {
	if id := m.hold.Load(); id != nil && header(r, "id") == *id {
		<-m.failed
	}
}

func (m *meddler) OnProduceRecordUnbuffered(_ *kgo.Record, err error) {
	if err != nil {
		m.held.Do(func() {
			close(m.failed)
			<-m.release
		})
	}
}

// The moment that the fence is for: a record is past the gate when the one before it fails, and reaches the client after it
// has emptied the partition and before it says so. Without the fence the log has the two the other way round.
func TestFenceKeepsTheOrderWhenARecordOvertakesAFailure(t *testing.T) {
	for _, e := range []*kerr.Error{kerr.UnknownServerError, kerr.TopicAuthorizationFailed, kerr.CorruptMessage} {
		t.Run(e.Message, func(t *testing.T) {
			t.Cleanup(func() {
				if t.Failed() {
					t.Log("The Kafka client may have stopped doing what fence.go needs. Run .ci/client, which says what to do.")
				}
			})
			c := testenv.FakeKafka(t, kfake.SeedTopics(1, "a"))
			m := &meddler{failed: make(chan struct{}), release: make(chan struct{})}
			cfg := config(c.ListenAddrs())
			cfg.Hooks = []kgo.Hook{m}
			b := open1(t, cfg)
			b.send("a", "k", 1)
			b.all()
			waitFor(t, func() bool { return b.gateOf("a") == open })
			h := c.Fault(kfake.Fault{Keys: produce, Err: e, Count: 1})

			second := "2"
			m.hold.Store(&second)
			b.send("a", "k", 1)
			sent := make(chan struct{})
			go func() { // Send blocks in the hook, as it never does without one
				defer close(sent)
				b.send("a", "k", 1)
			}()
			<-sent
			close(m.release)
			b.all()
			if h.Hits() != 1 {
				t.Fatalf("the fault was hit %d times", h.Hits())
			}
			b.checkLog(c.ListenAddrs(), "a")
		})
	}
}

func (s *Kafka) gateOf(topic string) gate {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t := s.topics[topic]; t != nil {
		return t.gate
	}
	return idle
}

// line is a dialer whose connections can be cut behind the broker's back, or fall silent.
type wire struct {
	cut    atomic.Int32 // so many answers are lost, with their connections
	silent atomic.Bool
}

type wireConn struct {
	net.Conn
	w    *wire
	done chan struct{}
	once sync.Once
}

func (w *wire) dial(ctx context.Context, network, host string) (net.Conn, error) {
	if w.silent.Load() {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	c, err := new(net.Dialer).DialContext(ctx, network, host)
	if err != nil {
		return nil, err
	}
	return &wireConn{Conn: c, w: w, done: make(chan struct{})}, nil
}

func (c *wireConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if c.w.silent.Load() {
		<-c.done
		return 0, io.ErrClosedPipe
	}
	if err == nil && c.w.cut.Load() > 0 && c.w.cut.Add(-1) >= 0 {
		_ = c.Close()
		return 0, &net.OpError{Op: "read", Net: "tcp", Err: syscall.ECONNRESET} // what the client sees of a real one
	}
	return n, err
}

func (c *wireConn) Write(p []byte) (int, error) {
	if c.w.silent.Load() {
		return len(p), nil
	}
	return c.Conn.Write(p)
}

func (c *wireConn) Close() error {
	c.once.Do(func() { close(c.done) })
	return c.Conn.Close()
}

// The broker has written the records and its answer is lost: they come once.
func TestLostAnswersGiveNoDuplicates(t *testing.T) {
	short.SkipSlow(t)
	c := testenv.FakeKafka(t, kfake.SeedTopics(3, "a"))
	w := new(wire)
	cfg := config(c.ListenAddrs())
	cfg.Dial = w.dial
	b := open1(t, cfg)
	b.send("a", "k", 1)
	b.all()
	for range 15 {
		w.cut.Store(1)
		for i := range 200 {
			b.send("a", string(rune('a'+i%9)), 1)
		}
		b.all()
	}
	b.checkLog(c.ListenAddrs(), "a")
}

func TestCloseIsBoundedWhileTheBrokersAreSilent(t *testing.T) {
	c := testenv.FakeKafka(t, kfake.SeedTopics(1, "a"))
	w := new(wire)
	cfg := config(c.ListenAddrs())
	cfg.Dial = w.dial
	b := open1(t, cfg)
	b.send("a", "k", 1)
	b.all()
	w.silent.Store(true)
	b.send("a", "k", 100)
	b.send("new", "k", 100)
	if err := b.Close(patient(t)); err != nil {
		t.Fatal(err)
	}
	b.take()
	if len(b.acked) != 1 || len(b.poison) != 0 {
		t.Errorf("%d acknowledged, %d refused", len(b.acked), len(b.poison))
	}
	b.Send(&cdc.Record{Topic: "a", Partition: -1}, cdc.Ticket{}) // harmless
}

// A producer id that is refused for good makes the client useless: it is replaced, and nothing is lost.
func TestAClientThatCanNotProduceAnyMoreIsReplaced(t *testing.T) {
	c := testenv.FakeKafka(t, kfake.SeedTopics(2, "a", "b"))
	h := c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.InitProducerID}, TopLevel: true, Err: kerr.ClusterAuthorizationFailed, Count: 3})
	b := open1(t, config(c.ListenAddrs()))
	b.send("a", "k", 100)
	b.send("b", "k", 100)
	b.all()
	if h.Hits() < 3 {
		t.Errorf("the fault was hit %d times", h.Hits())
	}
	b.checkLog(c.ListenAddrs(), "a", "b")
}

// loads counts the metadata requests of the clients that produce, and the connections that they closed.
type loads struct{ n, closed atomic.Int64 }

func (l *loads) OnBrokerDisconnect(kgo.BrokerMetadata, net.Conn) { l.closed.Add(1) }

func (l *loads) OnBrokerWrite(_ kgo.BrokerMetadata, key int16, _ int, _, _ time.Duration, _ error) {
	if key == int16(kmsg.Metadata) {
		l.n.Add(1)
	}
}

// A client that was refused its producer id can miss a record when it fails what it holds. It looks at that record again when it
// loads what the brokers know, so it is told to while the record waits: whatever the reason of an earlier attempt was.
func TestAClientLoadsMetadataWhileARecordWaits(t *testing.T) {
	c := testenv.FakeKafka(t, kfake.SeedTopics(1, "a"))
	cfg := config(c.ListenAddrs())
	l := new(loads)
	cfg.Hooks = []kgo.Hook{l}
	b := open1(t, cfg)
	b.send("a", "k", 10)
	b.all()
	release := make(chan struct{})
	end := sync.OnceFunc(func() { close(release) })
	t.Cleanup(end)
	held := make(chan struct{})
	hold := sync.OnceFunc(func() { close(held) })
	c.ControlKey(int16(kmsg.Produce), func(kmsg.Request) (kmsg.Response, error, bool) {
		hold()
		c.SleepControl(func() { <-release })
		return nil, nil, false
	})
	b.send("a", "k", 1)
	<-held
	b.mu.Lock()
	b.topics["a"].reason = kerr.ClusterAuthorizationFailed
	b.mu.Unlock()
	before := l.n.Load()
	waitFor(t, func() bool {
		_ = b.Stalled()
		return l.n.Load() > before
	})
	if l.closed.Load() > 0 {
		t.Error("the client asked only after it had given the request up")
	}
	end()
	b.all()
	b.checkLog(c.ListenAddrs(), "a")
}

// Each new topic takes the brokers a moment, about which a user can do nothing.
func TestATopicThatWasJustCreatedIsNoStall(t *testing.T) {
	c := testenv.FakeKafka(t, kfake.NumBrokers(1))
	cfg := config(c.ListenAddrs())
	cfg.Topics.Create = true
	asked, release := make(chan struct{}, 100), make(chan struct{})
	end := sync.OnceFunc(func() { close(release) })
	t.Cleanup(end)
	c.ControlKey(int16(kmsg.CreateTopics), func(kmsg.Request) (kmsg.Response, error, bool) { // says that it is created, and creates nothing
		c.KeepControl()
		select {
		case <-release:
			return nil, nil, false
		default:
		}
		asked <- struct{}{}
		resp := kmsg.NewPtrCreateTopicsResponse()
		resp.Version = 7
		made := kmsg.NewCreateTopicsResponseTopic()
		made.Topic = "new"
		resp.Topics = append(resp.Topics, made)
		return resp, nil, true
	})
	b := open1(t, cfg)
	b.send("new", "k", 1)
	<-asked
	waits := func() bool {
		b.mu.Lock()
		defer b.mu.Unlock()
		return errors.Is(b.topics["new"].reason, errFresh)
	}
	waitFor(t, waits)
	b.mu.Lock()
	b.topics["new"].since = time.Now().Add(time.Hour)
	b.mu.Unlock()
	if err := b.Stalled(); err != nil {
		t.Errorf("at first: %v", err)
	}
	b.mu.Lock()
	b.topics["new"].since = time.Now().Add(-time.Hour)
	b.mu.Unlock()
	waitFor(t, func() bool { err := b.Stalled(); return err != nil && errors.Is(err, errFresh) })
	end()
	b.all()
}

func TestBrokersThatCanNotBeReachedAreNamed(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	_ = l.Close()
	b := open1(t, config([]string{addr}))
	b.send("a", "k", 1)
	waitFor(t, func() bool {
		err := b.Stalled()
		var op *net.OpError
		return err != nil && errors.As(err, &op)
	})
}
