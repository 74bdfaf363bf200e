package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// A row whose event cannot be routed does not keep recover from closing the gap. The policy decides about it, and an event that is a
// dead letter or parked already is left alone.
func TestRecoverWithRowsThatCannotBeRouted(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		policy         string
		badInGap, left int    // bad rows of the gap, and bad events afterwards
		said           string // by recover
	}{
		{"dead_letter", 1, 2, "1 other rows are left out"},
		{"park_key", 0, 3, "2 other rows are left out"},
		{"halt", 1, 1, "recovered: 2 rows were published"},
	} {
		t.Run(c.policy, func(t *testing.T) {
			t.Parallel()
			s := newLossy(t, 1)
			policy := func(is string) {
				s.extra = fmt.Sprintf("halt_linger: 0s\ndelivery: {on_poison: %s, dead_letter_topic: %sdead, parking_topic: %sparked}\n", is, s.prefix, s.prefix)
			}
			insert := func(typ, key string, n int) {
				s.pg.Exec(t, s.dsn, fmt.Sprintf("INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload) VALUES (%s, '%s', 'made', '{\"n\": %d}')", typ, key, n))
			}
			s.pg.Exec(t, s.dsn, "ALTER TABLE outbox ALTER aggregate_type DROP NOT NULL")
			policy(strings.Replace(c.policy, "halt", "dead_letter", 1))
			r, w := s.startReady(), s.follow()
			insert("NULL", "a", 1)
			insert("'order'", "a", 2)
			insert("'order'", "b", 1)
			n := 2
			if c.policy == "park_key" {
				n = 1
			}
			eventually(t, time.Minute, "the good events arrive", func() bool { return w.count() == n })
			eventually(t, time.Minute, "the bad events are in their topic", func() bool {
				_, out := s.command("dead", "list")
				return strings.Contains(out, fmt.Sprintf("events: %d\n", 3-n))
			})
			r.stopsClean()
			insert("'order'", "a", 3)
			insert("'order'", "b", 2)
			for range c.badInGap {
				insert("NULL", "b", 3)
			}
			s.lose()
			policy(c.policy)
			code, out := s.command("recover", "--yes")
			if c.policy == "halt" {
				if code != 3 || !strings.Contains(out, "Or update or delete the row. Then run walpost recover --config ") {
					t.Errorf("recover of a bad row: code %d\n%s", code, out)
				}
				s.pg.Exec(t, s.dsn, "DELETE FROM outbox WHERE aggregate_type IS NULL AND aggregate_id = 'b'")
				code, out = s.command("recover", "--yes")
			} else if strings.Contains(out, "1 of the missing rows cannot be routed") != (c.badInGap > 0) {
				t.Errorf("what recover says of the bad row:\n%s", out)
			}
			if code != 0 || !strings.Contains(out, c.said) {
				t.Errorf("recover: code %d, it did not say %q\n%s", code, c.said, out)
			}
			r = s.startReady()
			insert("'order'", "c", 1)
			arrived := 5
			if c.policy == "park_key" {
				arrived = 3
			}
			eventually(t, time.Minute, fmt.Sprintf("%d events arrive", arrived), func() bool { return w.count() == arrived })
			if _, out := s.command("dead", "list"); !strings.Contains(out, fmt.Sprintf("events: %d\n", c.left)) {
				t.Errorf("not %d bad events:\n%s", c.left, out)
			}
			r.stopsClean()
			if code, out := s.command("verify"); code != 0 {
				t.Errorf("verify: code %d\n%s", code, out)
			}
		})
	}
}
