package replication

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"
)

// A wire reads the server's messages from a connection, and writes to it. It frames the messages itself, since the
// layers that could do it cost a lock, an interface and a deadline per message. It must be used by one goroutine at a time;
// only interrupt's callback runs elsewhere.
//
// Reads are coalesced. The walsender makes one send per row, and a reader that reads at once is woken row by row: that
// costs more, on both sides, than everything else here. So while messages come densely, a read waits until some
// milliseconds have passed since the one before and the socket has filled; while they come sparsely it does not wait. See tcpSocket for
// what that has to do with the kernel.
type wire struct {
	conn net.Conn
	base []byte // the usual buffer, of bufferSize
	buf  []byte // base, or a bigger one while a message needs it
	r, w int    // buf[r:w] is read and not yet taken

	read      time.Time     // when the newest read returned
	since     time.Time     // since when taken counts
	taken     int           // messages
	gather    time.Duration // between two reads, by the newest density
	coalesce  time.Duration // the most that gather may be; 0: never wait
	heard     time.Time     // when something was received, or reading began again
	deadlines deadlines
	socket    *tcpSocket
}

const (
	bufferSize = 1 << 20
	// maxMessage is the most that the server's own framing allows.
	maxMessage = 1 << 30
	// coalesceFor is how long after the one before a read is made at most while the stream is dense. Of 0, 1, 3 and 5 ms, 5 took the
	// least time and processor on both sides. scripts/bench compares with pg_recvlogical.
	coalesceFor = 5 * time.Millisecond
	// densityOver is the time over which density is measured, and denseFrom the number of messages per millisecond from
	// which on a stream is called dense: 10,000 a second, which is 3,300 transactions of one row. There a read waits for a
	// millisecond, and for more the denser it is: few messages are not worth the wait, many are what makes it pay.
	densityOver = 5 * time.Millisecond
	denseFrom   = 10
	leastWait   = time.Millisecond
	// drainFrom is what may be in the socket without being read at once. More comes as soon as there's room for it.
	drainFrom = 8 << 10
	// resumedAfter is how long nobody must have read for silence to be counted anew.
	resumedAfter = time.Second
	// restsAfter is how long nobody must have read for the next status to look whether the socket needs more room. It should be soon, because
	// each wait of a kernel before it sends something again is twice the one before.
	restsAfter = 100 * time.Millisecond
)

func newWire(conn net.Conn) *wire {
	buf := make([]byte, bufferSize)
	return &wire{conn: conn, base: buf, buf: buf, coalesce: coalesceFor, deadlines: deadlines{conn: conn}, socket: newTCPSocket(conn)}
}

// take returns the next message that is wholly read already; ok is false where there is none. The body is valid until the
// next fill.
func (w *wire) take() (kind byte, body []byte, ok bool, err error) {
	have := w.buf[w.r:w.w]
	if len(have) < 5 {
		return 0, nil, false, nil
	}
	n := uint64(binary.BigEndian.Uint32(have[1:]))
	if n < 4 || n > maxMessage {
		return 0, nil, false, fmt.Errorf("malformed message: kind %q of %d bytes", have[0], n)
	}
	if uint64(len(have)) <= n {
		return 0, nil, false, nil
	}
	w.r += int(n) + 1
	w.taken++
	return have[0], have[5 : n+1 : n+1], true, nil
}

// errQuiet says that nothing arrived until the deadline.
var errQuiet = errors.New("nothing arrived")

// fill reads once, as much as there is. It returns errQuiet when nothing came before the deadline, ctx's error when that ended.
func (w *wire) fill(ctx context.Context, now, deadline time.Time) error {
	rest := w.buf[w.r:w.w] // a part of one message
	if len(w.buf) > bufferSize && len(rest) < bufferSize {
		w.buf, w.r = w.base, len(w.base) // the big message is taken
	}
	if w.r > 0 {
		w.w = copy(w.buf, rest)
		w.r = 0
	}
	if w.w == len(w.buf) {
		// The message is bigger, and gets a buffer of its size: one that doubles would cost up to three times that. Where a server
		// says a wrong size, only the bytes that arrive are ever touched.
		bigger := make([]byte, 1+int(binary.BigEndian.Uint32(w.buf[1:]))) // take has looked at the size
		copy(bigger, w.buf)
		w.buf = bigger
	}
	if now.Sub(w.read) > resumedAfter {
		w.heard = now // nobody was reading
	}
	if pause := w.pause(now); pause > 0 {
		w.socket.raise()
		time.Sleep(pause)
		w.socket.lower()
		now = now.Add(pause)
	}
	// A deadline that is over would fail the read without a try.
	if least := now.Add(leastWait); deadline.Before(least) {
		deadline = least
	}
	if err := w.deadlines.follow(ctx); err != nil {
		return err
	}
	if !w.deadlines.set(deadline) {
		return context.Cause(ctx)
	}
	n, err := w.conn.Read(w.buf[w.w:])
	w.w += n
	w.read = time.Now()
	if n > 0 {
		w.heard = w.read
		return nil // an error comes again
	}
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return errQuiet
	case err == nil:
		return io.ErrNoProgress
	}
	return err
}

// pause says how long to let the socket fill before it is read.
func (w *wire) pause(now time.Time) time.Duration {
	if over := now.Sub(w.since); over >= densityOver {
		w.gather = gather(w.taken, over, w.coalesce)
		w.taken, w.since = 0, now
	}
	if w.gather == 0 || w.socket.waiting() >= drainFrom {
		return 0
	}
	return w.gather - now.Sub(w.read)
}

// gather is how far apart reads should be when so many messages came over some time.
func gather(taken int, over, most time.Duration) time.Duration {
	perMilli := taken / max(1, int(over/time.Millisecond))
	if perMilli < denseFrom {
		return 0
	}
	return min(most, time.Duration(perMilli/denseFrom)*time.Millisecond)
}

// write writes everything, or fails at the deadline.
func (w *wire) write(b []byte, deadline time.Time) error {
	if err := w.conn.SetWriteDeadline(deadline); err != nil {
		return err
	}
	_, err := w.conn.Write(b)
	return err
}

// kill ends all reads and writes. It may be called from any goroutine. It does not wait for the peer in any way.
func (w *wire) kill() {
	conn := w.conn
	if t, ok := conn.(interface{ NetConn() net.Conn }); ok {
		conn = t.NetConn() // TLS would write a good-bye first
	}
	_ = conn.Close() // there is nobody left to tell
}

// deadlines sets the read deadlines of a connection so that the end of a context interrupts a read. It follows a context
// from call to call, because callers come again with the same one.
type deadlines struct {
	conn net.Conn
	stop func() bool // stops following; the caller's goroutine only

	mu    sync.Mutex
	done  <-chan struct{} // of the context that is followed, nil for none; written under mu, by the caller's goroutine
	ended bool            // that context has; under mu
}

// follow makes the end of ctx interrupt reads, instead of the end of any context before.
func (d *deadlines) follow(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return context.Cause(ctx)
	}
	done := ctx.Done()
	if done == d.done {
		return nil
	}
	d.forget()
	if done == nil {
		return nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.done = done
	d.stop = context.AfterFunc(ctx, func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.done == done {
			d.ended = true
			_ = d.conn.SetReadDeadline(time.Unix(1, 0)) // long ago
		}
	})
	return nil
}

// forget stops following.
func (d *deadlines) forget() {
	if d.stop != nil {
		d.stop()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.done, d.stop, d.ended = nil, nil, false
}

// set sets the deadline, unless the context that is followed has ended already.
func (d *deadlines) set(deadline time.Time) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ended {
		return false
	}
	// An error means that the connection is closed, which the read says better.
	_ = d.conn.SetReadDeadline(deadline)
	return true
}
