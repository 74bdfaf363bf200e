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
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/testenv"
)

// wire is a dialer whose connections can be cut behind the broker's back, or fall silent.
type wire struct {
	cut    atomic.Int32 // so many answers are lost, with their connections
	silent atomic.Bool
	wrap   func(net.Conn) net.Conn // if set
	ended  chan struct{}           // if set, silent connections end with it; the client doesn't close one that it is opening
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
	if w.wrap != nil {
		c = w.wrap(c)
	}
	return &wireConn{Conn: c, w: w, done: make(chan struct{})}, nil
}

func (c *wireConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if c.w.silent.Load() {
		select {
		case <-c.done:
		case <-c.w.ended:
		}
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

func TestCloseIsBoundedWhileTheBrokersAreSilent(t *testing.T) {
	c := testenv.FakeKafka(t, kfake.SeedTopics(1, "a"))
	w := &wire{ended: make(chan struct{})}
	defer close(w.ended)
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

// A producer id that is refused is asked for again, and nothing is lost.
func TestARefusedProducerIDIsAskedForAgain(t *testing.T) {
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

// renewals is how often a partition gave up a producer id although records may have been written.
func renewals(s *Kafka) int { return int(s.Status().Abandoned) }
