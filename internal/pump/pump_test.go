package pump

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/walpost/walpost/cdc"
)

// A fake is a Sink that ends records when the test says so.
type fake struct {
	sync.Mutex
	waiting map[string][]cdc.Ticket
	closed  map[string]bool // behind a refused record
	acks    []cdc.Ack
	wake    chan struct{}
	stall   error
}

func (f *fake) Send(rec *cdc.Record, ticket cdc.Ticket) {
	f.Lock()
	defer f.Unlock()
	f.waiting[rec.Topic] = append(f.waiting[rec.Topic], ticket)
}

func (f *fake) Acks(buf []cdc.Ack) []cdc.Ack {
	f.Lock()
	defer f.Unlock()
	buf, f.acks = append(buf, f.acks...), nil
	return buf
}

func (f *fake) PassOver(a *cdc.Ack, _ func([]byte, *cdc.Ticket) bool) {
	f.Lock()
	defer f.Unlock()
	f.closed[a.Topic] = false
}

func (f *fake) Wake() <-chan struct{} { return f.wake }

func (f *fake) Stalled() error { return f.stall }

func (f *fake) Pending(each func(string, int, error, bool)) {
	f.Lock()
	defer f.Unlock()
	for topic, left := range f.waiting {
		each(topic, len(left), nil, f.closed[topic])
	}
}

// end ends a record that waits for a topic: number n of them.
func (f *fake) end(topic string, n int, err error) {
	f.Lock()
	defer f.Unlock()
	if f.closed[topic] {
		panic("a record behind a refused one ends")
	}
	left := f.waiting[topic]
	f.acks = append(f.acks, cdc.Ack{Ticket: left[n], Topic: topic, Err: err})
	f.waiting[topic] = slices.Delete(left, n, n+1)
	f.closed[topic] = err != nil
	f.wake <- struct{}{}
}

var (
	errRefused = errors.New("refused")
	errStop    = errors.New("stop")
)

// a pump of names, whose Ended notes what ended in got, and stops at the names of stopAt.
func newPump(stopAt ...string) (p *Pump[string], f *fake, got *[]string) {
	f = &fake{waiting: map[string][]cdc.Ticket{}, closed: map[string]bool{}, wake: make(chan struct{}, 10)}
	got = new([]string)
	p = &Pump[string]{
		Sink: f, Events: 3, Bytes: 1 << 20, Say: func(text string) { *got = append(*got, text) },
		Ended: func(of string, a *cdc.Ack) error {
			if *got = append(*got, of); a.Err == nil {
				return nil
			}
			if slices.Contains(stopAt, of) {
				return fmt.Errorf("%s: %w", of, errStop)
			}
			return nil
		},
	}
	return p, f, got
}

func send(p *Pump[string], names ...string) {
	for _, name := range names {
		p.Send(&cdc.Record{Topic: name[:1]}, name)
	}
}

func wants(t *testing.T, got *[]string, want string) {
	t.Helper()
	if now := strings.Join(*got, " "); now != want {
		t.Errorf("got %q, want %q", now, want)
	}
	*got = nil
}

func TestWhatHasEndedIsToldWithWhatItWasSentFor(t *testing.T) {
	p, f, got := newPump()
	if _, ok := p.Oldest(); ok || !p.Room() || !p.Landed() {
		t.Error("something is in flight before the first Send")
	}
	for round := range 3 { // the numbers of records go on
		send(p, "a1", "b1", "a2")
		f.end("a", 1, nil)
		if err := p.Wait(t.Context(), time.Time{}, func() bool { return len(*got) == 1 }); err != nil {
			t.Fatal(err)
		}
		wants(t, got, "a2")
		if oldest, _ := p.Oldest(); oldest != "a1" || p.Room() {
			t.Errorf("round %d: the oldest is %s, and room is %t although its record is remembered with two behind it", round, oldest, p.Room())
		}
		f.end("a", 0, nil)
		if err := p.Wait(t.Context(), time.Time{}, p.Room); err != nil {
			t.Fatal(err)
		}
		wants(t, got, "a1")
		if oldest, _ := p.Oldest(); oldest != "b1" || p.Landed() {
			t.Errorf("round %d: the oldest is %s", round, oldest)
		}
		f.end("b", 0, nil)
		if err := p.Wait(t.Context(), time.Time{}, p.Landed); err != nil || p.bytes != 0 {
			t.Fatal(err, p.bytes)
		}
		wants(t, got, "b1")
	}
}

func TestBytesAreBounded(t *testing.T) {
	p, _, _ := newPump()
	p.Bytes = int64((&cdc.Record{Topic: "a"}).Size()) + 1
	if send(p, "a1"); !p.Room() {
		t.Error("no room below the bound")
	}
	if send(p, "a2"); p.Room() {
		t.Error("room above the bound")
	}
}

// What the end of a record sends is waited for, too.
func TestEndedMaySend(t *testing.T) {
	p, f, got := newPump()
	p.Ended = func(of string, _ *cdc.Ack) error {
		if *got = append(*got, of); of[:1] == "a" {
			send(p, "m"+of)
			go f.end("m", 0, nil)
		}
		return nil
	}
	for name, wait := range map[string]func() error{
		"Wait":  func() error { return p.Wait(t.Context(), time.Time{}, p.Landed) },
		"Drain": func() error { return p.Drain(time.Minute) },
	} {
		send(p, "a1")
		f.end("a", 0, nil)
		if err := wait(); err != nil || !p.Landed() {
			t.Fatalf("%s: %v, and all has landed: %t", name, err, p.Landed())
		}
		wants(t, got, "a1 ma1")
	}
}

func TestATopicGoesOnBehindARefusalUnlessEndedStops(t *testing.T) {
	p, f, got := newPump("b1")
	send(p, "a1", "a2", "b1", "b2")
	f.end("a", 0, errRefused)
	if err := p.Wait(t.Context(), time.Time{}, func() bool { return !f.closed["a"] }); err != nil {
		t.Fatal(err)
	}
	f.end("b", 0, errRefused)
	f.end("a", 0, nil)
	if err := p.Wait(t.Context(), time.Time{}, p.Landed); !errors.Is(err, errStop) {
		t.Fatalf("%v, want %v", err, errStop)
	}
	wants(t, got, "a1 b1 a2")
	if oldest, ok := p.Oldest(); !ok || oldest != "b1" || !f.closed["b"] {
		t.Errorf("the oldest in flight is %q, and the topic of the record that stopped is closed: %t", oldest, f.closed["b"])
	}
}

// Drain waits for what can still end, also behind another record that stops, and not for what's behind a refused one.
func TestDrainWaitsForWhatCanEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, f, got := newPump("a1", "b1")
		p.Look = func(context.Context) error { panic("Drain looks") }
		send(p, "a1", "a2", "b1", "b2", "c1")
		go func() {
			for _, topic := range []string{"a", "b"} {
				time.Sleep(2 * time.Second)
				f.end(topic, 0, errRefused)
			}
			time.Sleep(2 * time.Second)
			f.end("c", 0, nil)
		}()
		began := time.Now()
		if err := p.Drain(time.Minute); !errors.Is(err, errStop) || !strings.Contains(err.Error(), "a1") || time.Since(began) != 6*time.Second {
			t.Errorf("%v after %s", err, time.Since(began))
		}
		wants(t, got, "a1 b1 c1")
		send(p, "c2")
		if err := p.Drain(time.Minute); err != nil || time.Since(began) != 66*time.Second {
			t.Errorf("%v after %s", err, time.Since(began))
		}
	})
}

func TestAStallIsToldOnceAndLookEndsAWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, f, got := newPump()
		looks := 0
		p.Look = func(context.Context) error {
			if looks++; looks == 5 {
				return errStop
			}
			f.stall = errors.New("no leader")
			return nil
		}
		send(p, "a1")
		began := time.Now()
		if err := p.Wait(t.Context(), time.Time{}, p.Landed); !errors.Is(err, errStop) || time.Since(began) != 5*time.Second {
			t.Errorf("%v after %s", err, time.Since(began))
		}
		wants(t, got, "waiting: no leader")
	})
}

// A caller that waits for a short time again and again looks as often as one that waits long.
func TestShortWaitsLook(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, f, got := newPump()
		f.stall = errors.New("no leader")
		looks := 0
		p.Look = func(context.Context) error { looks++; return nil }
		send(p, "a1")
		for range 100 {
			if err := p.Wait(t.Context(), time.Now().Add(500*time.Millisecond), p.Room); err != nil {
				t.Fatal(err)
			}
		}
		if looks < 45 {
			t.Errorf("%d looks in 50 s", looks)
		}
		wants(t, got, "waiting: no leader")
	})
}

func TestWaitWaitsForATimeAndForTheEndOfItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, _, _ := newPump()
		began := time.Now()
		if err := p.Wait(t.Context(), began.Add(2500*time.Millisecond), p.Room); err != nil || time.Since(began) != 2500*time.Millisecond {
			t.Errorf("%v after %s", err, time.Since(began))
		}
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(time.Second, func() { cancel(errStop) })
		send(p, "a1")
		if err := p.Wait(ctx, time.Time{}, p.Landed); !errors.Is(err, errStop) {
			t.Error(err)
		}
	})
}
