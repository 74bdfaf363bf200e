package replication

import (
	"net"
	"time"

	"golang.org/x/sys/unix"
)

// A tcpSocket bounds what the kernel does with what the walsender sends, which costs more than everything else here:
//
//   - Each send wakes a thread of this process, also while nobody reads, because the runtime waits for all sockets. Between
//     raise and lower, that takes half a buffer.
//   - The walsender sends each message by itself, and its kernel puts each into a packet. Only while the receive buffer is full
//     does it gather them. So a small buffer, while walpost keeps reading, halves the server's CPU time per row.
//
// It does nothing for a connection that isn't TCP.
type tcpSocket struct {
	conn      *net.TCPConn // nil for none
	low, high func(fd uintptr)
	ask       func(fd uintptr)
	arrived   int // what ask has found
}

const (
	// smallBuffer is what the kernel doubles for its own needs. Of 16, 32, 64 and 128 KiB, 32 made catching up the fastest.
	smallBuffer = 32 << 10
	// smallWithin is the round trip within a host, where more follows as soon as the buffer is read. With a network between, a small
	// buffer would be filled once for each pause. There the kernel chooses the buffer, of at least twice what raise asks for.
	smallWithin = 100 * time.Microsecond
)

func newTCPSocket(conn net.Conn) *tcpSocket {
	if t, ok := conn.(interface{ NetConn() net.Conn }); ok { // TLS
		conn = t.NetConn()
	}
	s := new(tcpSocket)
	s.conn, _ = conn.(*net.TCPConn)
	lowat := func(bytes int) func(fd uintptr) {
		return func(fd uintptr) { _ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVLOWAT, bytes) } // an error costs time alone
	}
	s.low, s.high = lowat(1), lowat(bufferSize)
	s.ask = func(fd uintptr) { s.arrived, _ = unix.IoctlGetInt(int(fd), unix.TIOCINQ) }
	s.control(func(fd uintptr) {
		info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
		if err == nil && time.Duration(info.Min_rtt)*time.Microsecond <= smallWithin {
			s.narrow(fd)
		}
	})
	return s
}

// narrow fixes a small buffer, if widen can undo that (Linux 5.14 and newer).
func (s *tcpSocket) narrow(fd uintptr) {
	if _, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_BUF_LOCK); err == nil {
		_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, smallBuffer)
	}
}

// unheard reports whether the server's kernel hasn't acknowledged everything that was written.
func (s *tcpSocket) unheard() (unheard bool) {
	s.control(func(fd uintptr) {
		bytes, err := unix.IoctlGetInt(int(fd), unix.SIOCOUTQ)
		unheard = err == nil && bytes > 0
	})
	return unheard
}

// widen gives the kernel twice the buffer, up to tcp_rmem, while nobody reads. Small packets take many times their size of it. When it's
// full of them, the kernel drops what the server sends and closes the window. Then it takes no packet any more, nor the acknowledgements of
// our statuses: the statuses stop, and the server ends the walsender after wal_sender_timeout.
//
// It stays wide for the rest of the session. A server that has seen a wide window makes packets of up to 64 KiB within a host. They wouldn't
// fit into that of a small buffer any more, so it would send a part every 200 ms, on and on.
func (s *tcpSocket) widen() {
	s.control(func(fd uintptr) {
		size, _ := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF)
		_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_BUF_LOCK, 0)
		// A low-water mark makes room for itself, beyond what SO_RCVBUF may ask for.
		_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVLOWAT, 2*size)
		s.low(fd)
	})
}

// raise has the kernel wake nobody until the buffer is half full or lower is called.
func (s *tcpSocket) raise() { s.control(s.high) }

// lower has it wake a reader for the first byte.
func (s *tcpSocket) lower() { s.control(s.low) }

// waiting is how many bytes can be read without waiting.
func (s *tcpSocket) waiting() int {
	s.control(s.ask)
	return s.arrived
}

func (s *tcpSocket) control(f func(fd uintptr)) {
	if s.conn == nil {
		return
	}
	if raw, err := s.conn.SyscallConn(); err == nil {
		_ = raw.Control(f) // what is wrong with the connection, the read says
	}
}
