package replication

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/replication/internal/pgoutput"
)

func copyDone() []byte { return framed('c', nil) }

func TestAnyErrorOfTheServerEndsTheStream(t *testing.T) {
	for _, c := range []struct {
		name          string
		message       []byte
		retry, person bool
		want          string
	}{
		{"killed", serverError("FATAL", "57P01", "terminating connection due to administrator command"), true, false, "57P01"},
		{"invalidated on a standby", serverError("ERROR", "40001", "canceling statement due to conflict with recovery"), true, false, "40001"},
		{"crash", serverError("FATAL", "57P02", "terminating connection because of crash"), true, false, "57P02"},
		{"connection", serverError("FATAL", "08006", "gone"), true, false, "08006"},
		{"slot not usable", serverError("ERROR", "55000", "can no longer access replication slot"), true, false, "55000"},
		{"segment removed", serverError("ERROR", "58P01", "requested WAL segment has already been removed"), true, false, "58P01"},
		{"disk full", serverError("ERROR", "53100", "could not write to file"), true, false, "53100"},
		{"publication", serverError("ERROR", "42704", `publication "pub" does not exist`), false, true, "publication pub"},
		{"not UTF-8", serverError("ERROR", "22021", "invalid byte sequence"), false, true, "a row after 0/D2 has a text value that is not UTF-8"},
		{"something else", serverError("ERROR", "XX001", "invalid page"), false, false, "XX001"},
		{"rows are skipped", serverNotice("55000", `skipped loading publication "pub"`), false, true, "skips rows"},
		{"end of copy", copyDone(), true, false, "ended it"},
		{"end of command", framed('C', []byte("COPY 0\x00")), true, false, "ended it"},
	} {
		t.Run(c.name, func(t *testing.T) {
			noLeaks(t)
			s, w := connectFake(t, testConfig(), nil)
			startFake(t, s, w)
			go w.send(transaction(200, "a"), c.message, ready(), transaction(300, "never"))
			events(t, s, 3)
			_, err := s.Next(t.Context(), time.Minute)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("%v, want an error with %q", err, c.want)
			}
			if fault.Retryable(err) != c.retry || fault.NeedsPerson(err) != c.person {
				t.Errorf("%v: retryable %t, needs a person %t", err, fault.Retryable(err), fault.NeedsPerson(err))
			}
			if c.person && fault.Hint(err) == "" {
				t.Errorf("%v: no hint", err)
			}
			if setup := strings.Contains(fault.Hint(err), "walpost setup --role=walpost --apply --dsn \"<DSN of an administrator>\" . Then run walpost recover"); setup != (c.name == "publication" || c.name == "rows are skipped") {
				t.Errorf("%v: the hint is %s", err, fault.Hint(err))
			}
			if _, again := s.Next(t.Context(), time.Second); !errors.Is(again, err) {
				t.Errorf("then %v", again)
			}
			if again := s.Confirm(t.Context(), 0); !errors.Is(again, err) {
				t.Errorf("then Confirm: %v", again)
			}
		})
	}
}

func TestOtherNoticesAreNoEnd(t *testing.T) {
	s, w := connectFake(t, testConfig(), nil)
	startFake(t, s, w)
	go w.send(serverNotice("01000", "something else"), framed('S', []byte("TimeZone\x00UTC\x00")), transaction(200, "a"))
	events(t, s, 3)
}

func TestAMalformedMessageIsAnErrorAndNeverAPanic(t *testing.T) {
	for _, c := range []struct {
		name    string
		message []byte
	}{
		{"length below its own", []byte{'d', 0, 0, 0, 3}},
		{"negative length", []byte{'d', 0xff, 0xff, 0xff, 0xff}},
		{"unknown kind", framed('?', nil)},
		{"a row of a query", framed('D', []byte{0, 0})},
		{"empty copy data", framed('d', nil)},
		{"unknown copy data", framed('d', []byte{'x', 1, 2})},
		{"short wal data", framed('d', []byte{'w', 1, 2})},
		{"wal data without a message", walData(1, nil)},
		{"short keepalive", keepalive(1, true)[:10]},
		{"long keepalive", framed('d', make([]byte, 40))},
		{"an undecodable message", walData(1, []byte{'I', 0})},
		{"an error without an end", framed('E', []byte{'S'})},
		{"a notice without an end", framed('N', []byte{'S'})},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.name == "short keepalive" {
				c.message = framed('d', c.message[5:])
			}
			s, w := connectFake(t, testConfig(), nil)
			startFake(t, s, w)
			go w.send(c.message, ready())
			if err := fails(t, s); fault.Retryable(err) || fault.NeedsPerson(err) {
				t.Errorf("%v has a behaviour", err)
			}
		})
	}
	t.Run("noise", func(t *testing.T) {
		r := rand.New(rand.NewPCG(1, 2))
		good := bytes.Join([][]byte{transaction(200, "a"), keepalive(300, true), serverNotice("01000", "x"), transaction(400, "b")}, nil)
		for range 300 {
			bad := bytes.Clone(good)
			for range 1 + r.IntN(8) {
				bad[r.IntN(len(bad))] = byte(r.Uint32())
			}
			w := newWire(nil)
			s := &Session{cfg: testConfig(), wire: w, dec: pgoutput.NewDecoder(0, nil, pgoutput.Messages{}), suspect: make(chan struct{}, 1)}
			w.w = copy(w.buf, bad)
			for {
				kind, body, ok, err := w.take()
				if err != nil || !ok {
					break
				}
				if _, err := s.message(kind, body); err != nil {
					break
				}
			}
		}
	})
}

func TestALostConnectionIsWorthAnotherTry(t *testing.T) {
	noLeaks(t)
	s, w := connectFake(t, testConfig(), nil)
	startFake(t, s, w)
	go func() {
		w.send(transaction(200, "a")[:60])
		_ = w.conn.Close()
	}()
	if err := fails(t, s); !fault.Retryable(err) {
		t.Errorf("%v is not retryable", err)
	}
}

var errRefused = &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
