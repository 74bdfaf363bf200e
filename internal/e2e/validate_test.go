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
	"github.com/twmb/franz-go/pkg/sr"
	"github.com/twmb/franz-go/pkg/sr/srfake"

	"github.com/walpost/walpost/internal/testenv"
)

// A documentRegistry has the JSON schemas of one subject.
type documentRegistry struct {
	*srfake.Registry
	subject string
	version int
	down    atomic.Bool
}

// checks has a setting check its payloads for the first type of the shop.
func (s *setting) checks() *documentRegistry {
	s.t.Helper()
	d := &documentRegistry{Registry: srfake.New(), subject: s.topics[0] + "-value"}
	s.t.Cleanup(d.Close)
	d.Intercept(func(w http.ResponseWriter, _ *http.Request) bool {
		if d.down.Load() {
			http.Error(w, "no leader", http.StatusServiceUnavailable)
		}
		return d.down.Load()
	})
	s.extra += fmt.Sprintf("\nrecords: {validate: json_schema}\nschema_registry: {urls: [%q]}\n", d.URL())
	return d
}

func (d *documentRegistry) register(schema string) {
	d.version++
	d.SeedSchema(d.subject, d.version, 100+d.version, sr.Schema{Type: sr.TypeJSON, Schema: schema})
}

// A payload that does not fit halts the relay, with the place in the payload. It is delivered once a version is registered that it fits,
// or skipped.
func TestAPayloadThatDoesNotFitItsSchemaHalts(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "16")
	d := w.checks()
	put := func(payload string) string {
		return w.pg.Value(t, w.dsn, fmt.Sprintf("INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload) VALUES ('order', 'k1', 'made', '%s') RETURNING id::text", payload))
	}
	r := w.startReady()
	good := w.insert(3)
	r.notReady(time.Minute, fmt.Sprintf("subject %q has no schema", d.subject)) // not a bad event
	d.register(`{"properties": {"n": {"type": "integer"}, "lines": {"items": {"required": ["sku"]}}}}`)
	w.arrive(good)
	bad := put(`{"n": 2, "lines": [{"sku": 1}, {}]}`)
	after := w.insert(3)
	halted := func(place string) {
		t.Helper()
		eventually(t, time.Minute, "halted", func() bool { return r.view().State == "halted" })
		if code := r.stop(); code != 3 || !strings.Contains(r.log.String(), place) || !strings.Contains(hintOf(r.log.String()), "register a version") {
			t.Errorf("code %d", code)
		}
	}
	halted(fmt.Sprintf(`records.validate: column payload does not fit version 1 of subject \"%s\" at /lines/1: missing property 'sku'`, d.subject))
	if code, out := w.command("explain", "--id", bad); code == 0 || !strings.Contains(out, "at /lines/1") {
		t.Errorf("explain: code %d\n%s", code, out)
	}
	d.register(`{"properties": {"n": {"type": "integer"}}}`)
	r = w.startReady()
	w.arrive([]string{bad})
	w.arrive(after)
	put(`{"n": "x"}`)
	last := w.insert(3)
	halted(`at /n: got string, want integer`)
	if code, out := w.command("skip", skipToken.FindStringSubmatch(hintOf(r.log.String()))[1]); code != 0 {
		t.Errorf("skip: code %d\n%s", code, out)
	}
	r = w.startReady()
	w.arrive(last)
	r.stopsClean()
}

// The events of a key follow a payload that does not fit once it fits.
func TestAPayloadThatDoesNotFitItsSchemaParksItsKey(t *testing.T) {
	t.Parallel()
	s := newParkedSetting(t, testenv.Postgres(t, "16", testenv.Private()), testenv.Kafka(t), "guarantee: exactly_once, on_poison: park_key")
	d := s.checks()
	d.register(`{"not": {"const": 2}}`)
	r := s.startReady()
	var mu sync.Mutex
	came := ""
	s.consume(s.topics[:1], func(rec *kgo.Record) {
		mu.Lock()
		defer mu.Unlock()
		came += string(rec.Value) + " "
	})
	arrives := func(want string) {
		t.Helper()
		eventually(t, time.Minute, want, func() bool { mu.Lock(); defer mu.Unlock(); return came == want+" " })
	}
	for n, key := range []string{1: "a", 2: "a", 3: "a", 4: "b"} {
		if n > 0 {
			s.insert(n, 0, key)
		}
	}
	s.holds(r, 2)
	arrives("1 4")
	if code, out := s.command("dead", "retry", "--all", "--wait"); code != 1 || !strings.Contains(out, "refused again: 1") {
		t.Errorf("retry: code %d\n%s", code, out)
	}
	d.register(`{"not": {"const": 7}}`)
	d.down.Store(true)
	s.insert(5, 0, "c") // they fit the version that walpost knows
	s.insert(8, 0, "d")
	arrives("1 4 5 8")
	d.down.Store(false)
	s.does("dead", "retry", "--key", "a", "--wait")
	s.insert(9, 0, "a")
	arrives("1 4 5 8 2 3 9")
	r.stopsClean()
}

// With dead letters, and with the commands that read the table: a row that is in Kafka is not judged by a later version.
func TestAPayloadThatDoesNotFitItsSchemaIsADeadLetter(t *testing.T) {
	t.Parallel()
	s := newParkedSetting(t, testenv.Postgres(t, "17", testenv.Private(), testenv.Param("track_commit_timestamp", "on")), testenv.Kafka(t), "on_poison: dead_letter")
	d := s.checks()
	d.register(`{"not": {"const": 2}}`)
	r := s.startReady()
	for n := 1; n < 5; n++ {
		s.insert(n, 0, "a")
	}
	s.arrives(s.topics[0], "1 3 4")
	if code, out := s.command("dead", "retry", "--all"); code != 1 || !strings.Contains(out, "refused again: 1") {
		t.Errorf("retry: code %d\n%s", code, out)
	}
	if out := s.does("verify"); !strings.Contains(out, "dead letter: 1") {
		t.Errorf("verify\n%s", out)
	}
	d.register(`{}`)
	s.does("dead", "retry", "--all")
	s.arrives(s.topics[0], "1 3 4 2")
	r.stopsClean()

	d.register(`{"not": {"enum": [1, 3, 6]}}`)
	if out := s.does("verify"); strings.Contains(out, "cannot be routed") {
		t.Errorf("verify\n%s", out)
	}
	if code, out := s.command("replay", "--key", "a", "--state", t.TempDir()+"/replay"); code != 3 || !strings.Contains(out, "does not fit version 3") {
		t.Errorf("replay: code %d\n%s", code, out)
	}
	if code, out := s.command("check"); code != 0 || !strings.Contains(out, "does not fit version 3") {
		t.Errorf("check: code %d\n%s", code, out)
	}
	s.pg.Exec(t, s.dsn, "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots")
	s.insert(5, 0, "b")
	s.insert(6, 0, "b")
	d.down.Store(true)
	if code, out := s.waits("no leader", func() { d.down.Store(false) }, "recover", "--yes"); code != 0 || !strings.Contains(out, "2 are missing") {
		t.Errorf("recover: code %d\n%s", code, out)
	}
	s.arrives(s.topics[0], "1 3 4 2 5")
	if out := s.does("dead", "list"); !strings.HasSuffix(out, "events: 1\n") {
		t.Errorf("dead list\n%s", out)
	}
}
