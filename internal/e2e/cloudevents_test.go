package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/walpost/walpost/internal/testenv"
)

// TestEveryCommandMakesTheSameCloudEvent: a replayed event has the source, the id and the document of its first record, verify finds both,
// and a row that is no CloudEvent is a bad event like any other.
func TestEveryCommandMakesTheSameCloudEvent(t *testing.T) {
	t.Parallel()
	pg, kafka := testenv.Postgres(t, "17", testenv.Private(), testenv.Param("track_commit_timestamp", "on")), testenv.Kafka(t)
	for mode, guarantee := range map[string]string{"binary": "at_least_once", "structured": "exactly_once"} {
		t.Run(mode, func(t *testing.T) {
			s := newSetting(t, pg, pg.Database(t), kafka)
			dead := kafka.Topic(t, 1, nil)
			s.router = ", table.field.event.timestamp: created_at"
			s.extra = fmt.Sprintf("records: {cloudevents: %s, cloudevents.source: /shop}\ndelivery: {guarantee: %s, on_poison: dead_letter, dead_letter_topic: %s}", mode, guarantee, dead)
			r := s.startReady()
			seen := make(chan *kgo.Record, 100)
			s.consume(append(slices.Clone(s.topics), dead), func(rec *kgo.Record) { seen <- rec })
			next := func() (text, origin string) {
				t.Helper()
				select {
				case rec := <-seen:
					text = fmt.Sprintf("%s=%s", rec.Key, rec.Value)
					for _, h := range rec.Headers {
						if h.Key == "walpost.origin" {
							origin = string(h.Value)
						} else {
							text += fmt.Sprintf(" %s=%s", h.Key, h.Value)
						}
					}
				case <-r.done:
					t.Fatal("the relay ended")
				case <-t.Context().Done():
				}
				return text, origin
			}
			write := func(key, typ string) {
				pg.Exec(t, s.dsn, fmt.Sprintf("INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload) VALUES ('order', '%s', '%s', '{\"n\": 1}')", key, typ))
			}
			write("k1", "Placed")
			first, _ := next()
			want := []string{"ce_source=/shop", "ce_type=Placed", "ce_subject=k1", "ce_time=", "content-type=application/json", `k1={"n": 1} id=`}
			if mode == "structured" {
				want = []string{`"source":"/shop","type":"Placed","subject":"k1","time":"`, `"data":{"n": 1}}`, "content-type=application/cloudevents+json"}
			}
			for _, part := range want {
				if !strings.Contains(first, part) {
					t.Errorf("record %s has no %s", first, part)
				}
			}
			write("k2", "")
			if got, _ := next(); !strings.Contains(got, "column event_type is empty, and a CloudEvent needs a type") {
				t.Errorf("a row without a type: %s", got)
			}
			pg.Exec(t, s.dsn, "DELETE FROM outbox WHERE aggregate_id = 'k2'")
			if code, out := s.command("verify"); code != 0 {
				t.Errorf("verify: code %d\n%s", code, out)
			}
			if code, out := s.command("explain", "--last", "1"); code != 0 || !strings.Contains(out, "/shop") {
				t.Errorf("explain: code %d\n%s", code, out)
			}
			if code, out := s.command("check"); strings.Contains(out, "unused columns") {
				t.Errorf("check: code %d\n%s", code, out)
			}
			if code, out := s.command("replay", "--all"); code != 0 {
				t.Fatalf("replay: code %d\n%s", code, out)
			}
			if got, origin := next(); got != first || origin != "replay" {
				t.Errorf("replayed by %q: %s, want %s", origin, got, first)
			}
			if code, out := s.command("verify"); code != 0 {
				t.Errorf("verify: code %d\n%s", code, out)
			}
			r.stopsClean()
		})
	}
}
