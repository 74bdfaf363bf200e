package e2e

import (
	"net"
	"sync"
	"testing"
)

// A wire is a network between walpost and a server. It can be cut, and it can stand still as if every packet were lost.
type wire struct {
	listener net.Listener
	server   string
	wg       sync.WaitGroup

	mu    sync.Mutex
	conns map[net.Conn]bool // nil after close; true on the server's side
	kept  map[net.Conn]bool // to the server, which must not notice that the client is gone
	still chan struct{}     // closed if packets pass
	down  bool              // nobody can connect
	ended chan struct{}     // closed by close
}

func newWire(t *testing.T) *wire {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w := &wire{listener: l, conns: map[net.Conn]bool{}, kept: map[net.Conn]bool{}, still: make(chan struct{}), ended: make(chan struct{})}
	close(w.still)
	t.Cleanup(w.close)
	return w
}

func (w *wire) address() string { return w.listener.Addr().String() }

// serve begins to pass connections to a server.
func (w *wire) serve(server string) {
	w.server = server
	w.wg.Go(func() {
		for {
			client, err := w.listener.Accept()
			if err != nil {
				return
			}
			w.wg.Go(func() { w.connect(client) })
		}
	})
}

func (w *wire) connect(client net.Conn) {
	defer client.Close() //nolint:errcheck // twice does no harm
	<-w.passes()
	server, err := net.Dial("tcp", w.server)
	if err != nil {
		return
	}
	defer server.Close() //nolint:errcheck // twice does no harm
	w.mu.Lock()
	if w.conns == nil || w.down {
		w.mu.Unlock()
		return
	}
	w.conns[client], w.conns[server] = false, true
	w.mu.Unlock()
	var both sync.WaitGroup
	for from, to := range map[net.Conn]net.Conn{client: server, server: client} {
		both.Go(func() {
			defer func() {
				if !w.keeps(to) {
					_ = to.Close() // twice does no harm
				}
			}()
			buf := make([]byte, 64<<10)
			for {
				n, err := from.Read(buf)
				<-w.passes()
				if _, bad := to.Write(buf[:n]); err != nil || bad != nil {
					return
				}
			}
		})
	}
	both.Wait()
	if w.keeps(server) {
		<-w.ended
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.conns, client)
	delete(w.conns, server)
}

func (w *wire) passes() chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.still
}

// cut ends all connections. What was on its way is lost.
func (w *wire) cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for c := range w.conns {
		_ = c.Close() // the other side may have done so
	}
}

// lose ends all connections of the clients. The server does not notice.
func (w *wire) lose() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for c, toServer := range w.conns {
		if toServer {
			w.kept[c] = true
		}
	}
	for c, toServer := range w.conns {
		if !toServer {
			_ = c.Close() // the other side may have done so
		}
	}
}

func (w *wire) keeps(c net.Conn) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.kept[c]
}

// stand has nothing pass until move is called.
func (w *wire) stand() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.still = make(chan struct{})
}

func (w *wire) move() {
	w.mu.Lock()
	defer w.mu.Unlock()
	select {
	case <-w.still:
	default:
		close(w.still)
	}
}

// off refuses connections until on is called.
func (w *wire) off() {
	w.mu.Lock()
	w.down = true
	w.mu.Unlock()
	w.cut()
}

func (w *wire) on() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.down = false
}

func (w *wire) close() {
	_ = w.listener.Close() // once
	w.move()
	close(w.ended)
	w.cut()
	w.mu.Lock()
	w.conns = nil
	w.mu.Unlock()
	w.wg.Wait()
}
