package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/walpost/walpost/internal/testenv"
)

// A worker waits for an answer of Postgres that does not come, while its records wait for their topic. Its lease ends, and another worker claims the
// rows. Then the topic is made: those of the first worker must not arrive any more.
func TestNoRecordArrivesAfterItsLease(t *testing.T) {
	t.Parallel()
	pg, kafka := testenv.Postgres(t, "17"), testenv.Kafka(t)
	s := newSetting(t, pg, pg.Database(t), kafka)
	s.claimed(pg, "claim", "")
	s.source = strings.Replace(s.source, "lease: 20s", "lease: 8s", 1) // the test waits for its end
	link, direct := s.wired(pg), s.dsn
	first := s.startReady()
	var ids []string
	for n := 1; n <= 2; n++ {
		ids = append(ids, pg.Value(t, s.dsn, fmt.Sprintf("INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload) VALUES ('late', 'a', 'Changed', '{\"n\": %d}') RETURNING id::text", n)))
	}
	holder := func() string {
		return pg.Value(t, s.dsn, "SELECT coalesce(min(claimed_by), '') FROM outbox WHERE finished_at IS NULL")
	}
	eventually(t, time.Minute, "the first worker claims the rows", func() bool { return holder() != "" })
	was := holder()
	eventually(t, time.Minute, "its records wait", func() bool { return strings.Contains(fmt.Sprint(first.get("/readyz")), "late") })
	link.Stand()
	s.through = direct
	second := s.start()
	eventually(t, time.Minute, "the second worker claims the rows", func() bool {
		h := holder()
		return h != "" && h != was && h[:strings.Index(h, "#")] != was[:strings.Index(was, "#")]
	})
	kafka.CreateTopic(t, s.prefix+"late", 1, nil)
	s.topics = append(s.topics, s.prefix+"late")
	w := s.follow()
	eventually(t, time.Minute, "the events", func() bool { return w.ledger.Seen(ids...) == 2 })
	time.Sleep(3 * time.Second) // for what comes too much
	link.Move()
	if code := first.wait(time.Minute); code != 1 || !strings.Contains(first.log.String(), "events may be delivered twice") {
		t.Errorf("the first worker ended with code %d", code)
	}
	s.onceEach(w, time.Minute)
	second.stopsClean()
}
