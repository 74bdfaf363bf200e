package replication

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/fault"
)

// fakeProber is an SQL connection that works while err is nil.
type fakeProber struct {
	err    failing
	pings  atomic.Int32
	closed atomic.Int32
}

func (p *fakeProber) Ping(context.Context) error  { p.pings.Add(1); return p.err.get() }
func (p *fakeProber) Close(context.Context) error { p.closed.Add(1); return nil }

// failing is the error of something that fails now, nil while it works.
type failing struct{ p atomic.Pointer[error] }

func (f *failing) set(err error) { f.p.Store(&err) }

func (f *failing) get() error {
	if p := f.p.Load(); p != nil {
		return *p
	}
	return nil
}

// terminated is a prober whose connection was killed.
func terminated() *fakeProber {
	p := &fakeProber{}
	p.err.set(errors.New("terminated"))
	return p
}

func TestStatusEveryFitsIntoTheServersPatience(t *testing.T) {
	for timeout, want := range map[time.Duration]time.Duration{
		0: time.Second, time.Minute: time.Second, 10 * time.Minute: time.Second,
		3 * time.Second: time.Second, 1500 * time.Millisecond: 500 * time.Millisecond, 30 * time.Millisecond: 100 * time.Millisecond,
	} {
		cfg := testConfig()
		cfg.walSenderTimeout = timeout
		if got := newSession(nil, nil, cfg).StatusEvery(); got != want {
			t.Errorf("wal_sender_timeout %s: every %s, want %s", timeout, got, want)
		}
	}
}

// A server that shuts down asks again as soon as it is answered, for ever, while something is not confirmed.
func TestAServerThatSpinsIsAnsweredSlowlyAndLeftSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, w := connectFake(t, testConfig(), nil)
		startFake(t, s, w)
		go w.send(transaction(200, "a"))
		events(t, s, 3)
		var answers atomic.Int32
		go func() {
			for {
				w.send(keepalive(210, true))
				select {
				case <-w.statuses:
					answers.Add(1)
				case <-w.ended:
					return
				}
			}
		}()
		began := time.Now()
		err := fails(t, s)
		took := time.Since(began)
		if !fault.Retryable(err) || !errors.Is(err, errGoingDown) {
			t.Errorf("ended by: %v", err)
		}
		if took > 10*time.Second || took < 5*time.Second {
			t.Errorf("left after %s", took)
		}
		if n := answers.Load(); n > 25 || n < 5 {
			t.Errorf("%d answers in %s", n, took)
		}
	})
}

// The last rows may be confirmed while the server waits for that: then it is answered within a second.
func TestARequestForAnAnswerIsAnsweredSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, w := connectFake(t, testConfig(), nil)
		startFake(t, s, w)
		for range 5 {
			time.Sleep(40 * time.Second)
			go w.send(keepalive(150, true))
			asked := time.Now()
			for len(w.statuses) == 0 && time.Since(asked) < time.Minute {
				if _, err := s.Next(t.Context(), 10*time.Second); err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
			}
			if got := (<-w.statuses).at.Sub(asked); got > time.Second {
				t.Errorf("answered after %s", got)
			}
		}
	})
}

// converse reads for a while as the relay does: Next, and Confirm when it is due.
func converse(t *testing.T, s *Session, d time.Duration) error {
	t.Helper()
	confirmed := time.Now()
	for end := time.Now().Add(d); time.Now().Before(end); {
		if _, err := s.Next(t.Context(), time.Second); err != nil {
			return err
		}
		if time.Since(confirmed) >= s.StatusEvery() {
			confirmed = time.Now()
			if err := s.Confirm(t.Context(), 0); err != nil {
				return err
			}
		}
	}
	return nil
}

func TestAPeerThatSaysNothingAlthoughAskedIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, w := connectFake(t, testConfig(), nil)
		startFake(t, s, w)
		began := time.Now()
		err := converse(t, s, time.Hour)
		if took := time.Since(began); !fault.Retryable(err) || took < s.silenceLimit() || took > s.silenceLimit()+time.Minute {
			t.Errorf("%v after %s, want it after %s: a busy server may be silent for long", err, took, s.silenceLimit())
		}
		asked := false
		for len(w.statuses) > 0 {
			st := <-w.statuses
			asked = asked || st.reply
		}
		if !asked {
			t.Error("it was never asked for a sign of life")
		}
	})
}

func TestAnIdleServerThatAnswersIsNotLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, w := connectFake(t, testConfig(), nil)
		startFake(t, s, w)
		go func() {
			for {
				select {
				case st := <-w.statuses:
					if st.reply {
						w.send(keepalive(100, false))
					}
				case <-w.ended:
					return
				}
			}
		}()
		if err := converse(t, s, time.Hour); err != nil {
			t.Error(err)
		}
	})
}

func TestSilenceDoesNotCountWhileNobodyReads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, w := connectFake(t, testConfig(), nil)
		startFake(t, s, w)
		for range 100 { // the window is full: only statuses
			time.Sleep(10 * time.Second)
			if err := s.Confirm(t.Context(), 0); err != nil {
				t.Fatal(err)
			}
		}
		if err := converse(t, s, 20*time.Second); err != nil {
			t.Errorf("after the window was full: %v", err)
		}
		for n := 0; n < 100; n++ {
			if st := <-w.statuses; st.reply {
				t.Errorf("status %d asks for a sign of life that nobody would read", n)
			}
		}
	})
}

func TestAServerThatShutsDownIsLeftAlsoWhileNobodyReads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sql := &fakeProber{}
		var down failing
		cfg := testConfig()
		cfg.probe = func(context.Context) error { return down.get() }
		s, w := connectFake(t, cfg, sql)
		startFake(t, s, w)
		time.Sleep(time.Minute)
		if n := sql.pings.Load(); n < 10 {
			t.Errorf("%d looks in a minute", n)
		}
		sql.err.set(errors.New("terminated"))
		down.set(errRefused)
		began := time.Now()
		<-w.ended // the client closed the stream
		if took := time.Since(began); took > 10*time.Second {
			t.Errorf("after %s", took)
		}
		err := s.Confirm(t.Context(), 0)
		if !fault.Retryable(err) || !errors.Is(err, errGoingDown) {
			t.Errorf("Confirm: %v", err)
		}
		if _, again := s.Next(t.Context(), time.Second); !errors.Is(again, err) {
			t.Errorf("Next: %v", again)
		}
		if err := s.Close(t.Context()); err != nil {
			t.Error(err)
		}
		if n := sql.closed.Load(); n != 1 {
			t.Errorf("the SQL connection was closed %d times", n)
		}
	})
}

func TestAServerThatShutsDownIsLeftWhileReading(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sql := terminated()
		cfg := testConfig()
		cfg.probe = func(context.Context) error { return errRefused }
		s, w := connectFake(t, cfg, sql)
		startFake(t, s, w)
		began := time.Now()
		if err := fails(t, s); !errors.Is(err, errGoingDown) || !fault.Retryable(err) {
			t.Errorf("%v", err)
		}
		if took := time.Since(began); took > 10*time.Second {
			t.Errorf("after %s", took)
		}
	})
}

// In "smart" mode the server serves the connections that are open, and waits for them.
func TestAServerThatOnlyRefusesNewConnectionsIsLeftToo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := testConfig()
		cfg.probe = func(context.Context) error { return errRefused }
		s, w := connectFake(t, cfg, &fakeProber{})
		startFake(t, s, w)
		began := time.Now()
		<-w.ended
		if took := time.Since(began); took > 40*time.Second {
			t.Errorf("after %s", took)
		}
	})
}

func TestAKilledProbeOnAHealthyServerEndsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var tries atomic.Int32
		var once failing // one time
		cfg := testConfig()
		cfg.probe = func(context.Context) error {
			tries.Add(1)
			err := once.get()
			once.set(nil)
			return err
		}
		s, w := connectFake(t, cfg, terminated())
		startFake(t, s, w)
		time.Sleep(time.Minute)
		once.set(errRefused) // one failure that nothing else points to
		time.Sleep(time.Minute)
		once.set(errors.New("too many connections"))
		time.Sleep(time.Minute)
		if n := tries.Load(); n < 30 {
			t.Errorf("%d looks in three minutes", n)
		}
		go w.send(transaction(200, "a"))
		events(t, s, 3)
		if err := s.Confirm(t.Context(), 210); err != nil {
			t.Error(err)
		}
	})
}

func TestASparseStreamIsReadAtOnceAndADenseOneInPieces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, server := net.Pipe()
		s, w := connectOver(t, newSocket(client), server, testConfig(), nil)
		startFake(t, s, w)
		type sent struct {
			pos cdc.LSN
			at  time.Time
		}
		sends := make(chan sent, 10_000)
		send := func(n int, every time.Duration, from cdc.LSN) {
			for i := range n {
				pos := from + cdc.LSN(i)*100
				sends <- sent{pos + 10, time.Now()}
				w.send(transaction(pos, "a"))
				time.Sleep(every)
			}
		}
		go send(1000, time.Millisecond, 1000)
		for range 1000 {
			evs := events(t, s, 3)
			if sent := <-sends; evs[2].Pos.LSN() != sent.pos || time.Since(sent.at) != 0 {
				t.Fatalf("a row that was sent at a rate of 1,000/s was read after %s", time.Since(sent.at))
			}
		}
		time.Sleep(time.Second)
		go send(5000, 50*time.Microsecond, 1_000_000)
		var worst time.Duration
		reads, last := 0, time.Time{}
		for range 5000 {
			events(t, s, 3)
			if s.wire.read != last {
				reads, last = reads+1, s.wire.read
			}
			worst = max(worst, time.Since((<-sends).at))
		}
		if worst > coalesceFor+densityOver {
			t.Errorf("a row waited for %s", worst)
		}
		if reads > 500 {
			t.Errorf("%d reads of 5000 transactions at 20,000/s", reads)
		}
	})
}

func TestReadsAreFurtherApartTheDenserTheStreamIs(t *testing.T) {
	for _, c := range []struct {
		taken int
		over  time.Duration
		want  time.Duration
	}{
		{0, 5 * time.Millisecond, 0},
		{49, 5 * time.Millisecond, 0}, // 3,266 transactions of one row in a second
		{50, 5 * time.Millisecond, time.Millisecond},
		{150, 5 * time.Millisecond, 3 * time.Millisecond},
		{250, 5 * time.Millisecond, coalesceFor},
		{100_000, 5 * time.Millisecond, coalesceFor},
		{100_000, 100 * time.Second, 0},
	} {
		if got := gather(c.taken, c.over, coalesceFor); got != c.want {
			t.Errorf("%d messages in %s: reads are %s apart, want %s", c.taken, c.over, got, c.want)
		}
	}
	if got := gather(1000, 5*time.Millisecond, 0); got != 0 {
		t.Errorf("reads are %s apart where they should never wait", got)
	}
}
