package kafka

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"
)

// A Deadline is a time after which clients send no byte. At that time it cuts their connections, and what
// waits in the buffers of this machine is thrown away. It needs nobody who notices the time: a goroutine
// that hangs does not delay it. A process that was suspended finds the deadline when it writes next.
//
// The zero value is no deadline. Any goroutine may call the methods.
type Deadline struct {
	mu    sync.Mutex
	at    time.Time // zero for none
	timer *time.Timer
	conns map[*boundConn]struct{}
}

var errDeadline = errors.New("this process may send nothing more, because the leases of its rows end")

// Set replaces the deadline; the zero time is none. A later deadline lets clients connect again.
func (d *Deadline) Set(at time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.at = at
	if d.timer != nil {
		d.timer.Stop()
	}
	if !at.IsZero() {
		d.timer = time.AfterFunc(time.Until(at), d.cut)
	}
}

// cut ends all connections if the deadline has passed.
func (d *Deadline) cut() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.passed() {
		return
	}
	for c := range d.conns {
		if tcp, ok := c.Conn.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0) // the system sends nothing that is left; without it, Close is all that can be done
		}
		_ = c.Conn.Close() // its user gets the error
	}
	clear(d.conns)
}

// passed reports whether nothing may be sent. mu is held.
func (d *Deadline) passed() bool { return !d.at.IsZero() && !time.Now().Before(d.at) }

type dialer func(ctx context.Context, network, host string) (net.Conn, error)

// bound makes the connections of a dialer ones that end at the deadline. d may be nil.
func (d *Deadline) bound(dial dialer) dialer {
	if d == nil {
		return dial
	}
	return func(ctx context.Context, network, host string) (net.Conn, error) {
		conn, err := dial(ctx, network, host)
		if err != nil {
			return nil, err
		}
		c := &boundConn{Conn: conn, d: d}
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.passed() {
			return nil, errors.Join(errDeadline, conn.Close())
		}
		if d.conns == nil {
			d.conns = map[*boundConn]struct{}{}
		}
		d.conns[c] = struct{}{}
		return c, nil
	}
}

type boundConn struct {
	net.Conn
	d *Deadline
}

func (c *boundConn) Write(b []byte) (int, error) {
	c.d.mu.Lock()
	passed := c.d.passed()
	c.d.mu.Unlock()
	if passed {
		c.d.cut()
		return 0, errDeadline
	}
	return c.Conn.Write(b)
}

func (c *boundConn) Close() error {
	c.d.mu.Lock()
	delete(c.d.conns, c)
	c.d.mu.Unlock()
	return c.Conn.Close()
}
