package consumer

import (
	"errors"
	"testing"
	"time"

	"github.com/walpost/walpost/inbox"
)

// A message that was sent back keeps its first time and position. Forwarded headers are another message's.
func TestALetterHasTheFirstTimeAndPositionOfItsOwnMessage(t *testing.T) {
	headers := []inbox.Header{{Key: headerTimestamp, Value: []byte("5")}, {Key: headerPosition, Value: []byte("position:orders/3/42@5")}}
	for _, c := range []struct {
		topic, scope string
		headers      []inbox.Header
		position, at string
	}{
		{"orders", "", headers, "position:orders/3/42@5", "5"},
		{"orders-2", "orders", headers, "position:orders/3/42@5", "5"},
		{"payments", "", headers, "position:payments/0/1@70", "70"},
		{"order", "", headers, "position:order/0/1@70", "70"},
		{"orders", "", headers[:1], "position:orders/0/1@70", "70"},
		{"orders", "", nil, "position:orders/0/1@70", "70"},
	} {
		m := inbox.Message{Topic: c.topic, Scope: c.scope, Offset: 1, Time: time.UnixMilli(70), Headers: c.headers}
		got := map[string]string{}
		for _, h := range letterOf(m, &verdict{reasonAttempts, errors.New("broken")}, 8, "group", "dead").Headers {
			got[h.Key] = string(h.Value)
		}
		if got[headerPosition] != c.position || got[headerTimestamp] != c.at {
			t.Errorf("%+v: position %q, timestamp %q", c, got[headerPosition], got[headerTimestamp])
		}
	}
}
