package replication

import (
	"net"
	"strings"
	"testing"
	"time"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/replication/internal/pgoutput"
	"github.com/walpost/walpost/replication/internal/pgoutput/pgoutputtest"
)

// endless is a connection that gives rows of one transaction without end.
type endless struct {
	net.Conn
	rows []byte // whole messages
	rest []byte
}

func (e *endless) SetReadDeadline(time.Time) error { return nil }

func (e *endless) Read(b []byte) (int, error) {
	n := 0
	for n < len(b) {
		if len(e.rest) == 0 {
			e.rest = e.rows
		}
		c := copy(b[n:], e.rest)
		n, e.rest = n+c, e.rest[c:]
	}
	return n, nil
}

func endlessSession() *Session {
	row := walData(150, pgoutputtest.Insert(5, "6f0c1a8e-0000-4000-8000-000000000001", strings.Repeat("v", 300)))
	first := append(walData(150, pgoutputtest.Begin(200)), walData(0, pgoutputtest.Relation(5, "id", "v"))...)
	e := &endless{rest: first}
	for len(e.rows) < 1<<18 {
		e.rows = append(e.rows, row...)
	}
	w := newWire(e)
	w.coalesce = 0
	return &Session{cfg: testConfig(), wire: w, dec: pgoutput.NewDecoder(100, nil, pgoutput.Messages{}), suspect: make(chan struct{}, 1)}
}

func TestTheStreamDoesNotAllocatePerMessage(t *testing.T) {
	s := endlessSession()
	ctx := t.Context()
	if n := testing.AllocsPerRun(50_000, func() {
		if _, err := s.Next(ctx, time.Second); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations a row, want none", n)
	}
}

func BenchmarkNext(b *testing.B) {
	s := endlessSession()
	ctx := b.Context()
	b.ReportAllocs()
	for b.Loop() {
		ev, err := s.Next(ctx, time.Second)
		if err != nil {
			b.Fatal(err)
		}
		if ev.Kind == cdc.Insert {
			b.SetBytes(int64(len(ev.Row.Values[1].Bytes)))
		}
	}
}
