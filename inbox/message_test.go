package inbox

import (
	"errors"
	"strings"
	"testing"
)

func TestAMessageWithoutAnIDIsRefusedOrKeyedByItsPosition(t *testing.T) {
	m := Message{Topic: "orders", Partition: 3, Offset: 42}
	var refused *IDError
	if _, err := m.WithID(RefuseMissingID); !errors.As(err, &refused) || refused.Topic != "orders" || refused.Offset != 42 {
		t.Errorf("a message without an id gives %v", err)
	}
	if m, err := m.WithID(PositionAsID); err != nil || m.ID != "position:orders/3/42" {
		t.Errorf("the id is %q, %v", m.ID, err)
	}
	m.ID = "a"
	if m, err := m.WithID(PositionAsID); err != nil || m.ID != "a" {
		t.Errorf("the message's own id became %q, %v", m.ID, err)
	}
	for _, id := range []string{"a\x00b", "a\xff", strings.Repeat("x", maxID+1)} {
		m.ID = id
		if _, err := m.WithID(PositionAsID); !errors.As(err, &refused) {
			t.Errorf("the id %.20q gives %v", id, err)
		}
	}
}
