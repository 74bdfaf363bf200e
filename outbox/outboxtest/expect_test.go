package outboxtest_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/walpost/walpost/outbox"
	"github.com/walpost/walpost/outbox/outboxtest"
)

// A test is a testing.TB that keeps the messages of Errorf.
type test struct {
	testing.TB
	said []string
}

func (t *test) Helper() {}

func (t *test) Errorf(format string, args ...any) {
	t.said = append(t.said, fmt.Sprintf(format, args...))
}

func expect(got []outbox.Event, want ...outbox.Event) string {
	var t test
	outboxtest.Expect(&t, got, want...)
	return strings.Join(t.said, "\n")
}

func TestExpectComparesWhatIsWanted(t *testing.T) {
	got := outbox.Event{ID: "01", AggregateType: "order", AggregateID: "4711", Type: "OrderPlaced", Payload: []byte(`{"id": 1, "total": 12.50}`), Headers: map[string]string{"a": "1", "b": "2"}}
	payload := func(v any) outbox.Event { return outbox.Event{Payload: v} }
	for name, c := range map[string]struct {
		got, want outbox.Event
		same      bool
	}{
		"nothing":           {got, outbox.Event{}, true},
		"itself":            {got, got, true},
		"the id":            {got, outbox.Event{ID: "02"}, false},
		"an id in capitals": {outbox.Event{ID: "0a"}, outbox.Event{ID: "0A"}, true},
		"the type":          {got, outbox.Event{Type: "OrderPaid"}, false},
		"the key":           {got, outbox.Event{AggregateID: "4712"}, false},
		"the aggregate":     {got, outbox.Event{AggregateType: "mail"}, false},
		"some headers":      {got, outbox.Event{Headers: map[string]string{"b": "2"}}, true},
		"another header":    {got, outbox.Event{Headers: map[string]string{"b": "3"}}, false},
		"a further header":  {got, outbox.Event{Headers: map[string]string{"c": ""}}, false},

		"a struct":              {got, payload(struct{ Total, Id float64 }{12.5, 1}), false}, // other names
		"a map":                 {got, payload(map[string]any{"total": 12.5, "id": 1}), true},
		"bytes of JSON":         {got, payload([]byte(`{"total":12.50,"id":1.0}`)), true},
		"raw JSON":              {got, payload(json.RawMessage(`{"total":12.50,"id":1}`)), true},
		"another number":        {got, payload(map[string]any{"total": 12.51, "id": 1}), false},
		"a missing field":       {got, payload(map[string]any{"id": 1}), false},
		"a further field":       {got, payload(map[string]any{"total": 12.5, "id": 1, "x": nil}), false},
		"a large number":        {payload([]byte(`9007199254740993`)), payload([]byte(`9007199254740992`)), false},
		"an exponent":           {payload([]byte(`[100]`)), payload([]byte(`[1e2]`)), true},
		"an array":              {payload([]byte(`[1, "a", null, true]`)), payload([]any{1, "a", nil, true}), true},
		"its order":             {payload([]byte(`[1, "a"]`)), payload([]any{"a", 1}), false},
		"a string":              {payload([]byte(`"text"`)), payload("text"), true},
		"a text":                {payload([]byte(`text`)), payload("text"), true},
		"another text":          {payload([]byte(`text`)), payload("next"), false},
		"bytes":                 {payload([]byte{0, 1}), payload([]byte{0, 1}), true},
		"other bytes":           {payload([]byte{0, 1}), payload([]byte{0, 2}), false},
		"JSON and more":         {payload([]byte(`1 1`)), payload([]byte(`1`)), false},
		"Null":                  {payload(outbox.Null), payload(outbox.Null), true},
		"a value":               {payload(outbox.Null), payload([]byte(`null`)), false},
		"no value":              {payload([]byte(`null`)), payload(outbox.Null), false},
		"what has no JSON":      {got, payload(make(chan int)), false},
		"an empty object":       {payload(outbox.Null), payload(struct{}{}), false},
		"no value but an empty": {payload([]byte(`{}`)), payload(outbox.Null), false},
	} {
		if said := expect([]outbox.Event{c.got}, c.want); (said == "") != c.same {
			t.Errorf("%s: %q", name, said)
		}
	}
	if said := expect(nil); said != "" {
		t.Error(said)
	}
}

func TestExpectSaysWhichEventsDiffer(t *testing.T) {
	got := []outbox.Event{
		{ID: "01", AggregateType: "order", AggregateID: "4711", Type: "OrderPlaced", Payload: []byte(`{"total": 12}`), Headers: map[string]string{"tenant": "acme", "a": "b"}},
		{ID: "02", AggregateType: "mail", AggregateID: "4711", Type: "MailWanted", Payload: outbox.Null},
	}
	for name, c := range map[string]struct {
		got  []outbox.Event
		want []outbox.Event
		said string
	}{
		"another payload": {got, []outbox.Event{{Type: "OrderPaid", Payload: map[string]int{"total": 13}, Headers: map[string]string{"a": "c", "x": "y"}}, {Payload: "x"}}, `
the outbox has 2 events, want 2:
  0: order 4711 OrderPlaced {"total": 12} a=b tenant=acme
     Type: got OrderPlaced, want OrderPaid
     Payload: got {"total": 12}, want {"total":13}
     Headers["a"]: got "b", want "c"
     Headers["x"]: missing, want "y"
  1: mail 4711 MailWanted without a payload
     Payload: got without a payload, want "x"`},
		"too many": {got, []outbox.Event{{Type: "OrderPlaced"}}, `
the outbox has 2 events, want 1:
  0: order 4711 OrderPlaced {"total": 12} a=b tenant=acme
  1: mail 4711 MailWanted without a payload
     not wanted`},
		"too few": {got[:1], []outbox.Event{{}, {Type: "MailWanted"}}, `
the outbox has 1 events, want 2:
  0: order 4711 OrderPlaced {"total": 12} a=b tenant=acme
  1: missing: … … MailWanted …`},
		"bytes": {[]outbox.Event{{AggregateType: "a", AggregateID: "b", Type: "c", Payload: []byte{1}}}, nil, `
the outbox has 1 events, want 0:
  0: a b c "\x01"
     not wanted`},
	} {
		if said := "\n" + expect(c.got, c.want...); said != c.said {
			t.Errorf("%s:%s", name, said)
		}
	}
}
