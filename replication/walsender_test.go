package replication

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
	"go.uber.org/goleak"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/replication/internal/pgoutput/pgoutputtest"
)

// A walsender plays the server on the other end of a session's connection: a script drives it, and every status that the
// session sends is kept.
type walsender struct {
	t    *testing.T
	conn net.Conn
	back *pgproto3.Backend

	queries  chan string
	statuses chan status
	ended    chan struct{} // the client closed the connection
	mu       sync.Mutex
	goodbye  []byte // kinds of messages behind the last status
}

// A status is a standby status update.
type status struct {
	write, flush, apply cdc.LSN
	reply               bool
	at                  time.Time // when it came
}

// testConfig is of a slot that is confirmed up to 100.
func testConfig() sessionConfig {
	return sessionConfig{
		slot: "slot", publication: "pub", role: "walpost", walSenderTimeout: time.Minute, confirmKeepalives: true, logger: slog.New(slog.DiscardHandler),
		identity: cdc.Identity{SlotFound: cdc.SlotState{Exists: true, Confirmed: 100}},
	}
}

// connectFake makes a session and the walsender that it talks to, over a pipe that hands over each write as it is.
func connectFake(t *testing.T, cfg sessionConfig, sql prober) (*Session, *walsender) {
	t.Helper()
	client, server := net.Pipe()
	return connectOver(t, client, server, cfg, sql)
}

func connectOver(t *testing.T, client, server net.Conn, cfg sessionConfig, sql prober) (*Session, *walsender) {
	t.Helper()
	// A plain "host=" configuration that nothing is read from: only the structure is wanted.
	cc, err := pgconn.ParseConfig("host=127.0.0.1 user=u database=d sslmode=disable")
	if err != nil {
		t.Fatal(err)
	}
	conn, err := pgconn.Construct(&pgconn.HijackedConn{Conn: client, TxStatus: 'I', ParameterStatuses: map[string]string{}, Config: cc, Frontend: pgproto3.NewFrontend(client, client)})
	if err != nil {
		t.Fatal(err)
	}
	w := &walsender{
		t: t, conn: server, back: pgproto3.NewBackend(server, server),
		queries: make(chan string, 100), statuses: make(chan status, 10_000), ended: make(chan struct{}),
	}
	go w.listen()
	s := newSession(conn, sql, cfg)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		go func() { <-ctx.Done(); _ = server.Close() }()
		_ = s.Close(ctx)
		_ = server.Close()
		<-w.ended
	})
	return s, w
}

func (w *walsender) listen() {
	defer close(w.ended)
	for {
		m, err := w.back.Receive()
		if err != nil {
			return
		}
		switch m := m.(type) {
		case *pgproto3.Query:
			w.queries <- m.String
		case *pgproto3.CopyData:
			if len(m.Data) != 34 || m.Data[0] != 'r' {
				w.t.Errorf("the client sent %q", m.Data)
				return
			}
			p := func(at int) cdc.LSN { return cdc.LSN(binary.BigEndian.Uint64(m.Data[at:])) }
			w.statuses <- status{p(1), p(9), p(17), m.Data[33] != 0, time.Now()}
		case *pgproto3.CopyDone, *pgproto3.Terminate:
			w.mu.Lock()
			kind := byte('c')
			if _, ok := m.(*pgproto3.Terminate); ok {
				kind = 'X'
			}
			w.goodbye = append(w.goodbye, kind)
			w.mu.Unlock()
			if kind == 'X' {
				_ = w.conn.Close()
				return
			}
		default:
			w.t.Errorf("the client sent %T", m)
		}
	}
}

// send writes messages in one piece.
func (w *walsender) send(messages ...[]byte) {
	var b []byte
	for _, m := range messages {
		b = append(b, m...)
	}
	if _, err := w.conn.Write(b); err != nil && !errors.Is(err, io.ErrClosedPipe) {
		w.t.Errorf("send: %v", err)
	}
}

func framed(kind byte, body []byte) []byte {
	return append(pgoutputtest.U32([]byte{kind}, len(body)+4), body...)
}

func copyBoth() []byte { return framed('W', []byte{0, 0, 0}) }

func walData(pos cdc.LSN, msg []byte) []byte {
	b := pgoutputtest.U64(pgoutputtest.U64(pgoutputtest.U64([]byte{'w'}, uint64(pos)), uint64(pos)), 1)
	return framed('d', append(b, msg...))
}

func keepalive(end cdc.LSN, reply bool) []byte {
	b := pgoutputtest.U64(pgoutputtest.U64([]byte{'k'}, uint64(end)), 1)
	if reply {
		return framed('d', append(b, 1))
	}
	return framed('d', append(b, 0))
}

func serverError(severity, code, text string) []byte {
	b, err := (&pgproto3.ErrorResponse{Severity: severity, SeverityUnlocalized: severity, Code: code, Message: text}).Encode(nil)
	if err != nil {
		panic(err)
	}
	return b
}

func serverNotice(code, text string) []byte {
	b, err := (&pgproto3.NoticeResponse{Severity: "WARNUNG", SeverityUnlocalized: "WARNING", Code: code, Message: text}).Encode(nil)
	if err != nil {
		panic(err)
	}
	return b
}

func ready() []byte { return framed('Z', []byte{'I'}) }

// transaction is a whole one that commits at commit, with one row.
func transaction(commit cdc.LSN, value string) []byte {
	var b []byte
	b = append(b, walData(commit-5, pgoutputtest.Begin(commit))...)
	b = append(b, walData(0, pgoutputtest.Relation(5, "id", "v"))...)
	b = append(b, walData(commit-5, pgoutputtest.Insert(5, value, "v"))...)
	return append(b, walData(commit+10, pgoutputtest.Commit(commit, commit+10))...)
}

// startFake starts the session at 100.
func startFake(t *testing.T, s *Session, w *walsender) {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- s.Start(t.Context(), 100) }()
	<-w.queries
	w.send(copyBoth())
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

func noLeaks(t *testing.T) {
	t.Helper()
	ignore := goleak.IgnoreCurrent()
	t.Cleanup(func() { goleak.VerifyNone(t, ignore) })
}

// events reads n events, leaving out those that say nothing.
func events(t *testing.T, s *Session, n int) []cdc.Event {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var all []cdc.Event
	for len(all) < n {
		ev, err := s.Next(ctx, time.Second)
		if err != nil {
			t.Fatalf("after %d events: %v", len(all), err)
		}
		if ev.Kind == cdc.Idle && ev.Pos == 0 {
			continue
		}
		e := *ev
		e.Row.Values = clone(ev.Row.Values)
		all = append(all, e)
	}
	return all
}

func clone(values []cdc.Value) []cdc.Value {
	var own []cdc.Value
	for _, v := range values {
		if v.Bytes != nil {
			v.Bytes = append([]byte{}, v.Bytes...)
		}
		own = append(own, v)
	}
	return own
}

// fails reads until the session fails.
func fails(t *testing.T, s *Session) error {
	t.Helper()
	for range 100_000 {
		if _, err := s.Next(t.Context(), time.Second); err != nil {
			return err
		}
	}
	t.Fatal("the session goes on")
	return nil
}

// A socket is the client's end of a pipe with a buffer, as the kernel gives one: what was written in many pieces is read
// in one.
type socket struct {
	net.Conn
	mu       sync.Mutex
	buf      []byte
	err      error
	deadline time.Time
	changed  chan struct{} // capacity one
}

func newSocket(conn net.Conn) *socket {
	s := &socket{Conn: conn, changed: make(chan struct{}, 1)}
	go func() {
		b := make([]byte, 1<<16)
		for {
			n, err := conn.Read(b)
			s.mu.Lock()
			s.buf, s.err = append(s.buf, b[:n]...), err
			s.mu.Unlock()
			s.poke()
			if err != nil {
				return
			}
		}
	}()
	return s
}

func (s *socket) poke() {
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

func (s *socket) SetReadDeadline(t time.Time) error {
	s.mu.Lock()
	s.deadline = t
	s.mu.Unlock()
	s.poke()
	return nil
}

func (s *socket) Read(b []byte) (int, error) {
	for {
		s.mu.Lock()
		n := copy(b, s.buf)
		s.buf = s.buf[n:]
		err, deadline := s.err, s.deadline
		s.mu.Unlock()
		switch {
		case n > 0:
			return n, nil
		case err != nil:
			return 0, err
		case !time.Now().Before(deadline):
			return 0, os.ErrDeadlineExceeded
		}
		timer := time.NewTimer(time.Until(deadline))
		select {
		case <-s.changed:
		case <-timer.C:
		}
		timer.Stop()
	}
}
