package e2e

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/walpost/walpost/internal/shop"
	"github.com/walpost/walpost/internal/testenv"
	"github.com/walpost/walpost/outbox"
)

// A claims resolves the claims of a topic, as a consumer does, at the moment when it sees them.
type claims struct {
	sync.Mutex
	t      *testing.T
	store  outbox.FileStore
	values map[string][]string // of the records of a key, in order
	large  map[string][]byte   // payloads by event id
}

func (s *setting) resolve(store string, topics ...string) *claims {
	c := &claims{t: s.t, store: outbox.FileStore(store), values: map[string][]string{}, large: map[string][]byte{}}
	s.consume(topics, func(rec *kgo.Record) {
		c.Lock()
		defer c.Unlock()
		c.values[string(rec.Key)] = append(c.values[string(rec.Key)], string(rec.Value))
		id := ""
		for _, h := range rec.Headers {
			if h.Key == "id" {
				id = string(h.Value)
			}
		}
		payload, err := outbox.Fetch(s.t.Context(), c.store, rec.Value)
		if err != nil {
			s.t.Errorf("a record came before its payload: %v", err)
		}
		c.large[id] = payload
	})
	return c
}

// of returns the records of a key so far.
func (c *claims) of(key string) []string {
	c.Lock()
	defer c.Unlock()
	return append([]string(nil), c.values[key]...)
}

// The store is away for a while: walpost says why it waits, once, loses nothing, and goes on with other keys. It is killed while payloads
// wait for the store, and between an upload and its record. What comes again is the same, and the commands know the claims.
func TestAClaimComesAfterItsPayload(t *testing.T) {
	t.Parallel()
	for _, guarantee := range []string{"at_least_once", "exactly_once"} {
		t.Run(guarantee, func(t *testing.T) {
			t.Parallel()
			pg, kafka := testenv.Postgres(t, "17", testenv.Private(), testenv.Param("track_commit_timestamp", "on")), testenv.Kafka(t)
			s := newSetting(t, pg, pg.Database(t), kafka)
			pg.Exec(t, s.dsn, "ALTER TABLE outbox ADD COLUMN n bigint GENERATED ALWAYS AS IDENTITY")
			s.source = ", order_column: n"
			store := filepath.Join(t.TempDir(), "store")
			if err := os.Mkdir(store, 0o755); err != nil {
				t.Fatal(err)
			}
			s.extra = fmt.Sprintf("records: {claim_check: {over: 4KiB, store: file, path: %q}}\ndelivery: {guarantee: %s, on_poison: dead_letter, dead_letter_topic: %s}\n", store, guarantee, s.prefix+"dead")
			const large = 3 << 20 // more than a topic takes
			insert := func(typ, key string, n, size int) {
				pg.Exec(t, s.dsn, fmt.Sprintf(`INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload)
					SELECT '%s', '%s', 'x', jsonb_build_object('n', i, 'text', repeat('x', %d)) FROM generate_series(1, %d) i`, typ, key, size, n))
			}
			c := s.resolve(store, s.topics...)
			typ := shop.Types[0]
			s.startReady().stop()
			away := store + ".away"
			if err := os.Rename(store, away); err != nil {
				t.Fatal(err)
			}
			insert(typ, "k", 3, 10) // small ones before, between and behind
			insert(typ, "k", 8, large)
			insert(typ, "k", 3, 10)
			r, began := s.start(), time.Now()
			r.notReady(30*time.Second, "the store of records.claim_check")
			if before := len(c.of("k")); before > 3 {
				t.Fatalf("%d records came before the payloads", before)
			}
			if guarantee == "at_least_once" { // the window has room, and other partitions go on
				for i := range 20 {
					insert(typ, fmt.Sprint("other", i), 1, 10)
				}
				eventually(t, time.Minute, "another key", func() bool {
					n := 0
					for i := range 20 {
						n += len(c.of(fmt.Sprint("other", i)))
					}
					return n > 3
				})
			}
			if n := r.lines("delivery stalled", "the store of"); n < 1 || n > 1+int(time.Since(began)/time.Minute) {
				t.Errorf("%d lines about the store", n)
			}
			if code, out := s.command("check"); code != 1 || !strings.Contains(out, "FAIL  store: records.claim_check") {
				t.Errorf("check: code %d\n%s", code, out)
			}
			r.kill()
			r = s.start()
			r.notReady(30*time.Second, "the store of records.claim_check")
			if err := os.Rename(away, store); err != nil {
				t.Fatal(err)
			}
			eventually(t, time.Minute, "all came", func() bool { return len(c.of("k")) >= 14 })
			eventually(t, time.Minute, "ready", r.ready)
			claimsBetween(t, c.of("k"), 3, 8, 3)

			// Killed between the upload and the record, because the topic is missing.
			files := func() (n int) {
				all, err := os.ReadDir(store)
				if err != nil {
					t.Fatal(err)
				}
				for _, file := range all {
					if !strings.Contains(file.Name(), ".") { // otherwise it isn't complete, and a kill can leave it behind
						n++
					}
				}
				return n
			}
			had := files()
			insert("later", "k2", 2, large+1)
			eventually(t, time.Minute, "it is stored", func() bool { return files() == had+2 })
			r.kill()
			kafka.CreateTopic(t, s.prefix+"later", 1, nil)
			later := s.resolve(store, s.prefix+"later")
			r = s.startReady()
			eventually(t, time.Minute, "both came", func() bool { return len(later.of("k2")) >= 2 })
			if n := files(); n != had+2 && n != had+3 { // and perhaps the probe of check
				t.Errorf("%d files, and %d before", n, had)
			}
			claimsBetween(t, later.of("k2"), 0, 2, 0)

			if code, out := s.command("check"); code != 0 || !strings.Contains(out, "walpost can write to the store") {
				t.Errorf("check: code %d\n%s", code, out)
			}
			if code, out := s.verify(); code != 0 {
				t.Errorf("verify: code %d\n%s", code, out)
			}
			before := c.of("k")
			if code, out := s.command("replay", "--until", time.Now().UTC().Format(time.RFC3339)); code != 0 {
				t.Errorf("replay: code %d\n%s", code, out)
			}
			eventually(t, time.Minute, "all came again", func() bool { return len(c.of("k")) >= len(before)+14 })
			if again := c.of("k")[len(before):]; strings.Join(again, "\n") != strings.Join(before[len(before)-14:], "\n") {
				t.Error("a replayed record differs")
			}
			c.Lock()
			for id, payload := range c.large {
				if len(payload) > 1000 && (len(payload) < large || !bytes.HasSuffix(payload, []byte(`xxx"}`))) {
					t.Errorf("event %s has %d bytes", id, len(payload))
				}
			}
			c.Unlock()
			r.stopsClean()
		})
	}
}

// claimsBetween checks that the last records of a key are as many small ones, claims and small ones, each claim another one.
func claimsBetween(t *testing.T, values []string, small, large, smaller int) {
	t.Helper()
	seen := map[string]bool{}
	for i, v := range values[len(values)-small-large-smaller:] {
		claim := strings.HasPrefix(v, `{"walpost_claim"`)
		if claim != (i >= small && i < small+large) || claim && seen[v] {
			t.Errorf("record %d: %.200s", i, v)
		}
		seen[v] = true
	}
}

// A key is parked with values that no topic would take: their letters have the claims, and so have the records that are released.
func TestParkedEventsKeepTheirClaims(t *testing.T) {
	t.Parallel()
	pg, kafka := testenv.Postgres(t, "17"), testenv.Kafka(t)
	s := newSetting(t, pg, pg.Database(t), kafka)
	s.source = ", slot: " + s.slot() // the server is shared
	store := t.TempDir()
	s.extra = fmt.Sprintf("records: {claim_check: {over: 4KiB, store: file, path: %q}}\ndelivery: {on_poison: park_key, parking_topic: %s, dead_letter_topic: %s}\n", store, s.prefix+"parked", s.prefix+"dead")
	c := s.resolve(store, s.topics...)
	r := s.startReady()
	insert := func(typ string, n, size int) {
		pg.Exec(t, s.dsn, fmt.Sprintf(`INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload)
			SELECT '%s', 'k', 'x', jsonb_build_object('n', i, 'text', repeat('x', %d)) FROM generate_series(1, %d) i`, typ, size, n))
	}
	parked := func(n float64) {
		eventually(t, time.Minute, fmt.Sprint(n, " are parked"), func() bool { return r.metric("walpost_parked_events") == n })
	}
	insert("no topic", 1, 10)
	parked(1)
	insert(shop.Types[0], 4, 3_000_000)
	parked(5)
	if got := c.of("k"); len(got) > 0 {
		t.Fatalf("%d events were not parked", len(got))
	}
	token := regexp.MustCompile(`"token":"([^"]+)"`).FindStringSubmatch(r.log.String())[1] // of the only bad event
	for _, args := range [][]string{{"drop", "--reason", "a test", token}, {"retry", "--all"}} {
		if code, out := s.command(append([]string{"dead"}, args...)...); code != 0 {
			t.Fatalf("dead %s: code %d\n%s", args[0], code, out)
		}
	}
	eventually(t, time.Minute, "all came", func() bool { return len(c.of("k")) >= 4 })
	claimsBetween(t, c.of("k"), 0, 4, 0)
	r.stopsClean()
}
