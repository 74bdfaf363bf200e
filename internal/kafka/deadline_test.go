package kafka

import (
	"errors"
	"io"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// listener answers each connection by reading it to its end, and reports how many bytes came.
func listener(t *testing.T) (dial func(d *Deadline) (net.Conn, error), read chan int64) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() }) // once
	read = make(chan int64, 10)
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				n, _ := io.Copy(io.Discard, conn) //nolint:errcheck // a cut connection gives an error
				read <- n
			}()
		}
	}()
	return func(d *Deadline) (net.Conn, error) {
		return d.bound((&net.Dialer{}).DialContext)(t.Context(), "tcp", l.Addr().String())
	}, read
}

func TestNothingIsSentBehindTheDeadline(t *testing.T) {
	t.Parallel()
	dial, read := listener(t)
	for name, pass := range map[string]func(d *Deadline){
		"the clock runs":               func(d *Deadline) { d.Set(time.Now().Add(50 * time.Millisecond)) },
		"the process was suspended":    func(d *Deadline) { d.mu.Lock(); d.at = time.Now(); d.mu.Unlock() },
		"the deadline is in the past":  func(d *Deadline) { d.Set(time.Now().Add(-time.Hour)) },
		"the deadline came nearer":     func(d *Deadline) { d.Set(time.Now().Add(time.Hour)); d.Set(time.Now()) },
		"the process looks afterwards": func(d *Deadline) { d.mu.Lock(); d.at = time.Now(); d.mu.Unlock(); d.cut() },
	} {
		var d Deadline
		conn, err := dial(&d)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Write([]byte("early")); err != nil {
			t.Fatal(err)
		}
		pass(&d)
		if name != "the process was suspended" {
			if _, err := conn.Read(make([]byte, 1)); err == nil {
				t.Errorf("%s: the connection is not cut", name)
			}
		}
		if _, err := conn.Write([]byte("late")); err == nil {
			t.Errorf("%s: a byte is sent", name)
		}
		if n := <-read; n > 5 {
			t.Errorf("%s: %d bytes arrive", name, n)
		}
		if _, err := dial(&d); !errors.Is(err, errDeadline) {
			t.Errorf("%s: a new connection: %v", name, err)
		}
		<-read
		d.Set(time.Now().Add(time.Hour))
		if conn, err = dial(&d); err != nil {
			t.Fatalf("%s: after a later deadline: %v", name, err)
		}
		if _, err := conn.Write([]byte("again")); err != nil {
			t.Errorf("%s: after a later deadline: %v", name, err)
		}
		_ = conn.Close() // it was used
		<-read
	}
}

// A Write that waits for a peer which reads nothing ends, and what is in the buffers of this machine is thrown away.
func TestTheDeadlineEndsAWriteThatWaits(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close() //nolint:errcheck // the test is over
	var d Deadline
	conn, err := d.bound((&net.Dialer{}).DialContext)(t.Context(), "tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	peer, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer peer.Close() //nolint:errcheck // the test is over
	for of, set := range map[net.Conn]func(int) error{conn: conn.(*boundConn).Conn.(*net.TCPConn).SetWriteBuffer, peer: peer.(*net.TCPConn).SetReadBuffer} {
		if err := set(1 << 16); err != nil {
			t.Fatal(of.LocalAddr(), err)
		}
	}
	const size = 1 << 25 // far more than the buffers hold
	wrote := make(chan error, 1)
	go func() {
		_, err := conn.Write(make([]byte, size))
		wrote <- err
	}()
	if _, err := io.ReadFull(peer, make([]byte, 1)); err != nil { // so the Write has begun, and it cannot end
		t.Fatal(err)
	}
	d.Set(time.Now())
	if err := <-wrote; err == nil {
		t.Error("the Write has ended")
	}
	if _, err := io.Copy(io.Discard, peer); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the peer reads to %v: what the buffers had was sent to the end", err)
	}
}

// A connection that this process refuses to itself says nothing about the brokers.
func TestTheDeadlineDoesNotBlameTheBrokers(t *testing.T) {
	t.Parallel()
	dial, _ := listener(t)
	var d Deadline
	d.Set(time.Now())
	_, err := dial(&d)
	var dials Dials
	if dials.OnBrokerConnect(kgo.BrokerMetadata{}, 0, nil, err); err == nil || dials.Last() != nil {
		t.Errorf("the newest attempt failed with %v", dials.Last())
	}
	dials.OnBrokerConnect(kgo.BrokerMetadata{}, 0, nil, syscall.ECONNREFUSED)
	if dials.OnBrokerConnect(kgo.BrokerMetadata{}, 0, nil, err); !errors.Is(dials.Last(), syscall.ECONNREFUSED) {
		t.Errorf("the newest attempt failed with %v", dials.Last())
	}
}
