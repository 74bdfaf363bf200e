package inbox_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/walpost/walpost/inbox"
)

func TestAMessageWithoutAnIDIsRefusedOrKeyedByItsPosition(t *testing.T) {
	m := inbox.Message{Topic: "orders", Partition: 3, Offset: 42, Time: time.UnixMilli(1770000000123)}
	var refused *inbox.IDError
	if _, err := m.WithID(inbox.RefuseMissingID); !errors.As(err, &refused) || refused.Topic != "orders" || refused.Offset != 42 {
		t.Errorf("a message without an id gives %v", err)
	}
	if m, err := m.WithID(inbox.PositionAsID); err != nil || m.ID != "position:orders/3/42@1770000000123" {
		t.Errorf("the id is %q, %v", m.ID, err)
	}
	back := inbox.Message{Topic: "orders", Partition: 3, Offset: 99, Headers: []inbox.Header{{Key: "walpost.dead.position", Value: []byte("position:orders/3/42@1")}}}
	if m, err := back.WithID(inbox.PositionAsID); err != nil || m.ID != "position:orders/3/42@1" {
		t.Errorf("the id of a message that was sent back is %q, %v", m.ID, err)
	}
	back.Topic, back.Scope = "orders-2", "orders" // renamed, or walpost dead retry --to-topic
	if m, err := back.WithID(inbox.PositionAsID); err != nil || m.ID != "position:orders/3/42@1" {
		t.Errorf("the id of a message that was sent to another topic is %q, %v", m.ID, err)
	}
	for i := range int64(2) { // a service has forwarded the headers to its own topic
		f := inbox.Message{Topic: "order", Offset: i, Time: time.UnixMilli(7), Headers: back.Headers}
		if m, err := f.WithID(inbox.PositionAsID); err != nil || m.ID != fmt.Sprintf("position:order/0/%d@7", i) {
			t.Errorf("the id of a record with forwarded headers is %q, %v", m.ID, err)
		}
	}
	if _, err := back.WithID(inbox.RefuseMissingID); !errors.As(err, &refused) {
		t.Errorf("a message that was sent back without an id gives %v", err)
	}
	m.ID = "a"
	if m, err := m.WithID(inbox.PositionAsID); err != nil || m.ID != "a" {
		t.Errorf("the message's own id became %q, %v", m.ID, err)
	}
	for _, id := range []string{"a\x00b", "a\xff", strings.Repeat("x", 1025)} {
		m.ID = id
		if _, err := m.WithID(inbox.PositionAsID); !errors.As(err, &refused) {
			t.Errorf("the id %.20q gives %v", id, err)
		}
	}
}
