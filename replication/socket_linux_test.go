package replication

import (
	"crypto/tls"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
)

// tcpPair returns both ends of a connection.
func tcpPair(t *testing.T) (ours, theirs net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if ours, err = net.Dial("tcp", l.Addr().String()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ours.Close() })
	if theirs, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { theirs.Close() })
	return ours, theirs
}

// readable reports whether the kernel says within some milliseconds that the socket can be read.
func readable(t *testing.T, s *tcpSocket, millis int) (ready bool) {
	t.Helper()
	s.control(func(fd uintptr) {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, millis)
		if ready = n == 1; err != nil && err != unix.EINTR {
			t.Fatal(err)
		}
	})
	return ready
}

func TestASocketWakesNobodyWhileItIsRaised(t *testing.T) {
	ours, theirs := tcpPair(t)
	s := newTCPSocket(tls.Client(ours, &tls.Config{})) //nolint:gosec // no handshake takes place
	s.raise()
	sent := make([]byte, 300)
	if _, err := theirs.Write(sent); err != nil {
		t.Fatal(err)
	}
	if !waitUntil(func() bool { return s.waiting() == len(sent) }) {
		t.Fatalf("%d bytes wait", s.waiting())
	}
	if readable(t, s, 0) {
		t.Error("it can be read")
	}
	s.lower()
	if !readable(t, s, 10_000) {
		t.Error("it can't be read")
	}

	// A full buffer wakes a reader all the same: nothing more would come.
	s.raise()
	go func() {
		_, _ = theirs.Write(make([]byte, 8<<20)) // fails when the test ends
		theirs.Close()                           // wakes the reader for the last bytes, which may be too few for a raised socket
	}()
	if !readable(t, s, 10_000) {
		t.Error("a full buffer wakes nobody")
	}
	if err := ours.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.CopyN(io.Discard, ours, 8<<20); err != nil {
		t.Errorf("a raised socket can't be read: %v", err)
	}
}

// A server that is near gets a small buffer. On a busy machine even this one can seem far away.
func TestABufferIsSmallWithinAHost(t *testing.T) {
	for range 1000 {
		ours, _ := tcpPair(t)
		s := newTCPSocket(ours)
		fixed(t, s) // or it skips the test
		var info *unix.TCPInfo
		var size int
		s.control(func(fd uintptr) {
			var err1, err2 error
			info, err1 = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
			size, err2 = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF)
			if err1 != nil || err2 != nil {
				t.Fatal(err1, err2)
			}
		})
		near := time.Duration(info.Min_rtt)*time.Microsecond <= smallWithin
		if near != (size == 2*smallBuffer) {
			t.Fatalf("a buffer of %d bytes at a round trip of %d µs", size, info.Min_rtt)
		}
		if near {
			return
		}
	}
	t.Fatal("this host is never near")
}

// fixed reports whether the kernel may not grow the buffer. It skips a test of that on a kernel where walpost fixes no buffer.
func fixed(t *testing.T, s *tcpSocket) (fixed bool) {
	t.Helper()
	s.control(func(fd uintptr) {
		lock, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_BUF_LOCK)
		if err != nil {
			t.Skip("the kernel has no SO_BUF_LOCK (Linux before 5.14), so walpost fixes no buffer:", err)
		}
		fixed = lock&unix.SOCK_RCVBUF_LOCK != 0
	})
	return fixed
}

func bufferOf(s *tcpSocket) (bytes int) {
	s.control(func(fd uintptr) { bytes, _ = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF) })
	return bytes
}

// near is the socket of a server within this host, however far away it seems.
func near(conn net.Conn) *tcpSocket {
	s := newTCPSocket(conn)
	s.control(s.narrow)
	return s
}

// A buffer of a fixed size overflows while nobody reads, and the server's acknowledgements of statuses are lost with what it sends.
func TestABufferMayGrowWhileNobodyReads(t *testing.T) {
	ours, theirs := tcpPair(t)
	w := newWire(ours)
	w.socket = near(ours)
	read := func() {
		if _, err := theirs.Write([]byte{'k'}); err != nil {
			t.Fatal(err)
		}
		now := time.Now()
		if err := w.fill(t.Context(), now, now.Add(10*time.Second)); err != nil {
			t.Fatal(err)
		}
	}
	read()
	if !fixed(t, w.socket) {
		t.Error("while walpost reads, the buffer grows")
	}
	narrow := bufferOf(w.socket)
	w.socket.widen()
	if fixed(t, w.socket) || bufferOf(w.socket) <= narrow {
		t.Error("while nobody reads, it can't")
	}
	read()
	if fixed(t, w.socket) || bufferOf(w.socket) <= narrow {
		t.Error("it is small again, and the server has seen a larger window")
	}
}

func TestAStatusFindsThatTheOneBeforeIsUnheard(t *testing.T) {
	ours, _ := tcpPair(t)
	socket := near(ours)
	for _, unheard := range []bool{false, true} {
		if !fixed(t, socket) {
			t.Fatal("the buffer isn't fixed")
		}
		for until := time.Now().Add(10 * time.Second); unheard && !socket.unheard() && time.Now().Before(until); { // more than the other end takes without reading
			if err := ours.SetWriteDeadline(time.Now().Add(100 * time.Millisecond)); err != nil {
				t.Fatal(err)
			}
			if n, err := ours.Write(make([]byte, 64<<20)); err == nil {
				t.Fatalf("%d bytes were taken", n)
			}
		}
		if socket.unheard() != unheard {
			t.Fatalf("unheard: %t", !unheard)
		}
		synctest.Test(t, func(t *testing.T) {
			s, w := connectFake(t, testConfig(), nil)
			startFake(t, s, w)
			s.wire.socket, s.wire.read = socket, time.Now()
			for _, c := range []struct {
				after time.Duration
				fixed bool
			}{{restsAfter, true}, {time.Millisecond, !unheard}} {
				time.Sleep(c.after)
				if err := s.Confirm(t.Context(), 0); err != nil {
					t.Fatal(err)
				}
				if got := fixed(t, socket); got != c.fixed {
					t.Errorf("unheard: %t: fixed: %t, want %t", unheard, got, c.fixed)
				}
			}
		})
	}
}

// The end of a connection wakes a reader, too.
func TestARaisedSocketEnds(t *testing.T) {
	ours, theirs := tcpPair(t)
	s := newTCPSocket(ours)
	s.raise()
	theirs.Close()
	if !readable(t, s, 10_000) {
		t.Error("nobody hears of the end")
	}
	ours.Close()
	s.raise() // and of a closed one nothing happens
	if n := s.waiting(); n != 0 {
		t.Errorf("%d bytes wait", n)
	}
}

func TestOtherConnectionsHaveNoSocket(t *testing.T) {
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	s := newTCPSocket(a)
	s.raise()
	s.lower()
	if n := s.waiting(); n != 0 {
		t.Errorf("%d bytes wait", n)
	}
}

// What waits in the socket is read before the next pause, because the rest of it can't be sent earlier.
func TestAWireDrainsItsSocket(t *testing.T) {
	ours, theirs := tcpPair(t)
	w := newWire(ours)
	now := time.Now()
	w.since, w.gather, w.read = now, coalesceFor, now
	if w.pause(now) != coalesceFor {
		t.Error("no pause for an empty socket")
	}
	if _, err := theirs.Write(make([]byte, drainFrom)); err != nil {
		t.Fatal(err)
	}
	if !waitUntil(func() bool { return w.pause(now) == 0 }) {
		t.Error("a pause although much waits")
	}
}

func waitUntil(ok func() bool) bool {
	for range 1000 {
		if ok() {
			return true
		}
		time.Sleep(5 * time.Millisecond)
	}
	return false
}
