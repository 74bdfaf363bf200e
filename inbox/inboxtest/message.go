// Package inboxtest helps to test message handlers: it builds messages as walpost delivers them,
// and delivers each one twice.
package inboxtest

import (
	"cmp"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/walpost/walpost/inbox"
)

// An Event is what a service writes into its outbox. It has the fields of outbox.Event, so Event(e)
// converts an outbox.Event e.
type Event struct {
	ID            string // default: a new UUID
	AggregateType string
	AggregateID   string
	Type          string
	// Payload is the value. []byte and json.RawMessage are used as they are, nil and outbox.Null
	// mean no value, and json.Marshal encodes everything else.
	Payload any
	Headers map[string]string
}

// Message returns an event as a consumer gets it from a relay with the default routing and the
// placement of outbox.Placement: the topic outbox.event.<AggregateType>, the AggregateID as the key,
// the headers id and eventType, and the Headers of the event. Group is "inboxtest", and Attempt is 1.
// Change what differs.
func Message(t testing.TB, e Event) inbox.Message {
	t.Helper()
	if e.ID == "" {
		e.ID = newID()
	}
	value, err := payload(e.Payload)
	if err != nil {
		t.Fatalf("the Payload of the event: %v", err)
	}
	m := inbox.Message{
		Group: "inboxtest", Attempt: 1, ID: e.ID, Topic: "outbox.event." + e.AggregateType, Key: []byte(e.AggregateID), Value: value, Time: time.Now().Truncate(time.Millisecond),
		Headers: []inbox.Header{{Key: "id", Value: []byte(e.ID)}, {Key: "eventType", Value: []byte(e.Type)}},
	}
	// The order of the fields of a jsonb.
	for _, name := range slices.SortedFunc(maps.Keys(e.Headers), func(a, b string) int { return cmp.Or(len(a)-len(b), cmp.Compare(a, b)) }) {
		m.Headers = append(m.Headers, inbox.Header{Key: name, Value: []byte(e.Headers[name])})
	}
	return m
}

func newID() string {
	var b [16]byte
	_, _ = rand.Read(b[:])  // it never fails
	b[6] = b[6]&0x0f | 0x40 // a random UUID (RFC 9562)
	b[8] = b[8]&0x3f | 0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

func payload(v any) ([]byte, error) {
	switch v := v.(type) {
	case nil:
		return nil, nil
	case []byte:
		return v, nil
	case json.RawMessage:
		return v, nil
	}
	// The type of outbox.Null. This package does not link package outbox.
	if typ := reflect.TypeOf(v); typ.PkgPath() == "github.com/walpost/walpost/outbox" && typ.Name() == "null" {
		return nil, nil
	}
	return json.Marshal(v)
}
