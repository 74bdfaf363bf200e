package replication

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/fault"
	ipg "github.com/walpost/walpost/internal/pg"
	"github.com/walpost/walpost/relay"
	"github.com/walpost/walpost/replication/internal/pgoutput/pgoutputtest"
)

var _ relay.Session = (*Session)(nil)

// drip is a connection that gives one byte a read.
type drip struct{ net.Conn }

func (d drip) Read(b []byte) (int, error) { return d.Conn.Read(b[:1]) }

func TestEventsAreTheSameByteByByte(t *testing.T) {
	noLeaks(t)
	client, server := net.Pipe()
	s, w := connectOver(t, drip{client}, server, testConfig(), nil)
	startFake(t, s, w)
	go w.send(transaction(200, "first"), keepalive(300, false), transaction(400, "second"))
	var got []string
	for _, ev := range events(t, s, 7) {
		word := fmt.Sprintf("%s %d", ev.Kind, max(uint64(ev.Pos), uint64(ev.LSN)))
		if ev.Kind == cdc.Insert {
			word += " " + string(ev.Row.Values[0].Bytes)
		}
		got = append(got, word)
	}
	want := "begin 200, insert 195 first, commit 210, idle 300, begin 400, insert 395 second, commit 410"
	if strings.Join(got, ", ") != want {
		t.Errorf("got  %s\nwant %s", strings.Join(got, ", "), want)
	}
}

func TestAMessageBiggerThanTheBufferArrivesAndTheBufferShrinksAgain(t *testing.T) {
	s, w := connectFake(t, testConfig(), nil)
	startFake(t, s, w)
	big := strings.Repeat("0123456789abcdef", 5*bufferSize/16)
	go w.send(transaction(200, big), transaction(300, "small"))
	got := events(t, s, 3)
	if string(got[1].Row.Values[0].Bytes) != big {
		t.Error("the value differs")
	}
	events(t, s, 3)
	if _, err := s.Next(t.Context(), time.Millisecond); err != nil {
		t.Fatal(err)
	}
	if len(s.wire.buf) != bufferSize {
		t.Errorf("the buffer has still %d bytes", len(s.wire.buf))
	}
}

func TestALengthThatIsALieTakesNoMemory(t *testing.T) {
	s, w := connectFake(t, testConfig(), nil)
	startFake(t, s, w)
	go w.send([]byte{'d', 0x3f, 0xff, 0xff, 0xff, 'w'})
	for range 3 {
		if _, err := s.Next(t.Context(), time.Millisecond); err != nil {
			t.Fatal(err)
		}
	}
	if len(s.wire.buf) != bufferSize {
		t.Errorf("the buffer has %d bytes", len(s.wire.buf))
	}
}

func TestWhatIsReceivedIsNotConfirmed(t *testing.T) {
	noLeaks(t)
	s, w := connectFake(t, testConfig(), nil)
	startFake(t, s, w)
	confirm := func(safe cdc.Position) status {
		t.Helper()
		if err := s.Confirm(t.Context(), safe); err != nil {
			t.Fatal(err)
		}
		return <-w.statuses
	}
	if got := confirm(0); got.write != 100 || got.flush != 100 || got.apply != 100 {
		t.Errorf("before anything: %+v, want the slot's own position", got)
	}
	go w.send(transaction(200, "a"))
	events(t, s, 3)
	if got := confirm(0); got.write != 210 || got.flush != 100 || got.apply != 100 {
		t.Errorf("received, not safe: %+v", got)
	}
	if got := confirm(210); got.write != 210 || got.flush != 210 || got.apply != 210 {
		t.Errorf("safe: %+v", got)
	}
	if got := confirm(150); got.flush != 210 || got.apply != 210 {
		t.Errorf("an older position moved flush back: %+v", got)
	}
	if err := s.Confirm(t.Context(), 211); err == nil || fault.Retryable(err) {
		t.Errorf("a position that was never received: %v", err)
	}
}

func TestWhatAFormerSessionReceivedCanBeConfirmed(t *testing.T) {
	cfg := testConfig()
	cfg.identity.Server = 300
	s, w := connectFake(t, cfg, nil)
	startFake(t, s, w)
	if err := s.Confirm(t.Context(), 250); err != nil {
		t.Fatal(err)
	}
	if got := <-w.statuses; got.write != 250 || got.flush != 250 || got.apply != 250 {
		t.Errorf("%+v, want 250", got)
	}
	go w.send(transaction(200, "a"), keepalive(240, false), transaction(260, "b"))
	if all := events(t, s, 7); all[6].Pos != 270 {
		t.Errorf("%+v, want the transactions on both sides of 250", all)
	}
	if err := s.Confirm(t.Context(), 301); err == nil || fault.Retryable(err) {
		t.Errorf("a position that the server has not reached: %v", err)
	}
}

func TestAMessageThatTakesItsTimeDoesNotHoldNext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, w := connectFake(t, testConfig(), nil)
		startFake(t, s, w)
		whole := transaction(200, strings.Repeat("x", 1000))
		sent := make(chan struct{})
		go func() {
			defer close(sent)
			for i := range whole {
				w.send(whole[i : i+1])
				time.Sleep(500 * time.Microsecond)
			}
		}()
		var idle int
		for rows := 0; rows == 0; {
			began := time.Now()
			ev, err := s.Next(t.Context(), 100*time.Millisecond)
			if err != nil {
				t.Fatal(err)
			}
			if took := time.Since(began); took > 110*time.Millisecond {
				t.Fatalf("Next took %s", took)
			}
			switch ev.Kind {
			case cdc.Idle:
				idle++
			case cdc.Insert:
				rows++
			default:
			}
		}
		if idle < 3 {
			t.Errorf("%d times nothing, in half a second", idle)
		}
		events(t, s, 1)
		<-sent
	})
}

func TestAnUnknownFlushPositionConfirmsNothing(t *testing.T) {
	cfg := testConfig()
	cfg.identity.SlotFound.Confirmed = 0
	s, w := connectFake(t, cfg, nil)
	startFake(t, s, w)
	if err := s.Confirm(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	if got := <-w.statuses; got.write != 0 || got.flush != 0 || got.apply != 0 {
		t.Errorf("%+v, want no position", got)
	}
}

func TestASlotBeyondTheStartIsWhereTheStreamBegins(t *testing.T) {
	cfg := testConfig()
	cfg.identity.SlotFound.Confirmed = 180
	s, w := connectFake(t, cfg, nil)
	startFake(t, s, w)
	if err := s.Confirm(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	if got := <-w.statuses; got.write != 180 || got.flush != 180 {
		t.Errorf("%+v, want the slot's 180", got)
	}
}

func TestAKeepaliveIsAnEmptyTransaction(t *testing.T) {
	for _, on := range []bool{true, false} {
		t.Run(fmt.Sprint(on), func(t *testing.T) {
			cfg := testConfig()
			cfg.confirmKeepalives = on
			s, w := connectFake(t, cfg, nil)
			startFake(t, s, w)
			tx := transaction(200, "a")
			cut := len(walData(0, pgoutputtest.Begin(0)))
			go w.send(
				keepalive(90, false),            // the server is still reading what lies before the start
				keepalive(150, false),           // says something
				keepalive(150, false),           // nothing new
				tx[:cut], keepalive(160, false), // within a transaction: means nothing
				tx[cut:], keepalive(205, false), // below the commit's end
				keepalive(300, false), copyDone(), // says something again
			)
			var got []string
			for {
				ev, err := s.Next(t.Context(), time.Second)
				if err != nil {
					break
				}
				got = append(got, fmt.Sprintf("%s %d", ev.Kind, max(uint64(ev.Pos), uint64(ev.LSN))))
			}
			want := "idle 150, begin 200, insert 195, commit 210, idle 300"
			if !on {
				want = "begin 200, insert 195, commit 210"
			}
			if strings.Join(got, ", ") != want {
				t.Errorf("got %s, want %s", strings.Join(got, ", "), want)
			}
		})
	}
}

func TestASlotInUseIsWaitedForAndItsHolderNamedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		cfg := testConfig()
		cfg.logger, cfg.identity.SlotFound.ActivePID = slog.New(slog.NewJSONHandler(&log, nil)), 4711
		var held atomic.Bool
		held.Store(true)
		cfg.recheck = func(context.Context) (cdc.Identity, error) {
			if held.Load() {
				return cdc.Identity{SlotFound: cdc.SlotState{Exists: true, Confirmed: 100, Active: true, ActivePID: 4711}}, nil
			}
			return cdc.Identity{SlotFound: cdc.SlotState{Exists: true, Confirmed: 120}}, nil
		}
		cfg.watch = watcher{every: lookEvery, look: func(context.Context) (holder, error) {
			if !held.Load() {
				return holder{}, nil
			}
			return holder{PID: 4711}, nil
		}}
		s, w := connectFake(t, cfg, nil)
		done := make(chan error, 1)
		go func() { done <- s.Start(t.Context(), 130) }()
		want := `START_REPLICATION SLOT "slot" LOGICAL 0/82 (proto_version '1', publication_names '"pub"')`
		if got := <-w.queries; got != want {
			t.Fatalf("query %s, want %s", got, want)
		}
		w.send(serverError("ERROR", "55006", "replication slot is active"), ready())
		time.Sleep(20 * time.Second)
		if n := len(w.queries); n > 0 {
			t.Fatalf("%d tries while the catalog shows that the slot is in use: each is an error in the server's log", n)
		}
		held.Store(false)
		<-w.queries
		w.send(copyBoth(), transaction(200, "a"))
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		if got := s.Identity().SlotFound.Confirmed; got != 120 {
			t.Errorf("the identity has the slot at %s, want what was found while it was held", got)
		}
		events(t, s, 3)
		if n := strings.Count(log.String(), `"pid":4711`); n != 1 {
			t.Errorf("the holder is named %d times in 20 s:\n%s", n, &log)
		}
	})
}

// Two processes find a free slot, and one of them is faster. The other opens again, and then knows that it is a standby, and behind whom.
func TestASlotThatWasFreeIsNotWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, w := connectFake(t, testConfig(), nil)
		done := make(chan error, 1)
		go func() { done <- s.Start(t.Context(), 130) }()
		<-w.queries
		w.send(serverError("ERROR", "55006", "replication slot is active"), ready())
		if err := <-done; !fault.Retryable(err) || !strings.Contains(err.Error(), "replication slot is active") {
			t.Error(err)
		}
	})
}

// Without the catalog, and if it is wrong, the slot is tried now and then.
func TestASlotInUseIsTriedWhateverTheCatalogSays(t *testing.T) {
	for name, c := range map[string]struct {
		look        func(context.Context) (holder, error)
		least, most int // tries in a minute
	}{
		"it cannot be asked":   {func(context.Context) (holder, error) { return holder{}, errors.New("gone") }, 20, 100},
		"it shows no user":     {func(context.Context) (holder, error) { return holder{}, nil }, 20, 100},
		"it shows an old user": {func(context.Context) (holder, error) { return holder{PID: 4711}, nil }, 2, 4},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cfg := testConfig()
				cfg.watch, cfg.identity.SlotFound.ActivePID = watcher{every: lookEvery, look: c.look}, 4711
				s, w := connectFake(t, cfg, nil)
				done := make(chan error, 1)
				go func() { done <- s.Start(t.Context(), 130) }()
				tries := 0
				for began := time.Now(); time.Since(began) < time.Minute; tries++ {
					<-w.queries
					w.send(serverError("ERROR", "55006", "replication slot is active"), ready())
				}
				if tries < c.least || tries > c.most {
					t.Errorf("%d tries in a minute, want %d to %d", tries, c.least, c.most)
				}
				<-w.queries
				w.send(copyBoth())
				if err := <-done; err != nil {
					t.Error(err)
				}
			})
		})
	}
}

func TestStartGivesUpWaitingWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := testConfig()
		cfg.identity.SlotFound.ActivePID = 4711
		s, w := connectFake(t, cfg, nil)
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		go func() {
			for {
				select {
				case <-w.queries:
					w.send(serverError("ERROR", "55006", "active"), ready())
				case <-w.ended:
					return
				}
			}
		}()
		began := time.Now()
		err := s.Start(ctx, 100)
		if !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != 5*time.Second {
			t.Errorf("%v after %s", err, time.Since(began))
		}
	})
}

func TestARefusedStartHasTheServersReason(t *testing.T) {
	for _, c := range []struct {
		code          string
		retry, person bool
	}{
		{"42704", true, false}, // no such slot: opening anew judges
		{"55000", true, false}, // lost: likewise
		{"42501", false, true},
		{"0A000", false, false},
		{"57P03", true, false},
	} {
		t.Run(c.code, func(t *testing.T) {
			noLeaks(t)
			s, w := connectFake(t, testConfig(), nil)
			go func() {
				<-w.queries
				w.send(serverError("ERROR", c.code, "no"), ready())
			}()
			err := s.Start(t.Context(), 100)
			if ipg.SQLState(err) != c.code || fault.Retryable(err) != c.retry || fault.NeedsPerson(err) != c.person {
				t.Errorf("%v: retryable %t, needs a person %t", err, fault.Retryable(err), fault.NeedsPerson(err))
			}
			if _, again := s.Next(t.Context(), time.Second); !errors.Is(again, err) {
				t.Errorf("then %v", again)
			}
		})
	}
}

func TestNamesAreQuotedInTheCommand(t *testing.T) {
	cfg := testConfig()
	cfg.publication = `it's "mine"`
	s := newSession(nil, nil, cfg)
	want := `START_REPLICATION SLOT "slot" LOGICAL 16/B374D848 (proto_version '1', publication_names '"it''s ""mine"""')`
	if got := s.startCommand(0x16B374D848); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestAnEndedContextInterruptsNextButNotTheSession(t *testing.T) {
	noLeaks(t)
	s, w := connectFake(t, testConfig(), nil)
	startFake(t, s, w)
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(10*time.Millisecond, cancel)
	if _, err := s.Next(ctx, time.Hour); !errors.Is(err, context.Canceled) {
		t.Fatalf("%v", err)
	}
	if _, err := s.Next(ctx, time.Hour); !errors.Is(err, context.Canceled) {
		t.Fatalf("then %v", err)
	}
	if err := s.Confirm(t.Context(), 100); err != nil {
		t.Fatalf("then Confirm: %v", err)
	}
	go w.send(transaction(200, "a"))
	events(t, s, 3)
}

func TestCloseSaysGoodbyeBehindTheLastStatus(t *testing.T) {
	noLeaks(t)
	s, w := connectFake(t, testConfig(), nil)
	startFake(t, s, w)
	if err := s.Confirm(t.Context(), 100); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	<-w.ended
	if string(w.goodbye) != "cX" || len(w.statuses) != 1 {
		t.Errorf("goodbye %q behind %d statuses", w.goodbye, len(w.statuses))
	}
	if _, err := s.Next(t.Context(), time.Second); err == nil {
		t.Error("Next works after Close")
	}
}

func TestASessionThatWasNeverStartedCloses(t *testing.T) {
	noLeaks(t)
	sql := &fakeProber{}
	s, w := connectFake(t, testConfig(), sql)
	if err := s.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	<-w.ended
	if n := sql.closed.Load(); n != 1 {
		t.Errorf("the SQL connection was closed %d times", n)
	}
}
