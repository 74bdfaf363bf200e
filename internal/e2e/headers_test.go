package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/walpost/walpost/internal/testenv"
)

// TestHeadersOfOneColumn: however a row is read, its column headers gives the record the same headers, and a row whose column is no object
// is a bad event.
func TestHeadersOfOneColumn(t *testing.T) {
	t.Parallel()
	pg, kafka := testenv.Postgres(t, "", testenv.Private()), testenv.Kafka(t)
	eachKind(t, func(t *testing.T, k kind) {
		s := k.newSetting(t, pg, kafka)
		dead := kafka.Topic(t, 1, nil)
		pg.Exec(t, s.dsn, "ALTER TABLE outbox ADD COLUMN headers jsonb")
		s.router = ", table.fields.additional.placement: 'headers:headers,event_type:header:eventType'"
		s.extra = fmt.Sprintf("delivery: {on_poison: dead_letter, dead_letter_topic: %s}", dead)
		r := s.startReady()
		seen := make(chan string, 100)
		s.consume(append(slices.Clone(s.topics), dead), func(rec *kgo.Record) {
			if rec.Topic == dead {
				seen <- fmt.Sprintf("dead letter: %q", rec.Headers)
				return
			}
			text := string(rec.Key)
			for _, h := range rec.Headers[1:] {
				text += fmt.Sprintf(" %s=%s", h.Key, h.Value)
			}
			seen <- text
		})
		next := func() string {
			t.Helper()
			select {
			case text := <-seen:
				return text
			case <-r.done:
				t.Fatal("the relay ended")
			case <-t.Context().Done():
			}
			return ""
		}
		write := func(key, headers string) {
			pg.Exec(t, s.dsn, fmt.Sprintf("INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload, headers) VALUES ('order', '%s', 'Changed', '{\"n\": 1}', %s)", key, headers))
		}
		const want = ` eventType=Changed b="ä" tenant=acme traceparent=00-0a`
		write("k1", `'{"traceparent": "00-0a", "tenant": "acme", "id": "mine", "eventType": "mine", "b": "\"ä\""}'`)
		if got := next(); got != "k1"+want {
			t.Errorf("record %s", got)
		}
		write("k2", "NULL")
		if got := next(); got != "k2 eventType=Changed" {
			t.Errorf("a record without headers: %s", got)
		}
		write("k3", `'["tenant"]'`)
		if got := next(); !strings.HasPrefix(got, "dead letter: ") || !strings.Contains(got, "column headers is not a JSON object") {
			t.Errorf("a row with an array: %s", got)
		}
		pg.Exec(t, s.dsn, "DELETE FROM outbox WHERE aggregate_id = 'k3'")
		if k.removes {
			r.stopsClean()
			return
		}
		if code, out := s.command("explain", "--last", "2"); code != 0 || !strings.Contains(out, "traceparent") || !strings.Contains(out, "00-0a") {
			t.Errorf("explain: code %d\n%s", code, out)
		}
		if code, out := s.command("check"); strings.Contains(out, "unused columns") {
			t.Errorf("check: code %d\n%s", code, out)
		}
		if !k.claims {
			if code, out := s.command("verify"); code != 0 {
				t.Errorf("verify: code %d\n%s", code, out)
			}
			if code, out := s.command("replay", "--all"); code != 0 {
				t.Fatalf("replay: code %d\n%s", code, out)
			}
			if got := []string{next(), next()}; !slices.Contains(got, "k1"+want+" walpost.origin=replay") || !slices.Contains(got, "k2 eventType=Changed walpost.origin=replay") {
				t.Errorf("replayed: %q", got)
			}
		}
		r.stopsClean()
	})
}
