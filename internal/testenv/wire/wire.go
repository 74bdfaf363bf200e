// Package wire is the network between a relay and its servers in tests: it can be cut, stand still as if every packet were
// lost, be slow, and lose, delay or watch single answers of Kafka.
package wire

import (
	"net"
	"slices"
	"sync"
	"testing"
	"time"
)

// A Wire passes connections from its own address to one server. Several goroutines may call its methods.
type Wire struct {
	listener net.Listener
	kafka    bool // messages have the form of Kafka's, which answers are about
	wg       sync.WaitGroup

	mu     sync.Mutex
	server string
	conns  map[net.Conn]bool // nil after close; true on the server's side
	kept   map[net.Conn]bool // to the server, which must not notice that the client is gone
	still  chan struct{}     // closed if packets pass
	ended  chan struct{}     // closed by close
	down   bool              // nobody can connect
	rate   int               // bytes per second; 0 is no limit
	toLose int               // answers to Produce
	lost   int
	delay  time.Duration // of answers to delayed
	late   []int16       // API keys
	tap    func(Moment) (pass bool)
}

// A Moment is a message that a wire is about to pass.
type Moment string

// The moments of a relay's life that a wire sees. The server has done what an answer is about, but the relay does not know.
const (
	Produce  Moment = "produce"  // a request of Kafka
	Produced Moment = "produced" // its answer
	EndTxn   Moment = "end_txn"
	EndedTxn Moment = "ended_txn"
	Status   Moment = "status" // a standby status for Postgres, which confirms a position
)

// The keys of Kafka's API: https://kafka.apache.org/protocol.
const (
	APIProduce int16 = 0
	APIEndTxn  int16 = 26
)

// New takes a port. Serve or ServeKafka begins to work. The wire is closed at the end of the test.
func New(t testing.TB) *Wire {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w := &Wire{listener: l, conns: map[net.Conn]bool{}, kept: map[net.Conn]bool{}, still: make(chan struct{}), ended: make(chan struct{})}
	close(w.still)
	t.Cleanup(w.close)
	return w
}

// Address is the host:port for clients.
func (w *Wire) Address() string { return w.listener.Addr().String() }

// Serve begins to pass connections to a server.
func (w *Wire) Serve(server string) {
	w.Redirect(server)
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

// ServeKafka is Serve for a broker, whose answers can be lost, delayed and watched.
func (w *Wire) ServeKafka(broker string) {
	w.kafka = true
	w.Serve(broker)
}

func (w *Wire) connect(client net.Conn) {
	defer client.Close() //nolint:errcheck // twice does no harm
	<-w.passes()
	w.mu.Lock()
	to := w.server
	w.mu.Unlock()
	server, err := net.Dial("tcp", to)
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
	w.pass(client, server)
	if w.keeps(server) {
		<-w.ended
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.conns, client)
	delete(w.conns, server)
}

// Redirect has new connections reach another server, as a changed DNS record does. Those that exist stay.
func (w *Wire) Redirect(server string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.server = server
}

func (w *Wire) passes() chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.still
}

// Cut ends all connections. What was on its way is lost.
func (w *Wire) Cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for c := range w.conns {
		_ = c.Close() // the other side may have done so
	}
}

// Lose ends all connections of the clients. The server does not notice.
func (w *Wire) Lose() {
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

func (w *Wire) keeps(c net.Conn) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.kept[c]
}

// Stand has nothing pass until Move is called.
func (w *Wire) Stand() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.still = make(chan struct{})
}

// Move ends Stand.
func (w *Wire) Move() {
	w.mu.Lock()
	defer w.mu.Unlock()
	select {
	case <-w.still:
	default:
		close(w.still)
	}
}

// Off cuts all connections and refuses new ones until On is called.
func (w *Wire) Off() {
	w.mu.Lock()
	w.down = true
	w.mu.Unlock()
	w.Cut()
}

// On ends Off.
func (w *Wire) On() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.down = false
}

// Slow limits each direction of a connection to so many bytes per second, in small pieces. 0 is no limit.
func (w *Wire) Slow(bytesPerSecond int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.rate = bytesPerSecond
}

// LoseAnswers loses the next n answers to Produce: the request reaches the broker, the broker answers, and the connection ends
// instead.
func (w *Wire) LoseAnswers(n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.toLose = n
}

// Answers is how many answers are still to be lost, and how many were.
func (w *Wire) Answers() (left, lost int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.toLose, w.lost
}

// Delay holds the answers to requests of an API back. 0 ends that.
func (w *Wire) Delay(d time.Duration, apis ...int16) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.delay, w.late = d, apis
}

// Tap has tap called with each moment. The message waits for it, and is lost with its connection if it returns false. nil ends
// that.
func (w *Wire) Tap(tap func(Moment) (pass bool)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.tap = tap
}

func (w *Wire) tapped(m Moment) (pass bool) {
	w.mu.Lock()
	tap := w.tap
	w.mu.Unlock()
	return tap == nil || tap(m)
}

// Heal ends everything that was done to the wire but for the taps.
func (w *Wire) Heal() {
	w.Move()
	w.On()
	w.Slow(0)
	w.LoseAnswers(0)
	w.Delay(0)
}

// answer reports whether the answer to a request of an API may pass, when it is time.
func (w *Wire) answer(api int16) (pass bool) {
	w.mu.Lock()
	d := w.delay
	if !slices.Contains(w.late, api) {
		d = 0
	}
	lose := api == APIProduce && w.toLose > 0
	if lose {
		w.toLose--
		w.lost++
	}
	w.mu.Unlock()
	time.Sleep(d)
	switch {
	case lose:
		return false
	case api == APIProduce:
		return w.tapped(Produced)
	case api == APIEndTxn:
		return w.tapped(EndedTxn)
	}
	return true
}

func (w *Wire) close() {
	_ = w.listener.Close() // once
	w.Move()
	close(w.ended)
	w.Cut()
	w.mu.Lock()
	w.conns = nil
	w.mu.Unlock()
	w.wg.Wait()
}
