package e2e

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/walpost/walpost/internal/testenv"
)

// One record is larger than its topic allows. Each policy does the same for each kind of source, and so do the commands for bad events.
func TestEachSourceWithARefusedRecord(t *testing.T) {
	t.Parallel()
	eachKind(t, func(t *testing.T, k kind) {
		pg, kafka := testenv.Postgres(t, "17", testenv.Param("track_commit_timestamp", "on")), testenv.Kafka(t)
		for policy, c := range map[string]struct {
			beside, left int    // records that arrive before a person acts, and events in the list
			verified     string // what verify says before a person acts
		}{
			"halt":        {2, 0, ""},
			"dead_letter": {3, 1, "rows whose event is not in its topic, but is a dead letter: 1"},
			"park_key":    {2, 2, "rows whose event is not in its topic, but is a parked event: 2"},
		} {
			t.Run(policy, func(t *testing.T) {
				s := k.newSetting(t, pg, kafka)
				small := s.prefix + "small"
				kafka.CreateTopic(t, small, 1, map[string]string{"max.message.bytes": "2000"})
				s.topics = append(s.topics, small)
				s.extra = fmt.Sprintf("halt_linger: 0s\ndelivery: {on_poison: %s, dead_letter_topic: %s, parking_topic: %s}\n", policy, s.prefix+"dead", s.prefix+"parked")
				if k.claims && policy == "park_key" {
					if code, out := s.command("check"); code != 2 || !strings.Contains(out, "park_key") {
						t.Errorf("check: code %d\n%s", code, out)
					}
					return
				}
				if code, out := s.command("check"); code != 0 {
					t.Errorf("check: code %d\n%s", code, out)
				}
				w := s.follow()
				r := s.startReady()
				insert := func(key string, n, size int) (id string) {
					return pg.Value(t, s.dsn, fmt.Sprintf(`INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload) SELECT 'small', '%s', 'Changed',
 jsonb_build_object('n', %d, 'noise', (SELECT string_agg(md5(i::text || random()), '') FROM generate_series(1, %d) i)) RETURNING id::text`, key, n, size))
				}
				insert("a", 1, 1)
				insert("b", 1, 1)
				w.total(t, time.Minute, 2)
				large := insert("a", 2, 200)
				if policy == "halt" {
					helps := "An UPDATE or DELETE of the row changes nothing"
					if k.poll != "" {
						helps = "Or update or delete the row."
					}
					if code := r.wait(time.Minute); code != 3 || !strings.Contains(r.log.String(), large) || !strings.Contains(r.log.String(), helps) {
						t.Fatalf("code %d\n%s", code, r.log)
					}
					if code, out := s.command("check"); !k.claims && (code != 1 || !strings.Contains(out, " halted the relay: ") || !strings.Contains(out, helps)) {
						t.Errorf("check: code %d, must say %q\n%s", code, helps, out)
					}
				}
				insert("a", 3, 1)
				if policy != "halt" {
					w.total(t, time.Minute, c.beside)
					eventually(t, time.Minute, "the list has the events", func() bool {
						code, out := s.command("dead", "list")
						return code == 0 && strings.Contains(out, fmt.Sprintf("events: %d\n", c.left))
					})
					if k.claims {
						k.finished(s)
					} else if code, out := s.command("verify"); code != 0 || !strings.Contains(out, c.verified) {
						t.Errorf("verify: code %d\n%s", code, out)
					}
				} else if k.claims {
					if left := pg.Value(t, s.dsn, "SELECT count(*) FROM outbox WHERE finished_at IS NULL"); left != "2" {
						t.Errorf("%s rows are not finished beside a halt", left)
					}
				} else if code, out := s.command("verify", "--wait", "1s"); code != 1 || !strings.Contains(out, "NOT JUDGED not_confirmed: 2 ") {
					t.Errorf("verify beside a halt: code %d\n%s", code, out)
				}
				explained := "too large for the topic"
				if k.removes && policy == "dead_letter" {
					explained = "no row has the event id"
				}
				if code, out := s.command("explain", "--id", large); code != 1 || !strings.Contains(out, explained) {
					t.Errorf("explain: code %d\n%s", code, out)
				}
				// The cause is mended, and nothing is lost.
				if policy == "halt" && k.poll != "" {
					pg.Exec(t, s.dsn, "UPDATE outbox SET payload = payload - 'noise' WHERE id = '"+large+"'")
				} else {
					kafka.Configure(t, "max.message.bytes", "2000000", small)
				}
				if policy == "halt" {
					if token := regexp.MustCompile(`walpost skip (\S+)`).FindStringSubmatch(r.log.String()); (token == nil) != k.claims {
						t.Errorf("the token is %q:\n%s", token, r.log)
					}
					r = s.startReady()
				} else if code, out := s.command("dead", "retry", "--all", "--wait"); code != 0 {
					t.Errorf("retry: code %d\n%s", code, out)
				}
				w.total(t, time.Minute, 4)
				if rep := s.settle(w, time.Minute); rep.Lost+rep.Invented+rep.Duplicates+rep.Moved > 0 || policy != "dead_letter" && rep.Disordered > 0 {
					t.Errorf("broken promises: %s", &rep)
				}
				if k.claims {
					k.finished(s)
				} else if code, out := s.command("verify", "--strict"); code != 0 {
					t.Errorf("verify: code %d\n%s", code, out)
				}
				r.stopsClean()
			})
		}
	})
}
