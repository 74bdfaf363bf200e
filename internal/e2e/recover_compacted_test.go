package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/walpost/walpost/internal/testenv"
)

// Compaction has removed the older events of a key. recover cannot tell them from missing ones, so it publishes them, but the newest
// row stays the newest event of the key. A key without a missing row is left alone.
func TestRecoverKeepsTheNewestEventOfACompactedTopic(t *testing.T) {
	t.Parallel()
	s := newLossy(t, 2)
	kafka := testenv.Kafka(t)
	topic := s.prefix + "state"
	s.topics = []string{topic}
	kafka.CreateTopic(t, topic, 1, map[string]string{"cleanup.policy": "compact,delete"}) // records of a topic with compact alone cannot be deleted
	client := kafka.Client(t)
	r, w := s.startReady(), s.follow()
	var ids []string
	for _, key := range []string{"a", "a", "a", "b"} {
		ids = append(ids, s.pg.Value(t, s.dsn, fmt.Sprintf("INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload) VALUES ('state', '%s', 'Changed', '{\"n\": 1}') RETURNING id::text", key)))
	}
	eventually(t, time.Minute, "four events", func() bool { return w.count() == 4 })
	r.stopsClean()
	var upTo kadm.Offsets
	upTo.Add(kadm.Offset{Topic: topic, At: 2, LeaderEpoch: -1})
	if deleted, err := kadm.NewClient(client).DeleteRecords(t.Context(), upTo); err != nil || deleted.Error() != nil {
		t.Fatal(err, deleted.Error())
	}
	s.lose()
	code, out := s.command("recover", "--yes")
	if code != 0 || !strings.Contains(out, "2 are missing") || !strings.Contains(out, "topic "+topic+" is compacted: ") || !strings.Contains(out, "recovered: 3 rows") {
		t.Fatalf("recover: code %d\n%s", code, out)
	}
	var got []string
	reader := kafka.Client(t, kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	for len(got) < 5 {
		fetches := reader.PollFetches(t.Context())
		if err := fetches.Err(); err != nil {
			t.Fatal(err)
		}
		fetches.EachRecord(func(rec *kgo.Record) {
			for _, h := range rec.Headers {
				if h.Key == "id" {
					got = append(got, string(h.Value))
				}
			}
		})
	}
	if want := []string{ids[2], ids[3], ids[0], ids[1], ids[2]}; !slices.Equal(got, want) {
		t.Errorf("the topic has %v, must have %v", got, want)
	}
}
