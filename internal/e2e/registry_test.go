package e2e

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sr/srfake"

	"github.com/walpost/walpost/internal/shop"
	"github.com/walpost/walpost/internal/testenv"
)

// The schema registry is down or refuses at each start of walpost, which is killed each time. walpost waits, and says why, once. Everything
// arrives in order, and what is delivered again has the same bytes, so the same ids. Then the commands that read the table do so, too.
func TestAFailingSchemaRegistryLosesNothing(t *testing.T) {
	t.Parallel()
	const rows = 1500
	pg, kafka := testenv.Postgres(t, "17", testenv.Private(), testenv.Param("track_commit_timestamp", "on")), testenv.Kafka(t)
	s := newSetting(t, pg, pg.Database(t), kafka)
	pg.Exec(t, s.dsn, "ALTER TABLE outbox ADD COLUMN n bigint GENERATED ALWAYS AS IDENTITY")
	s.source = ", order_column: n, snapshot: initial"         // the copy waits, too
	fake := srfake.New(srfake.WithAuth("Basic dTpwdy1hdnJv")) // u:pw-avro
	t.Cleanup(fake.Close)
	var refuses, asked atomic.Int64 // the status that it answers with instead, 0 for none; requests
	fake.Intercept(func(w http.ResponseWriter, _ *http.Request) bool {
		asked.Add(1)
		status := int(refuses.Load())
		if status != 0 {
			http.Error(w, fmt.Sprintf("refused with %d", status), status)
		}
		return status != 0
	})
	s.extra = fmt.Sprintf("records: {value.converter: avro}\nschema_registry: {urls: [%q], username: u, password: pw-avro}\ndelivery: {on_poison: dead_letter, dead_letter_topic: %s}\n", fake.URL(), s.prefix+"dead")
	w := s.follow()
	var logs []string
	for i, status := range []int{http.StatusServiceUnavailable, http.StatusUnauthorized, http.StatusNotFound, http.StatusUnprocessableEntity} {
		refuses.Store(int64(status))
		work := s.load(&shop.Shop{Writers: 2, Rows: rows, Seed: uint64(i), Tag: string(rune('a' + i))})
		r, began := s.start(), time.Now()
		r.notReady(30*time.Second, fmt.Sprintf("refused with %d", status))
		before := asked.Load()
		eventually(t, 30*time.Second, "it asks again", func() bool { return asked.Load() > before+2 })
		had := w.count()
		refuses.Store(0)
		eventually(t, 30*time.Second, "ready", r.ready)
		w.total(t, 30*time.Second, had+100)
		<-work.done
		if n := r.lines("delivery stalled", "refused with"); n < 1 || n > 1+int(time.Since(began)/time.Minute) { // Kafka may stall, too
			t.Errorf("%d lines about a registry that refuses with %d", n, status)
		}
		logs = append(logs, r.log.String())
		r.kill()
	}
	r := s.startReady()
	s.noLoss(w, time.Minute)
	until := time.Now().UTC().Format(time.RFC3339)
	refuses.Store(http.StatusServiceUnavailable)
	ends := func(line string, args ...string) { // not with rows that cannot be published
		if code, out := s.command(args...); code != 1 || !strings.Contains(out, "\n"+line) {
			t.Errorf("%s without a registry: code %d\n%s", args[0], code, out)
		}
	}
	ends("FAIL  registry: connection: schema registry: refused with 503", "check")
	ends("walpost: schema registry: ", "verify")
	ends("walpost: schema registry: ", "replay", "--until", until)
	refuses.Store(0)
	if code, out := s.command("check"); code != 0 || !strings.Contains(out, "registry: connection") {
		t.Errorf("check: code %d\n%s", code, out)
	}
	if code, out := s.verify(); code != 0 {
		t.Errorf("verify: code %d\n%s", code, out)
	}
	var mu sync.Mutex
	first, replayed, other := map[string]string{}, 0, 0
	s.consume(s.topics, func(rec *kgo.Record) {
		mu.Lock()
		defer mu.Unlock()
		last := rec.Headers[len(rec.Headers)-1]
		id := shop.Entry(rec).ID
		if last.Key != "walpost.origin" || string(last.Value) != "replay" {
			first[id] = string(rec.Value)
		} else if replayed++; first[id] != string(rec.Value) {
			other++
		}
	})
	if code, out := s.command("replay", "--until", until); code != 0 {
		t.Errorf("replay: code %d\n%s", code, out)
	}
	eventually(t, time.Minute, "all are replayed", func() bool { mu.Lock(); defer mu.Unlock(); return replayed >= len(first) && len(first) >= 4*rows })
	if mu.Lock(); other > 0 {
		t.Errorf("%d of %d replayed values differ from the first ones", other, replayed)
	}
	mu.Unlock()

	kafka.CreateTopic(t, s.prefix+"two", 1, nil)
	pg.Exec(t, s.dsn, "INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload) VALUES ('two words', 'bad', 'x', '{}')")
	eventually(t, time.Minute, "a dead letter", func() bool { _, out := s.command("dead", "list"); return strings.Contains(out, "bad") })
	s.router = `, route.topic.regex: '(?<routedByValue>\w+).*'` // mends it
	refuses.Store(http.StatusServiceUnavailable)
	ends("walpost: schema registry: ", "dead", "retry", "--all")
	refuses.Store(0)
	if code, out := s.command("dead", "retry", "--all"); code != 0 || !strings.Contains(out, "delivered and marked: 1") {
		t.Errorf("dead retry: code %d\n%s", code, out)
	}
	r.stopsClean()
	for _, log := range append(logs, r.log.String()) {
		if strings.Contains(log, "pw-avro") {
			t.Error("the log has the password")
		}
	}
}
