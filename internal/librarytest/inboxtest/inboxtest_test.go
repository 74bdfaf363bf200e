package inboxtest_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/walpost/walpost/inbox"
	"github.com/walpost/walpost/inbox/inboxtest"
	"github.com/walpost/walpost/outbox"
)

// A test is a testing.TB that keeps the message of Fatalf.
type test struct {
	testing.TB
	ctx  context.Context
	said string
}

func (t *test) Helper()                  {}
func (t *test) Context() context.Context { return t.ctx }

func (t *test) Fatalf(format string, args ...any) {
	t.said = fmt.Sprintf(format, args...)
	runtime.Goexit()
}

// said is what a test says that f makes fail, or "".
func said(t *testing.T, f func(t testing.TB)) string {
	fake := &test{ctx: t.Context()}
	done := make(chan struct{})
	go func() {
		defer close(done)
		f(fake)
	}()
	<-done
	return fake.said
}

func TestAMessageIsWhatARelayDelivers(t *testing.T) {
	e := outbox.Event{AggregateType: "order", AggregateID: "4711", Type: "Placed", Payload: map[string]int{"a": 1}, Headers: map[string]string{"tenant": "acme", "b": "2", "a": "1"}}
	m := inboxtest.Message(t, inboxtest.Event(e))
	if got, want := fmt.Sprintf("%s %s %s %s %s", m.Topic, m.Key, m.Value, m.Type(), m.Header("tenant")), `outbox.event.order 4711 {"a":1} Placed acme`; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	var headers []string
	for _, h := range m.Headers {
		headers = append(headers, h.Key)
	}
	if want := []string{"id", "eventType", "a", "b", "tenant"}; !slices.Equal(headers, want) {
		t.Errorf("headers %s, want %s", headers, want)
	}
	if uuid := regexp.MustCompile("^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$"); !uuid.MatchString(m.ID) || m.ID != m.Header("id") {
		t.Errorf("id %s, header %s", m.ID, m.Header("id"))
	}
	if again := inboxtest.Message(t, inboxtest.Event(e)); again.ID == m.ID {
		t.Error("two events have the same id")
	}
	e.ID = "01890a5d-ac96-774b-bcce-b302099a8057"
	if m := inboxtest.Message(t, inboxtest.Event(e)); m.ID != e.ID || m.Header("id") != e.ID {
		t.Errorf("id %s, want %s", m.ID, e.ID)
	}
}

func TestThePayloadOfAMessage(t *testing.T) {
	for _, c := range []struct {
		payload any
		want    string
	}{
		{nil, ""},
		{outbox.Null, ""},
		{[]byte("text"), "text"},
		{json.RawMessage(`{ }`), "{ }"},
		{"text", `"text"`},
		{struct{}{}, "{}"},
	} {
		m := inboxtest.Message(t, inboxtest.Event{Payload: c.payload})
		if string(m.Value) != c.want || (m.Value == nil) != (c.want == "") {
			t.Errorf("%#v: %q, want %q", c.payload, m.Value, c.want)
		}
	}
	if text := said(t, func(t testing.TB) { inboxtest.Message(t, inboxtest.Event{Payload: make(chan int)}) }); !strings.Contains(text, "unsupported type: chan int") {
		t.Error(text)
	}
}

var errNo = errors.New("the handler says no")

// A state is what handlers change.
type state struct{ effects []string }

func (s *state) effect() []string { return slices.Clone(s.effects) }

// once is a handler that has the effect of a message once.
func (s *state) once(_ context.Context, m inbox.Message) error {
	if !slices.Contains(s.effects, m.ID) {
		s.effects = append(s.effects, m.ID)
	}
	return nil
}

func TestTwiceFindsWhatIsNotOnce(t *testing.T) {
	m := inbox.Message{ID: "1", Topic: "t"}
	for name, c := range map[string]struct {
		handler func(s *state, calls int, m inbox.Message) error
		want    string
	}{
		"once":    {func(s *state, _ int, m inbox.Message) error { return s.once(t.Context(), m) }, ""},
		"never":   {func(*state, int, inbox.Message) error { return nil }, "message 1: the first delivery had no effect: it is [] as before"},
		"twice":   {func(s *state, _ int, m inbox.Message) error { s.effects = append(s.effects, m.ID); return nil }, "message 1: the second delivery had an effect: it was [1] before, and is [1 1] now"},
		"refused": {func(*state, int, inbox.Message) error { return errNo }, "message 1: the first delivery: the handler says no"},
		"refused at the second delivery": {func(s *state, calls int, m inbox.Message) error {
			if calls == 2 {
				return errNo
			}
			return s.once(t.Context(), m)
		}, "message 1: the second delivery: the handler says no"},
		"a panic": {func(*state, int, inbox.Message) error { panic("oh") }, "message 1: the first delivery: the handler panicked: oh"},
	} {
		var s state
		calls := 0
		text := said(t, func(t testing.TB) {
			inboxtest.Twice(t, func(_ context.Context, m inbox.Message) error { calls++; return c.handler(&s, calls, m) }, m, s.effect)
		})
		if text != c.want {
			t.Errorf("%s: %q, want %q", name, text, c.want)
		}
	}
}

func TestFailsFindsAnEffectAndASuccess(t *testing.T) {
	m := inbox.Message{ID: "1", Topic: "t"}
	for name, c := range map[string]struct {
		handler func(s *state, calls int) error
		want    string
	}{
		"it fails": {func(*state, int) error { return inbox.Permanent(errNo) }, ""},
		"a panic":  {func(*state, int) error { panic(errNo) }, ""},
		"success":  {func(*state, int) error { return nil }, "message 1: the first delivery did not fail"},
		"success at the second delivery": {func(_ *state, calls int) error {
			if calls == 1 {
				return errNo
			}
			return nil
		}, "message 1: the second delivery did not fail"},
		"an effect": {func(s *state, _ int) error { s.effects = append(s.effects, "x"); return errNo }, "message 1: the first delivery failed, and had an effect: it was [] before, and is [x] now. The error: the handler says no"},
	} {
		var s state
		var err error
		calls := 0
		text := said(t, func(t testing.TB) {
			err = inboxtest.Fails(t, func(context.Context, inbox.Message) error { calls++; return c.handler(&s, calls) }, m, s.effect)
		})
		if text != c.want {
			t.Errorf("%s: %q, want %q", name, text, c.want)
		}
		var panicked *inbox.PanicError
		if c.want == "" && !errors.Is(err, errNo) && !errors.As(err, &panicked) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
