package e2e

import (
	"encoding/binary"
	"io"
	"net"
	"sync"
	"testing"
)

// A proxy stands between clients and a broker and can lose the broker's answers to what was produced: the request reaches the broker,
// the broker answers, and the connection ends instead.
type proxy struct {
	listener net.Listener
	wg       sync.WaitGroup

	mu     sync.Mutex
	conns  map[net.Conn]bool // nil after close
	toLose int
	lost   int
}

// newProxy takes a port; serve begins to work.
func newProxy(t *testing.T) *proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{listener: l, conns: map[net.Conn]bool{}}
	t.Cleanup(p.close)
	return p
}

func (p *proxy) address() string { return p.listener.Addr().String() }

func (p *proxy) serve(broker string) {
	p.wg.Go(func() {
		for {
			client, err := p.listener.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", broker)
			if err != nil {
				_ = client.Close() // as the broker would
				continue
			}
			p.pass(client, server)
		}
	})
}

// swallow loses the next n answers to produce requests.
func (p *proxy) swallow(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.toLose = n
}

func (p *proxy) left() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.toLose
}

func (p *proxy) swallowed() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.lost
}

// cut ends all connections.
func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		_ = c.Close() // the other side may have done so
	}
}

func (p *proxy) close() {
	_ = p.listener.Close() // once
	p.cut()
	p.mu.Lock()
	p.conns = nil
	p.mu.Unlock()
	p.wg.Wait()
}

// pass forwards both ways until either side ends.
func (p *proxy) pass(client, server net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	end := func() {
		_, _ = client.Close(), server.Close() // twice does no harm
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.conns, client)
		delete(p.conns, server)
	}
	if p.conns == nil {
		_, _ = client.Close(), server.Close() // the test has ended
		return
	}
	p.conns[client], p.conns[server] = true, true
	var produced sync.Map // correlation ids that wait for an answer
	p.wg.Go(func() {
		defer end()
		forward(server, client, func(frame []byte) bool {
			// https://kafka.apache.org/protocol: api key (0 is Produce), version, correlation id
			if len(frame) >= 8 && binary.BigEndian.Uint16(frame) == 0 {
				produced.Store(binary.BigEndian.Uint32(frame[4:]), true)
			}
			return true
		})
	})
	p.wg.Go(func() {
		defer end()
		forward(client, server, func(frame []byte) bool {
			if len(frame) < 4 {
				return true
			}
			if _, ok := produced.LoadAndDelete(binary.BigEndian.Uint32(frame)); !ok {
				return true
			}
			return !p.lose()
		})
	})
}

func (p *proxy) lose() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.toLose == 0 {
		return false
	}
	p.toLose--
	p.lost++
	return true
}

// forward copies frames, each behind its length, while pass lets them.
func forward(to io.Writer, from io.Reader, pass func(frame []byte) bool) {
	for buf := make([]byte, 4); ; {
		if _, err := io.ReadFull(from, buf[:4]); err != nil {
			return
		}
		n := int(binary.BigEndian.Uint32(buf[:4]))
		if cap(buf) < 4+n {
			buf = append(make([]byte, 0, 4+n), buf[:4]...)
		}
		buf = buf[:4+n]
		if _, err := io.ReadFull(from, buf[4:]); err != nil || !pass(buf[4:]) {
			return
		}
		if _, err := to.Write(buf); err != nil {
			return
		}
	}
}
